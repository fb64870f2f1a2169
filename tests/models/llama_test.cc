// Llama's options, the biases of its feed-forward parts and frequencies of longer sequences:
// networks against plain double, frequencies against the formula in float64.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/mixers/rope_frequencies.h"
#include "tests/models/config_keys.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/plain_attention.h"
#include "tests/models/plain_network.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

using nlohmann::json;

// The frequency of a pair as transformers defines it, from config.json's own words.
double PlainFrequency(const json& config, int64_t pair, int64_t dim) {
  const double f = std::pow(config.value("rope_theta", 10000.0),
                            -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
  const json scaling = config.value("rope_scaling", json::object());
  const std::string type = scaling.value("rope_type", "default");
  if (type == "default") return f;
  const double factor = scaling["factor"];
  if (type == "linear") return f / factor;
  const double length = scaling["original_max_position_embeddings"];
  const double low = scaling["low_freq_factor"], high = scaling["high_freq_factor"];
  const double wavelength = 2 * std::numbers::pi / f;
  if (wavelength < length / high) return f;
  if (wavelength > length / low) return f / factor;
  const double smooth = (length / wavelength - low) / (high - low);
  return (1 - smooth) * f / factor + smooth * f;
}

Vec PlainTurn(const json& config, Vec all, int64_t dim, int64_t position) {
  for (size_t head = 0; head < all.size(); head += static_cast<size_t>(dim)) {
    for (int64_t j = 0; j < dim / 2; ++j) {
      const double angle = static_cast<double>(position) * PlainFrequency(config, j, dim);
      double &a = all[head + static_cast<size_t>(j)],
             &b = all[head + static_cast<size_t>(j + dim / 2)];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = turned;
    }
  }
  return all;
}

Vec Llama(const PlainModel& model, std::span<const int32_t> tokens) {
  const json& config = model.config();
  const int64_t width = config["hidden_size"], heads = config["num_attention_heads"];
  const int64_t kv_heads = config["num_key_value_heads"], dim = width / heads;
  const double eps = config["rms_norm_eps"];
  std::vector<PlainLayer> layers;
  for (int i = 0; i < config["num_hidden_layers"].get<int>(); ++i) {
    layers.push_back({.model = model, .index = i, .state = {}});
  }
  const PlainLayer around = {.model = model, .index = 0, .state = {}};
  Vec logits;
  const auto add = [](Vec& to, const Vec& x) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += x[i];
  };
  for (size_t t = 0; t < tokens.size(); ++t) {
    const auto position = static_cast<int64_t>(t);
    Vec h = Slice(model.Tensor("model.embed_tokens.weight"), tokens[t] * width, width);
    for (PlainLayer& layer : layers) {
      const Vec x = RmsNorm(h, layer.Weight("input_layernorm.weight"), eps);
      const Vec q = PlainTurn(config, layer.Linear("self_attn.q_proj", x), dim, position);
      const Vec k = PlainTurn(config, layer.Linear("self_attn.k_proj", x), dim, position);
      const Vec v = layer.Linear("self_attn.v_proj", x);
      add(h, layer.Linear(
                 "self_attn.o_proj",
                 PlainAttend(layer, {.heads = heads, .kv_heads = kv_heads}, q, k, v, position)));
      const Vec z = RmsNorm(h, layer.Weight("post_attention_layernorm.weight"), eps);
      Vec inner = Map(layer.Linear("mlp.gate_proj", z), Silu);
      const Vec up = layer.Linear("mlp.up_proj", z);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] *= up[i];
      add(h, layer.Linear("mlp.down_proj", inner));
    }
    const Vec last = RmsNorm(h, model.Tensor("model.norm.weight"), eps);
    const Vec& head = model.Tensor("lm_head.weight");
    for (size_t row = 0; row < head.size(); row += last.size()) {
      logits.push_back(Dot(last, Slice(head, static_cast<int64_t>(row), width)));
    }
  }
  return logits;
}

// The first training was on so few tokens that the heads' pairs are of all three kinds.
constexpr const char* kLlama3 = R"({"rope_theta": 50.0, "rope_scaling": {"rope_type": "llama3",
  "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
  "original_max_position_embeddings": 48}})";
constexpr const char* kOptions[] = {
    "{}",
    R"({"attention_bias": true})",
    R"({"mlp_bias": true})",
    R"({"rope_scaling": {"rope_type": "linear", "factor": 2.5}})",
    kLlama3,
};

TEST(LlamaTest, OptionsAreWhatTheirEquationsSay) {
  for (const char* changes : kOptions) ExpectPlain("llama", changes, Llama);
}

// The kinds of pairs that kLlama3's frequencies are tried with, in the same words.
TEST(LlamaTest, ScaledFrequenciesAreThoseOfTheFormula) {
  const json published = json::parse(R"({"rope_theta": 500000.0, "rope_scaling": {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}})");
  const auto expect = [](const json& config, const RopeScaling& scaling, int dim) {
    const std::vector<float> got = RopeFrequenciesInF32(config["rope_theta"], dim, scaling);
    const std::vector<float> plain = RopeFrequenciesInF32(config["rope_theta"], dim);
    ASSERT_EQ(got.size(), static_cast<size_t>(dim / 2));
    int same = 0, slowest = 0, between = 0;
    for (int j = 0; j < dim / 2; ++j) {
      const auto at = static_cast<size_t>(j);
      const double want = PlainFrequency(config, j, dim);
      // A power whose exponent is rounded: its error times log(theta), and up to eight roundings.
      const double bound = (8 + std::log(config["rope_theta"].get<double>())) * 0x1p-24;
      EXPECT_LE(std::abs(got[at] - want), bound * want) << j;
      const bool fast = got[at] == plain[at];
      const bool slow = got[at] == plain[at] / static_cast<float>(scaling.factor);
      same += fast ? 1 : 0;
      slowest += slow ? 1 : 0;
      between += fast || slow ? 0 : 1;
    }
    EXPECT_GT(same, 0);
    EXPECT_GT(slowest, 0);
    EXPECT_GT(between, 0);
  };
  expect(published,
         {.kind = RopeScaling::Kind::kLlama3,
          .factor = 32,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_length = 8192},
         128);
  expect(json::parse(kLlama3),
         {.kind = RopeScaling::Kind::kLlama3,
          .factor = 8,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_length = 48},
         16);
}

class LlamaBackendsTest : public testing::TestWithParam<BackendUnderTest> {};

// Prompts in uneven parts and single tokens, which take other paths.
TEST_P(LlamaBackendsTest, OptionsAreThoseOfTheReference) {
  const std::vector<int32_t> tokens = RandomTokens(40, 61, /*seed=*/5);
  for (const char* changes : {R"({"mlp_bias": true, "attention_bias": true})", kLlama3}) {
    const TestFolder folder;
    MakePlainFolder("llama", changes, folder);
    const auto logits = [&](std::unique_ptr<Backend> backend) {
      const auto driver = Drive(folder.path(), std::move(backend), {.slots = 1, .max_tokens = 24});
      return FeedSlot(*driver, 0, tokens, {23, 1, 1, 8, 1});
    };
    const double error = RelativeError(logits(GetParam().Make()), logits(MakeReference()));
    EXPECT_LE(error, GetParam().device == "cuda" ? 1e-4 : 2e-5) << changes;
    std::printf("  relative error %.2e\n", error);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LlamaBackendsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

TEST(LlamaConfigTest, ScalingAndBiasesCount) {
  const std::string llama3 =
      R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
          "original_max_position_embeddings": 8192})";
  const auto with = [&](const char* from, const char* to) {
    std::string changed = llama3;
    changed.replace(changed.find(from), std::string(from).size(), to);
    return absl::StrCat(R"("rope_scaling": )", changed);
  };
  const std::string base = absl::StrCat(R"("rope_scaling": )", llama3);
  const auto fingerprint = [](const std::string& keys) { return FingerprintOf("llama", keys); };
  std::vector<std::string> different = {
      base,
      R"("rope_theta": 10000)",
      R"("mlp_bias": true)",
      R"("rope_scaling": {"type": "linear", "factor": 8})",
      R"("rope_scaling": {"type": "linear", "factor": 4})",
      with("\"factor\": 8", "\"factor\": 4"),
      with("\"low_freq_factor\": 1", "\"low_freq_factor\": 2"),
      with("\"high_freq_factor\": 4", "\"high_freq_factor\": 5"),
      with("8192", "4096"),
  };
  for (size_t i = 0; i < different.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(fingerprint(different[i]), fingerprint(different[j]))
          << different[i] << " and " << different[j];
    }
  }
  // Wherever it is said, and however often.
  EXPECT_EQ(fingerprint(base), fingerprint(absl::StrCat(R"("rope_parameters": )", llama3)));
  EXPECT_EQ(fingerprint(base), fingerprint(absl::StrCat(base, R"(, "rope_parameters": )", llama3)));
  EXPECT_EQ(fingerprint(base), fingerprint(with("rope_type", "type")));
  EXPECT_EQ(fingerprint(R"("rope_theta": 10000)"), fingerprint(R"("mlp_bias": false)"));
}

}  // namespace
}  // namespace mneme
