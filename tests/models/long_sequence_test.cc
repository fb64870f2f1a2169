// 20,000 tokens: rounding must not build up in the memories.

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/models/recorded_routing.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kTokens = 20000;
constexpr int kChunk = 500;

void ExpectNoDrift(const BackendUnderTest& under_test, const ModelSpec& spec) {
  const TestFolder folder;
  MakeFolder(spec, folder);
  const std::vector<int32_t> tokens = RandomTokens(kTokens, spec.config.vocab, /*seed=*/1);
  const auto reference = Drive(folder.path(), MakeReference(), {.max_tokens = kChunk});
  const auto device = Drive(folder.path(), under_test.Make(), {.max_tokens = kChunk});
  RecordedRouting record(reference->backend());
  reference->set_routing(&record);
  const std::vector<double> want = FeedSlot(*reference, 0, tokens);
  RecordedRouting force(device->backend(), record.recorded());
  device->set_routing(&force);
  const std::vector<double> got = FeedSlot(*device, 0, tokens);
  ASSERT_EQ(got.size(), want.size());

  double worst = 0;
  for (int chunk = 0; chunk < kTokens / kChunk; ++chunk) {
    const auto part = [&](const std::vector<double>& all) {
      const int64_t size = int64_t{kChunk} * spec.config.vocab;
      return std::vector<double>(all.begin() + chunk * size, all.begin() + (chunk + 1) * size);
    };
    worst = std::max(worst, RelativeError(part(got), part(want)));
  }
  std::printf("  worst relative error of %d tokens: %.2e\n", kChunk, worst);
  EXPECT_LE(worst, 2e-5);
}

ModelSpec SmallSpec(const std::string& shape) {
  ModelSpec spec = TinySpec(shape);
  spec.config.vocab = 32;
  spec.config.model_dim = 32;
  spec.config.mlp_dim = 32;
  spec.config.delta.key_dim = spec.config.delta.value_dim = 16;
  spec.config.bos_token.reset();
  return spec;
}

class LongSequenceTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(LongSequenceTest, MomStaysWithTheReference) {
  ExpectNoDrift(GetParam(), SmallSpec("mom-tiny"));
}
TEST_P(LongSequenceTest, GatedDeltaNetStaysWithTheReference) {
  ExpectNoDrift(GetParam(), SmallSpec("gdn-tiny"));
}

// The fastest alone: a float64 reference of 20,000 tokens is slow enough.
INSTANTIATE_TEST_SUITE_P(Backends, LongSequenceTest, testing::Values(AvailableBackends().back()),
                         BackendName);

}  // namespace
}  // namespace mneme
