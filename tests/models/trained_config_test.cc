// Keys of config.json that Titans and TTT read: which they refuse, which count.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model_config.h"
#include "tests/models/config_keys.h"
#include "tools/model_maker.h"

namespace mneme {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

// The configuration of a shape with other values for some keys; those that are null in `changes`
// are left out.
absl::StatusOr<ModelConfig> Config(const char* shape, const std::string& changes) {
  ordered_json config = SpecOfShape(shape)->config;
  config.merge_patch(ordered_json::parse(changes));
  return ParseModelConfig(config.dump(), "config.json");
}

uint64_t Fingerprint(const char* shape, const std::string& changes) {
  const auto config = Config(shape, changes);
  EXPECT_TRUE(config.ok()) << shape << " " << changes << ": " << config.status();
  return config.ok() ? config->fingerprint : 0;
}

TEST(TrainedFingerprintTest, EveryKeyThatMovesLogitsOrStateCounts) {
  const std::map<const char*, std::vector<std::string>> changes = {
      {"titans-lmm-tiny",
       {R"({"vocab_size": 260})",
        R"({"hidden_size": 32})",
        R"({"num_hidden_layers": 3})",
        R"({"intermediate_size": 64})",
        R"({"rms_norm_eps": 1e-5})",
        R"({"memory_num_heads": 4})",
        R"({"memory_head_dim": 8})",
        R"({"memory_depth": 1})",
        R"({"memory_depth": 3})",
        R"({"memory_expansion": 1.5})",
        R"({"memory_activation": "silu"})",
        R"({"memory_norm": "layer"})",
        R"({"memory_norm": "rms"})",
        R"({"memory_norm": "layer", "memory_norm_eps": 1e-3})",
        R"({"memory_norm": "layer", "memory_norm_offset": 0})",
        R"({"memory_loss": "mean"})",
        R"({"memory_anchor_period": 8})",
        R"({"memory_step_size": 4, "memory_anchor_period": 8, "memory_gate_pooling": "gate_mean"})",
        R"({"memory_step_size": 4, "memory_anchor_period": 8, "memory_gate_pooling": "input_mean"})",
        R"({"memory_anchor_period": 8, "memory_read": "anchor"})",
        R"({"memory_theta_max": 0.2})",
        R"({"memory_momentum_order": 0})",
        R"({"memory_forget": false})",
        R"({"memory_decay": "gdn"})",
        R"({"memory_conv_kernel": 0})",
        R"({"memory_conv_bias": true})",
        R"({"memory_qkv_activation": "none"})",
        R"({"memory_qk_norm": "none"})",
        R"({"memory_output": "none"})",
        R"({"num_persistent_tokens": 2, "persistent_kind": "prefix"})"}},
      {"titans-mag-tiny",
       {R"({"num_attention_heads": 4})", R"({"head_dim": 16})", R"({"rope_theta": 5000})",
        R"({"rope_interleaved": false})", R"({"sliding_window": 5})",
        R"({"attention_kind": "full"})", R"({"mag_activation": "sigmoid"})",
        R"({"mag_gate_both": false})"}},
      {"titans-mac-tiny",
       {R"({"segment_length": 16})", R"({"mac_output_memory": "segment_start"})",
        R"({"num_persistent_tokens": 2})", R"({"mag_activation": "identity"})",
        R"({"mag_gate_both": false})", R"({"memory_anchor_period": 8})", R"({"head_dim": 16})"}},
      {"titans-mal-tiny", {R"({"mal_inner_residual": false})"}},
      {"titans-pytorch-tiny",
       {R"({"num_tokens": 260})",
        R"({"dim": 64})",
        R"({"depth": 3})",
        R"({"segment_len": 8})",
        R"({"neural_memory_segment_len": 6})",
        R"({"neural_memory_batch_size": 8})",
        R"({"neural_memory_batch_size": null})",
        R"({"num_longterm_mem_tokens": 2})",
        R"({"num_persist_mem_tokens": 2})",
        R"({"dim_head": 8})",
        R"({"heads": 4})",
        R"({"ff_mult": 2})",
        R"({"num_residual_streams": 2})",
        R"({"num_residual_streams": 1})",
        R"({"neural_memory_layers": [1]})",
        R"({"neural_memory_layers": [1, 2]})",
        R"({"neural_mem_gate_attn_output": true})",
        R"({"neural_mem_weight_residual": true})",
        R"({"neural_memory_qkv_receives_diff_views": true})",
        R"({"sliding_window_attn": false})",
        R"({"hyper_connections": "hc"})",
        R"({"hyper_connections": "mhc_0_3_11"})",
        R"({"rms_norm_eps": 1e-6})",
        R"({"neural_memory_model": {"depth": 1}})",
        R"({"neural_memory_model": {"expansion_factor": 3}})",
        R"({"neural_memory_model": null})",
        R"({"neural_memory_kwargs": {"default_step_transform_max_lr": 0.2}})",
        R"({"neural_memory_kwargs": {"heads": 3}})",
        R"({"neural_memory_kwargs": {"activation": "silu"}})",
        R"({"neural_memory_kwargs": {"qk_rmsnorm": false}})",
        R"({"neural_memory_kwargs": {"post_rmsnorm": true}})",
        R"({"neural_memory_kwargs": {"pre_rmsnorm": false}})",
        R"({"neural_memory_kwargs": {"momentum": false}})",
        R"({"neural_memory_kwargs": {"momentum_order": 2}})",
        R"({"neural_memory_kwargs": {"momentum_order": 2, "learned_momentum_combine": true}})",
        R"({"neural_memory_kwargs": {"momentum_order": 2, "learned_momentum_combine": true,
                                     "learned_combine_include_zeroth": true}})",
        R"({"neural_memory_kwargs": {"num_kv_per_token": 2}})",
        R"({"neural_memory_kwargs": {"attn_pool_chunks": true}})",
        R"({"neural_memory_kwargs": {"per_parameter_lr_modulation": true}})",
        R"({"neural_memory_kwargs": {"per_parameter_lr_modulation": true,
                                     "max_mem_layer_modulation": 2}})",
        R"({"neural_memory_kwargs": {"per_head_learned_parameters": false}})",
        R"({"neural_memory_kwargs": {"max_grad_norm": 0.5}})",
        R"({"neural_memory_kwargs": {"spectral_norm_surprises": true}})",
        R"({"neural_memory_kwargs": {"gated_transition": true}})",
        R"({"neural_memory_kwargs": {"mem_model_norm_add_residual": false}})"}},
      {"ttt-linear-tiny",
       {R"({"ttt_layer_type": "mlp"})", R"({"ttt_base_lr": 0.5})", R"({"mini_batch_size": 8})",
        R"({"use_gate": false})", R"({"share_qk": false})", R"({"pre_conv": false})",
        R"({"conv_kernel": 3})", R"({"num_attention_heads": 4})", R"({"rope_theta": 5000})",
        R"({"rms_norm_eps": 1e-5})"}}};
  DistinctFingerprints seen;
  for (const auto& [shape, all] : changes) {
    seen.Add(Fingerprint(shape, "{}"), shape);
    for (const std::string& change : all) {
      seen.Add(Fingerprint(shape, change), absl::StrCat(shape, " ", change));
    }
  }
}

TEST(TrainedFingerprintTest, WhatMovesNeitherDoesNotCount) {
  const std::map<const char*, std::vector<std::string>> changes = {
      {"titans-lmm-tiny",
       {R"({"architectures": ["X"]})", R"({"dtype": "float32"})", R"({"use_cache": true})",
        R"({"bos_token_id": 3})", R"({"tie_word_embeddings": true})", R"({"hidden_act": "silu"})",
        R"({"memory_rule": "gradient"})", R"({"memory_kv_per_token": 1})", R"({"rope_theta": 7})",
        R"({"memory_conv_kernel": 4})", R"({"memory_layers": [0, 1]})",
        R"({"mixer": "neural_memory"})", R"({"num_longterm_tokens": 0})"}},
      {"titans-pytorch-tiny",
       {R"({"architectures": ["X"]})", R"({"titans_pytorch_version": "0.5.1"})",
        R"({"bos_token_id": 3})", R"({"use_flex_attn": true})",
        R"({"neural_memory_add_value_residual": true})", R"({"ff_mult": 4})",
        R"({"rms_norm_eps": 1.1920928955078125e-07})",
        R"({"neural_memory_kwargs": {"use_accelerated_scan": true}})",
        R"({"neural_memory_kwargs": {"init_decay_bias": 1}})",
        R"({"neural_memory_kwargs": {"momentum_order": 1}})",
        R"({"neural_memory_kwargs": {"max_mem_layer_modulation": 2}})",
        R"({"neural_memory_kwargs": {"default_model_kwargs": {"depth": 3}}})"}},
      {"ttt-linear-tiny",
       {R"({"pretraining_tp": 2})", R"({"scan_checkpoint_group_size": 4})",
        R"({"use_cache": false})", R"({"max_position_embeddings": 4096})"}}};
  for (const auto& [shape, all] : changes) {
    for (const std::string& change : all) {
      EXPECT_EQ(Fingerprint(shape, change), Fingerprint(shape, "{}")) << shape << " " << change;
    }
  }
}

struct Refusal {
  const char* name;
  const char* shape;
  const char* changes;
  absl::StatusCode code;
  const char* message;
};

class TrainedConfigTest : public testing::TestWithParam<Refusal> {};

TEST_P(TrainedConfigTest, IsRefusedByName) {
  const auto config = Config(GetParam().shape, GetParam().changes);
  EXPECT_EQ(config.status().code(), GetParam().code) << config.status();
  EXPECT_THAT(std::string(config.status().message()), HasSubstr(GetParam().message));
}

constexpr Refusal kRefusals[] = {
    {"no_step", "titans-lmm-tiny", R"({"memory_step_size": null})", kInvalid,
     "\"memory_step_size\" is missing, and has no default"},
    {"no_window", "titans-mag-tiny", R"({"sliding_window": null})", kInvalid,
     "\"sliding_window\" is missing, and has no default"},
    {"no_fusion", "titans-mag-tiny", R"({"mag_activation": null})", kInvalid,
     "\"mag_activation\" is missing, and has no default"},
    {"no_residual", "titans-mal-tiny", R"({"mal_inner_residual": null})", kInvalid,
     "\"mal_inner_residual\" is missing, and has no default"},
    {"no_pooling", "titans-lmm-tiny", R"({"memory_step_size": 4, "memory_anchor_period": 4})",
     kInvalid, "\"memory_gate_pooling\" is missing, and has no default"},
    {"pooling_of_one", "titans-lmm-tiny", R"({"memory_gate_pooling": "gate_mean"})", kInvalid,
     "\"memory_gate_pooling\" is \"gate_mean\", expected \"token\""},
    {"period", "titans-lmm-tiny",
     R"({"memory_step_size": 4, "memory_anchor_period": 6, "memory_gate_pooling": "gate_mean"})",
     kInvalid, "\"memory_anchor_period\" is 6, expected a multiple of memory_step_size (4)"},
    {"depth", "titans-lmm-tiny", R"({"memory_depth": 0})", kInvalid, "\"memory_depth\" is 0"},
    {"deep", "titans-lmm-tiny", R"({"memory_depth": 5})", kInvalid, "an integer from 1 to 4"},
    {"wide", "titans-lmm-tiny", R"({"memory_expansion": 4000})", kInvalid,
     "\"memory_expansion\" is 4000"},
    {"activation", "titans-lmm-tiny", R"({"memory_activation": "relu"})", kUnimplemented,
     "\"memory_activation\" is \"relu\""},
    {"variant", "titans-lmm-tiny", R"({"variant": "mam"})", kUnimplemented,
     "\"variant\" is \"mam\", which is not supported; expected one of \"lmm\""},
    {"no_segment", "titans-mac-tiny", R"({"segment_length": null})", kInvalid,
     "\"segment_length\" is missing, and has no default"},
    {"context", "titans-mac-tiny", R"({"mac_context": "prefix_full"})", kUnimplemented,
     "\"mac_context\" is \"prefix_full\""},
    {"segmented", "titans-mac-tiny", R"({"attention_kind": "sliding"})", kUnimplemented,
     "\"attention_kind\" is \"sliding\""},
    {"infinite_period", "titans-lmm-tiny", R"({"memory_anchor_period": "inf"})", kInvalid,
     "\"memory_anchor_period\" is \"inf\", expected an integer from 1 to 16777216, or null"},
    {"two_variants", "titans-lmm-tiny", R"({"architecture_variant": "lmm"})", kInvalid,
     "\"architecture_variant\" is \"lmm\", expected no such key beside \"variant\""},
    {"two_reads", "titans-mac-tiny",
     R"({"memory_anchor_period": 8, "memory_read": "anchor",
         "mac_output_memory": "segment_start"})",
     kInvalid, "\"mac_output_memory\" is \"segment_start\""},
    {"rule", "titans-lmm-tiny", R"({"memory_rule": "gated_delta"})", kUnimplemented,
     "\"memory_rule\" is \"gated_delta\""},
    {"streams", "titans-lmm-tiny", R"({"residual_streams": 4})", kUnimplemented,
     "\"residual_streams\" is 4"},
    {"layers", "titans-lmm-tiny", R"({"memory_layers": [0]})", kUnimplemented, "\"memory_layers\""},
    {"odd_head", "titans-mag-tiny", R"({"head_dim": 7})", kInvalid, "\"head_dim\" is 7"},
    {"unknown", "titans-lmm-tiny", R"({"memory_thetamax": 1})", kInvalid,
     "did you mean \"memory_theta_max\"?"},
    {"pytorch_tokens", "titans-pytorch-tiny", R"({"num_tokens": null})", kInvalid,
     "\"num_tokens\" is missing, and has no default"},
    {"pytorch_segment", "titans-pytorch-tiny", R"({"segment_len": null})", kInvalid,
     "\"segment_len\" is missing, and has no default"},
    {"pytorch_period", "titans-pytorch-tiny", R"({"neural_memory_batch_size": 10})", kInvalid,
     "\"neural_memory_batch_size\" is 10, expected a multiple of neural_memory_segment_len (4), or "
     "null"},
    {"pytorch_default_period", "titans-pytorch-tiny", R"({"neural_memory_segment_len": null})",
     kInvalid, "a multiple of neural_memory_segment_len (10), or null"},
    {"pytorch_layers", "titans-pytorch-tiny", R"({"neural_memory_layers": [0, 1]})", kInvalid,
     "\"neural_memory_layers\" is [0,1], expected a list of layers, which count from 1 to 2"},
    {"pytorch_streams", "titans-pytorch-tiny", R"({"hyper_connections": null})", kInvalid,
     "\"hyper_connections\" is missing: expected the kind of the checkpoint's hyper-connections"},
    {"pytorch_kind", "titans-pytorch-tiny", R"({"hyper_connections": "mhcv2"})", kUnimplemented,
     "\"hyper_connections\" is \"mhcv2\""},
    {"pytorch_embedding", "titans-pytorch-tiny", R"({"token_emb": "X"})", kUnimplemented,
     "\"token_emb\" is \"X\""},
    {"pytorch_class", "titans-pytorch-tiny", R"({"neural_memory_model": {"class": "X"}})",
     kUnimplemented, "neural_memory_model: key \"class\" is \"X\""},
    {"pytorch_class_alone", "titans-pytorch-tiny",
     R"({"neural_memory_model": {"class": "X", "dim": null, "depth": null}})", kUnimplemented,
     "neural_memory_model: key \"class\" is \"X\""},
    {"pytorch_no_class", "titans-pytorch-tiny", R"({"neural_memory_model": {"class": null}})",
     kInvalid, "neural_memory_model: key \"class\" is missing"},
    {"pytorch_model", "titans-pytorch-tiny", R"({"neural_memory_model": {"dim": 8}})", kInvalid,
     "neural_memory_model: key \"dim\" is 8, expected the width of the memory's heads, 16"},
    {"pytorch_one_head", "titans-pytorch-tiny", R"({"neural_memory_kwargs": {"heads": 1}})",
     kInvalid, "\"dim_head\" is 16, expected dim (32) with a memory of one head"},
    {"pytorch_chunk", "titans-pytorch-tiny", R"({"neural_memory_kwargs": {"chunk_size": 4}})",
     kUnimplemented, "neural_memory_kwargs: key \"chunk_size\" is 4"},
    {"pytorch_loss", "titans-pytorch-tiny",
     R"({"neural_memory_kwargs": {"store_memory_loss_fn": "x"}})", kUnimplemented,
     "\"store_memory_loss_fn\""},
    {"pytorch_activation", "titans-pytorch-tiny",
     R"({"neural_memory_kwargs": {"activation": "relu"}})", kUnimplemented,
     "\"activation\" is \"relu\""},
    {"pytorch_combine", "titans-pytorch-tiny",
     R"({"neural_memory_kwargs": {"learned_momentum_combine": true}})", kInvalid,
     "\"learned_momentum_combine\" is true"},
    {"pytorch_pool", "titans-pytorch-tiny",
     R"({"neural_memory_segment_len": 1, "neural_memory_kwargs": {"attn_pool_chunks": true}})",
     kInvalid, "\"attn_pool_chunks\" is true"},
    {"pytorch_odd_head", "titans-pytorch-tiny", R"({"dim_head": 7})", kInvalid,
     "\"dim_head\" is 7, expected an even width"},
    {"pytorch_unknown", "titans-pytorch-tiny", R"({"neural_memory_layer": [1]})", kInvalid,
     "did you mean \"neural_memory_layers\"?"},
    {"pytorch_unknown_part", "titans-pytorch-tiny",
     R"({"neural_memory_kwargs": {"qk_rmsnorms": true}})", kInvalid,
     "did you mean \"qk_rmsnorm\"?"},
    {"ttt_type", "ttt-linear-tiny", R"({"ttt_layer_type": "conv"})", kUnimplemented,
     "\"ttt_layer_type\" is \"conv\""},
    {"ttt_heads", "ttt-linear-tiny", R"({"num_attention_heads": 3})", kInvalid,
     "a number that divides hidden_size (64)"},
    {"ttt_batch", "ttt-linear-tiny", R"({"mini_batch_size": 0})", kInvalid,
     "\"mini_batch_size\" is 0"},
    {"ttt_scaling", "ttt-linear-tiny", R"({"rope_scaling": {"type": "linear", "factor": 2}})",
     kUnimplemented, "\"rope_scaling\" is "},
    {"ttt_attention", "ttt-linear-tiny", R"({"attention_kind": "sliding"})", kUnimplemented,
     "\"attention_kind\" is \"sliding\""},
    {"ttt_act", "ttt-linear-tiny", R"({"hidden_act": "gelu"})", kUnimplemented,
     "\"hidden_act\" is \"gelu\""},
};

INSTANTIATE_TEST_SUITE_P(Keys, TrainedConfigTest, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

// A key of the neutral format, the value that it may have, and others, which ask for what the
// network does not have.
struct OtherFunction {
  const char* key;
  const char* may_be;  // as the same without the key; empty: there is no such
  std::vector<const char*> refused;
};

TEST(TitansKeysTest, EveryKeyOfAnotherFunctionIsRefusedByName) {
  const std::map<const char*, std::vector<OtherFunction>> all = {
      {"titans-lmm-tiny",
       {{"mixer", R"("neural_memory")", {R"("gated_delta_momentum")", "null"}},
        {"memory_rule", R"("gradient")", {R"("gated_delta")"}},
        {"hidden_act", R"("silu")", {R"("gelu")", R"("relu")"}},
        {"mlp_bias", "false", {"true"}},
        {"value_residual", "false", {"true"}},
        {"axial_position", "0", {"16"}},
        {"num_longterm_tokens", "0", {"4"}},
        {"residual_streams", "1", {"4", "0"}},
        {"hyper_connection", R"("none")", {R"("hc")", R"("mhc_0_3_11")", R"("mhc")"}},
        {"memory_layers", "[0, 1]", {"[0]", "[1, 0]", "[]", "1"}},
        {"memory_kv_per_token", "1", {"2"}},
        {"memory_momentum_mix", "false", {"true"}},
        {"memory_momentum_mix_zeroth", "false", {"true"}},
        {"memory_max_grad_norm", "null", {"2.0", "0"}},
        {"memory_spectral_norm", "false", {"true"}},
        {"memory_layer_lr_max", "null", {"1.0", "0"}},
        {"memory_weight_residual", "false", {"true"}},
        {"memory_gated_transition", "false", {"true"}},
        {"memory_view_selector", "false", {"true"}},
        {"memory_output_norm", "false", {"true"}},
        {"memory_output_proj", "true", {"false"}},
        {"memory_state_dtype", R"("float32")", {R"("bfloat16")"}},
        {"variant", "", {R"("titans")"}},
        {"attention_kind", "", {R"("full")", R"("sliding")", R"("segmented")"}},
        {"memory_integration", R"("residual")", {R"("attn_output_gate")", R"("product")"}},
        {"memory_norm", "", {R"("batch")"}},
        {"memory_activation", "", {R"("gelu_tanh")"}},
        {"memory_loss", "", {R"("huber")"}},
        {"memory_read", "", {R"("initial")"}},
        {"memory_decay", R"("sigmoid")", {R"("softplus")"}},
        {"memory_gate_pooling", R"("token")", {R"("input_attention")"}},
        {"memory_qkv_activation", R"("silu")", {R"("gelu")"}},
        {"memory_qk_norm", R"("l2")", {R"("rms")"}},
        {"memory_output", R"("gated_rms")", {R"("head_gate")"}}}},
      {"titans-mag-tiny",
       {{"persistent_kind", "", {R"("kv")", R"("segment")"}},
        {"attention_kind", "", {R"("segmented")", R"("none")"}},
        {"rope_position", R"("absolute")", {R"("segment")"}},
        {"memory_integration", R"("product")", {R"("residual")", R"("attn_output_gate")"}},
        {"mag_activation", "", {R"("tanh")"}}}},
      {"titans-mal-tiny",
       {{"rope_position", R"("absolute")", {R"("segment")"}},
        {"memory_integration", R"("residual")", {R"("product")"}}}},
      {"titans-mac-tiny",
       {{"persistent_kind", "", {R"("kv")", R"("prefix")"}},
        {"attention_kind", "", {R"("full")"}},
        {"rope_position", R"("segment")", {R"("absolute")"}},
        {"memory_integration", R"("context")", {R"("residual")"}},
        {"mac_context", "", {R"("prefix_full")"}},
        {"mac_output_memory", "", {R"("segment_end")"}}}}};
  for (const auto& [shape, keys] : all) {
    for (const OtherFunction& other : keys) {
      ordered_json config = SpecOfShape(shape)->config;
      const auto with = [&](const char* value) {
        config[other.key] = ordered_json::parse(value);
        return ParseModelConfig(config.dump(), "config.json");
      };
      for (const char* value : other.refused) {
        const absl::Status status = with(value).status();
        EXPECT_EQ(status.code(), kUnimplemented)
            << shape << " " << other.key << " " << value << ": " << status;
        EXPECT_THAT(
            std::string(status.message()),
            HasSubstr(absl::StrCat("\"", other.key, "\" is ", ordered_json::parse(value).dump())));
      }
      if (*other.may_be == '\0') continue;
      const auto same = with(other.may_be);
      ASSERT_TRUE(same.ok()) << shape << " " << other.key << ": " << same.status();
      EXPECT_EQ(same->fingerprint, Fingerprint(shape, "{}")) << shape << " " << other.key;
    }
  }
}

// Keys that have no effect beside others are warned of, one by one; those that say what holds
// anyway are not.
TEST(TrainedKeysTest, KeysWithoutEffectAreNamed) {
  const struct {
    const char* shape;
    const char* changes;
    std::vector<const char*> warnings;
  } cases[] = {
      {"titans-lmm-tiny",
       R"({"segment_length": 8, "sliding_window": 6, "mac_context": "aligned_causal"})",
       {"\"sliding_window\" is 6 and ignored: the variant \"lmm\" is a memory without attention",
        "\"segment_length\" is 8 and ignored: ", "\"mac_context\" is \"aligned_causal\" and ign"}},
      {"titans-lmm-tiny",
       R"({"persistent_kind": "segment"})",
       {"\"persistent_kind\" is \"segment\" and ignored: there are no persistent tokens"}},
      {"titans-lmm-tiny", R"({"persistent_kind": "prefix"})", {}},
      {"titans-mac-tiny",
       R"({"sliding_window": 6})",
       {"\"sliding_window\" is 6 and ignored: a token attends to its segment alone"}},
      {"titans-mag-tiny",
       R"({"segment_length": 8})",
       {"\"segment_length\" is 8 and ignored: it is of the variant \"mac\""}},
      {"titans-mag-tiny",
       R"({"attention_kind": "full"})",
       {"\"sliding_window\" is 6 and ignored: attention_kind \"full\" has no window"}},
      {"titans-mal-tiny",
       R"({"mag_gate_both": false})",
       {"\"mag_gate_both\" is false and ignored: they are of the variants"}},
      {"titans-pytorch-tiny",
       R"({"titans_pytorch_version": "0.4.0"})",
       {"\"titans_pytorch_version\" is \"0.4.0\" and ignored: before 0.5.0 there was \"hc\""}},
      {"titans-pytorch-tiny",
       R"({"titans_pytorch_version": "0.4.0", "hyper_connections": "hc"})",
       {}},
      {"titans-pytorch-tiny",
       R"({"neural_memory_layers": [2, 2]})",
       {"\"neural_memory_layers\" is [2,2], which has layer 2 twice"}},
  };
  for (const auto& [shape, changes, warnings] : cases) {
    const auto config = Config(shape, changes);
    ASSERT_TRUE(config.ok()) << config.status();
    ASSERT_EQ(config->warnings.size(), warnings.size()) << shape << " " << changes;
    for (size_t i = 0; i < warnings.size(); ++i) {
      EXPECT_THAT(config->warnings[i], HasSubstr(warnings[i]));
    }
  }
}

// Formats that refuse keys that they do not know say so of a flag in the flag's words.
TEST(TrainedKeysTest, SegmentTokensAreOfOtherModels) {
  for (const char* shape : {"titans-lmm-tiny", "titans-pytorch-tiny", "ttt-linear-tiny"}) {
    EXPECT_THAT(std::string(ParseModelConfig(SpecOfShape(shape)->config.dump(), "config.json", 9)
                                .status()
                                .message()),
                HasSubstr("--segment-tokens is given, and a model of type"))
        << shape;
  }
}

TEST(TrainedKeysTest, AMisspelledKeyOfTttIsHintedAt) {
  const auto config = Config("ttt-linear-tiny", R"({"mini_batchsize": 8})");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->warnings.size(), 1u);
  EXPECT_THAT(config->warnings[0], HasSubstr("did you mean \"mini_batch_size\"?"));
}

// The layout of a session's state shows what is kept.
TEST(TrainedKeysTest, TheStateIsWhatTheEquationsKeep) {
  const auto slab = [](const char* shape, const std::string& changes) {
    const auto config = Config(shape, changes);
    EXPECT_TRUE(config.ok()) << config.status();
    return MakeNetwork(*config).state.slab_bytes();
  };
  const int64_t copy = 2 * 2 * 16 * 32 * 4, windows = 3 * 3 * 32 * 4;
  const char* one = R"({"num_hidden_layers": 1})";
  EXPECT_EQ(slab("titans-lmm-tiny", one), 2 * copy + windows) << "weights and momentum";
  EXPECT_EQ(slab("titans-lmm-tiny", R"({"num_hidden_layers": 1, "memory_anchor_period": 8})"),
            3 * copy + windows)
      << "and an anchor";
  EXPECT_EQ(slab("titans-lmm-tiny", R"({"num_hidden_layers": 1, "memory_momentum_order": 0})"),
            copy + windows);
  EXPECT_EQ(
      slab("ttt-linear-tiny", R"({"num_hidden_layers": 1, "share_qk": false, "pre_conv": false})"),
      2 * 2 * (32 * 32 + 32) * 4)
      << "weights and the sum of gradients";
}

}  // namespace
}  // namespace mneme
