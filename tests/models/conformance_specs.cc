#include "tests/models/conformance_specs.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/models/gated_delta_spec.h"
#include "tests/models/matrix_spec.h"

namespace mneme {
namespace {

// A tiny shape with weights large enough for every part to matter.
ModelSpec AttentionSpec(absl::string_view shape) {
  ModelSpec spec = *SpecOfShape(shape);
  spec.dtype = DType::kF32;
  spec.initializer_range = 0.15;
  return spec;
}

// Grouped heads over all positions; a window that is no multiple of a block, with all options; one
// as long as a block.
std::vector<ModelSpec> TransformerSpecs() {
  ModelSpec spec = AttentionSpec("transformer-tiny");
  std::vector<ModelSpec> specs = {spec};
  spec.config["window_size"] = 21;
  spec.config["qkv_bias"] = true;
  spec.config["qk_norm"] = true;
  specs.push_back(spec);
  spec.config["window_size"] = 64;
  spec.config["num_kv_heads"] = nullptr;
  specs.push_back(spec);
  return specs;
}

// Llama with all biases, a head width of its own and frequencies of longer sequences; Mistral with
// a window.
std::vector<ModelSpec> LlamaSpecs(absl::string_view model_type) {
  ModelSpec spec = AttentionSpec(absl::StrCat(model_type, "-tiny"));
  if (model_type == "mistral") return {spec};
  ModelSpec biased = spec;
  biased.config["attention_bias"] = true;
  biased.config["mlp_bias"] = true;
  biased.config["rope_scaling"] = {{"rope_type", "llama3"},
                                   {"factor", 8.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 64}};
  biased.config["head_dim"] = 24;
  biased.tied = true;
  return {spec, biased};
}

// The same with other values for some keys.
ModelSpec TrainedSpec(absl::string_view shape, const char* changes) {
  ModelSpec spec = *SpecOfShape(shape);
  spec.config.update(nlohmann::ordered_json::parse(changes));
  spec.dtype = DType::kF32;
  spec.initializer_range = 0.12;
  spec.convolution_range = 0.5;
  return spec;
}

// Automodel's memories of one matrix, which forget before they learn, beside attention.
ModelSpec LinearMemorySpec() {
  ModelSpec spec = TrainedSpec("titans-lmm-tiny", "{}");
  spec.config = {{"model_type", "titans"},
                 {"architecture_variant", "mag"},
                 {"mem_depth", 1},
                 {"vocab_size", 259},
                 {"hidden_size", 64},
                 {"num_hidden_layers", 2},
                 {"intermediate_size", 128},
                 {"num_attention_heads", 2},
                 {"head_dim", 16},
                 {"num_persistent_memory_tokens", 3},
                 {"tie_word_embeddings", false},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  return spec;
}

// Each way to keep a memory that is trained: what is stored beside it, in front of it, and when.
std::vector<ModelSpec> TrainedSpecs(absl::string_view model_type) {
  if (model_type == "ttt") {
    return {TrainedSpec("ttt-linear-tiny", R"({"pre_conv": false, "share_qk": false})"),
            TrainedSpec("ttt-mlp-tiny", R"({"mini_batch_size": 5})")};
  }
  if (model_type == "titans_mac_lucidrains") {
    return {
        TrainedSpec("titans-pytorch-tiny", "{}"),
        // Every step of a memory looks at the memory below it; attention sees its segment alone.
        TrainedSpec("titans-pytorch-tiny",
                    R"({"depth": 3, "neural_memory_layers": [1, 3], "sliding_window_attn": false,
                        "neural_mem_weight_residual": true, "num_residual_streams": 2,
                        "neural_memory_qkv_receives_diff_views": true,
                        "neural_memory_segment_len": 3,
                        "neural_memory_kwargs": {"heads": 2, "dim_head": 16,
                            "attn_pool_chunks": true, "per_parameter_lr_modulation": true,
                            "spectral_norm_surprises": true,
                            "default_step_transform_max_lr": 0.05}})"),
        // One head, whose anchor is its learned start for ever; steps as long as segments.
        TrainedSpec("titans-pytorch-tiny",
                    R"({"neural_memory_layers": null, "neural_memory_segment_len": null,
                        "neural_memory_batch_size": null, "neural_memory_model": null,
                        "num_persist_mem_tokens": 0, "neural_memory_kwargs": {
                            "num_kv_per_token": 2, "activation": "silu", "momentum": false,
                            "default_step_transform_max_lr": 0.02}})"),
        // Nothing is inserted, the residual is one stream, the memory a gate.
        TrainedSpec("titans-pytorch-tiny",
                    R"({"num_longterm_mem_tokens": 0, "num_residual_streams": 1,
                        "neural_mem_gate_attn_output": true, "neural_memory_kwargs": {
                            "heads": 2, "dim_head": 16, "momentum_order": 2,
                            "learned_momentum_combine": true, "gated_transition": true,
                            "learned_combine_include_zeroth": true, "max_grad_norm": 0.3,
                            "per_head_learned_parameters": false, "post_rmsnorm": true,
                            "default_step_transform_max_lr": 0.1}})")};
  }
  return {TrainedSpec("titans-lmm-tiny", R"({"num_persistent_tokens": 3,
                                             "persistent_kind": "prefix"})"),
          TrainedSpec("titans-lmm-tiny", R"({"memory_step_size": 4, "memory_anchor_period": 12,
                                             "memory_gate_pooling": "gate_mean",
                                             "memory_norm": "rms", "memory_decay": "gdn",
                                             "memory_theta_max": 0.005,
                                             "num_persistent_tokens": 6,
                                             "persistent_kind": "prefix"})"),
          TrainedSpec("titans-lmm-tiny", R"({"memory_step_size": 3, "memory_anchor_period": null,
                                             "memory_gate_pooling": "input_mean",
                                             "memory_norm": "layer", "memory_depth": 3,
                                             "memory_theta_max": 0.005,
                                             "memory_momentum_order": 0, "memory_output": "none",
                                             "memory_conv_kernel": 0})"),
          TrainedSpec("titans-mac-tiny", "{}"),
          TrainedSpec("titans-mac-tiny", R"({"segment_length": 6, "memory_anchor_period": 6})"),
          TrainedSpec("titans-mac-tiny", R"({"segment_length": 70, "memory_step_size": 4,
                                             "memory_anchor_period": 8,
                                             "memory_gate_pooling": "gate_mean",
                                             "mac_output_memory": "segment_start"})"),
          TrainedSpec("titans-mag-tiny", R"({"memory_anchor_period": 7,
                                             "memory_read": "anchor"})"),
          TrainedSpec("titans-mal-tiny", R"({"memory_depth": 1, "attention_kind": "full",
                                             "mal_inner_residual": false})"),
          LinearMemorySpec()};
}

}  // namespace

std::vector<ModelSpec> ConformanceSpecs(absl::string_view model_type) {
  std::vector<ModelSpec> specs;
  if (model_type == "mom" || model_type == "mom_gated_deltanet") {
    GatedDeltaSpec spec = TinySpec("mom-tiny");
    spec.config.model_type = std::string(model_type);
    specs.push_back(spec.ToModelSpec());
    spec.config.delta.single_kv_proj = true;
    specs.push_back(spec.ToModelSpec());
    spec.config.delta.single_kv_proj = false;
    spec.config.delta.shared_memory = false;
    specs.push_back(spec.ToModelSpec());
    // Memories on both sides of attention.
    spec.config.delta.shared_memory = true;
    spec.config.layers = 3;
    spec.attn = {{"layers", {1}}, {"num_heads", 4}, {"num_kv_heads", 2}};
    specs.push_back(spec.ToModelSpec());
  } else if (model_type == "gated_deltanet") {
    GatedDeltaSpec spec = TinySpec("gdn-tiny");
    specs.push_back(spec.ToModelSpec());
    spec.config.delta.value_heads = 4;
    spec.config.delta.conv_width = 0;
    specs.push_back(spec.ToModelSpec());
    spec = TinySpec("gdn-tiny");
    spec.config.layers = 4;
    spec.attn = {{{"layers", {0}}, {"num_heads", 4}, {"num_kv_heads", 1}, {"window_size", 21}},
                 {{"layers", {3}}, {"num_heads", 2}, {"qkv_bias", true}, {"rope_theta", 500}}};
    specs.push_back(spec.ToModelSpec());
  }
  for (const Architecture& architecture : Architectures()) {
    if (model_type != architecture.model_type) continue;
    for (const auto& way : nlohmann::ordered_json::parse(architecture.ways)) {
      specs.push_back(MatrixSpec(model_type, way));
    }
  }
  if (model_type == "transformer") return TransformerSpecs();
  if (model_type == "titans" || model_type == "titans_mac_lucidrains" || model_type == "ttt") {
    return TrainedSpecs(model_type);
  }
  if (model_type == "llama" || model_type == "mistral") return LlamaSpecs(model_type);
  return specs;
}

std::vector<const Architecture*> ArchitecturesThat(bool classify) {
  std::vector<const Architecture*> all;
  for (const Architecture& architecture : Architectures()) {
    if (architecture.classifies == classify) all.push_back(&architecture);
  }
  return all;
}

std::string ConformanceName(const testing::TestParamInfo<ConformanceCase>& info) {
  const auto& [architecture, backend] = info.param;
  return absl::StrCat(architecture->model_type, "_", backend.device, backend.isa.empty() ? "" : "_",
                      backend.isa);
}

}  // namespace mneme
