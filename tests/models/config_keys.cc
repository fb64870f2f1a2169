#include "tests/models/config_keys.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/model_maker.h"

namespace mneme {

absl::StatusOr<ModelConfig> ConfigOf(const std::string& model_type, const std::string& keys) {
  return ParseModelConfig(
      absl::StrCat("{\"model_type\": \"", model_type, "\"", keys.empty() ? "" : ", ", keys, "}"),
      "config.json");
}

uint64_t FingerprintOf(const std::string& model_type, const std::string& keys) {
  const auto config = ConfigOf(model_type, keys);
  EXPECT_TRUE(config.ok()) << model_type << " " << keys << ": " << config.status();
  return config.ok() ? config->fingerprint : 0;
}

double MadeNetwork::millions() const {
  double sum = 0;
  for (const TensorSpec& tensor : tensors) {
    double elements = 1e-6;
    for (const int64_t dim : tensor.shape) elements *= static_cast<double>(dim);
    sum += elements;
  }
  return sum;
}

MadeNetwork MakeNetwork(const ModelConfig& config) {
  WeightRecorder weights({});
  MadeNetwork made;
  const auto network =
      config.make_network({.weights = weights, .state = made.state, .warnings = made.warnings});
  EXPECT_TRUE(network.ok()) << network.status();
  made.tensors = weights.tensors();
  return made;
}

void ExpectRefused(const BadKeys& bad) {
  const auto config = ConfigOf(bad.model_type, bad.keys);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), bad.code) << config.status();
  EXPECT_THAT(config.status().message(), testing::HasSubstr(bad.message));
}

std::string BadKeysName(const testing::TestParamInfo<BadKeys>& info) { return info.param.name; }

std::vector<std::string> StackKeyChanges() {
  return {"",
          R"("vocab_size": 31999)",
          R"("hidden_size": 1024)",
          R"("num_hidden_layers": 23)",
          R"("intermediate_size": 512)",
          R"("hidden_ratio": 3)",
          R"("norm_eps": 1e-5)"};
}

void ExpectEachKeyCounts(const std::string& model_type, const std::vector<std::string>& keys) {
  DistinctFingerprints seen;
  for (const std::vector<std::string>& changes : {StackKeyChanges(), keys}) {
    for (const std::string& change : changes) {
      seen.Add(FingerprintOf(model_type, change), absl::StrCat(model_type, " ", change));
    }
  }
}

void ExpectTheSame(const std::string& model_type, const std::string& a, const std::string& b) {
  EXPECT_EQ(FingerprintOf(model_type, a), FingerprintOf(model_type, b))
      << model_type << " " << a << " " << b;
}

int64_t LayerBytes(const std::string& model_type, const std::string& keys) {
  const auto config = ConfigOf(
      model_type, absl::StrCat(R"("num_hidden_layers": 1)", keys.empty() ? "" : ", ", keys));
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? MakeNetwork(*config).state.slab_bytes() : 0;
}

void ExpectSize(const std::string& shape, double millions, int64_t slab_bytes) {
  const MadeNetwork made = MakeShape(shape);
  EXPECT_NEAR(made.millions(), millions, 0.5) << shape;
  EXPECT_EQ(made.state.slab_bytes(), slab_bytes) << shape;
}

MadeNetwork MakeShape(const std::string& shape) {
  const auto spec = SpecOfShape(shape);
  CHECK_OK(spec.status());
  const auto config = ParseModelConfig(ConfigJson(*spec), "config.json");
  CHECK_OK(config.status());
  return MakeNetwork(*config);
}

void DistinctFingerprints::Add(uint64_t fingerprint, const std::string& what) {
  const auto [other, is_new] = seen_.emplace(fingerprint, what);
  EXPECT_TRUE(is_new) << what << " counts as " << other->second;
}

}  // namespace mneme
