// 20,000 tokens: rounding must not build up in the memories.

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kTokens = 20000;
constexpr int kChunk = 500;

// The reference's routing, one layer's choices per call, replayed on the other backend: both must
// send tokens to the same memories to be comparable, near-ties included.
class Replay final : public RoutingObserver {
 public:
  TensorView Forced(int, int tokens, int top_k) override {
    if (choices_.empty()) return {};
    std::vector<int32_t>& next = choices_[at_++];
    CHECK_EQ(next.size(), static_cast<size_t>(tokens) * top_k);
    return {next.data(), DType::kI32, {tokens, top_k}};
  }
  void OnRouted(int, const TensorView& indices, const TensorView&) override {
    if (at_ > 0) return;
    const auto* begin = indices.as<int32_t>();
    recorded_.emplace_back(begin, begin + indices.shape.elements());
  }
  void StartReplay() { choices_.swap(recorded_); }

 private:
  std::vector<std::vector<int32_t>> recorded_, choices_;
  size_t at_ = 0;
};

void ExpectNoDrift(const ModelSpec& spec) {
  const TestFolder folder;
  MakeFolder(spec, folder);
  const std::vector<int32_t> tokens = RandomTokens(kTokens, spec.config.vocab, /*seed=*/1);
  const auto reference = Drive(folder.path(), MakeReference(), {.max_tokens = kChunk});
  const auto cpu = Drive(folder.path(), AvailableBackends().back().Make(), {.max_tokens = kChunk});
  Replay replay;
  reference->set_routing(&replay);
  const std::vector<double> want = FeedSlot(*reference, 0, tokens);
  replay.StartReplay();
  cpu->set_routing(&replay);
  const std::vector<double> got = FeedSlot(*cpu, 0, tokens);
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

TEST(LongSequenceTest, MomStaysWithTheReference) { ExpectNoDrift(SmallSpec("mom-tiny")); }
TEST(LongSequenceTest, GatedDeltaNetStaysWithTheReference) { ExpectNoDrift(SmallSpec("gdn-tiny")); }

}  // namespace
}  // namespace mneme
