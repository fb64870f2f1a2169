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
      {"ttt-linear-tiny",
       {R"({"ttt_layer_type": "mlp"})", R"({"ttt_base_lr": 0.5})", R"({"mini_batch_size": 8})",
        R"({"use_gate": false})", R"({"share_qk": false})", R"({"pre_conv": false})",
        R"({"conv_kernel": 3})", R"({"num_attention_heads": 4})", R"({"rope_theta": 5000})",
        R"({"rms_norm_eps": 1e-5})"}}};
  std::map<uint64_t, std::string> seen;
  for (const auto& [shape, all] : changes) {
    seen.emplace(Fingerprint(shape, "{}"), shape);
    for (const std::string& change : all) {
      const auto [other, is_new] =
          seen.emplace(Fingerprint(shape, change), absl::StrCat(shape, " ", change));
      EXPECT_TRUE(is_new) << shape << " " << change << " counts as " << other->second;
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
    {"ttt_type", "ttt-linear-tiny", R"({"ttt_layer_type": "conv"})", kUnimplemented,
     "\"ttt_layer_type\" is \"conv\""},
    {"ttt_heads", "ttt-linear-tiny", R"({"num_attention_heads": 3})", kInvalid,
     "a number that divides hidden_size (64)"},
    {"ttt_batch", "ttt-linear-tiny", R"({"mini_batch_size": 0})", kInvalid,
     "\"mini_batch_size\" is 0"},
    {"ttt_act", "ttt-linear-tiny", R"({"hidden_act": "gelu"})", kUnimplemented,
     "\"hidden_act\" is \"gelu\""},
};

INSTANTIATE_TEST_SUITE_P(Keys, TrainedConfigTest, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

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
