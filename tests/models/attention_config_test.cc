// Layers with attention in config.json (`attn`): what is refused, what counts, what is told of.

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model_config.h"
#include "tests/models/config_keys.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Those whose layers can have attention in place of their memory.
const std::vector<std::string>& AttentionTypes() {
  static const auto* const types = new std::vector<std::string>{"mom",
                                                                "mom_gated_deltanet",
                                                                "gated_deltanet",
                                                                "linear_attn",
                                                                "retnet",
                                                                "gla",
                                                                "delta_net",
                                                                "kda",
                                                                "hgrn2",
                                                                "gsa",
                                                                "mom_gla",
                                                                "mom_linear_attn",
                                                                "mom_gsa",
                                                                "rwkv6",
                                                                "rwkv7",
                                                                "samba"};
  return *types;
}
bool IsMom(const std::string& type) { return type.starts_with("mom"); }

// A configuration of 64 channels and four layers.
std::string Keys(const std::string& type, const std::string& attn) {
  std::string keys = R"("hidden_size": 64, "num_hidden_layers": 4)";
  if (type == "hgrn2") absl::StrAppend(&keys, R"(, "expand_ratio": 16)");
  if (type == "mom_gsa") absl::StrAppend(&keys, R"(, "norm_first": false)");
  return attn.empty() ? keys : absl::StrCat(keys, ", \"attn\": ", attn);
}
uint64_t Fingerprint(const std::string& type, const std::string& attn) {
  return FingerprintOf(type, Keys(type, attn));
}

TEST(HybridFingerprintTest, EveryKeyThatMovesLogitsOrStateCounts) {
  for (const std::string& type : AttentionTypes()) {
    std::vector<std::string> all = {
        type == "samba" ? "null" : "",
        R"({"layers": [1], "num_heads": 4})",
        R"({"layers": [1, 2], "num_heads": 4})",
        R"({"layers": [2], "num_heads": 4})",
        R"({"layers": [1], "num_heads": 2})",
        R"({"layers": [1], "num_heads": 4, "num_kv_heads": 2})",
        R"({"layers": [1], "num_heads": 4, "window_size": 16})",
    };
    if (!IsMom(type)) {
      all.insert(all.end(),
                 {R"({"layers": [1], "num_heads": 4, "qkv_bias": true})",
                  R"({"layers": [1], "num_heads": 4, "rope_theta": 500})",
                  R"([{"layers": [1], "num_heads": 4}, {"layers": [2], "num_heads": 2}])"});
    }
    DistinctFingerprints seen;
    for (const std::string& attn : all) {
      seen.Add(Fingerprint(type, attn), type + " " + attn);
    }
  }
}

TEST(HybridFingerprintTest, WhatSaysTheSameCountsAsTheSame) {
  for (const std::string& type : AttentionTypes()) {
    const auto same = [&](const std::string& a, const std::string& b) {
      EXPECT_EQ(Fingerprint(type, a), Fingerprint(type, b)) << type << " " << a << " " << b;
    };
    same(R"({"layers": [1, 3], "num_heads": 4})",
         R"({"layers": [3, 1], "num_heads": 4, "num_kv_heads": 4, "window_size": null,
             "qkv_bias": false, "rope_theta": 1e4, "note": 7})");
    same("null", R"({"layers": [], "num_heads": 4})");
    if (type != "samba") same("", "null");
    if (IsMom(type)) {
      same(R"({"layers": [1], "num_heads": 4})",
           R"({"layers": [1], "num_heads": 4, "qkv_bias": true, "rope_theta": 500})");
    }
    if (IsMom(type) && type != "mom") continue;
    same(R"({"layers": [1, 3], "num_heads": 4})",
         R"([{"layers": [3], "num_heads": 4}, {"layers": [1], "num_heads": 4}])");
    same("null", "[]");
  }
}

struct Bad {
  const char* attn;
  const char* message;
};
constexpr Bad kBad[] = {
    {"7", "key \"attn\" is 7, expected null"},
    {R"({"num_heads": 4})",
     "\"attn\": key \"layers\" is null, expected a list of layers from 0 to num_hidden_layers - 1 "
     "(3)"},
    {R"({"layers": 1, "num_heads": 4})", "\"attn\": key \"layers\" is 1"},
    {R"({"layers": [-1], "num_heads": 4})", "\"attn\": key \"layers\" is [-1]"},
    {R"({"layers": [1.5], "num_heads": 4})", "\"attn\": key \"layers\" is [1.5]"},
    {R"({"layers": [1, 1], "num_heads": 4})",
     "\"attn\": key \"layers\" is [1,1], expected each layer once in all of \"attn\", and not 1 "
     "again"},
    {R"({"layers": [1]})",
     "\"attn\": key \"num_heads\" is null, expected the number of heads of the layers with"},
    {R"({"layers": [1], "num_heads": 3})",
     "\"attn\": key \"num_heads\" is 3, expected a number that divides hidden_size (64) into heads "
     "of an even width"},
    {R"({"layers": [1], "num_heads": 64})", "\"attn\": key \"num_heads\" is 64"},
    {R"({"layers": [1], "num_heads": 4, "num_kv_heads": 3})",
     "\"attn\": key \"num_kv_heads\" is 3, expected a number that divides num_heads (4)"},
    {R"({"layers": [1], "num_heads": 4, "window_size": 0})",
     "\"attn\": key \"window_size\" is 0, expected an integer from 1"},
    {R"({"layers": [1], "num_heads": 4, "qkv_bias": 1})",
     "\"attn\": key \"qkv_bias\" is 1, expected true or false"},
    {R"({"layers": [1], "num_heads": 4, "rope_theta": 0})", "\"attn\": key \"rope_theta\" is 0"},
};

TEST(HybridConfigTest, WhatIsWrongIsRefusedByName) {
  for (const std::string& type : AttentionTypes()) {
    for (const auto& [attn, message] : kBad) {
      const auto config = ConfigOf(type, Keys(type, attn));
      EXPECT_TRUE(absl::IsInvalidArgument(config.status())) << type << " " << attn;
      EXPECT_THAT(config.status().message(), HasSubstr(message)) << type << " " << attn;
    }
  }
}

TEST(HybridConfigTest, WhatIsWrongInAListIsRefusedByItsPlace) {
  for (const std::string& type : AttentionTypes()) {
    const char* good = R"({"layers": [1], "num_heads": 4})";
    const auto list = [&](const std::string& other) {
      return ConfigOf(type, Keys(type, absl::StrCat("[", good, ", ", other, "]"))).status();
    };
    if (IsMom(type) && type != "mom") {
      EXPECT_TRUE(absl::IsUnimplemented(list(R"({"layers": [2], "num_heads": 4})"))) << type;
      EXPECT_THAT(list("{}").message(), HasSubstr("or one object for all layers")) << type;
      continue;
    }
    EXPECT_THAT(list("{}").message(), HasSubstr("\"attn\"[1]: key \"layers\" is null")) << type;
    EXPECT_THAT(list("7").message(), HasSubstr("expected a list of objects alone")) << type;
    EXPECT_THAT(list(R"({"layers": [2, 1], "num_heads": 2})").message(),
                HasSubstr("\"attn\"[1]: key \"layers\" is [2,1], expected each layer once"))
        << type;
  }
}

TEST(HybridConfigTest, LayersThatThereAreNotAreRefusedAndOfSambaLeftOut) {
  for (const std::string& type : AttentionTypes()) {
    const auto config = ConfigOf(type, Keys(type, R"({"layers": [1, 4], "num_heads": 4})"));
    if (type == "samba") {
      EXPECT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(config->fingerprint, Fingerprint(type, R"({"layers": [1], "num_heads": 4})"));
    } else {
      EXPECT_THAT(config.status().message(), HasSubstr("\"layers\" is [1,4], expected")) << type;
    }
  }
}

TEST(HybridConfigTest, WarningsAreOfMistakesOnly) {
  for (const std::string& type : AttentionTypes()) {
    const auto warnings = [&](const std::string& attn) {
      const auto config = ConfigOf(type, Keys(type, attn));
      EXPECT_TRUE(config.ok()) << type << " " << config.status();
      return config.ok() ? config->warnings : std::vector<std::string>();
    };
    EXPECT_THAT(warnings(R"({"layers": [1], "num_heads": 4, "num_kv_heads": null,
                             "window_size": null, "qkv_bias": false, "rope_theta": 10000.0})"),
                IsEmpty())
        << type;
    EXPECT_THAT(warnings(R"({"layers": [1], "num_heads": 4, "num_kv_head": 2})"),
                ElementsAre(HasSubstr("config.json: \"attn\": key \"num_kv_head\" is unknown and "
                                      "ignored; did you mean \"num_kv_heads\"?")))
        << type;
    if (!IsMom(type)) continue;
    EXPECT_THAT(warnings(R"({"layers": [1], "num_heads": 4, "qkv_bias": true, "rope_theta": 5})"),
                ElementsAre(HasSubstr("key \"qkv_bias\" of \"attn\" is true and ignored"),
                            HasSubstr("key \"rope_theta\" of \"attn\" is 5 and ignored")))
        << type;
  }
}

TEST(HybridConfigTest, AttentionHasTheTensorsAndTheStateOfItsLayers) {
  for (const std::string& type : AttentionTypes()) {
    const auto config =
        ConfigOf(type, Keys(type, R"({"layers": [1, 2], "num_heads": 4, "num_kv_heads": 1,
                             "window_size": 24})"));
    ASSERT_TRUE(config.ok()) << type << " " << config.status();
    const MadeNetwork made = MakeNetwork(*config);
    std::set<std::string> projections;
    for (const TensorSpec& tensor : made.tensors) {
      if (tensor.name.ends_with(".k_proj.weight") && tensor.shape == std::vector<int64_t>{16, 64}) {
        projections.insert(tensor.name);
      }
    }
    const std::string stem = type == "samba" ? "backbone.layers." : "model.layers.";
    const std::string part = type == "samba" ? ".mixer." : ".attn.";
    EXPECT_THAT(projections, ElementsAre(stem + "1" + part + "k_proj.weight",
                                         stem + "2" + part + "k_proj.weight"))
        << type;
    std::vector<std::string> rings;
    for (const StateField& field : made.state.fields()) {
      if (field.guard != StateGuard::kRing) continue;
      rings.push_back(field.name);
      EXPECT_EQ(field.shape, Shape({1, 24, 1, 16})) << type;
    }
    EXPECT_THAT(rings,
                ElementsAre("layers.1.keys", "layers.1.values", "layers.2.keys", "layers.2.values"))
        << type;
  }
}

TEST(HybridConfigTest, AFirstMixtureOfMemoriesHasNoNormForAttention) {
  const auto config = ConfigOf("mom_gsa", R"("attn": {"layers": [1], "num_heads": 4})");
  EXPECT_TRUE(absl::IsUnimplemented(config.status())) << config.status();
  EXPECT_THAT(config.status().message(), HasSubstr("null where norm_first is true"));
}

}  // namespace
}  // namespace mneme
