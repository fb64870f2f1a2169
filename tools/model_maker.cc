#include "tools/model_maker.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/float16.h"
#include "models/model_config.h"
#include "models/safetensors_writer.h"
#include "models/weight_scan.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

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

// A model of flash-linear-attention as wide and deep as its authors' 340M, with upstream's defaults
// but for `own`: heads of the default size, and so fewer of them, or, where the number of heads is
// what upstream's configurations keep, that.
Json FlaConfig(const char* model_type, const Json& own) {
  Json config = {{"model_type", model_type}, {"vocab_size", 32000}, {"hidden_size", 1024},
                 {"num_hidden_layers", 24},  {"hidden_ratio", 4},   {"intermediate_size", nullptr},
                 {"hidden_act", "swish"},    {"norm_eps", 1e-6},    {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  config.update(own);
  return config;
}

Json LinearAttnConfig(const char* model_type = "linear_attn") {
  return FlaConfig(model_type, {{"num_heads", 4},
                                {"num_kv_heads", nullptr},
                                {"expand_k", 1.0},
                                {"expand_v", 1.0},
                                {"feature_map", "elementwise_product"},
                                {"tie_feature_map_qk", false},
                                {"norm_q", false},
                                {"norm_k", false},
                                {"norm_feature_map", false}});
}

Json RetNetConfig() {
  return FlaConfig("retnet", {{"hidden_ratio", 2},
                              {"num_heads", 4},
                              {"num_kv_heads", nullptr},
                              {"expand_k", 1.0},
                              {"expand_v", 2.0},
                              {"feature_map", nullptr},
                              {"use_output_gate", true}});
}

Json GlaConfig(const char* model_type = "gla") {
  return FlaConfig(model_type, {{"num_heads", 4},
                                {"num_kv_heads", nullptr},
                                {"expand_k", 0.5},
                                {"expand_v", 1.0},
                                {"feature_map", nullptr},
                                {"clamp_min", nullptr},
                                {"use_output_gate", true},
                                {"use_short_conv", false},
                                {"conv_size", 4}});
}

Json DeltaNetConfig() {
  return FlaConfig("delta_net", {{"num_heads", 8},
                                 {"expand_k", 1.0},
                                 {"expand_v", 1.0},
                                 {"use_short_conv", true},
                                 {"conv_size", 4},
                                 {"use_beta", true},
                                 {"use_gate", false},
                                 {"qk_norm", "l2"},
                                 {"qk_activation", "silu"},
                                 {"allow_neg_eigval", false}});
}

Json KdaConfig() {
  return FlaConfig("kda", {{"num_heads", 8},
                           {"num_v_heads", nullptr},
                           {"head_dim", 128},
                           {"expand_v", 1.0},
                           {"use_short_conv", true},
                           {"conv_size", 4},
                           {"lower_bound", nullptr},
                           {"allow_neg_eigval", false}});
}

Json Hgrn2Config() {
  return FlaConfig("hgrn2", {{"num_heads", nullptr},
                             {"expand_ratio", 128},
                             {"use_lower_bound", true},
                             {"use_short_conv", false},
                             {"conv_size", 4}});
}

Json GsaConfig(const char* model_type = "gsa") {
  return FlaConfig(model_type, {{"num_heads", 4},
                                {"num_kv_heads", nullptr},
                                {"expand_k", 1.0},
                                {"expand_v", 1.0},
                                {"num_slots", 64},
                                {"feature_map", "swish"},
                                {"gate_logit_normalizer", 8},
                                {"use_short_conv", false},
                                {"conv_size", 4}});
}

// Published RWKV-7 checkpoints, and flash-linear-attention's configurations, have heads of 64 and a
// feed-forward of four times the model.
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

// As wide and deep as the authors' 370M, in transformers' format with its defaults.
Json StateSpaceConfig(const char* model_type, const Json& own) {
  Json config = {{"model_type", model_type}, {"vocab_size", 50280},   {"hidden_size", 1024},
                 {"num_hidden_layers", 48},  {"expand", 2},           {"conv_kernel", 4},
                 {"use_bias", false},        {"use_conv_bias", true}, {"hidden_act", "silu"},
                 {"residual_in_fp32", true}, {"bos_token_id", 0},     {"eos_token_id", 0}};
  config.update(own);
  return config;
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

// Scans, and attention to a window in every other layer.
Json SambaConfig() {
  return StateSpaceConfig("samba", {{"norm_eps", 1e-5},
                                    {"state_size", 16},
                                    {"time_step_rank", 64},
                                    {"hidden_ratio", 4},
                                    {"attn", {{"layers", {1}}, {"num_heads", 16}}}});
}

// As transformers writes it; 124M is the smallest of its authors'.
Json Gpt2Config(int model_dim, int layers, int heads) {
  return {{"model_type", "gpt2"},       {"vocab_size", 50257},
          {"n_positions", 1024},        {"n_embd", model_dim},
          {"n_layer", layers},          {"n_head", heads},
          {"n_inner", nullptr},         {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-5}, {"bos_token_id", 50256},
          {"eos_token_id", 50256}};
}

Json TinyGpt2() {
  Json config = Gpt2Config(64, 2, 4);
  config["vocab_size"] = 259;
  config["n_positions"] = 256;
  config["bos_token_id"] = 1;
  config["eos_token_id"] = 2;
  return config;
}

// Memoria's settings for WikiText-103.
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

Json TinyBert(Json config) {
  config.update({{"vocab_size", 259},
                 {"hidden_size", 64},
                 {"num_hidden_layers", 3},
                 {"num_attention_heads", 4},
                 {"intermediate_size", 128},
                 {"max_position_embeddings", 130}});
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

Json TinyMemoriaBert(const Json& config) {
  Json tiny = MemoriaBertConfig(TinyBert(config));
  tiny.update({{"segment_tokens", 16},
               {"memory_layer_index", 0},
               {"memoria_num_memories", 3},
               {"memoria_num_reminded_stm", 4},
               {"memoria_num_reminded_ltm", 4},
               {"memoria_stm_capacity", 6},
               {"memoria_ltm_search_depth", 3},
               {"memoria_initial_lifespan", 4},
               {"memoria_lifespan_extend_scale", 3.0}});
  return tiny;
}

// Segments of a few tokens, so that texts of tests have many.
Json TinyMemoria() {
  Json config = MemoriaConfig(TinyGpt2());
  config.update({{"segment_tokens", 7},
                 {"memoria_num_memories", 3},
                 {"memoria_num_reminded_stm", 4},
                 {"memoria_num_reminded_ltm", 4},
                 {"memoria_stm_capacity", 6},
                 {"memoria_ltm_search_depth", 3},
                 {"memoria_initial_lifespan", 4},
                 {"memoria_lifespan_extend_scale", 3.0}});
  return config;
}

// Three layers, the one in the middle with attention in place of its memory.
Json TinyHybrid(Json config) {
  config["num_hidden_layers"] = 3;
  config["attn"] = {{"layers", {1}}, {"num_heads", 4}, {"num_kv_heads", 2}};
  return config;
}

// Titans as wide and deep as the 340M of the same authors, its memory fed token by token.
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

// As the authors' 350M of ttt-lm-jax, whose backbone has gates and convolutions.
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

// titans-pytorch's transformer with a memory in every second layer, about as wide and deep.
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

Json TinyTitansPytorch() {
  Json config = TitansPytorchConfig();
  config.update({{"num_tokens", 259},
                 {"dim", 32},
                 {"depth", 2},
                 {"segment_len", 7},
                 {"num_longterm_mem_tokens", 3},
                 {"dim_head", 16},
                 {"heads", 2},
                 {"neural_memory_layers", {2}},
                 {"neural_memory_segment_len", 4},
                 {"neural_memory_batch_size", 12}});
  config["neural_memory_model"]["dim"] = 16;
  config["neural_memory_kwargs"].update({{"heads", 2}, {"dim_head", 16}});
  return config;
}

Json TinyTrained(Json config) {
  config["vocab_size"] = 259;
  config["hidden_size"] = 64;
  config["num_hidden_layers"] = 2;
  config["intermediate_size"] = 128;
  if (config.contains("num_attention_heads")) config["num_attention_heads"] = 2;
  if (config.contains("head_dim")) config["head_dim"] = 32;
  if (config.contains("segment_length")) config["segment_length"] = 8;
  if (config["attention_kind"] == "sliding") config["sliding_window"] = 6;
  if (config.contains("num_persistent_tokens")) config["num_persistent_tokens"] = 5;
  if (config.contains("memory_num_heads")) {
    config["memory_num_heads"] = 2;
    config["memory_head_dim"] = 16;
  }
  return config;
}

// Behind a router like that of the Mixture-of-Memories paper.
Json Routed(Json config) {
  if (config["model_type"] != "mom_gsa") config["num_memories"] = 4;
  config["topk"] = 2;
  config["shared_mem"] = true;
  return config;
}

// 259: a byte tokenizer's ids.
Json Tiny(Json config) {
  config["vocab_size"] = 259;
  config["hidden_size"] = 64;
  config["num_hidden_layers"] = 2;
  config["intermediate_size"] = 128;
  if (config.contains("expand_ratio")) {
    config["expand_ratio"] = 32;
  } else {
    config["num_heads"] = 2;
  }
  if (config.contains("num_slots")) config["num_slots"] = 16;
  for (const char* rank : {"decay_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim",
                           "gate_low_rank_dim", "proj_low_rank_dim"}) {
    if (config.contains(rank)) config[rank] = 12;
  }
  if (config["model_type"] == "gated_deltanet") config["num_v_heads"] = 2;
  if (config.contains("head_dim")) config["head_dim"] = 32;
  if (config.contains("head_dim") && config["model_type"] != "rwkv7") config["expand_v"] = 1.0;
  return config;
}

Json TinyStateSpace(Json config) {
  config["vocab_size"] = 259;
  config["hidden_size"] = 64;
  config["num_hidden_layers"] = 2;
  config["state_size"] = 8;
  if (config.contains("time_step_rank")) config["time_step_rank"] = 4;
  if (config["model_type"] == "mamba2") {
    config["state_size"] = 32;
    config["num_heads"] = 4;
    config["head_dim"] = 32;
    config["n_groups"] = 2;
  }
  if (config["model_type"] == "samba") {
    config["hidden_ratio"] = 1;
    config["attn"] = {{"layers", {1}}, {"num_heads", 2}, {"window_size", 21}};
  }
  return config;
}

struct NamedShape {
  const char* name;
  Json (*config)();
  bool tied = false;
};
constexpr NamedShape kShapes[] = {
    {"mom-340m", [] { return MomConfig(1024, 2048); }},
    {"mom-1.3b", [] { return MomConfig(2048, 5632); }},
    {"gdn-340m", [] { return GdnConfig(1024, 2816); }},
    {"gdn-1.3b", [] { return GdnConfig(2048, 5632); }},
    {"mom-tiny", [] { return Tiny(MomConfig(64, 128)); }},
    {"gdn-tiny", [] { return Tiny(GdnConfig(64, 128)); }},
    {"linear-attn-340m", [] { return LinearAttnConfig(); }},
    {"retnet-340m", [] { return RetNetConfig(); }},
    {"gla-340m", [] { return GlaConfig(); }},
    {"delta-net-340m", [] { return DeltaNetConfig(); }},
    {"kda-340m", [] { return KdaConfig(); }},
    {"hgrn2-340m", [] { return Hgrn2Config(); }},
    {"gsa-340m", [] { return GsaConfig(); }},
    {"rwkv6-340m", [] { return Rwkv6Config(); }},
    {"rwkv7-0.4b", [] { return Rwkv7Config(1024, 24); }},
    {"rwkv7-1.5b", [] { return Rwkv7Config(2048, 24); }},
    {"mom-linear-attn-340m", [] { return Routed(LinearAttnConfig("mom_linear_attn")); }},
    {"mom-gla-340m", [] { return Routed(GlaConfig("mom_gla")); }},
    {"mom-gsa-340m", [] { return Routed(GsaConfig("mom_gsa")); }},
    {"mamba-370m", [] { return MambaConfigOf("mamba"); }, /*tied=*/true},
    {"mamba2-370m", [] { return Mamba2ConfigOf(); }, /*tied=*/true},
    {"linear-attn-tiny", [] { return Tiny(LinearAttnConfig()); }},
    {"retnet-tiny", [] { return Tiny(RetNetConfig()); }},
    {"gla-tiny", [] { return Tiny(GlaConfig()); }},
    {"delta-net-tiny", [] { return Tiny(DeltaNetConfig()); }},
    {"kda-tiny", [] { return Tiny(KdaConfig()); }},
    {"hgrn2-tiny", [] { return Tiny(Hgrn2Config()); }},
    {"gsa-tiny", [] { return Tiny(GsaConfig()); }},
    {"rwkv6-tiny", [] { return Tiny(Rwkv6Config()); }},
    {"rwkv7-tiny", [] { return Tiny(Rwkv7Config(64, 2)); }},
    {"titans-lmm-340m", [] { return TitansConfig("lmm", Json::object()); }},
    {"titans-mac-340m", [] { return TitansWithContext(); }},
    {"titans-mag-340m",
     [] {
       return TitansWithAttention("mag", {{"mag_activation", "silu"}, {"mag_gate_both", true}});
     }},
    {"titans-mal-340m",
     [] {
       return TitansWithAttention("mal", {{"mal_inner_residual", true}});
     }},
    {"ttt-linear-350m", [] { return TttConfig("linear", 1.0); }, /*tied=*/true},
    {"ttt-mlp-350m", [] { return TttConfig("mlp", 0.1); }, /*tied=*/true},
    {"titans-pytorch-393m", [] { return TitansPytorchConfig(); }},
    {"titans-pytorch-tiny", [] { return TinyTitansPytorch(); }},
    {"titans-lmm-tiny", [] { return TinyTrained(TitansConfig("lmm", Json::object())); }},
    {"titans-mac-tiny", [] { return TinyTrained(TitansWithContext()); }},
    {"titans-mag-tiny",
     [] {
       return TinyTrained(
           TitansWithAttention("mag", {{"mag_activation", "silu"}, {"mag_gate_both", true}}));
     }},
    {"titans-mal-tiny",
     [] {
       return TinyTrained(TitansWithAttention("mal", {{"mal_inner_residual", true}}));
     }},
    {"ttt-linear-tiny", [] { return TinyTrained(TttConfig("linear", 1.0)); }, /*tied=*/true},
    {"ttt-mlp-tiny", [] { return TinyTrained(TttConfig("mlp", 0.1)); }, /*tied=*/true},
    {"mom-linear-attn-tiny", [] { return Tiny(Routed(LinearAttnConfig("mom_linear_attn"))); }},
    {"mom-gla-tiny", [] { return Tiny(Routed(GlaConfig("mom_gla"))); }},
    {"mom-gsa-tiny", [] { return Tiny(Routed(GsaConfig("mom_gsa"))); }},
    {"mamba-tiny", [] { return TinyStateSpace(MambaConfigOf("mamba")); }},
    {"falcon-mamba-tiny", [] { return TinyStateSpace(MambaConfigOf("falcon_mamba")); }},
    {"mamba2-tiny", [] { return TinyStateSpace(Mamba2ConfigOf()); }},
    {"samba-tiny", [] { return TinyStateSpace(SambaConfig()); }},
    {"gpt2-124m", [] { return Gpt2Config(768, 12, 12); }, /*tied=*/true},
    {"gpt2-tiny", [] { return TinyGpt2(); }, /*tied=*/true},
    {"gpt2-with-memoria-159m", [] { return MemoriaConfig(Gpt2Config(768, 12, 12)); },
     /*tied=*/true},
    {"gpt2-with-memoria-tiny", [] { return TinyMemoria(); }, /*tied=*/true},
    {"bert-110m", [] { return BertConfig(); }},
    {"bert-tiny", [] { return TinyBert(BertConfig()); }},
    {"roberta-125m", [] { return RobertaConfig(); }},
    {"roberta-tiny", [] { return TinyBert(RobertaConfig()); }},
    {"memoria-bert-120m", [] { return MemoriaBertConfig(BertConfig()); }},
    {"memoria-bert-tiny", [] { return TinyMemoriaBert(BertConfig()); }},
    {"memoria-roberta-135m", [] { return MemoriaBertConfig(RobertaConfig()); }},
    {"memoria-roberta-tiny", [] { return TinyMemoriaBert(RobertaConfig()); }},
    {"mom-hybrid-tiny", [] { return TinyHybrid(Tiny(MomConfig(64, 128))); }},
    {"gdn-hybrid-tiny", [] { return TinyHybrid(Tiny(GdnConfig(64, 128))); }},
};

// The 65536 quantiles of the standard normal distribution at (i + 1/2) / 65536: one is drawn with
// 16 random bits, eight with one call of the generator. The largest is 4.4; bf16 could not tell it
// from finer grain.
std::vector<float> NormalQuantiles() {
  constexpr int kHalf = 1 << 15;
  std::vector<float> quantiles(2 * kHalf);
  double x = 0;
  for (int i = 0; i < kHalf; ++i) {
    const double p = 0.5 + (i + 0.5) / (2 * kHalf);
    // Newton's method, from the neighbour.
    for (int step = 0; step < 8; ++step) {
      const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
      x += (p - (1 - std::erfc(x / std::sqrt(2)) / 2)) / density;
    }
    quantiles[static_cast<size_t>(kHalf + i)] = static_cast<float>(x);
    quantiles[static_cast<size_t>(kHalf - 1 - i)] = static_cast<float>(-x);
  }
  return quantiles;
}

// Fills tensors with numbers that depend on (seed, tensor name, index) only.
class WeightMaker {
 public:
  explicit WeightMaker(const ModelSpec& spec) : spec_(spec), quantiles_(NormalQuantiles()) {}

  // The next `out.size()` values of a tensor, from element `begin`, a multiple of 8.
  void Fill(const TensorSpec& tensor, int64_t begin, std::span<float> out) const {
    if (!tensor.values.empty()) {
      std::copy_n(tensor.values.begin() + begin, out.size(), out.begin());
      return;
    }
    const uint64_t stream = HashText(tensor.name);
    switch (tensor.init) {
      case WeightInit::kNormal:
        return Normal(stream, begin, spec_.initializer_range, out);
      case WeightInit::kConvolution:
        return Normal(
            stream, begin,
            spec_.convolution_range > 0 ? spec_.convolution_range : spec_.initializer_range, out);
      case WeightInit::kOnes:
        return std::fill(out.begin(), out.end(), 1.0f);
      case WeightInit::kZeros:
        return std::fill(out.begin(), out.end(), 0.0f);
      case WeightInit::kDecay:
        for (size_t i = 0; i < out.size(); ++i) {
          // log of U(0, 16); the generator may give 0, whose logarithm is no weight.
          const double u = UniformDouble(spec_.seed, stream, static_cast<uint64_t>(begin) + i);
          out[i] = static_cast<float>(std::log(std::max(16 * u, 1e-4)));
        }
        return;
      case WeightInit::kTimeStep:
        for (size_t i = 0; i < out.size(); ++i) {
          // Inverse softplus of a time step that is log-uniform in [0.001, 0.1].
          const double u = UniformDouble(spec_.seed, stream, static_cast<uint64_t>(begin) + i);
          const double dt = std::exp(std::log(0.001) + u * (std::log(0.1) - std::log(0.001)));
          out[i] = static_cast<float>(dt + std::log(-std::expm1(-dt)));
        }
        return;
    }
  }

 private:
  void Normal(uint64_t stream, int64_t begin, double range, std::span<float> out) const {
    const float scale = static_cast<float>(range);
    for (size_t i = 0; i < out.size(); i += 8) {
      const PhiloxCounter bits =
          RandomBits(spec_.seed, stream, (static_cast<uint64_t>(begin) + i) / 8);
      for (size_t j = 0; j < std::min<size_t>(8, out.size() - i); ++j) {
        out[i + j] = scale * quantiles_[bits[j / 2] >> (16 * (j % 2)) & 0xffff];
      }
    }
  }

  const ModelSpec& spec_;
  const std::vector<float> quantiles_;
};

void Narrow(std::span<const float> values, DType dtype, std::byte* out) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(out)[i] = values[i];
    } else {
      reinterpret_cast<uint16_t*>(out)[i] =
          dtype == DType::kBF16 ? BF16FromF32(values[i]) : F16FromF32(values[i]);
    }
  }
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << "\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// Tensors [first, last) as one file.
absl::Status WriteShard(const ModelSpec& spec, const WeightMaker& maker,
                        std::span<const TensorSpec> tensors, const std::string& path,
                        ThreadPool& pool, const std::function<void(int64_t)>& written) {
  std::vector<SafetensorsSpec> specs;
  for (const TensorSpec& tensor : tensors) specs.push_back({tensor.name, spec.dtype, tensor.shape});
  MNEME_ASSIGN_OR_RETURN(const auto writer,
                         SafetensorsWriter::Create(path, specs, {{"format", "pt"}}));

  constexpr int64_t kGrain = 1 << 14;  // elements that one worker makes at a time
  constexpr int64_t kBlock = 1 << 22;  // elements between two writes
  const int element_bytes = SizeOf(spec.dtype);
  std::vector<std::byte> block(static_cast<size_t>(kBlock * element_bytes));
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t elements = specs[t].bytes() / element_bytes;
    for (int64_t first = 0; first < elements; first += kBlock) {
      const int64_t count = std::min(kBlock, elements - first);
      pool.ParallelForDynamic(
          (count + kGrain - 1) / kGrain, 1, [&](int64_t begin, int64_t end, int) {
            std::array<float, kGrain> values;
            for (int64_t grain = begin; grain < end; ++grain) {
              const int64_t at = grain * kGrain;
              const auto out =
                  std::span(values).first(static_cast<size_t>(std::min(kGrain, count - at)));
              maker.Fill(tensors[t], first + at, out);
              Narrow(out, spec.dtype, block.data() + at * element_bytes);
            }
          });
      const auto bytes =
          std::span<const std::byte>(block).first(static_cast<size_t>(count * element_bytes));
      MNEME_RETURN_IF_ERROR(writer->Write(bytes));
      written(static_cast<int64_t>(bytes.size()));
    }
  }
  return writer->Finish();
}

}  // namespace

absl::StatusOr<ModelSpec> SpecOfShape(absl::string_view shape) {
  const std::string name = absl::StrReplaceAll(shape, {{"_", "-"}});  // as a model_type has it
  for (const NamedShape& known : kShapes) {
    if (name != known.name) continue;
    ModelSpec spec{.config = known.config()};
    spec.tied = known.tied;
    // The first Mixture-of-Memories had gate and up rows in one tensor.
    if (spec.config["model_type"].get<std::string>().starts_with("mom_")) {
      spec.absent = {"mlp.up_proj.weight"};
    }
    return spec;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "shape \"", shape, "\" is unknown, expected one of ", absl::StrJoin(ShapeNames(), ", ")));
}

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.push_back(shape.name);
  return names;
}

absl::StatusOr<std::vector<TensorSpec>> TensorsOf(const ModelSpec& spec) {
  MNEME_ASSIGN_OR_RETURN(const ModelConfig config,
                         ParseModelConfig(ConfigJson(spec), "config.json"));
  std::vector<std::string> absent = spec.absent;
  if (spec.tied) absent.push_back("lm_head.weight");
  WeightRecorder recorder(std::move(absent));
  StateLayout state;
  std::vector<std::string> warnings;
  MNEME_RETURN_IF_ERROR(
      config.make_network({.weights = recorder, .state = state, .warnings = warnings}).status());
  return recorder.tensors();
}

std::vector<float> InitialValues(const ModelSpec& spec, const TensorSpec& tensor) {
  std::vector<float> values(
      static_cast<size_t>(SafetensorsSpec{tensor.name, DType::kU8, tensor.shape}.bytes()));
  WeightMaker(spec).Fill(tensor, 0, values);
  return values;
}

std::string ConfigJson(const ModelSpec& spec) {
  Json config = spec.config;
  // The arguments of a constructor, and no others.
  if (config["model_type"] == "titans_mac_lucidrains") return config.dump(2);
  config["tie_word_embeddings"] = spec.tied;
  config["initializer_range"] = spec.initializer_range;
  config["dtype"] = spec.dtype == DType::kBF16  ? "bfloat16"
                    : spec.dtype == DType::kF16 ? "float16"
                                                : "float32";
  return config.dump(2);
}

absl::Status MakeModelFolder(const ModelSpec& spec, const std::string& folder, bool overwrite,
                             const std::function<void(int64_t done, int64_t total)>& progress) {
  MNEME_ASSIGN_OR_RETURN(const std::vector<TensorSpec> tensors, TensorsOf(spec));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return absl::UnavailableError(
        absl::StrCat("cannot make folder \"", folder, "\": ", error.message()));
  const std::string config_path = folder + "/config.json";
  std::vector<std::filesystem::path> old_files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name == "generation_config.json" ||
        (name.starts_with("model") &&
         (name.ends_with(".safetensors") || name.ends_with(".index.json")))) {
      old_files.push_back(entry.path());
    }
  }
  std::sort(old_files.begin(), old_files.end());
  if (!old_files.empty() && !overwrite) {
    return absl::AlreadyExistsError(
        absl::StrCat("\"", old_files.front().string(), "\" exists; remove it, or say --overwrite"));
  }
  // A single file left over would win over new shards; old shards would just stay behind.
  for (const auto& file : old_files) std::filesystem::remove(file, error);

  int64_t total = 0, done = 0;
  for (const TensorSpec& tensor : tensors)
    total += SafetensorsSpec{tensor.name, spec.dtype, tensor.shape}.bytes();
  const auto written = [&](int64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  const WeightMaker maker(spec);
  ThreadPool pool;
  Json weight_map;
  const auto shards = static_cast<size_t>(spec.shards);
  for (size_t shard = 0; shard < shards; ++shard) {
    const std::string name =
        shards == 1 ? "model.safetensors"
                    : absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, shards);
    // Evenly, so that none is empty.
    const size_t first = shard * tensors.size() / shards;
    const size_t last = (shard + 1) * tensors.size() / shards;
    const auto part = std::span(tensors).subspan(first, last - first);
    for (const TensorSpec& tensor : part) weight_map[tensor.name] = name;
    MNEME_RETURN_IF_ERROR(WriteShard(spec, maker, part, folder + "/" + name, pool, written));
  }
  if (shards > 1) {
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    MNEME_RETURN_IF_ERROR(WriteText(folder + "/model.safetensors.index.json", index.dump(2)));
  }
  Json generation = {{"do_sample", true}, {"temperature", 1.0}};
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    const auto token = spec.config.find(key);
    if (token != spec.config.end() && !token->is_null()) generation[key] = *token;
  }
  MNEME_RETURN_IF_ERROR(WriteText(folder + "/generation_config.json", generation.dump(2)));
  return WriteText(config_path, ConfigJson(spec));
}

}  // namespace mneme
