// RWKV-6 and RWKV-7 read config.json: keys that are refused, keys that count in the fingerprint,
// keys that are left out.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model_config.h"
#include "tests/models/config_keys.h"
#include "tests/models/matrix_spec.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<std::string> kTypes = {"rwkv6", "rwkv7"};

TEST(RwkvFingerprintTest, EveryKeyThatMovesLogitsOrStateCounts) {
  DistinctFingerprints seen;
  for (const std::string& type : kTypes) {
    std::vector<std::string> all = {"",
                                    R"("vocab_size": 31999)",
                                    R"("hidden_size": 1024)",
                                    R"("num_hidden_layers": 23)",
                                    R"("intermediate_size": 512)",
                                    R"("hidden_ratio": 3)",
                                    R"("norm_eps": 1e-6)",
                                    R"("norm_first": false)",
                                    R"("norm_bias": false)"};
    if (type == "rwkv6") {
      all.insert(all.end(), {R"("num_heads": 8)", R"("expand_k": 1)", R"("expand_v": 2)"});
    } else {
      all.insert(all.end(), {R"("head_dim": 128)", R"("head_dim": null, "num_heads": 64)",
                             R"("value_dim": 4096)", R"("fuse_norm": false)"});
    }
    for (const std::string& keys : all) {
      seen.Add(FingerprintOf(type, keys), absl::StrCat(type, " ", keys));
    }
  }
}

TEST(RwkvFingerprintTest, WhatMovesNeitherDoesNotCount) {
  for (const std::string& type : kTypes) {
    const uint64_t defaults = FingerprintOf(type, "");
    for (const char* keys :
         {R"("transformers_version": "5.17.0")", R"("bos_token_id": 7)", R"("eos_token_id": [3])",
          R"("tie_word_embeddings": true)", R"("initializer_range": 0.1)",
          R"("attn_mode": "fused_recurrent")", R"("fuse_cross_entropy": false)",
          R"("use_l2warp": true)", R"("use_cache": false)", R"("max_position_embeddings": 4096)",
          R"("attn": null)", R"("norm_eps": 0.00001)", R"("gate_low_rank_dim": 7)"}) {
      EXPECT_EQ(FingerprintOf(type, keys), defaults) << type << " " << keys;
    }
  }
  const auto same = [](const std::string& type, const std::string& a, const std::string& b) {
    EXPECT_EQ(FingerprintOf(type, a), FingerprintOf(type, b)) << type << " " << a << " " << b;
  };
  same("rwkv6", "", R"("fuse_norm": false)");
  same("rwkv6", "", R"("proj_low_rank_dim": 7)");
  same("rwkv6", "", R"("intermediate_size": 7168)");
  same("rwkv6", R"("hidden_ratio": null)", R"("hidden_ratio": 3.5)");
  same("rwkv7", "", R"("num_heads": 7)");  // head_dim comes first
  same("rwkv7", R"("head_dim": 32)", R"("head_dim": null, "num_heads": 64)");
  same("rwkv7", "", R"("value_dim": 2048)");
  same("rwkv7", R"("num_hidden_layers": 2)",
       R"("num_hidden_layers": 2, "value_dim": [2048, 2048])");
  same("rwkv7", "", R"("decay_low_rank_dim": null, "a_low_rank_dim": 7, "v_low_rank_dim": null)");
  same("rwkv7", R"("hidden_size": 1000, "head_dim": 8, "hidden_ratio": 3)",
       R"("hidden_size": 1000, "head_dim": 8, "intermediate_size": 3008)");
}

constexpr BadKeys kBadRwkvKeys[] = {
    {"attn_7", "rwkv7", R"("attn": {"layers": [1, 0], "num_heads": 4})", kUnimplemented,
     "expected layers from 1 on: the values of the first go into those of the others"},
    {"quantised", "rwkv7", R"("quantization_config": {})", kUnimplemented,
     "\"quantization_config\""},
    {"activation", "rwkv6", R"("hidden_act": "swish")", kUnimplemented,
     "\"hidden_act\" is \"swish\", which is not supported; expected \"sqrelu\""},
    {"eps", "rwkv7", R"("norm_eps": 0)", kInvalid, "\"norm_eps\" is 0"},
    {"ratio", "rwkv7", R"("hidden_ratio": 1e-9)", kInvalid, "\"hidden_ratio\""},
    {"bias", "rwkv7", R"("norm_bias": 1)", kInvalid, "\"norm_bias\" is 1, expected true or false"},
    {"heads_6", "rwkv6", R"("num_heads": 3)", kInvalid, "a multiple of num_heads (3)"},
    {"expand_6", "rwkv6", R"("expand_v": 0)", kInvalid, "\"expand_v\" is 0"},
    {"rank_6", "rwkv6", R"("proj_low_rank_dim": 0)", kInvalid, "\"proj_low_rank_dim\" is 0"},
    {"rank_7", "rwkv7", R"("v_low_rank_dim": -1)", kInvalid, "\"v_low_rank_dim\" is -1"},
    {"head_dim", "rwkv7", R"("head_dim": 60)", kInvalid,
     "\"head_dim\" is 60, expected a divisor of hidden_size (2048)"},
    {"no_heads", "rwkv7", R"("head_dim": null)", kInvalid,
     "\"head_dim\" is null, expected an integer, or one for num_heads"},
    {"heads", "rwkv7", R"("head_dim": null, "num_heads": 3)", kInvalid,
     "\"num_heads\" is 3, expected a divisor of hidden_size (2048)"},
    {"values", "rwkv7", R"("value_dim": 100)", kInvalid,
     "\"value_dim\" is 100, expected a multiple of the 32 heads"},
    {"no_values", "rwkv7", R"("value_dim": 0)", kInvalid, "\"value_dim\" is 0"},
    {"values_of_layers", "rwkv7", R"("num_hidden_layers": 2, "value_dim": [2048, 4096])", kInvalid,
     "one and the same for each of the 2 layers"},
    {"few_values", "rwkv7", R"("num_hidden_layers": 2, "value_dim": [2048])", kInvalid,
     "\"value_dim\" is [2048]"},
    {"wide_values", "rwkv7", R"("value_dim": 99999999999999)", kInvalid, "\"value_dim\""},
};

class RwkvBadKeysTest : public testing::TestWithParam<BadKeys> {};

TEST_P(RwkvBadKeysTest, IsRefusedByName) { ExpectRefused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, RwkvBadKeysTest, testing::ValuesIn(kBadRwkvKeys),
                         [](const auto& info) { return info.param.name; });

TEST(RwkvConfigTest, WarningsAreOfMistakesOnly) {
  EXPECT_THAT(ConfigOf("rwkv6", R"("attn_mode": "chunk", "gate_low_rank_dim": 64)")->warnings,
              IsEmpty());
  EXPECT_THAT(ConfigOf("rwkv7", R"("attn_mode": "chunk", "num_heads": 32)")->warnings, IsEmpty());
  EXPECT_THAT(ConfigOf("rwkv7", R"("num_heads": 7)")->warnings,
              ElementsAre(HasSubstr("\"num_heads\" is 7 and ignored: head_dim makes 32 heads")));
  EXPECT_THAT(ConfigOf("rwkv7", R"("head_dims": 32)")->warnings,
              ElementsAre(HasSubstr("did you mean \"head_dim\"?")));
}

TEST(RwkvConfigTest, MissingKeysAreUpstreamsDefaults) {
  // A matrix, and the last token twice.
  const int64_t shifts = 2 * 2048 * 4;
  EXPECT_EQ(MakeNetwork(*ConfigOf("rwkv6", R"("num_hidden_layers": 1)")).state.slab_bytes(),
            4 * 256 * 512 * 4 + shifts);
  EXPECT_EQ(MakeNetwork(*ConfigOf("rwkv7", R"("num_hidden_layers": 1)")).state.slab_bytes(),
            32 * 64 * 64 * 4 + shifts);
}

// Documents and the tool's help state these numbers for the shapes.
TEST(RwkvConfigTest, ShapesHaveTheParametersAndTheStateThatDocumentsTell) {
  struct Expected {
    const char* shape;
    double millions;
    int64_t slab;
  };
  for (const auto& [shape, millions, slab] : {Expected{"rwkv6-340m", 378.12, 12779520},
                                              {"rwkv7-0.4b", 450.77, 6488064},
                                              {"rwkv7-1.5b", 1527.40, 12976128}}) {
    const MadeNetwork made = MakeShape(shape);
    EXPECT_NEAR(made.millions(), millions, 0.01) << shape;
    EXPECT_EQ(made.state.slab_bytes(), slab) << shape;
  }
}

}  // namespace
}  // namespace mneme
