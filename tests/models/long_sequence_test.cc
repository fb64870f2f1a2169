// 20,000 tokens, as a prompt and as an answer: rounding must not build up in the memories.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/models/memory_values.h"
#include "tests/models/recorded_routing.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kTokens = 20000;
constexpr int kChunk = 500;

// Bounds the error of a part in norm: below what 20,000 roundings of one sign would come to, and
// far above what they do come to, as they average out (docs/numerics.md, "Long contexts").
constexpr double kBound = 2e-5;

// The parts of a sequence's logits, chunk by chunk.
double WorstPart(const std::vector<double>& got, const std::vector<double>& want, int vocab) {
  return WorstRowError(got, want, kChunk * vocab);
}

double WorstMemory(ModelDriver& got, ModelDriver& want) {
  const MemoryValues of_device = ReadMemories(got, 0), of_reference = ReadMemories(want, 0);
  CHECK(!of_reference.empty());
  CHECK_EQ(of_device.size(), of_reference.size());
  double worst = 0;
  for (const auto& [place, values] : of_reference) {
    worst = std::max(worst, RelativeError(of_device.at(place), values));
  }
  return worst;
}

// Fed in chunks as a prompt is, and token by token as it would be generated; without a router, as
// steps that nobody watches, which a device may take as one operation.
void ExpectNoDrift(const BackendUnderTest& under_test, const GatedDeltaSpec& spec) {
  const TestFolder folder;
  MakeFolder(spec, folder);
  const std::vector<int32_t> tokens = RandomTokens(kTokens, spec.config.vocab, /*seed=*/1);
  const bool routed = spec.config.delta.memories > 0;
  const auto reference = Drive(folder.path(), MakeReference(), {.max_tokens = kChunk});
  RecordedRouting record(reference->backend());
  if (routed) reference->set_routing(&record);
  const std::vector<double> want = FeedSlot(*reference, 0, tokens);
  for (const int size : {kChunk, 1}) {
    SCOPED_TRACE(testing::Message() << "in steps of " << size);
    const auto device = Drive(folder.path(), under_test.Make(), {.max_tokens = kChunk});
    RecordedRouting force(device->backend(),
                          Recut(record.recorded(), spec.config.layers, spec.config.delta.top_k,
                                std::vector<int>(static_cast<size_t>(kTokens / size), size)));
    if (routed) device->set_routing(&force);
    const std::vector<double> got = FeedSlot(*device, 0, tokens, {size});
    ASSERT_EQ(got.size(), want.size());
    const double logits = WorstPart(got, want, spec.config.vocab);
    const double memories = WorstMemory(*device, *reference);
    std::printf("  steps of %d: worst relative error of %d tokens' logits %.2e, of a memory %.2e\n",
                size, kChunk, logits, memories);
    EXPECT_LE(logits, kBound);
    EXPECT_LE(memories, kBound);
  }
}

GatedDeltaSpec SmallSpec(const std::string& shape) {
  GatedDeltaSpec spec = TinySpec(shape);
  spec.config.vocab = 32;
  spec.config.model_dim = 32;
  spec.config.mlp_dim = 32;
  spec.config.delta.key_dim = spec.config.delta.value_dim = 16;
  spec.config.bos_token.reset();
  return spec;
}

// bf16 weights and sizes as the kernel wants them that takes a token through all layers
// (kernels/cuda/decode/stack/stack.cu): keys of 128, other widths multiples of 256. Products are
// exact, so that the bound is that of f32. One head: of all there is, float64 takes longest.
GatedDeltaSpec WideSpec(const std::string& shape, int layers) {
  GatedDeltaSpec spec = SmallSpec(shape);
  spec.dtype = DType::kBF16;
  spec.config.layers = layers;
  spec.config.model_dim = spec.config.mlp_dim = 256;
  spec.config.delta.heads = spec.config.delta.value_heads = 1;
  spec.config.delta.key_dim = 128;
  spec.config.delta.value_dim = 256;
  return spec;
}

class LongSequenceTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectNoWideDrift(const GatedDeltaSpec& spec) {
    if (GetParam().device == "cpu") GTEST_SKIP() << "no kernels of its own for wide networks";
    ExpectNoDrift(GetParam(), spec);
  }
};

TEST_P(LongSequenceTest, MomStaysWithTheReference) {
  ExpectNoDrift(GetParam(), SmallSpec("mom-tiny"));
}
TEST_P(LongSequenceTest, GatedDeltaNetStaysWithTheReference) {
  ExpectNoDrift(GetParam(), SmallSpec("gdn-tiny"));
}
TEST_P(LongSequenceTest, WideGatedDeltaNetStaysWithTheReference) {
  GatedDeltaSpec spec = WideSpec("gdn-tiny", /*layers=*/2);
  spec.config.delta.output_gate = false;
  ExpectNoWideDrift(spec);
}
// Forced routing goes layer by layer: one is all there is to see.
TEST_P(LongSequenceTest, WideMomStaysWithTheReference) {
  GatedDeltaSpec spec = WideSpec("mom-tiny", /*layers=*/1);
  spec.config.delta.memories = 3;
  spec.config.delta.top_k = 1;
  ExpectNoWideDrift(spec);
}

// The fastest alone: a float64 reference of 20,000 tokens is slow enough.
INSTANTIATE_TEST_SUITE_P(Backends, LongSequenceTest, testing::Values(AvailableBackends().back()),
                         BackendName);

}  // namespace
}  // namespace mneme
