// HGRN2 against plain equations, and its keys.

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/config_keys.h"
#include "tests/models/plain_network.h"

namespace mneme {
namespace {

Vec Hgrn2(PlainLayer& layer, const Vec& x, int64_t) {
  const auto& config = layer.model.config();
  const int dim = config["hidden_size"], layers = config["num_hidden_layers"];
  const int heads = config["expand_ratio"].is_null() ? int{config["num_heads"]}
                                                     : dim / int{config["expand_ratio"]};
  const int key_dim = config["expand_ratio"].is_null() ? dim / heads : int{config["expand_ratio"]};
  const int value_dim = dim / heads;
  const auto stream = [&](const std::string& name) {
    const Vec raw = layer.Linear(absl::StrCat("attn.", name, "_proj"), x);
    return config["use_short_conv"] ? layer.Convolve(name, raw) : raw;
  };
  const Vec q = Map(stream("q"), Silu);
  Vec f = Map(stream("f"), Sigmoid);
  const Vec input = stream("i");
  if (config["use_lower_bound"] && layer.index > 0) {
    const Vec& bounds = layer.model.Tensor("model.lower_bounds");
    for (size_t c = 0; c < f.size(); ++c) {
      Vec of_layers;
      for (int i = 0; i < layers; ++i) of_layers.push_back(bounds[i * f.size() + c]);
      of_layers = Softmax(of_layers);
      double lower = 0;
      for (int i = 1; i <= layer.index; ++i) lower += of_layers[i];
      f[c] = lower + (1 - lower) * f[c];
    }
  }
  Vec read;
  for (int h = 0; h < heads; ++h) {
    const Vec forget = Slice(f, h * key_dim, key_dim);
    Vec o = WriteAndRead(layer.state[absl::StrCat("S", h)],
                         {.q = Slice(q, h * key_dim, key_dim),
                          .k = Map(forget, [](double z) { return 1 - z; }),
                          .v = Slice(input, h * value_dim, value_dim),
                          .decay = [&](int64_t, int64_t j) { return forget[j]; }});
    for (double& value : o) value /= std::sqrt(key_dim);
    read.insert(read.end(), o.begin(), o.end());
  }
  const bool affine = !config.contains("elementwise_affine");  // the tests take it away only
  return layer.Linear("attn.o_proj",
                      RmsNorm(read, affine ? layer.Weight("attn.g_norm.weight") : Vec{}, 1e-5));
}

TEST(Hgrn2Test, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"expand_ratio": 16})", R"({"expand_ratio": null, "num_heads": 4})",
        R"({"use_lower_bound": false})", R"({"use_short_conv": true})",
        R"({"use_short_conv": true, "conv_size": 2})", R"({"num_hidden_layers": 3})",
        R"({"elementwise_affine": false})", R"({"norm_eps": 0.01})",
        R"({"num_hidden_layers": 3, "attn": {"layers": [1], "num_heads": 2}})"}) {
    ExpectPlain("hgrn2", changes, Hgrn2);
  }
}

TEST(Hgrn2ConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  ExpectEachKeyCounts(
      "hgrn2", {R"("expand_ratio": 64)", R"("expand_ratio": null, "num_heads": 8)",
                R"("use_lower_bound": false)", R"("use_short_conv": true)",
                R"("use_short_conv": true, "conv_size": 3)", R"("elementwise_affine": false)"});
}

TEST(Hgrn2ConfigTest, WhatMovesNeitherDoesNotCount) {
  ExpectTheSame("hgrn2", "", R"("num_heads": 16)");
  ExpectTheSame("hgrn2", R"("expand_ratio": 64)", R"("expand_ratio": null, "num_heads": 32)");
}

TEST(Hgrn2ConfigTest, MissingKeysAreUpstreamsDefaults) {
  EXPECT_EQ(LayerBytes("hgrn2", ""), 16 * 128 * 128 * 4);
}

TEST(Hgrn2ConfigTest, TheExampleIsAsLargeAsDocumentsTell) {
  ExpectSize("hgrn2-340m", 374, 12582912);
}

constexpr BadKeys kBadHgrn2Keys[] = {
    {"hgrn2_no_heads", "hgrn2", R"("expand_ratio": null)", kInvalid, "\"expand_ratio\" is null"},
    {"hgrn2_heads", "hgrn2", R"("expand_ratio": null, "num_heads": 3)", kInvalid,
     "\"num_heads\" is 3, expected one that cuts hidden_size (2048)"},
    {"hgrn2_bounds", "hgrn2", R"("expand_ratio": 1500)", kInvalid, "\"use_lower_bound\" is true"},
};

INSTANTIATE_TEST_SUITE_P(Hgrn2, BadMatrixKeysTest, testing::ValuesIn(kBadHgrn2Keys), BadKeysName);

}  // namespace
}  // namespace mneme
