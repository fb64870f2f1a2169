// Kimi Delta Attention against plain equations, and its keys.

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/config_keys.h"
#include "tests/models/plain_network.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

Vec Kda(PlainLayer& layer, const Vec& x, int64_t) {
  const auto& config = layer.model.config();
  const int heads = config["num_heads"], key_dim = config["head_dim"];
  const int value_heads = config["num_v_heads"].is_null() ? heads : int{config["num_v_heads"]};
  const int value_dim = static_cast<int>(std::lround(key_dim * double{config["expand_v"]}));
  const auto stream = [&](const std::string& name) {
    const Vec raw = layer.Linear(absl::StrCat("attn.", name, "_proj"), x);
    return Map(config["use_short_conv"] ? layer.Convolve(name, raw) : raw, Silu);
  };
  const auto normed = [](Vec u) {
    const double length = std::sqrt(Dot(u, u) + 1e-6);
    for (double& value : u) value /= length;
    return u;
  };
  const Vec q = stream("q"), k = stream("k"), v = stream("v");
  const Vec f = layer.Linear("attn.f_proj.1", layer.Linear("attn.f_proj.0", x));
  const Vec gate = layer.Linear("attn.g_proj.1", layer.Linear("attn.g_proj.0", x));
  const Vec b = layer.Linear("attn.b_proj", x);
  Vec y;
  for (int h = 0; h < value_heads; ++h) {
    const int kh = h / (value_heads / heads);
    const double rate = std::exp(layer.Weight("attn.A_log")[h]);
    const auto decay = [&](int64_t, int64_t j) {
      const double z = f[h * key_dim + j] + layer.Weight("attn.dt_bias")[h * key_dim + j];
      return std::exp(config["lower_bound"].is_null()
                          ? -rate * Softplus(z)
                          : double{config["lower_bound"]} * Sigmoid(rate * z));
    };
    Vec o = WriteAndRead(layer.state[absl::StrCat("S", h)],
                         {.q = normed(Slice(q, kh * key_dim, key_dim)),
                          .k = normed(Slice(k, kh * key_dim, key_dim)),
                          .v = Slice(v, h * value_dim, value_dim),
                          .decay = decay,
                          .beta = Sigmoid(b[h]) * (config["allow_neg_eigval"] ? 2 : 1)});
    for (double& value : o) value /= std::sqrt(key_dim);
    const Vec out = RmsNorm(o, layer.Weight("attn.o_norm.weight"), config["norm_eps"]);
    for (int i = 0; i < value_dim; ++i) y.push_back(out[i] * Sigmoid(gate[h * value_dim + i]));
  }
  return layer.Linear("attn.o_proj", y);
}

TEST(KdaTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"num_v_heads": 4})", R"({"head_dim": 16, "num_heads": 3})",
        R"({"expand_v": 0.5})", R"({"use_short_conv": false})", R"({"conv_size": 2})",
        R"({"lower_bound": -5})", R"({"lower_bound": -1.5, "safe_gate": true})",
        R"({"allow_neg_eigval": true})", R"({"norm_eps": 0.01})",
        R"({"attn": {"layers": [1], "num_heads": 4, "rope_theta": 500, "window_size": 16}})"}) {
    ExpectPlain("kda", changes, Kda);
  }
}

TEST(KdaTest, RatesMayBeStoredInSeveralShapes) {
  const TestFolder folder;
  MakePlainFolder("kda", "{}", folder);
  const std::string path = folder.File("model.safetensors");
  const auto logits = [&] {
    const auto driver = Drive(folder.path(), MakeReference(), {.slots = 1, .max_tokens = 16});
    return FeedSlot(*driver, 0, RandomTokens(16, 61, /*seed=*/3));
  };
  const std::vector<double> want = logits();
  StoredTensors tensors = ReadTensors(path);
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{1, 1, 2, 1}, {2, 1}, {1, 2}, {1, 1, 2}}) {
    for (auto& [name, tensor] : tensors) {
      if (name.ends_with("A_log")) tensor.shape = shape;
    }
    WriteTensors(tensors, path);
    EXPECT_EQ(logits(), want);
  }
}

TEST(KdaConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  ExpectEachKeyCounts(
      "kda", {R"("num_heads": 8)", R"("num_v_heads": 32)", R"("head_dim": 64)", R"("expand_v": 2)",
              R"("use_short_conv": false)", R"("conv_size": 3)", R"("lower_bound": -5)",
              R"("lower_bound": 0)", R"("allow_neg_eigval": true)"});
}

TEST(KdaConfigTest, WhatMovesNeitherDoesNotCount) {
  ExpectTheSame("kda", R"("lower_bound": -5)", R"("lower_bound": -5, "safe_gate": true)");
}

TEST(KdaConfigTest, MissingKeysAreUpstreamsDefaults) {
  const int64_t window = 3 * 2048 * 4;
  EXPECT_EQ(LayerBytes("kda", ""), 16 * 128 * 128 * 4 + 3 * window);
}

TEST(KdaConfigTest, TheExampleIsAsLargeAsDocumentsTell) { ExpectSize("kda-340m", 387, 13467648); }

constexpr BadKeys kBadKdaKeys[] = {
    {"kda_value_heads", "kda", R"("num_v_heads": 24)", kInvalid,
     "\"num_v_heads\" is 24, expected a multiple of num_heads (16)"},
    {"kda_safe_gate", "kda", R"("safe_gate": true)", kInvalid,
     "\"safe_gate\" is true, expected false where lower_bound is null"},
    {"kda_bound", "kda", R"("lower_bound": 1)", kInvalid, "\"lower_bound\" is 1"},
    {"kda_expand", "kda", R"("expand_v": 0.003)", kInvalid, "\"expand_v\""},
};

INSTANTIATE_TEST_SUITE_P(Kda, BadMatrixKeysTest, testing::ValuesIn(kBadKdaKeys), BadKeysName);

}  // namespace
}  // namespace mneme
