// What upstream's code computes of Memoria's GPT-2, segment by segment, against ours: folders
// memoria_gpt2* of tests/golden and of $MNEME_GOLDEN.

#include "tests/models/memoria_golden.h"

#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

class MemoriaGoldenTest : public testing::TestWithParam<std::tuple<std::string, BackendUnderTest>> {
 protected:
  MemoriaGoldenTest()
      : golden_(std::get<0>(GetParam()), std::get<1>(GetParam()).device == "reference"
                                             ? MakeReference()
                                             : std::get<1>(GetParam()).Make()) {}

  std::vector<double> Feed(std::span<const int32_t> tokens, std::vector<int> chunks = {}) {
    return FeedSlot(golden_.driver(), 0, tokens, std::move(chunks));
  }
  std::string Of(int segment) const { return absl::StrFormat("s%03d.", segment); }

  MemoriaGolden golden_;
};

TEST_P(MemoriaGoldenTest, EverySegmentIsWhatUpstreamMakesOfIt) {
  const std::vector<int32_t> ids = golden_.results().Ints("input_ids");
  const std::span<const int32_t> text = ids;
  std::vector<double> logits;
  const auto feed = [&](size_t begin, size_t count) {
    const std::vector<double> more = Feed(text.subspan(begin, count));
    logits.insert(logits.end(), more.begin(), more.end());
  };
  const auto length = static_cast<size_t>(golden_.config().segment);
  int checked = 0;
  for (size_t begin = 0; begin < ids.size(); begin += length) {
    const int segment = static_cast<int>(begin / length);
    feed(begin, 1);
    if (segment >= 1) golden_.ExpectRetrieved(Of(segment), segment);
    if (segment >= 2) golden_.ExpectCommitted(Of(segment - 1));
    const size_t rest = std::min(length, ids.size() - begin) - 1;
    if (rest > 0) feed(begin + 1, rest);
    if (rest + 1 < length) break;
    if (segment >= 1) golden_.ExpectWeights(Of(segment));
    ++checked;
  }
  EXPECT_GE(checked, 5);
  golden_.ExpectClose(logits, golden_.results().Floats("logits"), "logits");
  std::printf("  %d segments, worst relative error %.2e\n", checked, golden_.worst());
}

TEST_P(MemoriaGoldenTest, LogitsOfTheTextInAnyChunks) {
  const std::vector<int32_t> ids = golden_.results().Ints("input_ids");
  const std::vector<double> want = golden_.results().Floats("logits");
  for (const std::vector<int>& chunks : {std::vector<int>{}, {1}, {5, 1, 29}}) {
    golden_.driver().Reset(0);
    golden_.ExpectClose(Feed(ids, chunks), want, "logits");
  }
  std::printf("  worst relative error %.2e\n", golden_.worst());
}

TEST_P(MemoriaGoldenTest, GreedyContinuation) {
  const std::vector<int32_t> ids = golden_.results().Ints("input_ids");
  const std::vector<int32_t> want = golden_.results().Ints("greedy_ids");
  const auto prefix = static_cast<size_t>(golden_.results().Ints("greedy_prefix").front());
  std::vector<double> logits = Feed(std::span(ids).first(prefix)), all;
  const auto vocab = static_cast<int64_t>(golden_.driver().model().info().vocab);
  std::vector<int32_t> tokens;
  while (tokens.size() < want.size()) {
    const auto last = logits.end() - vocab;
    all.insert(all.end(), last, logits.end());
    tokens.push_back(static_cast<int32_t>(std::max_element(last, logits.end()) - last));
    logits = Feed({&tokens.back(), 1});
  }
  EXPECT_EQ(tokens, want);
  golden_.ExpectClose(all, golden_.results().Floats("greedy_logits"), "greedy_logits");
}

std::vector<BackendUnderTest> Backends() {
  std::vector<BackendUnderTest> backends = AllBackends();
  std::erase_if(backends, [](const BackendUnderTest& b) { return b.device == "cuda"; });
  return backends;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MemoriaGoldenTest);
INSTANTIATE_TEST_SUITE_P(Folders, MemoriaGoldenTest,
                         testing::Combine(testing::ValuesIn(MemoriaFolders("memoria_gpt2")),
                                          testing::ValuesIn(Backends())),
                         [](const auto& info) {
                           const BackendUnderTest& backend = std::get<1>(info.param);
                           return absl::StrCat(std::get<0>(info.param), "_", backend.device,
                                               backend.isa.empty() ? "" : "_", backend.isa);
                         });

}  // namespace
}  // namespace mneme
