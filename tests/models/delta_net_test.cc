// DeltaNet against plain equations, and its keys.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/config_keys.h"
#include "tests/models/plain_network.h"

namespace mneme {
namespace {

Vec DeltaNet(PlainLayer& layer, const Vec& x, int64_t) {
  const auto& config = layer.model.config();
  const int dim = config["hidden_size"], heads = config["num_heads"];
  const int key_dim = static_cast<int>(dim * double{config["expand_k"]}) / heads;
  const int value_dim = static_cast<int>(dim * double{config["expand_v"]}) / heads;
  const std::string activation = config["qk_activation"];
  const auto stream = [&](const std::string& name) {
    const Vec raw = layer.Linear(absl::StrCat("attn.", name, "_proj"), x);
    const Vec y = config["use_short_conv"] ? layer.Convolve(name, raw) : raw;
    if (name == "v" || activation == "silu") return Map(y, Silu);
    if (activation == "relu") return Map(y, [](double z) { return std::max(z, 0.0); });
    if (activation == "elu") return Map(y, [](double z) { return z > 0 ? z + 1 : std::exp(z); });
    return y;
  };
  const auto normed = [&](Vec u) {
    const double by = config["qk_norm"] == "sum" ? std::accumulate(u.begin(), u.end(), 0.0)
                                                 : std::sqrt(Dot(u, u) + 1e-6);
    for (double& value : u) value /= by;
    return u;
  };
  const Vec q = stream("q"), k = stream("k"), v = stream("v");
  const bool learned = config["use_beta"], gated = config["use_gate"];
  const Vec b = learned ? Map(layer.Linear("attn.b_proj", x), Sigmoid) : Vec(heads, 1.0);
  const Vec gate = gated ? layer.Linear("attn.g_proj", x) : Vec{};
  Vec y;
  for (int h = 0; h < heads; ++h) {
    Vec o = WriteAndRead(layer.state[absl::StrCat("S", h)],
                         {.q = normed(Slice(q, h * key_dim, key_dim)),
                          .k = normed(Slice(k, h * key_dim, key_dim)),
                          .v = Slice(v, h * value_dim, value_dim),
                          .decay = nullptr,
                          .beta = b[h] * (config["allow_neg_eigval"] ? 2 : 1)});
    for (double& value : o) value /= std::sqrt(key_dim);
    const Vec out = RmsNorm(o, layer.Weight("attn.o_norm.weight"), config["norm_eps"]);
    for (int i = 0; i < value_dim; ++i) {
      y.push_back(out[i] * (gated ? Silu(gate[h * value_dim + i]) : 1));
    }
  }
  return layer.Linear("attn.o_proj", y);
}

TEST(DeltaNetTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"num_heads": 4})", R"({"expand_k": 0.5, "expand_v": 2})",
        R"({"use_short_conv": false})", R"({"conv_size": 2})", R"({"use_beta": false})",
        R"({"use_beta": false, "allow_neg_eigval": true})", R"({"allow_neg_eigval": true})",
        R"({"use_gate": true})", R"({"qk_activation": "relu"})", R"({"qk_activation": "elu"})",
        R"({"qk_activation": "identity"})", R"({"qk_activation": "elu", "qk_norm": "sum"})",
        R"({"qk_activation": "relu", "use_short_conv": false})",
        R"({"qk_activation": "identity", "use_short_conv": false})", R"({"norm_eps": 0.01})",
        R"({"attn": [{"layers": [1], "num_heads": 4}, {"layers": [0], "num_heads": 2}]})"}) {
    ExpectPlain("delta_net", changes, DeltaNet);
  }
}

TEST(DeltaNetConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  ExpectEachKeyCounts(
      "delta_net",
      {R"("num_heads": 8)", R"("expand_k": 0.5)", R"("expand_v": 2)", R"("use_beta": false)",
       R"("use_gate": true)", R"("use_short_conv": false)", R"("conv_size": 3)",
       R"("qk_norm": "sum")", R"("qk_activation": "relu")", R"("qk_activation": "elu")",
       R"("qk_activation": "identity")", R"("allow_neg_eigval": true)"});
}

TEST(DeltaNetConfigTest, WhatMovesNeitherDoesNotCount) {
  ExpectTheSame("delta_net", "", R"("use_output_norm": false)");
}

TEST(DeltaNetConfigTest, MissingKeysAreUpstreamsDefaults) {
  const int64_t window = 3 * 2048 * 4;
  EXPECT_EQ(LayerBytes("delta_net", ""), 16 * 128 * 128 * 4 + 3 * window);
}

TEST(DeltaNetConfigTest, TheExampleIsAsLargeAsDocumentsTell) {
  ExpectSize("delta-net-340m", 374, 13467648);
}

constexpr BadKeys kBadDeltaNetKeys[] = {
    {"delta_activation", "delta_net", R"("qk_activation": "gelu")", kInvalid,
     "\"qk_activation\" is \"gelu\""},
    {"delta_norm", "delta_net", R"("qk_norm": "max")", kInvalid, "\"qk_norm\" is \"max\""},
    {"delta_heads", "delta_net", R"("num_heads": 15)", kInvalid, "a multiple of num_heads (15)"},
};

INSTANTIATE_TEST_SUITE_P(DeltaNet, BadMatrixKeysTest, testing::ValuesIn(kBadDeltaNetKeys),
                         BadKeysName);

}  // namespace
}  // namespace mneme
