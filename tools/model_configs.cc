#include "tools/model_configs.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

// As wide and deep as the authors' 370M, in transformers' format with its defaults.
Json StateSpaceConfig(const char* model_type, const Json& own) {
  Json config = {{"model_type", model_type}, {"vocab_size", 50280},   {"hidden_size", 1024},
                 {"num_hidden_layers", 48},  {"expand", 2},           {"conv_kernel", 4},
                 {"use_bias", false},        {"use_conv_bias", true}, {"hidden_act", "silu"},
                 {"residual_in_fp32", true}, {"bos_token_id", 0},     {"eos_token_id", 0}};
  config.update(own);
  return config;
}

}  // namespace

Json FlaConfig(absl::string_view model_type, const Json& own) {
  Json config = {{"model_type", std::string(model_type)},
                 {"vocab_size", 32000},
                 {"hidden_size", 1024},
                 {"num_hidden_layers", 24},
                 {"hidden_ratio", 4},
                 {"intermediate_size", nullptr},
                 {"hidden_act", "swish"},
                 {"norm_eps", 1e-6},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  config.update(own);
  return config;
}

Json MomConfig(int model_dim, int mlp_dim) {
  return {{"model_type", "mom"},
          {"vocab_size", 32000},
          {"hidden_size", model_dim},
          {"num_hidden_layers", 24},
          {"intermediate_size", mlp_dim},
          {"hidden_act", "swish"},
          {"norm_eps", 1e-6},
          {"num_heads", 4},
          {"head_dim", 256},
          {"expand_v", 1.0},
          {"use_short_conv", true},
          {"conv_size", 4},
          {"num_memories", 4},
          {"topk", 2},
          {"shared_mem", true},
          {"single_kv_proj", false},
          {"use_output_gate", true},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

Json MomGatedDeltaNetConfig() {
  Json config = MomConfig(1024, 2048);
  config["model_type"] = "mom_gated_deltanet";
  config.erase("use_output_gate");
  config["use_gate"] = true;
  return config;
}

Json GdnConfig(int model_dim, int mlp_dim) {
  return {{"model_type", "gated_deltanet"},
          {"vocab_size", 32000},
          {"hidden_size", model_dim},
          {"num_hidden_layers", 21},
          {"intermediate_size", mlp_dim},
          {"hidden_act", "swish"},
          {"norm_eps", 1e-6},
          {"num_heads", 6},
          {"head_dim", 256},
          {"expand_v", 2.0},
          {"use_short_conv", true},
          {"conv_size", 4},
          {"num_v_heads", 6},
          {"allow_neg_eigval", false},
          {"use_gate", true},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

Json Rwkv7Config(int model_dim, int layers) {
  return {{"model_type", "rwkv7"},
          {"vocab_size", 65536},
          {"hidden_size", model_dim},
          {"num_hidden_layers", layers},
          {"hidden_ratio", 4.0},
          {"intermediate_size", nullptr},
          {"hidden_act", "sqrelu"},
          {"norm_eps", 1e-5},
          {"norm_first", true},
          {"norm_bias", true},
          {"head_dim", 64},
          {"num_heads", nullptr},
          {"value_dim", nullptr},
          {"decay_low_rank_dim", model_dim < 2048 ? 64 : 96},
          {"a_low_rank_dim", model_dim < 2048 ? 64 : 96},
          {"v_low_rank_dim", model_dim < 2048 ? 32 : 64},
          {"gate_low_rank_dim", model_dim < 2048 ? 128 : 256},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

Json Rwkv6Config() {
  return {{"model_type", "rwkv6"},   {"vocab_size", 32000},     {"hidden_size", 1024},
          {"num_hidden_layers", 24}, {"hidden_ratio", 3.5},     {"intermediate_size", nullptr},
          {"hidden_act", "sqrelu"},  {"norm_eps", 1e-5},        {"norm_first", true},
          {"norm_bias", true},       {"num_heads", 4},          {"expand_k", 0.5},
          {"expand_v", 1.0},         {"proj_low_rank_dim", 32}, {"gate_low_rank_dim", 64},
          {"bos_token_id", 1},       {"eos_token_id", 2}};
}

Json MambaConfigOf(const char* model_type) {
  return StateSpaceConfig(
      model_type, {{"layer_norm_epsilon", 1e-5}, {"state_size", 16}, {"time_step_rank", 64}});
}

Json Mamba2ConfigOf() {
  return StateSpaceConfig("mamba2", {{"layer_norm_epsilon", 1e-5},
                                     {"state_size", 128},
                                     {"num_heads", 32},
                                     {"head_dim", 64},
                                     {"n_groups", 1}});
}

Json SambaConfig() {
  return StateSpaceConfig("samba", {{"norm_eps", 1e-5},
                                    {"state_size", 16},
                                    {"time_step_rank", 64},
                                    {"hidden_ratio", 4},
                                    {"attn", {{"layers", {1}}, {"num_heads", 16}}}});
}

Json LlamaConfig() {
  return {{"model_type", "llama"},     {"vocab_size", 32000},       {"hidden_size", 1024},
          {"num_hidden_layers", 24},   {"intermediate_size", 2816}, {"num_attention_heads", 16},
          {"num_key_value_heads", 16}, {"hidden_act", "silu"},      {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},     {"attention_bias", false},   {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

Json MistralConfig() {
  Json config = LlamaConfig();
  config.erase("attention_bias");
  config.update({{"model_type", "mistral"},
                 {"intermediate_size", 3584},
                 {"num_attention_heads", 8},
                 {"num_key_value_heads", 2},
                 {"sliding_window", 4096}});
  return config;
}

Json Gpt2Config(int model_dim, int layers, int heads) {
  return {{"model_type", "gpt2"},       {"vocab_size", 50257},
          {"n_positions", 1024},        {"n_embd", model_dim},
          {"n_layer", layers},          {"n_head", heads},
          {"n_inner", nullptr},         {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-5}, {"bos_token_id", 50256},
          {"eos_token_id", 50256}};
}

Json MemoriaConfig(Json config) {
  config["model_type"] = "gpt2_with_memoria";
  config.update({{"segment_tokens", 150},
                 {"memoria_num_memories", 50},
                 {"memoria_num_reminded_stm", 50},
                 {"memoria_num_reminded_ltm", 50},
                 {"memoria_stm_capacity", 400},
                 {"memoria_ltm_search_depth", 10},
                 {"memoria_initial_lifespan", 9},
                 {"memoria_lifespan_extend_scale", 8.0},
                 {"memoria_profile", "upstream_1_0"},
                 {"memoria_ltm_ties", "random"},
                 {"memoria_seed", 0}});
  return config;
}

// As transformers writes them; these are the smaller ones of their authors.
Json BertConfig() {
  return {{"model_type", "bert"},
          {"vocab_size", 30522},
          {"hidden_size", 768},
          {"num_hidden_layers", 12},
          {"num_attention_heads", 12},
          {"intermediate_size", 3072},
          {"hidden_act", "gelu"},
          {"max_position_embeddings", 512},
          {"type_vocab_size", 2},
          {"layer_norm_eps", 1e-12},
          {"pad_token_id", 0},
          {"id2label", {{"0", "NEGATIVE"}, {"1", "POSITIVE"}}},
          {"label2id", {{"NEGATIVE", 0}, {"POSITIVE", 1}}}};
}

Json RobertaConfig() {
  Json config = BertConfig();
  config.update({{"model_type", "roberta"},
                 {"vocab_size", 50265},
                 {"max_position_embeddings", 514},
                 {"type_vocab_size", 1},
                 {"layer_norm_eps", 1e-5},
                 {"pad_token_id", 1}});
  return config;
}

// Memoria's settings for classification, on segments as long as there are positions.
Json MemoriaBertConfig(Json config) {
  config["model_type"] = "memoria_" + config["model_type"].get<std::string>();
  config.update({{"segment_tokens", 512},
                 {"memory_layer_index", 9},
                 {"memoria_num_memories", 64},
                 {"memoria_num_reminded_stm", 64},
                 {"memoria_num_reminded_ltm", 64},
                 {"memoria_stm_capacity", 128},
                 {"memoria_ltm_search_depth", 10},
                 {"memoria_initial_lifespan", 12},
                 {"memoria_lifespan_extend_scale", 8.0},
                 {"memoria_profile", "upstream_1_0"},
                 {"memoria_ltm_ties", "random"},
                 {"memoria_seed", 0}});
  return config;
}

Json TitansConfig(const char* variant, const Json& own) {
  Json config = {
      {"model_type", "titans"},    {"variant", variant},       {"vocab_size", 32000},
      {"hidden_size", 1024},       {"num_hidden_layers", 24},  {"intermediate_size", 2816},
      {"rms_norm_eps", 1e-6},      {"attention_kind", "none"}, {"memory_num_heads", 16},
      {"memory_head_dim", 64},     {"memory_depth", 2},        {"memory_expansion", 2.0},
      {"memory_norm", "none"},     {"memory_loss", "sum"},     {"memory_step_size", 1},
      {"memory_anchor_period", 1}, {"memory_read", "running"}, {"memory_theta_max", 0.1},
      {"bos_token_id", 1},         {"eos_token_id", 2}};
  config.update(own);
  return config;
}

Json TitansWithAttention(const char* variant, const Json& own) {
  Json config = TitansConfig(variant, {{"attention_kind", "sliding"},
                                       {"sliding_window", 511},
                                       {"num_attention_heads", 16},
                                       {"head_dim", 64},
                                       {"num_persistent_tokens", 16},
                                       {"persistent_kind", "prefix"}});
  config.update(own);
  return config;
}

Json TitansWithContext() {
  return TitansWithAttention("mac", {{"attention_kind", "segmented"},
                                     {"sliding_window", nullptr},
                                     {"segment_length", 128},
                                     {"persistent_kind", "segment"},
                                     {"mac_context", "aligned_causal"},
                                     {"mac_output_memory", "running"},
                                     {"mag_activation", "silu"},
                                     {"mag_gate_both", true}});
}

Json TttConfig(const char* layer_type, double base_rate) {
  return {{"model_type", "ttt"},       {"ttt_layer_type", layer_type},
          {"ttt_base_lr", base_rate},  {"mini_batch_size", 16},
          {"use_gate", true},          {"share_qk", true},
          {"pre_conv", true},          {"conv_kernel", 4},
          {"vocab_size", 32000},       {"hidden_size", 1024},
          {"num_hidden_layers", 24},   {"intermediate_size", 2736},
          {"num_attention_heads", 16}, {"rms_norm_eps", 1e-6},
          {"bos_token_id", 1},         {"eos_token_id", 2}};
}

Json TitansPytorchConfig() {
  Json memory_layers = Json::array();
  for (int layer = 2; layer <= 24; layer += 2) memory_layers.push_back(layer);
  return {{"model_type", "titans_mac_lucidrains"},
          {"hyper_connections", "mhc"},
          {"num_tokens", 32000},
          {"dim", 1024},
          {"depth", 24},
          {"segment_len", 128},
          {"num_persist_mem_tokens", 4},
          {"num_longterm_mem_tokens", 4},
          {"dim_head", 64},
          {"heads", 16},
          {"num_residual_streams", 4},
          {"sliding_window_attn", true},
          {"neural_memory_layers", memory_layers},
          {"neural_memory_segment_len", 16},
          {"neural_memory_batch_size", 128},
          {"neural_memory_model",
           {{"class", "MemoryMLP"}, {"dim", 64}, {"depth", 2}, {"expansion_factor", 2.0}}},
          {"neural_memory_kwargs",
           {{"heads", 4},
            {"dim_head", 64},
            {"qk_rmsnorm", true},
            {"default_step_transform_max_lr", 0.1}}},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

}  // namespace mneme
