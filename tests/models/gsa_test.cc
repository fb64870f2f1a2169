// Gated slot attention and what it does behind a router, against plain equations, and its keys.

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/config_keys.h"
#include "tests/models/plain_network.h"

namespace mneme {
namespace {

Vec Answer(PlainLayer& layer, const Vec& x, const std::string& number) {
  const auto& config = layer.model.config();
  const int dim = config["hidden_size"], heads = config["num_heads"];
  const int kv_heads = config["num_kv_heads"].is_null() ? heads : int{config["num_kv_heads"]};
  const double expand_k = config["expand_k"];
  const int key_dim = static_cast<int>(dim * expand_k) / heads, value_dim = dim / heads;
  const int slots = config["num_slots"].is_null() ? key_dim : int{config["num_slots"]};
  const std::string map = config["feature_map"];
  const auto relu = [](double z) { return std::max(z, 0.0); };
  const auto stream = [&](const char* name, const std::string& projection) {
    const Vec raw = layer.Linear(projection, x);
    return config["use_short_conv"] ? Map(layer.Convolve(name, raw, number), Silu) : raw;
  };
  const auto features = [&](const Vec& u) {
    if (map == "t2r") return Map(layer.Linear("attn.feature_map.layer", u), relu);
    return map == "relu" ? Map(u, relu) : Map(u, Silu);
  };
  const Vec q = stream("q", "attn.q_proj"), k = stream("k", "attn.k_proj" + number);
  const Vec v = Map(stream("v", "attn.v_proj" + number), Silu);
  const Vec f = layer.Linear("attn.f_proj" + number, x);
  const double normalizer = config["gate_logit_normalizer"];
  Vec read;
  for (int h = 0; h < heads; ++h) {
    const int kv = h / (heads / kv_heads);
    Vec a = Slice(f, kv * slots, slots);
    for (double& gate : a) gate = std::exp(std::log(Sigmoid(gate)) / normalizer);
    const Vec s = Map(a, [](double z) { return 1 - z; });
    const Vec p = Softmax(WriteAndRead(layer.state[absl::StrCat("K", number, ".", h)],
                                       {.q = features(Slice(q, h * key_dim, key_dim)),
                                        .k = features(Slice(k, kv * key_dim, key_dim)),
                                        .v = s,
                                        .decay = [&](int64_t slot, int64_t) { return a[slot]; }}));
    const Vec o = WriteAndRead(layer.state[absl::StrCat("V", number, ".", h)],
                               {.q = p,
                                .k = s,
                                .v = Slice(v, kv * value_dim, value_dim),
                                .decay = [&](int64_t, int64_t slot) { return a[slot]; }});
    read.insert(read.end(), o.begin(), o.end());
  }
  return read;
}

Vec GsaOut(PlainLayer& layer, const Vec& read) {
  // The tests take it away only.
  const bool affine = !layer.model.config().contains("elementwise_affine");
  return layer.Linear(
      "attn.o_proj",
      RmsNorm(Map(read, Silu), affine ? layer.Weight("attn.g_norm.weight") : Vec{}, 1e-5));
}

Vec Gsa(PlainLayer& layer, const Vec& x, int64_t) { return GsaOut(layer, Answer(layer, x, "")); }

Vec MomGsa(PlainLayer& layer, const Vec& x, int64_t) {
  const auto& config = layer.model.config();
  return GsaOut(layer, MixMemories(layer, x, /*memories=*/8, config["topk"], config["shared_mem"],
                                   [&](int m) { return Answer(layer, x, absl::StrCat(".", m)); }));
}

TEST(GsaTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"num_heads": 4, "num_kv_heads": 2})", R"({"num_slots": 24})",
        R"({"num_slots": null})", R"({"expand_k": 0.5})", R"({"feature_map": "relu"})",
        R"({"feature_map": "t2r"})", R"({"gate_logit_normalizer": 2})",
        R"({"use_short_conv": true})", R"({"use_short_conv": true, "conv_size": 2})",
        R"({"elementwise_affine": false})", R"({"norm_eps": 0.01})",
        R"({"attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 2}})"}) {
    ExpectPlain("gsa", changes, Gsa);
  }
}

TEST(MomGsaTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"shared_mem": false})", R"({"topk": 1})", R"({"norm_eps": 0.01})",
        R"({"norm_first": false, "norm_eps": 0.01})",
        R"({"num_kv_heads": 1, "feature_map": "t2r", "num_slots": 8})",
        R"({"norm_first": false, "attn": {"layers": [0], "num_heads": 2}})"}) {
    ExpectPlain("mom_gsa", changes, MomGsa);
  }
}

TEST(GsaConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  ExpectEachKeyCounts(
      "gsa",
      {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 0.5)", R"("exapnd_k": 2)",
       R"("num_slots": 32)", R"("num_slots": null)", R"("feature_map": "relu")",
       R"("feature_map": "t2r")", R"("gate_logit_normalizer": 16)", R"("use_short_conv": true)",
       R"("use_short_conv": true, "conv_size": 3)", R"("elementwise_affine": false)"});
}

TEST(GsaConfigTest, WhatMovesNeitherDoesNotCount) {
  ExpectTheSame("gsa", R"("exapnd_k": 0.5)", R"("expand_k": 0.5)");
  ExpectTheSame("gsa", R"("exapnd_k": 2, "expand_k": 0.5)", R"("expand_k": 0.5)");
}

TEST(GsaConfigTest, MissingKeysAreUpstreamsDefaults) {
  EXPECT_EQ(LayerBytes("gsa", ""), 2 * 4 * 512 * 64 * 4);
}

TEST(GsaConfigTest, TheExampleIsAsLargeAsDocumentsTell) { ExpectSize("gsa-340m", 380, 12582912); }

TEST(MomGsaConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  ExpectEachKeyCounts(
      "mom_gsa",
      {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 0.5)", R"("num_slots": 32)",
       R"("feature_map": "relu")", R"("gate_logit_normalizer": 16)", R"("norm_first": false)",
       R"("elementwise_affine": false)", R"("topk": 1)", R"("shared_mem": true)"});
}

TEST(MomGsaConfigTest, WhatMovesNeitherDoesNotCount) {
  ExpectTheSame("mom_gsa", "", R"("num_experts": 4, "num_memories": 4)");
}

TEST(MomGsaConfigTest, MissingKeysAreUpstreamsDefaults) {
  EXPECT_EQ(LayerBytes("mom_gsa", ""), 64 + 8 * 2 * 4 * 512 * 64 * 4);
}

TEST(MomGsaConfigTest, TheExampleIsAsLargeAsDocumentsTell) {
  ExpectSize("mom-gsa-340m", 833, 113247744);
}

constexpr BadKeys kBadGsaKeys[] = {
    {"gsa_expand", "gsa", R"("expand_v": 2)", kInvalid, "\"expand_v\""},
    {"gsa_misspelt_expand", "gsa", R"("exapnd_v": 2)", kInvalid, "\"expand_v\""},
    {"gsa_map", "gsa", R"("feature_map": "elu")", kUnimplemented,
     "expected one of \"swish\", \"relu\", \"t2r\""},
    {"gsa_normalizer", "gsa", R"("gate_logit_normalizer": 0)", kInvalid,
     "\"gate_logit_normalizer\""},
    {"gsa_slots", "gsa", R"("num_slots": 0)", kInvalid, "\"num_slots\""},
    {"mom_gsa_conv", "mom_gsa", R"("use_short_conv": true)", kUnimplemented, "\"use_short_conv\""},
    {"mom_gsa_top", "mom_gsa", R"("topk": 9, "num_experts": 16)", kInvalid, "\"topk\" is 9"},
};

INSTANTIATE_TEST_SUITE_P(Gsa, BadMatrixKeysTest, testing::ValuesIn(kBadGsaKeys), BadKeysName);

}  // namespace
}  // namespace mneme
