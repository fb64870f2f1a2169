// Every option of the architectures, in random combinations: the CPU, or CUDA, against the float64
// reference.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/models/recorded_routing.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

constexpr int kTokens = 40;

GatedDeltaSpec RandomSpec(uint64_t seed) {
  SeededRandom random(seed);
  const auto pick = [&](std::vector<int> values) {
    return values[random.Int(0, static_cast<int>(values.size()) - 1)];
  };
  GatedDeltaSpec spec = TinySpec(random.Chance(0.7) ? "mom-tiny" : "gdn-tiny");
  auto& config = spec.config;
  GatedDeltaConfig& delta = config.delta;
  config.vocab = pick({7, 64, 259});
  config.bos_token.reset();
  config.eos_tokens.clear();
  config.model_dim = pick({8, 24, 50, 64});
  config.mlp_dim = pick({5, 16, 48, 96});
  config.layers = random.Int(1, 3);
  config.norm_eps = random.Chance(0.5) ? 1e-6f : 1e-5f;
  delta.heads = random.Int(1, 3);
  delta.value_heads = delta.heads;
  delta.key_dim = pick({16, 20, 32, 48, 64, 96, 128, 256});
  delta.value_dim = delta.key_dim * pick({2, 4, 4, 6, 8}) / 4;  // expand_v 0.5, 1, 1.5, 2
  delta.conv_width = pick({1, 2, 3, 4, 4, 4, 7});
  delta.output_gate = random.Chance(0.7);
  if (config.model_type == "mom") {
    if (random.Chance(0.4)) config.model_type = "mom_gated_deltanet";
    delta.memories = random.Int(1, 8);
    delta.top_k = random.Int(1, delta.memories);
    delta.shared_memory = random.Chance(0.6);
    delta.single_kv_proj = random.Chance(0.3);
  } else {
    delta.value_heads *= random.Int(1, 3);
    delta.allow_negative_eigenvalues = random.Chance(0.5);
    if (random.Chance(0.3)) delta.conv_width = 0;
  }
  spec.tied = random.Chance(0.5);
  spec.dtype = std::vector{DType::kF32, DType::kBF16, DType::kF16}[random.Int(0, 2)];
  spec.shards = random.Chance(0.3) ? random.Int(2, 4) : 1;
  spec.seed = seed;
  return spec;
}

class ModelOptionsTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(ModelOptionsTest, RandomNetworksAgreeWithTheReference) {
  double worst = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const GatedDeltaSpec spec = RandomSpec(seed);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", ConfigJson(spec.ToModelSpec())));
    const TestFolder folder;
    MakeFolder(spec, folder);
    const std::vector<int32_t> tokens = RandomTokens(kTokens, spec.config.vocab, seed);
    const ModelDriver::Limits limits{.max_tokens = kTokens};

    const auto reference = Drive(folder.path(), MakeReference(), limits);
    RecordedRouting record(reference->backend());
    reference->set_routing(&record);
    const std::vector<double> want = FeedSlot(*reference, 0, tokens);

    const auto driver = Drive(folder.path(), GetParam().Make(), limits);
    RecordedRouting force(driver->backend(), record.recorded());
    driver->set_routing(&force);
    const std::vector<double> got = FeedSlot(*driver, 0, tokens);

    ASSERT_EQ(got.size(), want.size());
    const double error = RelativeError(got, want);
    worst = std::max(worst, error);
    EXPECT_LE(error, 2e-5);

    // And the same when fed otherwise.
    driver->set_routing(nullptr);
    driver->Reset(0);
    const std::vector<double> whole = FeedSlot(*driver, 0, tokens);
    driver->Reset(0);
    EXPECT_THAT(FeedSlot(*driver, 0, tokens, {1, 7, 3}), IsSame(GetParam().bit_exact(), whole));
  }
  std::printf("  worst relative error %.2e\n", worst);
}

INSTANTIATE_TEST_SUITE_P(Backends, ModelOptionsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
