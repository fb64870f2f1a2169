// Retention against plain equations, and its keys.

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/config_keys.h"
#include "tests/models/plain_network.h"

namespace mneme {
namespace {

// x turned by its position: pairs are half a head apart.
Vec Turned(const Vec& x, int64_t position) {
  const size_t half = x.size() / 2;
  Vec y(x.size());
  for (size_t j = 0; j < half; ++j) {
    // The frequencies are kept in f32.
    const auto frequency = static_cast<float>(std::pow(10000.0, -2.0 * j / x.size()));
    const double angle = static_cast<double>(position) * frequency;
    y[j] = x[j] * std::cos(angle) - x[half + j] * std::sin(angle);
    y[half + j] = x[half + j] * std::cos(angle) + x[j] * std::sin(angle);
  }
  return y;
}

Vec RetNet(PlainLayer& layer, const Vec& x, int64_t position) {
  const auto& config = layer.model.config();
  const int dim = config["hidden_size"], heads = config["num_heads"];
  const int kv_heads = config["num_kv_heads"].is_null() ? heads : int{config["num_kv_heads"]};
  const int key_dim = static_cast<int>(dim * double{config["expand_k"]}) / heads;
  const int value_dim = static_cast<int>(dim * double{config["expand_v"]}) / heads;
  Vec q = layer.Linear("attn.q_proj", x), k = layer.Linear("attn.k_proj", x);
  const Vec v = layer.Linear("attn.v_proj", x);
  if (!config["feature_map"].is_null()) {
    auto* const map = config["feature_map"] == "relu" ? Relu : Sigmoid;
    q = Map(q, map);
    k = Map(k, map);
  }
  const bool gated = config["use_output_gate"];
  const Vec gate = gated ? layer.Linear("attn.g_proj", x) : Vec{};
  Vec y;
  for (int h = 0; h < heads; ++h) {
    const int kv = h / (heads / kv_heads);
    const double gamma = 1 - std::pow(2.0, -5 - h);
    Vec o = WriteAndRead(layer.state[absl::StrCat("S", h)],
                         {.q = Turned(Slice(q, h * key_dim, key_dim), position),
                          .k = Turned(Slice(k, kv * key_dim, key_dim), position),
                          .v = Slice(v, kv * value_dim, value_dim),
                          .decay = [&](int64_t, int64_t) { return gamma; }});
    for (double& value : o) value /= std::sqrt(key_dim);
    const bool affine = !config.contains("elementwise_affine");  // the tests take it away only
    const Vec normed = RmsNorm(o, affine ? layer.Weight("attn.g_norm_swish_gate.weight") : Vec{},
                               config["norm_eps"]);
    for (int i = 0; i < value_dim; ++i) {
      y.push_back(normed[i] * (gated ? Silu(gate[h * value_dim + i]) : 1));
    }
  }
  return layer.Linear("attn.o_proj", y);
}

TEST(RetNetTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes : {"{}", R"({"num_heads": 4})", R"({"num_heads": 4, "num_kv_heads": 2})",
                              R"({"expand_k": 0.5, "expand_v": 1})", R"({"feature_map": "relu"})",
                              R"({"feature_map": "sigmoid"})", R"({"use_output_gate": false})",
                              R"({"elementwise_affine": false})", R"({"norm_eps": 0.01})",
                              R"({"attn": {"layers": [0], "num_heads": 2, "window_size": 1}})"}) {
    ExpectPlain("retnet", changes, RetNet);
  }
}

TEST(RetNetConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  ExpectEachKeyCounts("retnet", {R"("num_heads": 16)", R"("num_kv_heads": 2)", R"("expand_k": 0.5)",
                                 R"("expand_v": 1)", R"("feature_map": "relu")",
                                 R"("feature_map": "sigmoid")", R"("feature_map": "swish")",
                                 R"("use_output_gate": false)", R"("elementwise_affine": false)"});
}

TEST(RetNetConfigTest, WhatMovesNeitherDoesNotCount) {
  ExpectTheSame("retnet", "",
                R"("use_short_conv": true, "conv_size": 7)");  // upstream never has any
}

TEST(RetNetConfigTest, MissingKeysAreUpstreamsDefaults) {
  EXPECT_EQ(LayerBytes("retnet", ""), 8 * 256 * 512 * 4);
}

TEST(RetNetConfigTest, TheExampleIsAsLargeAsDocumentsTell) {
  ExpectSize("retnet-340m", 380, 50331648);
}

constexpr BadKeys kBadRetNetKeys[] = {
    {"retnet_map", "retnet", R"("feature_map": "elu")", kUnimplemented, "\"feature_map\""},
    {"retnet_wide_keys", "retnet", R"("num_heads": 4)", kInvalid,
     "\"num_heads\" is 4, expected a number that makes keys even and at most 256 wide, not 512"},
    {"retnet_odd_keys", "retnet", R"("hidden_size": 72)", kInvalid, "not 9"},
};

INSTANTIATE_TEST_SUITE_P(RetNet, BadMatrixKeysTest, testing::ValuesIn(kBadRetNetKeys), BadKeysName);

}  // namespace
}  // namespace mneme
