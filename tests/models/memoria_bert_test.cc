// What upstream's code computes of BERT and RoBERTa with Memoria, segment by segment, against ours:
// folders memoria_bert* and memoria_roberta* of tests/golden and of $MNEME_GOLDEN.

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/classes.h"
#include "tests/models/memoria_golden.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

class MemoriaBertTest : public testing::TestWithParam<std::tuple<std::string, BackendUnderTest>> {
 protected:
  MemoriaBertTest()
      : golden_(std::get<0>(GetParam()), std::get<1>(GetParam()).device == "reference"
                                             ? MakeReference()
                                             : std::get<1>(GetParam()).Make()) {
    const MemoriaResults& results = golden_.results();
    const std::vector<int32_t> ids = results.Ints("input_ids");
    const std::vector<int32_t> mask = results.Ints("attention_mask");
    documents_ = results.Ints("last_segment").size();
    const size_t length = ids.size() / documents_;
    for (size_t d = 0; d < documents_; ++d) {
      const auto begin = static_cast<int64_t>(d * length);
      const auto count =
          std::count(mask.begin() + begin, mask.begin() + begin + static_cast<int64_t>(length), 1);
      texts_.push_back(FillUp(classes(), std::span(ids).subspan(d * length, count), {}));
    }
  }
  const Classes& classes() { return golden_.driver().model().info().classes; }

  // The next segment of a text; the logits after it.
  std::vector<double> FeedSegment(const SegmentedText& text) {
    const auto at = static_cast<size_t>(golden_.driver().position(0));
    const auto segment = static_cast<size_t>(classes().segment);
    const ModelDriver::Row row = {.slot = 0,
                                  .tokens = std::span(text.tokens).subspan(at, segment),
                                  .types = std::span(text.types).subspan(at, segment)};
    const auto logits =
        golden_.driver().Step({&row, 1}, std::vector{static_cast<int32_t>(segment) - 1});
    CHECK_OK(logits.status());
    return {logits->begin(), logits->end()};
  }

  MemoriaGolden golden_;
  size_t documents_ = 0;
  std::vector<SegmentedText> texts_;
};

TEST_P(MemoriaBertTest, EverySegmentIsWhatUpstreamMakesOfIt) {
  const size_t labels = classes().labels.size();
  const std::vector<double> all = golden_.results().Floats("segment_logits");
  const size_t segments = all.size() / labels / documents_;
  int checked = 0;
  for (size_t d = 0; d < documents_; ++d) {
    golden_.driver().Reset(0);
    const auto of = [&](size_t s) { return absl::StrFormat("d%d.s%03d.", d, s); };
    const size_t count = texts_[d].tokens.size() / static_cast<size_t>(classes().segment);
    EXPECT_EQ(static_cast<int32_t>(count) - 1, golden_.results().Ints("last_segment")[d]);
    std::vector<double> logits;
    for (size_t s = 0; s < count; ++s) {
      logits = FeedSegment(texts_[d]);
      const auto want = all.begin() + static_cast<int64_t>((d * segments + s) * labels);
      golden_.ExpectClose(logits, {want, want + static_cast<int64_t>(labels)},
                          of(s) + "segment_logits");
      golden_.ExpectRetrieved(of(s), static_cast<int>(s) + 1);
      golden_.ExpectWeights(of(s));
      if (s > 0) golden_.ExpectCommitted(of(s - 1));
      ++checked;
    }
    const std::vector<double> result = golden_.results().Floats("logits");
    const auto want = result.begin() + static_cast<int64_t>(d * labels);
    golden_.ExpectClose(logits, {want, want + static_cast<int64_t>(labels)}, "logits");
    // The last commit is that of a segment which upstream has not: whatever it holds.
    SegmentedText more = texts_[d];
    more.tokens.insert(more.tokens.end(), more.tokens.begin(),
                       more.tokens.begin() + classes().segment);
    more.types.resize(more.tokens.size(), 0);
    FeedSegment(more);
    golden_.ExpectCommitted(of(count - 1));
  }
  EXPECT_GE(checked, 15);
  std::printf("  %d segments, worst relative error %.2e\n", checked, golden_.worst());
}

std::vector<std::string> Folders() {
  std::vector<std::string> names = MemoriaFolders("memoria_bert");
  for (const std::string& name : MemoriaFolders("memoria_roberta")) names.push_back(name);
  return names;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MemoriaBertTest);
INSTANTIATE_TEST_SUITE_P(Folders, MemoriaBertTest,
                         testing::Combine(testing::ValuesIn(Folders()),
                                          testing::ValuesIn(AllBackends())),
                         [](const auto& info) {
                           const BackendUnderTest& backend = std::get<1>(info.param);
                           return absl::StrCat(std::get<0>(info.param), "_", backend.device,
                                               backend.isa.empty() ? "" : "_", backend.isa);
                         });

}  // namespace
}  // namespace mneme
