// Layers with attention in config.json (`attn`): what is refused, what counts, what is told of.

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/architecture.h"
#include "models/model_config.h"
#include "tests/models/config_keys.h"
#include "tests/models/conformance_specs.h"

namespace mneme {
namespace {

using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Those whose layers can have attention in place of their memory, with the keys of their networks
// that have some: of 64 channels and four layers.
const std::map<std::string, ordered_json>& AttentionTypes() {
  static const auto* const types = [] {
    auto* const found = new std::map<std::string, ordered_json>;
    for (const Architecture& architecture : Architectures()) {
      const std::string type = architecture.model_type;
      for (const ModelSpec& spec : ConformanceSpecs(type)) {
        if (spec.config.value("attn", ordered_json()).is_null()) continue;
        ordered_json keys = spec.config;
        keys.update({{"hidden_size", 64}, {"num_hidden_layers", 4}});
        keys.erase("model_type");
        keys.erase("attn");
        found->emplace(type, keys);
        break;
      }
    }
    return found;
  }();
  return *types;
}
bool IsMom(const std::string& type) { return type.starts_with("mom"); }

// These with `attn`, or without it.
std::string Keys(const std::string& type, const std::string& attn) {
  ordered_json keys = AttentionTypes().at(type);
  if (!attn.empty()) keys["attn"] = ordered_json::parse(attn);
  const std::string object = keys.dump();
  return object.substr(1, object.size() - 2);
}
uint64_t Fingerprint(const std::string& type, const std::string& attn) {
  return FingerprintOf(type, Keys(type, attn));
}

// What ConformanceSpecs has is what all of these tests are about: a family that reads `attn` and
// has no network with it would go untested.
TEST(HybridConfigTest, WhoeverReadsTheKeyHasANetworkWithAttention) {
  for (const Architecture& architecture : Architectures()) {
    const std::string type = architecture.model_type;
    const auto specs = ConformanceSpecs(type);
    ASSERT_FALSE(specs.empty()) << type;
    ModelSpec spec = specs.front();
    spec.config["attn"] = 7;
    const absl::Status status = ParseModelConfig(ConfigJson(spec), "config.json").status();
    const bool read = absl::StrContains(status.message(), "key \"attn\" is 7, expected null");
    EXPECT_EQ(read, AttentionTypes().contains(type)) << type << " " << status;
  }
}

TEST(HybridFingerprintTest, EveryKeyThatMovesLogitsOrStateCounts) {
  for (const auto& [type, unused] : AttentionTypes()) {
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
  for (const auto& [type, unused] : AttentionTypes()) {
    const auto same = [&, &type = type](const std::string& a, const std::string& b) {
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
  for (const auto& [type, unused] : AttentionTypes()) {
    for (const auto& [attn, message] : kBad) {
      const auto config = ConfigOf(type, Keys(type, attn));
      EXPECT_TRUE(absl::IsInvalidArgument(config.status())) << type << " " << attn;
      EXPECT_THAT(config.status().message(), HasSubstr(message)) << type << " " << attn;
    }
  }
}

TEST(HybridConfigTest, WhatIsWrongInAListIsRefusedByItsPlace) {
  for (const auto& [type, unused] : AttentionTypes()) {
    const char* good = R"({"layers": [1], "num_heads": 4})";
    const auto list = [&, &type = type](const std::string& other) {
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
  for (const auto& [type, unused] : AttentionTypes()) {
    const auto config = ConfigOf(type, Keys(type, R"({"layers": [1, 4], "num_heads": 4})"));
    if (type == "samba") {
      EXPECT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(config->fingerprint, Fingerprint(type, R"({"layers": [1], "num_heads": 4})"));
    } else {
      EXPECT_THAT(config.status().message(), HasSubstr("\"layers\" is [1,4], expected")) << type;
    }
  }
}

TEST(HybridConfigTest, OtherAttentionIsRefusedByName) {
  for (const auto& [type, unused] : AttentionTypes()) {
    const auto with = [&, &type = type](const std::string& keys) {
      return ConfigOf(type,
                      Keys(type, absl::StrCat(R"({"layers": [1], "num_heads": 4, )", keys, "}")))
          .status();
    };
    for (const auto& [refused, harmless] :
         {std::pair(R"("qk_norm": true)", R"("qk_norm": false)"),
          std::pair(R"("use_rope": false)", R"("use_rope": true)"),
          std::pair(R"("rope_scaling": {"type": "linear", "factor": 2.0})",
                    R"("rope_scaling": null)")}) {
      const absl::Status status = with(refused);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << type << " " << refused;
      EXPECT_THAT(status.message(), HasSubstr("config.json: \"attn\": key \"")) << type;
      EXPECT_TRUE(with(harmless).ok()) << type << " " << harmless << ": " << with(harmless);
    }
  }
}

TEST(HybridConfigTest, WarningsAreOfMistakesOnly) {
  for (const auto& [type, unused] : AttentionTypes()) {
    const auto warnings = [&, &type = type](const std::string& attn) {
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
  for (const auto& [type, unused] : AttentionTypes()) {
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
