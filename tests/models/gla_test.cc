// Gated linear attention and what it does behind a router, against plain equations, and its keys.

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/config_keys.h"
#include "tests/models/plain_network.h"

namespace mneme {
namespace {

struct GlaNames {
  std::string k, v, gk;
};

// What one memory answers to x, [heads, value_dim].
Vec Answer(PlainLayer& layer, const Vec& x, const GlaNames& names, const std::string& memory) {
  const auto& config = layer.model.config();
  const int dim = config["hidden_size"], heads = config["num_heads"];
  const int kv_heads = config["num_kv_heads"].is_null() ? heads : int{config["num_kv_heads"]};
  const int key_dim = static_cast<int>(dim * double{config["expand_k"]}) / heads;
  const int value_dim = static_cast<int>(dim * double{config["expand_v"]}) / heads;
  const auto stream = [&](const char* name, const std::string& projection) {
    const Vec raw = layer.Linear(projection, x);
    return config["use_short_conv"] ? Map(layer.Convolve(name, raw, memory), Silu) : raw;
  };
  Vec q = stream("q", "attn.q_proj"), k = stream("k", names.k), v = stream("v", names.v);
  if (config["feature_map"] == "relu") {
    q = Map(q, Relu);
    k = Map(k, Relu);
  } else if (config["feature_map"] == "swish") {
    q = Map(q, Silu);
    k = Map(k, Silu);
  }
  const Vec l = layer.Linear(names.gk + ".1", layer.Linear(names.gk + ".0", x));
  Vec read;
  for (int h = 0; h < heads; ++h) {
    const int kv = h / (heads / kv_heads);
    const auto decay = [&](int64_t, int64_t j) {
      double g = std::log(Sigmoid(l[kv * key_dim + j])) / 16;
      if (!config["clamp_min"].is_null()) g = std::max(g, double{config["clamp_min"]});
      return std::exp(g);
    };
    Vec o = WriteAndRead(layer.state[absl::StrCat("S", memory, ".", h)],
                         {.q = Slice(q, h * key_dim, key_dim),
                          .k = Slice(k, kv * key_dim, key_dim),
                          .v = Slice(v, kv * value_dim, value_dim),
                          .decay = decay});
    for (double& value : o) value /= std::sqrt(key_dim);
    read.insert(read.end(), o.begin(), o.end());
  }
  return read;
}

Vec GlaOut(PlainLayer& layer, const Vec& x, const Vec& read) {
  const auto& config = layer.model.config();
  const int heads = config["num_heads"];
  const auto value_dim = static_cast<int64_t>(read.size()) / heads;
  const bool affine = !config.contains("elementwise_affine");  // the tests take it away only
  const bool gated = config["use_output_gate"];
  const Vec gate = gated ? layer.Linear("attn.g_proj", x) : Vec{};
  Vec y;
  for (int h = 0; h < heads; ++h) {
    const Vec normed =
        RmsNorm(Slice(read, h * value_dim, value_dim),
                affine ? layer.Weight("attn.g_norm_swish_gate.weight") : Vec{}, config["norm_eps"]);
    for (int64_t i = 0; i < value_dim; ++i) {
      y.push_back(normed[i] * (gated ? Silu(gate[h * value_dim + i]) : 1));
    }
  }
  return layer.Linear("attn.o_proj", y);
}

Vec Gla(PlainLayer& layer, const Vec& x, int64_t) {
  return GlaOut(layer, x, Answer(layer, x, {"attn.k_proj", "attn.v_proj", "attn.gk_proj"}, ""));
}

Vec MomGla(PlainLayer& layer, const Vec& x, int64_t) {
  const auto& config = layer.model.config();
  const int memories = config["num_memories"];
  const bool single = config.value("single_kv_proj", false);
  const Vec read =
      MixMemories(layer, x, memories, config["topk"], config["shared_mem"], [&](int m) {
        const std::string memory = absl::StrCat(m);
        if (single || m == memories) {
          return Answer(layer, x, {"attn.shared_k", "attn.shared_v", "attn.shared_gk"}, memory);
        }
        return Answer(layer, x,
                      {"attn.k_proj." + memory, "attn.v_proj." + memory, "attn.gk_proj." + memory},
                      memory);
      });
  return GlaOut(layer, x, read);
}

TEST(GlaTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"num_heads": 4, "num_kv_heads": 2})", R"({"num_kv_heads": 1})",
        R"({"expand_k": 1.0, "expand_v": 2.0})", R"({"feature_map": "relu"})",
        R"({"feature_map": "swish"})", R"({"use_short_conv": true})",
        R"({"use_short_conv": true, "conv_size": 2, "feature_map": "swish"})",
        R"({"clamp_min": -0.03})", R"({"use_output_gate": false})",
        R"({"elementwise_affine": false})", R"({"elementwise_affine": null})",
        R"({"norm_eps": 0.01})",
        R"({"attn": {"layers": [0], "num_heads": 4, "qkv_bias": true}})"}) {
    ExpectPlain("gla", changes, Gla);
  }
}

TEST(MomGlaTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"shared_mem": false})", R"({"num_memories": 3, "topk": 1})",
        R"({"single_kv_proj": true})", R"({"single_kv_proj": true, "shared_mem": false})",
        R"({"shared_mem": false, "use_short_conv": true})",
        R"({"shared_mem": false, "use_short_conv": true, "single_kv_proj": true})",
        R"({"num_kv_heads": 1, "feature_map": "relu", "clamp_min": -0.03})",
        R"({"attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 1, "window_size": 9}})"}) {
    ExpectPlain("mom_gla", changes, MomGla);
  }
}

TEST(GlaConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  ExpectEachKeyCounts(
      "gla",
      {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 1)", R"("expand_v": 2)",
       R"("feature_map": "relu")", R"("feature_map": "swish")", R"("use_short_conv": true)",
       R"("use_short_conv": true, "conv_size": 3)", R"("clamp_min": -0.5)", R"("clamp_min": 0)",
       R"("use_output_gate": false)", R"("elementwise_affine": false)"});
}

TEST(GlaConfigTest, WhatMovesNeitherDoesNotCount) {
  ExpectTheSame("gla", "", R"("num_kv_heads": 4)");
  ExpectTheSame("gla", "", R"("conv_size": 7)");  // without convolutions
  ExpectTheSame("gla", "", R"("use_gk": false, "use_gv": true)");
  ExpectTheSame("gla", R"("elementwise_affine": null)", R"("elementwise_affine": false)");
}

TEST(GlaConfigTest, MissingKeysAreUpstreamsDefaults) {
  EXPECT_EQ(LayerBytes("gla", ""), 4 * 256 * 512 * 4);
  EXPECT_EQ(LayerBytes("gla", R"("num_kv_heads": 1)"), 4 * 256 * 512 * 4)
      << "a state per query head";
}

TEST(GlaConfigTest, WidthsThatAreWholeButForRoundingAreNotCutOff) {
  ASSERT_LT(150 * 0.82, 123);
  EXPECT_EQ(LayerBytes("gla", R"("hidden_size": 150, "num_heads": 3, "expand_k": 0.82)"),
            (3 * 41 * 50 * 4 + 63) / 64 * 64);
}

TEST(GlaConfigTest, TheExampleIsAsLargeAsDocumentsTell) { ExpectSize("gla-340m", 374, 12582912); }

TEST(MomGlaConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  ExpectEachKeyCounts(
      "mom_gla",
      {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 1)", R"("expand_v": 2)",
       R"("feature_map": "relu")", R"("use_short_conv": true)", R"("clamp_min": -0.5)",
       R"("use_output_gate": false)", R"("elementwise_affine": false)", R"("num_memories": 4)",
       R"("topk": 1)", R"("shared_mem": true)", R"("single_kv_proj": true)"});
}

TEST(MomGlaConfigTest, WhatMovesNeitherDoesNotCount) {
  ExpectTheSame("mom_gla", "", R"("capacity": 1.5)");
}

TEST(MomGlaConfigTest, MissingKeysAreUpstreamsDefaults) {
  EXPECT_EQ(LayerBytes("mom_gla", ""), 64 + 8 * 4 * 256 * 512 * 4) << "with a flag a memory";
  EXPECT_EQ(LayerBytes("mom_gla", R"("shared_mem": true)"), 64 + 9 * 4 * 256 * 512 * 4);
}

TEST(MomGlaConfigTest, TheExampleIsAsLargeAsDocumentsTell) {
  ExpectSize("mom-gla-340m", 528, 62916096);
}

constexpr BadKeys kBadGlaKeys[] = {
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
    {"mom_gla_conv", "mom_gla", R"("use_short_conv": true, "shared_mem": true)", kUnimplemented,
     "\"use_short_conv\" is true, which is not supported; expected false where shared_mem is true"},
    {"mom_gla_capacity", "mom_gla", R"("capacity": 0.5)", kUnimplemented, "\"capacity\" is 0.5"},
    {"mom_gla_top", "mom_gla", R"("topk": 9)", kInvalid, "\"topk\" is 9"},
};

INSTANTIATE_TEST_SUITE_P(Gla, BadMatrixKeysTest, testing::ValuesIn(kBadGlaKeys), BadKeysName);

}  // namespace
}  // namespace mneme
