// Linear attention and what it does behind a router, against plain equations, and its keys.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "tests/models/config_keys.h"
#include "tests/models/plain_network.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

Vec Joined(Vec a, const Vec& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The features of a head's u. A tied map is in the file under one of the two names.
Vec Features(const PlainLayer& layer, const std::string& q_or_k, const Vec& u) {
  const std::string map = layer.model.config()["feature_map"];
  std::string name = "attn.feature_map_" + q_or_k;
  if (!layer.Has(name + ".layer.weight") && !layer.Has(name + ".layer1.weight")) {
    name = "attn.feature_map_q";
  }
  if (map == "elementwise_product") {
    Vec y = layer.Linear(name + ".layer1", u);
    const Vec other = layer.Linear(name + ".layer2", u);
    for (size_t i = 0; i < y.size(); ++i) y[i] *= other[i];
    return y;
  }
  if (map == "hedgehog") {
    const Vec y = Map(layer.Linear(name + ".layer", u), [](double z) { return 2 * z; });
    return Softmax(Joined(y, Map(y, [](double z) { return -z; })));
  }
  const auto relu = [](double z) { return std::max(z, 0.0); };
  if (map == "t2r") return Map(layer.Linear(name + ".layer", u), relu);
  if (map == "relu") return Map(u, relu);
  if (map == "elu") return Map(u, [](double z) { return z > 0 ? z + 1 : std::exp(z); });
  if (map == "identity") return u;
  EXPECT_EQ(map, "dpfp");
  const Vec both = Joined(Map(u, relu), Map(u, [](double z) { return -std::max(z, 0.0); }));
  Vec features;
  for (size_t roll = 1; roll <= 4; ++roll) {
    for (size_t i = 0; i < both.size(); ++i) {
      features.push_back(both[i] * both[(i + both.size() - roll) % both.size()]);
    }
  }
  return features;
}

Vec SumToOne(Vec x) {
  const double sum = std::accumulate(x.begin(), x.end(), 0.0) + 1e-4;
  for (double& value : x) value /= sum;
  return x;
}

Vec Answer(PlainLayer& layer, const Vec& x, const std::string& k_proj, const std::string& v_proj,
           const std::string& memory) {
  const auto& config = layer.model.config();
  const int dim = config["hidden_size"], heads = config["num_heads"];
  const int kv_heads = config["num_kv_heads"].is_null() ? heads : int{config["num_kv_heads"]};
  const int key_dim = static_cast<int>(dim * double{config["expand_k"]}) / heads;
  const int value_dim = static_cast<int>(dim * double{config["expand_v"]}) / heads;
  const Vec all_q = layer.Linear("attn.q_proj", x), all_k = layer.Linear(k_proj, x);
  const Vec v = layer.Linear(v_proj, x);
  Vec read;
  for (int h = 0; h < heads; ++h) {
    const int kv = h / (heads / kv_heads);
    Vec q = Features(layer, "q", Slice(all_q, h * key_dim, key_dim));
    Vec k = Features(layer, "k", Slice(all_k, kv * key_dim, key_dim));
    if (config["norm_q"]) q = SumToOne(q);
    if (config["norm_k"]) k = SumToOne(k);
    for (double& value : q) value /= std::sqrt(k.size());
    Vec o = WriteAndRead(layer.state[absl::StrCat("S", memory, ".", h)],
                         {.q = q, .k = k, .v = Slice(v, kv * value_dim, value_dim)});
    if (config["norm_feature_map"]) {
      Vec& z = layer.State(absl::StrCat("z", h), k.size());
      for (size_t i = 0; i < k.size(); ++i) z[i] += k[i];
      for (double& value : o) value /= Dot(z, q) + 1e-10;
    }
    read.insert(read.end(), o.begin(), o.end());
  }
  return read;
}

Vec LinearAttnOut(PlainLayer& layer, const Vec& read) {
  const auto& config = layer.model.config();
  const int heads = config["num_heads"];
  const auto value_dim = static_cast<int64_t>(read.size()) / heads;
  const bool affine = !config.contains("elementwise_affine");  // the tests take it away only
  Vec y;
  for (int h = 0; h < heads; ++h) {
    const Vec normed =
        RmsNorm(Slice(read, h * value_dim, value_dim),
                affine ? layer.Weight("attn.norm.weight") : Vec{}, config["norm_eps"]);
    y.insert(y.end(), normed.begin(), normed.end());
  }
  return layer.Linear("attn.o_proj", y);
}

Vec LinearAttn(PlainLayer& layer, const Vec& x, int64_t) {
  return LinearAttnOut(layer, Answer(layer, x, "attn.k_proj", "attn.v_proj", ""));
}

Vec MomLinearAttn(PlainLayer& layer, const Vec& x, int64_t) {
  const auto& config = layer.model.config();
  return LinearAttnOut(layer, MixMemories(layer, x, config["num_memories"], config["topk"],
                                          config["shared_mem"], [&](int m) {
                                            const std::string memory = absl::StrCat(m);
                                            return Answer(layer, x, "attn.k_proj." + memory,
                                                          "attn.v_proj." + memory, memory);
                                          }));
}

TEST(LinearAttnTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"feature_map": "hedgehog"})", R"({"feature_map": "t2r"})",
        R"({"feature_map": "dpfp"})", R"({"feature_map": "elu"})", R"({"feature_map": "relu"})",
        R"({"feature_map": "identity"})", R"({"tie_feature_map_qk": true})",
        R"({"feature_map": "hedgehog", "tie_feature_map_qk": true})",
        R"({"num_heads": 4, "num_kv_heads": 2})", R"({"expand_k": 0.5, "expand_v": 2})",
        R"({"feature_map": "elu", "norm_q": true})", R"({"feature_map": "elu", "norm_k": true})",
        R"({"feature_map": "elu", "norm_feature_map": true})",
        R"({"feature_map": "hedgehog", "norm_feature_map": true, "num_kv_heads": 1})",
        R"({"elementwise_affine": false})", R"({"norm_eps": 0.01})",
        R"({"attn": {"layers": [1], "num_heads": 2, "qkv_bias": true, "window_size": 64}})"}) {
    ExpectPlain("linear_attn", changes, LinearAttn);
  }
}

// The norm over what is read hides a factor, so these are compared with each other as well.
TEST(LinearAttnTest, NormsOfFeaturesChangeWhatIsRead) {
  const auto logits = [](const std::string& changes) {
    const TestFolder folder;
    MakePlainFolder("linear_attn", changes, folder);
    const auto driver = Drive(folder.path(), MakeReference(), {.slots = 1, .max_tokens = 40});
    return FeedSlot(*driver, 0, RandomTokens(40, 61, /*seed=*/3));
  };
  const std::vector<double> plain = logits(R"({"feature_map": "elu"})");
  // An output norm takes back a factor of a token's query, but for its epsilon.
  EXPECT_GT(RelativeError(logits(R"({"feature_map": "elu", "norm_q": true, "norm_eps": 1e-3})"),
                          logits(R"({"feature_map": "elu", "norm_eps": 1e-3})")),
            1e-3);
  EXPECT_GT(RelativeError(logits(R"({"feature_map": "elu", "norm_k": true})"), plain), 1e-3);
  EXPECT_GT(
      RelativeError(logits(R"({"feature_map": "elu", "norm_feature_map": true, "norm_eps": 1e-3})"),
                    logits(R"({"feature_map": "elu", "norm_eps": 1e-3})")),
      1e-3);
}

TEST(LinearAttnTest, ATiedMapMayBeSavedUnderEitherNameOrBoth) {
  const TestFolder folder;
  MakePlainFolder("linear_attn", R"({"tie_feature_map_qk": true})", folder);
  const std::string path = folder.File("model.safetensors");
  const auto logits = [&] {
    const auto driver = Drive(folder.path(), MakeReference(), {.slots = 1, .max_tokens = 16});
    return FeedSlot(*driver, 0, RandomTokens(16, 61, /*seed=*/3));
  };
  const std::vector<double> want = logits();
  StoredTensors both = ReadTensors(path), other;
  for (const auto& [name, tensor] : StoredTensors(both)) {
    std::string renamed = name;
    if (const size_t at = name.find("feature_map_q"); at != std::string::npos) {
      renamed.replace(at, 13, "feature_map_k");
    }
    other[renamed] = both[renamed] = tensor;
  }
  ASSERT_EQ(both.size(), other.size() + 2 * 4) << "two layers, each with two weights and biases";
  for (const StoredTensors& tensors : {both, other}) {
    WriteTensors(tensors, path);
    EXPECT_EQ(logits(), want);
    const auto plan = PlanModel(folder.path(), StateFormat{});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(plan->warnings.empty()) << plan->warnings.front();
  }
}

TEST(MomLinearAttnTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"shared_mem": false})", R"({"num_memories": 3, "topk": 1})",
        R"({"feature_map": "hedgehog", "num_kv_heads": 1})", R"({"feature_map": "t2r"})",
        R"({"feature_map": "elu", "norm_q": true, "norm_k": true})",
        R"({"attn": {"layers": [0], "num_heads": 4, "rope_theta": 500, "qkv_bias": true}})"}) {
    ExpectPlain("mom_linear_attn", changes, MomLinearAttn);
  }
}

TEST(LinearAttnConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  ExpectEachKeyCounts(
      "linear_attn",
      {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 0.5)", R"("expand_v": 2)",
       R"("feature_map": "hedgehog")", R"("feature_map": "t2r")", R"("feature_map": "dpfp")",
       R"("feature_map": "elu")", R"("feature_map": "relu")", R"("feature_map": "identity")",
       R"("tie_feature_map_qk": true)", R"("norm_q": true)", R"("norm_k": true)",
       R"("norm_feature_map": true)", R"("elementwise_affine": false)"});
}

TEST(LinearAttnConfigTest, WhatMovesNeitherDoesNotCount) {
  ExpectTheSame("linear_attn", R"("feature_map": "elu")",
                R"("feature_map": "elu", "tie_feature_map_qk": true)");
}

TEST(LinearAttnConfigTest, MissingKeysAreUpstreamsDefaults) {
  EXPECT_EQ(LayerBytes("linear_attn", ""), 4 * 512 * 512 * 4);
  EXPECT_EQ(LayerBytes("linear_attn", R"("norm_feature_map": true)"), 4 * 513 * 512 * 4);
  EXPECT_EQ(LayerBytes("linear_attn", R"("feature_map": "dpfp")"), 4 * 512 * 4096 * 4);
}

TEST(LinearAttnConfigTest, TheExampleIsAsLargeAsDocumentsTell) {
  ExpectSize("linear-attn-340m", 380, 25165824);
}

TEST(MomLinearAttnConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  ExpectEachKeyCounts(
      "mom_linear_attn",
      {R"("num_heads": 8)", R"("num_kv_heads": 2)", R"("expand_k": 0.5)", R"("expand_v": 2)",
       R"("feature_map": "elu")", R"("tie_feature_map_qk": true)", R"("norm_q": true)",
       R"("norm_k": true)", R"("elementwise_affine": false)", R"("num_memories": 4)",
       R"("topk": 1)", R"("shared_mem": true)"});
}

TEST(MomLinearAttnConfigTest, MissingKeysAreUpstreamsDefaults) {
  EXPECT_EQ(LayerBytes("mom_linear_attn", ""), 64 + 8 * 4 * 512 * 512 * 4);
}

TEST(MomLinearAttnConfigTest, TheExampleIsAsLargeAsDocumentsTell) {
  ExpectSize("mom-linear-attn-340m", 582, 125830656);
}

constexpr BadKeys kBadLinearAttnKeys[] = {
    {"linear_map", "linear_attn", R"("feature_map": "performer")", kUnimplemented,
     "\"feature_map\" is \"performer\""},
    {"linear_null_map", "linear_attn", R"("feature_map": null)", kInvalid, "\"feature_map\""},
    {"mom_linear_norm", "mom_linear_attn", R"("norm_feature_map": true)", kUnimplemented,
     "\"norm_feature_map\" is true"},
};

INSTANTIATE_TEST_SUITE_P(LinearAttn, BadMatrixKeysTest, testing::ValuesIn(kBadLinearAttnKeys),
                         BadKeysName);

}  // namespace
}  // namespace mneme
