// The shapes that have names: those listed here, and those that families give (ExampleNetwork).
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "models/architecture.h"
#include "tools/model_configs.h"
#include "tools/model_maker.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

Json TinyGpt2() {
  Json config = Gpt2Config(64, 2, 4);
  config["vocab_size"] = 259;
  config["n_positions"] = 256;
  config["bos_token_id"] = 1;
  config["eos_token_id"] = 2;
  return config;
}

Json TinyLlama(Json config) {
  config.update({{"vocab_size", 259},
                 {"hidden_size", 64},
                 {"num_hidden_layers", 2},
                 {"intermediate_size", 128},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2}});
  if (config.contains("sliding_window")) config["sliding_window"] = 30;
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

// 259: a byte tokenizer's ids.
Json Tiny(Json config, const Json& own) {
  config.update({{"vocab_size", 259},
                 {"hidden_size", 64},
                 {"num_hidden_layers", 2},
                 {"intermediate_size", 128},
                 {"num_heads", 2}});
  config.update(own);
  return config;
}

Json TinyMom(Json config) { return Tiny(std::move(config), {{"head_dim", 32}}); }
Json TinyGdn() {
  return Tiny(GdnConfig(64, 128), {{"num_v_heads", 2}, {"head_dim", 32}, {"expand_v", 1.0}});
}
Json TinyRwkv6() {
  return Tiny(Rwkv6Config(), {{"gate_low_rank_dim", 12}, {"proj_low_rank_dim", 12}});
}
Json TinyRwkv7() {
  return Tiny(Rwkv7Config(64, 2), {{"decay_low_rank_dim", 12},
                                   {"a_low_rank_dim", 12},
                                   {"v_low_rank_dim", 12},
                                   {"gate_low_rank_dim", 12},
                                   {"head_dim", 32}});
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
    {"mom-gated-deltanet-340m", [] { return MomGatedDeltaNetConfig(); }},
    {"gdn-340m", [] { return GdnConfig(1024, 2816); }},
    {"gdn-1.3b", [] { return GdnConfig(2048, 5632); }},
    {"mom-tiny", [] { return TinyMom(MomConfig(64, 128)); }},
    {"mom-gated-deltanet-tiny", [] { return TinyMom(MomGatedDeltaNetConfig()); }},
    {"gdn-tiny", [] { return TinyGdn(); }},
    {"rwkv6-340m", [] { return Rwkv6Config(); }},
    {"rwkv7-0.4b", [] { return Rwkv7Config(1024, 24); }},
    {"rwkv7-1.5b", [] { return Rwkv7Config(2048, 24); }},
    {"mamba-370m", [] { return MambaConfigOf("mamba"); }, /*tied=*/true},
    {"mamba2-370m", [] { return Mamba2ConfigOf(); }, /*tied=*/true},
    {"rwkv6-tiny", [] { return TinyRwkv6(); }},
    {"rwkv7-tiny", [] { return TinyRwkv7(); }},
    {"titans-lmm-340m", [] { return TitansConfig("lmm", Json::object()); }},
    {"titans-lmm-wide-340m",
     [] {
       return TitansConfig("lmm", {{"memory_expansion", 4.0}});
     }},
    {"titans-lmm-anchor16-340m",
     [] {
       return TitansConfig("lmm", {{"memory_anchor_period", 16}});
     }},
    {"titans-lmm-anchor64-340m",
     [] {
       return TitansConfig("lmm", {{"memory_anchor_period", 64}});
     }},
    {"titans-mac-340m", [] { return TitansWithContext(); }},
    {"titans-mag-340m",
     [] {
       return TitansWithAttention("mag", {{"mag_activation", "silu"}, {"mag_gate_both", true}});
     }},
    {"titans-mag-760m",
     [] {
       return TitansWithAttention("mag", {{"mag_activation", "silu"},
                                          {"mag_gate_both", true},
                                          {"hidden_size", 1536},
                                          {"intermediate_size", 4096},
                                          {"memory_head_dim", 96},
                                          {"memory_expansion", 4.0},
                                          {"head_dim", 96}});
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
    {"mamba-tiny", [] { return TinyStateSpace(MambaConfigOf("mamba")); }},
    {"falcon-mamba-tiny", [] { return TinyStateSpace(MambaConfigOf("falcon_mamba")); }},
    {"mamba2-tiny", [] { return TinyStateSpace(Mamba2ConfigOf()); }},
    {"samba-tiny", [] { return TinyStateSpace(SambaConfig()); }},
    {"llama-340m", [] { return LlamaConfig(); }},
    {"llama-tiny", [] { return TinyLlama(LlamaConfig()); }},
    {"mistral-340m", [] { return MistralConfig(); }},
    {"mistral-tiny", [] { return TinyLlama(MistralConfig()); }},
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
    {"mom-hybrid-tiny", [] { return TinyHybrid(TinyMom(MomConfig(64, 128))); }},
    {"gdn-hybrid-tiny", [] { return TinyHybrid(TinyGdn()); }},
};

// "mom_gla" -> "mom-gla", as shapes have it.
std::string Dashed(absl::string_view name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

constexpr absl::string_view kLarge = "-340m", kTiny = "-tiny";

// The shape that a family gives with its registration, if `name` is one.
std::optional<Json> ExampleOf(absl::string_view name) {
  for (const Architecture& architecture : Architectures()) {
    const ExampleNetwork& example = architecture.example;
    if (example.keys == nullptr) continue;
    const std::string stem = Dashed(architecture.model_type);
    const bool tiny = name == absl::StrCat(stem, kTiny);
    if (!tiny && name != absl::StrCat(stem, kLarge)) continue;
    Json config = FlaConfig(architecture.model_type, Json::parse(example.keys));
    return tiny ? Tiny(std::move(config), Json::parse(example.tiny)) : config;
  }
  return std::nullopt;
}

std::optional<ModelSpec> FindShape(absl::string_view name) {
  for (const NamedShape& known : kShapes) {
    if (name == known.name) return ModelSpec{.config = known.config(), .tied = known.tied};
  }
  if (std::optional<Json> example = ExampleOf(name)) return ModelSpec{.config = *example};
  return std::nullopt;
}

}  // namespace

absl::StatusOr<ModelSpec> SpecOfShape(absl::string_view shape) {
  std::optional<ModelSpec> spec = FindShape(Dashed(shape));
  if (!spec.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shape \"", shape, "\" is unknown, expected one of ", absl::StrJoin(ShapeNames(), ", ")));
  }
  // The first Mixture-of-Memories had gate and up rows in one tensor.
  if (spec->config["model_type"].get<std::string>().starts_with("mom_")) {
    spec->absent = {"mlp.up_proj.weight"};
  }
  return *std::move(spec);
}

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.push_back(shape.name);
  for (const ExampleShape& shape : ExampleShapes()) names.push_back(shape.name);
  for (const Architecture& architecture : Architectures()) {
    if (architecture.example.keys == nullptr) continue;
    names.push_back(absl::StrCat(Dashed(architecture.model_type), kTiny));
  }
  return names;
}

std::vector<ExampleShape> ExampleShapes() {
  std::vector<ExampleShape> shapes;
  for (const Architecture& architecture : Architectures()) {
    if (architecture.example.keys == nullptr) continue;
    shapes.push_back(
        {absl::StrCat(Dashed(architecture.model_type), kLarge), architecture.example.summary});
  }
  return shapes;
}

}  // namespace mneme
