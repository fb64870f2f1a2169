// What the families of matrix memories read of config.json: what they refuse, what counts.

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/architecture.h"
#include "models/model.h"
#include "models/model_config.h"
#include "tests/models/config_keys.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/golden.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/test_folder.h"
#include "tools/model_maker.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;

TEST(MatrixFingerprintTest, EveryKeyOfAStackCountsAndSoDoesTheRule) {
  DistinctFingerprints seen;
  for (const Architecture* family : MatrixExamples()) {
    const std::string type = family->model_type;
    for (const std::string& keys : StackKeyChanges()) {
      seen.Add(FingerprintOf(type, keys), absl::StrCat(type, " ", keys));
    }
  }
}

TEST(MatrixFingerprintTest, WhatMovesNeitherDoesNotCount) {
  for (const Architecture* family : MatrixExamples()) {
    const std::string type = family->model_type;
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
  const auto plan = [](const std::string& type, DType dtype) {
    const TestFolder folder;
    MakeFolder(ConformanceSpecs(type).front(), folder);
    return PlanModel(folder.path(), {.memory_dtype = dtype, .pending_writes = 16}).status();
  };
  for (const Architecture& architecture : Architectures()) {
    const std::string type = architecture.model_type;
    const absl::Status half = plan(type, DType::kF16), ints = plan(type, DType::kI8);
    switch (architecture.coarsest_state) {
      case DType::kI8:
        EXPECT_TRUE(half.ok() && ints.ok()) << type << " " << half << " " << ints;
        break;
      case DType::kF16:
        EXPECT_TRUE(half.ok()) << type << " " << half;
        EXPECT_THAT(ints.message(),
                    HasSubstr("would be rounded at every token; expected f32 or f16"))
            << type;
        break;
      default:
        for (const absl::Status& status : {half, ints}) {
          EXPECT_THAT(status.message(), HasSubstr("keeps no matrices of that dtype; expected f32"))
              << type;
        }
    }
  }
}

// Instantiated by the tests of the rules.
TEST_P(BadMatrixKeysTest, IsRefusedByName) { ExpectRefused(GetParam()); }

TEST(MatrixConfigTest, WhatNoFamilyHasIsRefusedByName) {
  for (const Architecture* family : MatrixExamples()) {
    const std::string type = family->model_type;
    for (const auto& [key, value] : {std::pair{"attnres_block_size", "2"},
                                     {"quantization_config", "{}"},
                                     {"hidden_act", "\"gelu\""}}) {
      const auto config = ConfigOf(type, absl::StrCat("\"", key, "\": ", value));
      EXPECT_TRUE(absl::IsUnimplemented(config.status())) << type << " " << config.status();
      EXPECT_THAT(config.status().message(), HasSubstr(absl::StrCat("key \"", key, "\" is")));
    }
  }
}

// Libraries have written the one name or the other for a gated MLP.
TEST(MatrixConfigTest, SiluAndSwishAreTheSame) {
  std::vector<std::string> gated;
  for (const Architecture& architecture : Architectures()) {
    ModelSpec spec = ConformanceSpecs(architecture.model_type).front();
    const auto read = [&] { return ParseModelConfig(ConfigJson(spec), "config.json"); };
    spec.config["hidden_act"] = "gelu";
    if (!absl::StrContains(read().status().message(), "which are the same")) continue;
    gated.push_back(architecture.model_type);
    spec.config.erase("hidden_act");
    const auto without = read();
    ASSERT_TRUE(without.ok()) << gated.back() << " " << without.status();
    for (const char* name : {"silu", "swish"}) {
      spec.config["hidden_act"] = name;
      const auto config = read();
      ASSERT_TRUE(config.ok()) << gated.back() << " " << config.status();
      EXPECT_EQ(config->fingerprint, without->fingerprint) << gated.back() << " " << name;
    }
  }
  EXPECT_THAT(gated, IsSupersetOf({"mom", "gated_deltanet", "gla", "kda", "transformer", "llama",
                                   "mistral", "mamba", "samba", "ttt"}));
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

TEST(MatrixConfigTest, WhatVersionsOfUpstreamComputeDifferentlyIsTold) {
  EXPECT_THAT(ConfigOf("linear_attn", R"("feature_map": "dpfp")")->warnings,
              ElementsAre(HasSubstr("relu(-u)")));
  EXPECT_THAT(ConfigOf("delta_net", R"("qk_norm": "sum")")->warnings,
              ElementsAre(HasSubstr("absolute")));
  EXPECT_THAT(ConfigOf("delta_net", R"("qk_norm": "sum", "qk_activation": "elu")")->warnings,
              IsEmpty());
}

TEST(MatrixStateTest, MatricesHaveTheDevicesDTypeAndOnlyTheDeltaRuleHoldsBackBesideInt8) {
  for (const Architecture* family : MatrixExamples()) {
    const std::string type = family->model_type;
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
    const bool holds_back = family->coarsest_state == DType::kI8;
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

}  // namespace
}  // namespace mneme
