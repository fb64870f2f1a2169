// What the families of matrix memories read of config.json: what they refuse, what counts.

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/model_config.h"
#include "tests/models/config_keys.h"
#include "tests/models/golden.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/test_folder.h"
#include "tools/model_maker.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<std::string>& MatrixTypes() {
  static const auto* const types = new std::vector<std::string>{
      "linear_attn", "retnet", "gla",     "delta_net", "kda",
      "hgrn2",       "gsa",    "mom_gla", "mom_gsa",   "mom_linear_attn"};
  return *types;
}

// Values that differ from the defaults in one key.
const std::map<std::string, std::vector<std::string>>& Changes() {
  static const auto* const changes = new std::map<std::string, std::vector<std::string>>{
      {"linear_attn",
       {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 0.5)", R"("expand_v": 2)",
        R"("feature_map": "hedgehog")", R"("feature_map": "t2r")", R"("feature_map": "dpfp")",
        R"("feature_map": "elu")", R"("feature_map": "relu")", R"("feature_map": "identity")",
        R"("tie_feature_map_qk": true)", R"("norm_q": true)", R"("norm_k": true)",
        R"("norm_feature_map": true)", R"("elementwise_affine": false)"}},
      {"retnet",
       {R"("num_heads": 16)", R"("num_kv_heads": 2)", R"("expand_k": 0.5)", R"("expand_v": 1)",
        R"("feature_map": "relu")", R"("feature_map": "sigmoid")", R"("feature_map": "swish")",
        R"("use_output_gate": false)", R"("elementwise_affine": false)"}},
      {"gla",
       {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 1)", R"("expand_v": 2)",
        R"("feature_map": "relu")", R"("feature_map": "swish")", R"("use_short_conv": true)",
        R"("use_short_conv": true, "conv_size": 3)", R"("clamp_min": -0.5)", R"("clamp_min": 0)",
        R"("use_output_gate": false)", R"("elementwise_affine": false)"}},
      {"delta_net",
       {R"("num_heads": 8)", R"("expand_k": 0.5)", R"("expand_v": 2)", R"("use_beta": false)",
        R"("use_gate": true)", R"("use_short_conv": false)", R"("conv_size": 3)",
        R"("qk_norm": "sum")", R"("qk_activation": "relu")", R"("qk_activation": "elu")",
        R"("qk_activation": "identity")", R"("allow_neg_eigval": true)"}},
      {"kda",
       {R"("num_heads": 8)", R"("num_v_heads": 32)", R"("head_dim": 64)", R"("expand_v": 2)",
        R"("use_short_conv": false)", R"("conv_size": 3)", R"("lower_bound": -5)",
        R"("lower_bound": 0)", R"("allow_neg_eigval": true)"}},
      {"hgrn2",
       {R"("expand_ratio": 64)", R"("expand_ratio": null, "num_heads": 8)",
        R"("use_lower_bound": false)", R"("use_short_conv": true)",
        R"("use_short_conv": true, "conv_size": 3)", R"("elementwise_affine": false)"}},
      {"gsa",
       {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 0.5)", R"("exapnd_k": 2)",
        R"("num_slots": 32)", R"("num_slots": null)", R"("feature_map": "relu")",
        R"("feature_map": "t2r")", R"("gate_logit_normalizer": 16)", R"("use_short_conv": true)",
        R"("use_short_conv": true, "conv_size": 3)", R"("elementwise_affine": false)"}},
      {"mom_gla",
       {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 1)", R"("expand_v": 2)",
        R"("feature_map": "relu")", R"("use_short_conv": true)", R"("clamp_min": -0.5)",
        R"("use_output_gate": false)", R"("elementwise_affine": false)", R"("num_memories": 4)",
        R"("topk": 1)", R"("shared_mem": true)", R"("single_kv_proj": true)"}},
      {"mom_gsa",
       {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 0.5)", R"("num_slots": 32)",
        R"("feature_map": "relu")", R"("gate_logit_normalizer": 16)", R"("norm_first": false)",
        R"("elementwise_affine": false)", R"("topk": 1)", R"("shared_mem": true)"}},
      {"mom_linear_attn",
       {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 0.5)", R"("expand_v": 2)",
        R"("feature_map": "elu")", R"("tie_feature_map_qk": true)", R"("norm_q": true)",
        R"("norm_k": true)", R"("elementwise_affine": false)", R"("num_memories": 4)",
        R"("topk": 1)", R"("shared_mem": true)"}},
  };
  return *changes;
}

TEST(MatrixFingerprintTest, EveryKeyThatMovesLogitsOrStateCounts) {
  DistinctFingerprints seen;
  for (const std::string& type : MatrixTypes()) {
    std::vector<std::string> all = Changes().at(type);
    all.insert(all.end(), {"", R"("vocab_size": 31999)", R"("hidden_size": 1024)",
                           R"("num_hidden_layers": 23)", R"("intermediate_size": 512)",
                           R"("hidden_ratio": 3)", R"("norm_eps": 1e-5)"});
    for (const std::string& keys : all) {
      seen.Add(FingerprintOf(type, keys), absl::StrCat(type, " ", keys));
    }
  }
}

TEST(MatrixFingerprintTest, WhatMovesNeitherDoesNotCount) {
  for (const std::string& type : MatrixTypes()) {
    const uint64_t defaults = FingerprintOf(type, "");
    for (const char* keys :
         {R"("transformers_version": "5.17.0")", R"("architectures": ["X"])",
          R"("bos_token_id": 7)", R"("eos_token_id": [3])", R"("tie_word_embeddings": true)",
          R"("dtype": "bfloat16")", R"("initializer_range": 0.1)",
          R"("attn_mode": "fused_recurrent")", R"("fuse_norm": false)", R"("fuse_swiglu": false)",
          R"("fuse_cross_entropy": false)", R"("use_l2warp": true)", R"("use_cache": false)",
          R"("max_position_embeddings": 4096)", R"("attn": null)", R"("attnres_block_size": null)",
          R"("norm_eps": 0.000001)"}) {
      EXPECT_EQ(FingerprintOf(type, keys), defaults) << type << " " << keys;
    }
  }
  const auto same = [](const std::string& type, const std::string& a, const std::string& b) {
    EXPECT_EQ(FingerprintOf(type, a), FingerprintOf(type, b)) << type << " " << a << " " << b;
  };
  same("gla", "", R"("num_kv_heads": 4)");
  same("gla", "", R"("conv_size": 7)");  // without convolutions
  same("gla", "", R"("use_gk": false, "use_gv": true)");
  same("gla", R"("elementwise_affine": null)", R"("elementwise_affine": false)");
  same("retnet", "", R"("use_short_conv": true, "conv_size": 7)");  // upstream never has any
  same("linear_attn", R"("feature_map": "elu")",
       R"("feature_map": "elu", "tie_feature_map_qk": true)");
  same("delta_net", "", R"("use_output_norm": false)");
  same("kda", R"("lower_bound": -5)", R"("lower_bound": -5, "safe_gate": true)");
  same("hgrn2", "", R"("num_heads": 16)");
  same("hgrn2", R"("expand_ratio": 64)", R"("expand_ratio": null, "num_heads": 32)");
  same("gsa", R"("exapnd_k": 0.5)", R"("expand_k": 0.5)");
  same("gsa", R"("exapnd_k": 2, "expand_k": 0.5)", R"("expand_k": 0.5)");
  same("mom_gsa", "", R"("num_experts": 4, "num_memories": 4)");
  same("mom_gla", "", R"("capacity": 1.5)");
}

TEST(MatrixConfigTest, MissingKeysAreUpstreamsDefaults) {
  // The layout of a session's state shows them.
  const auto slab = [](const std::string& type, const std::string& keys) {
    const auto config = ConfigOf(type, absl::StrCat(R"("num_hidden_layers": 1)", keys));
    EXPECT_TRUE(config.ok()) << config.status();
    return MakeNetwork(*config).state.slab_bytes();
  };
  const int64_t window = 3 * 2048 * 4;
  EXPECT_EQ(slab("linear_attn", ""), 4 * 512 * 512 * 4);
  EXPECT_EQ(slab("linear_attn", R"(, "norm_feature_map": true)"), 4 * 513 * 512 * 4);
  EXPECT_EQ(slab("linear_attn", R"(, "feature_map": "dpfp")"), 4 * 512 * 4096 * 4);
  EXPECT_EQ(slab("retnet", ""), 8 * 256 * 512 * 4);
  EXPECT_EQ(slab("gla", ""), 4 * 256 * 512 * 4);
  EXPECT_EQ(slab("gla", R"(, "num_kv_heads": 1)"), 4 * 256 * 512 * 4) << "a state per query head";
  EXPECT_EQ(slab("delta_net", ""), 16 * 128 * 128 * 4 + 3 * window);
  EXPECT_EQ(slab("kda", ""), 16 * 128 * 128 * 4 + 3 * window);
  EXPECT_EQ(slab("hgrn2", ""), 16 * 128 * 128 * 4);
  EXPECT_EQ(slab("gsa", ""), 2 * 4 * 512 * 64 * 4);
  EXPECT_EQ(slab("mom_gla", ""), 64 + 8 * 4 * 256 * 512 * 4) << "with a flag a memory";
  EXPECT_EQ(slab("mom_gla", R"(, "shared_mem": true)"), 64 + 9 * 4 * 256 * 512 * 4);
  EXPECT_EQ(slab("mom_gsa", ""), 64 + 8 * 2 * 4 * 512 * 64 * 4);
  EXPECT_EQ(slab("mom_linear_attn", ""), 64 + 8 * 4 * 512 * 512 * 4);
}

// A key that is ignored is told of where its default fits no tensor, too.
TEST(MatrixConfigTest, AnErrorOfATensorTellsOfAMisspelledKey) {
  const TestFolder folder;
  ModelSpec spec = *SpecOfShape("gla-tiny");
  spec.config["expand_k"] = 1.0;
  MakeFolder(spec, folder);
  spec.config.erase("expand_k");
  spec.config["expnd_k"] = 1.0;
  std::ofstream(folder.File("config.json")) << ConfigJson(spec);
  EXPECT_THAT(PlanModel(folder.path(), StateFormat{}).status().message(),
              testing::AllOf(testing::HasSubstr("q_proj.weight"),
                             testing::HasSubstr("did you mean \"expand_k\"?")));
}

// What an int8 matrix loses at every token is too much; where writes are held back it is not.
TEST(MatrixConfigTest, StateDtypesAreRefusedWhereTheyMeanNothingOrLoseTooMuch) {
  const auto plan = [](const char* shape, DType dtype) {
    const absl::StatusOr<ModelSpec> spec = SpecOfShape(shape);
    CHECK_OK(spec.status());
    const TestFolder folder;
    MakeFolder(*spec, folder);
    return PlanModel(folder.path(), {.memory_dtype = dtype, .pending_writes = 16}).status();
  };
  for (const char* shape : {"gla-tiny", "retnet-tiny", "kda-tiny", "mamba2-tiny"}) {
    EXPECT_TRUE(plan(shape, DType::kF16).ok()) << shape;
    EXPECT_THAT(plan(shape, DType::kI8).message(),
                testing::HasSubstr("would be rounded at every token; expected f32 or f16"))
        << shape;
  }
  EXPECT_TRUE(plan("mom-tiny", DType::kI8).ok());
  EXPECT_TRUE(plan("gdn-tiny", DType::kI8).ok());
  EXPECT_TRUE(plan("delta-net-tiny", DType::kI8).ok());
  for (const char* shape : {"mamba-tiny", "gpt2-tiny"}) {
    for (const DType dtype : {DType::kF16, DType::kI8}) {
      EXPECT_THAT(plan(shape, dtype).message(),
                  testing::HasSubstr("keeps no matrices of that dtype; expected f32"))
          << shape;
    }
  }
}

constexpr BadKeys kBadMatrixKeys[] = {
    {"gla_heads", "gla", R"("num_heads": 3)", kInvalid, "a multiple of num_heads (3)"},
    {"gla_kv_heads", "gla", R"("num_kv_heads": 3)", kInvalid,
     "\"num_kv_heads\" is 3, expected a divisor of num_heads (4)"},
    {"gla_expand", "gla", R"("expand_v": 0)", kInvalid, "\"expand_v\" is 0"},
    {"gla_expand_heads", "gla", R"("expand_k": 0.0001)", kInvalid, "\"expand_k\" is 0.0001"},
    {"gla_map", "gla", R"("feature_map": "gelu")", kUnimplemented,
     "\"feature_map\" is \"gelu\", which is not supported; expected one of null, \"relu\""},
    {"gla_clamp", "gla", R"("clamp_min": 0.5)", kInvalid, "\"clamp_min\" is 0.5"},
    {"gla_act", "gla", R"("hidden_act": "powlu")", kUnimplemented, "\"hidden_act\""},
    {"gla_conv", "gla", R"("use_short_conv": true, "conv_size": 17)", kInvalid, "\"conv_size\""},
    {"retnet_map", "retnet", R"("feature_map": "elu")", kUnimplemented, "\"feature_map\""},
    {"retnet_wide_keys", "retnet", R"("num_heads": 4)", kInvalid,
     "\"num_heads\" is 4, expected a number that makes keys even and at most 256 wide, not 512"},
    {"retnet_odd_keys", "retnet", R"("hidden_size": 72)", kInvalid, "not 9"},
    {"linear_map", "linear_attn", R"("feature_map": "performer")", kUnimplemented,
     "\"feature_map\" is \"performer\""},
    {"linear_null_map", "linear_attn", R"("feature_map": null)", kInvalid, "\"feature_map\""},
    {"delta_activation", "delta_net", R"("qk_activation": "gelu")", kInvalid,
     "\"qk_activation\" is \"gelu\""},
    {"delta_norm", "delta_net", R"("qk_norm": "max")", kInvalid, "\"qk_norm\" is \"max\""},
    {"delta_heads", "delta_net", R"("num_heads": 15)", kInvalid, "a multiple of num_heads (15)"},
    {"kda_value_heads", "kda", R"("num_v_heads": 24)", kInvalid,
     "\"num_v_heads\" is 24, expected a multiple of num_heads (16)"},
    {"kda_safe_gate", "kda", R"("safe_gate": true)", kInvalid,
     "\"safe_gate\" is true, expected false where lower_bound is null"},
    {"kda_bound", "kda", R"("lower_bound": 1)", kInvalid, "\"lower_bound\" is 1"},
    {"kda_expand", "kda", R"("expand_v": 0.003)", kInvalid, "\"expand_v\""},
    {"hgrn2_no_heads", "hgrn2", R"("expand_ratio": null)", kInvalid, "\"expand_ratio\" is null"},
    {"hgrn2_heads", "hgrn2", R"("expand_ratio": null, "num_heads": 3)", kInvalid,
     "\"num_heads\" is 3, expected one that cuts hidden_size (2048)"},
    {"hgrn2_bounds", "hgrn2", R"("expand_ratio": 1500)", kInvalid, "\"use_lower_bound\" is true"},
    {"gsa_expand", "gsa", R"("expand_v": 2)", kInvalid, "\"expand_v\""},
    {"gsa_misspelt_expand", "gsa", R"("exapnd_v": 2)", kInvalid, "\"expand_v\""},
    {"gsa_map", "gsa", R"("feature_map": "elu")", kUnimplemented,
     "expected one of \"swish\", \"relu\", \"t2r\""},
    {"gsa_normalizer", "gsa", R"("gate_logit_normalizer": 0)", kInvalid,
     "\"gate_logit_normalizer\""},
    {"gsa_slots", "gsa", R"("num_slots": 0)", kInvalid, "\"num_slots\""},
    {"mom_gla_conv", "mom_gla", R"("use_short_conv": true, "shared_mem": true)", kUnimplemented,
     "\"use_short_conv\" is true, which is not supported; expected false where shared_mem is true"},
    {"mom_gla_capacity", "mom_gla", R"("capacity": 0.5)", kUnimplemented, "\"capacity\" is 0.5"},
    {"mom_gla_top", "mom_gla", R"("topk": 9)", kInvalid, "\"topk\" is 9"},
    {"mom_gsa_conv", "mom_gsa", R"("use_short_conv": true)", kUnimplemented, "\"use_short_conv\""},
    {"mom_gsa_top", "mom_gsa", R"("topk": 9, "num_experts": 16)", kInvalid, "\"topk\" is 9"},
    {"mom_linear_norm", "mom_linear_attn", R"("norm_feature_map": true)", kUnimplemented,
     "\"norm_feature_map\" is true"},
};

class BadKeysTest : public testing::TestWithParam<BadKeys> {};

TEST_P(BadKeysTest, IsRefusedByName) { ExpectRefused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, BadKeysTest, testing::ValuesIn(kBadMatrixKeys),
                         [](const auto& info) { return info.param.name; });

TEST(MatrixConfigTest, WhatNoFamilyHasIsRefusedByName) {
  for (const std::string& type : MatrixTypes()) {
    for (const auto& [key, value] : {std::pair{"attnres_block_size", "2"},
                                     {"quantization_config", "{}"},
                                     {"hidden_act", "\"gelu\""}}) {
      const auto config = ConfigOf(type, absl::StrCat("\"", key, "\": ", value));
      EXPECT_TRUE(absl::IsUnimplemented(config.status())) << type << " " << config.status();
      EXPECT_THAT(config.status().message(), HasSubstr(absl::StrCat("key \"", key, "\" is")));
    }
  }
}

TEST(MatrixConfigTest, WarningsAreOfMistakesOnly) {
  for (const std::string& name : GoldenNames()) {
    const auto config = ReadModelConfig(GoldenFolder(name));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_THAT(config->warnings, IsEmpty()) << name;
  }
  EXPECT_THAT(ConfigOf("hgrn2", R"("num_heads": 3)")->warnings,
              ElementsAre(HasSubstr("\"num_heads\" is 3 and ignored: expand_ratio makes 16")));
  EXPECT_THAT(ConfigOf("gla", R"("num_kv_head": 2)")->warnings,
              ElementsAre(HasSubstr("did you mean \"num_kv_heads\"?")));
  EXPECT_THAT(ConfigOf("kda", R"("lower_bounds": -5)")->warnings,
              ElementsAre(HasSubstr("did you mean \"lower_bound\"?")));
}

TEST(MatrixStateTest, MatricesHaveTheDevicesDTypeAndOnlyTheDeltaRuleHoldsBackBesideInt8) {
  for (const std::string& type : MatrixTypes()) {
    const ModelSpec spec =
        MatrixSpec(type, type == "linear_attn" ? nlohmann::ordered_json{{"norm_feature_map", true}}
                                               : nlohmann::ordered_json{});
    const auto config = ParseModelConfig(ConfigJson(spec), "config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    WeightRecorder weights(spec.absent);
    StateLayout state;
    std::vector<std::string> warnings;
    ASSERT_TRUE(
        config
            ->make_network({.weights = weights,
                            .state = state,
                            .state_format = {.memory_dtype = DType::kI8, .pending_writes = 16},
                            .warnings = warnings})
            .ok());
    int matrices = 0;
    const bool holds_back = type == "delta_net";
    for (const StateField& field : state.fields()) {
      EXPECT_EQ(field.role == StateRole::kHeldBack,
                holds_back && absl::StrContains(field.name, ".pending_"))
          << field.name;
      EXPECT_TRUE(holds_back || field.initial != StateInitial::kPhase) << field.name;
      if (field.row_values == 0) continue;
      ++matrices;
      const bool sum = absl::EndsWith(field.name, ".key_sum");
      EXPECT_EQ(field.dtype, sum ? DType::kF32 : DType::kI8) << field.name;
      const bool routed = type.starts_with("mom_");
      EXPECT_EQ(field.guard, routed ? StateGuard::kFlags : StateGuard::kFed) << field.name;
    }
    EXPECT_EQ(matrices, type.ends_with("gsa") || type == "linear_attn" ? 4 : 2) << type;
  }
}

// What the tool's help says of those that have no such state, or have it in an older format.
TEST(MatrixShapesTest, ShapesOfAttentionHaveTheParametersThatTheHelpTells) {
  for (const auto& [shape, millions] : {std::pair("transformer-340m", 374),
                                        {"llama-340m", 374},
                                        {"mistral-340m", 393},
                                        {"mom-gated-deltanet-340m", 545}}) {
    EXPECT_NEAR(MakeShape(shape).millions(), millions, 0.6) << shape;
  }
}

// What documents and the tool's help say of the shapes that are named after 340M.
TEST(MatrixShapesTest, HaveTheParametersAndTheStateThatDocumentsTell) {
  struct Shape340 {
    const char* name;
    double millions;
    int64_t slab;
  };
  for (const auto& [shape, millions, slab] : {Shape340{"linear-attn-340m", 380, 25165824},
                                              {"retnet-340m", 380, 50331648},
                                              {"gla-340m", 374, 12582912},
                                              {"delta-net-340m", 374, 13467648},
                                              {"kda-340m", 387, 13467648},
                                              {"hgrn2-340m", 374, 12582912},
                                              {"gsa-340m", 380, 12582912},
                                              {"mom-linear-attn-340m", 582, 125830656},
                                              {"mom-gla-340m", 528, 62916096},
                                              {"mom-gsa-340m", 833, 113247744}}) {
    const auto spec = SpecOfShape(shape);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto config = ParseModelConfig(ConfigJson(*spec), "config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    WeightRecorder weights(spec->absent);
    StateLayout state;
    std::vector<std::string> warnings;
    ASSERT_TRUE(
        config->make_network({.weights = weights, .state = state, .warnings = warnings}).ok());
    double count = 0;
    for (const TensorSpec& tensor : weights.tensors()) {
      double elements = 1;
      for (const int64_t dim : tensor.shape) elements *= static_cast<double>(dim);
      count += elements;
    }
    EXPECT_NEAR(count / 1e6, millions, 0.5) << shape;
    EXPECT_EQ(state.slab_bytes(), slab) << shape;
  }
}

}  // namespace
}  // namespace mneme
