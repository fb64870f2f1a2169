// What upstream's code computes of Memoria's GPT-2, segment by segment, against ours: folders
// memoria_gpt2* of tests/golden and of $MNEME_GOLDEN.

#include "tests/models/memoria_golden.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/state_codec.h"
#include "tests/models/golden.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

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

// Rounded products, and on a GPU keys and values in bf16, may change which engrams are recalled,
// and so all that follows: up to the first ones nothing is chosen.
TEST_P(MemoriaGoldenTest, RoundedArithmeticIsCloseBeforeChoices) {
  const BackendUnderTest& under_test = std::get<1>(GetParam());
  if (under_test.device == "reference") GTEST_SKIP() << "does not round";
  const auto driver = Drive(GoldenFolder(std::get<0>(GetParam())),
                            under_test.Make(/*threads=*/2, DType::kBF16), {});
  const std::vector<int32_t> ids = golden_.results().Ints("input_ids");
  const std::vector<double> got = FeedSlot(*driver, 0, ids);
  const std::vector<double> want = golden_.results().Floats("logits");
  ASSERT_EQ(got.size(), want.size());
  EXPECT_THAT(got,
              testing::Each(testing::Truly([](double logit) { return std::isfinite(logit); })));
  // The crossing into the second segment finds one segment's engrams, all of which it takes.
  const auto begin =
      2 * static_cast<ptrdiff_t>(golden_.config().segment) * driver->model().info().vocab;
  const double error = RelativeError(std::vector(got.begin(), got.begin() + begin),
                                     std::vector(want.begin(), want.begin() + begin));
  EXPECT_LE(error, 2e-2);
  std::printf("  relative error %.1e\n", error);
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

// What a text makes does not depend on who is beside it: no choice of these texts is close.
TEST_P(MemoriaGoldenTest, ASessionAmongOthersMakesTheSameEngrams) {
  for (int segment = 1; golden_.results().Has(Of(segment) + "rem"); ++segment) {
    golden_.ExpectNothingIsClose(Of(segment));
  }
  constexpr int kRows = 32, kAlone = kRows;
  const BackendUnderTest& under_test = std::get<1>(GetParam());
  const auto driver = Drive(GoldenFolder(std::get<0>(GetParam())), under_test.Make(),
                            {.slots = kRows + 1, .max_rows = kRows, .max_tokens = 256});
  const std::vector<int32_t> ids = golden_.results().Ints("input_ids");
  const std::span<const int32_t> text = ids;
  const int vocab = driver->model().info().vocab;
  std::vector<std::vector<int32_t>> others;
  for (int row = 1; row < kRows; ++row) {
    others.push_back(RandomTokens(static_cast<int>(text.size()) * 2, vocab, row));
  }
  std::vector<double> alone, among;
  const auto add = [&](std::vector<double>& logits, const std::vector<ModelDriver::Row>& rows,
                       size_t count) {
    const auto step = driver->Step(rows);
    CHECK_OK(step.status());
    const auto own = step->begin() + static_cast<int64_t>(count) * vocab;
    logits.insert(logits.end(), step->begin(), own);
  };
  const size_t sizes[] = {5, 1, 1, 3};
  size_t piece = 0, at_other = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t count = std::min(sizes[piece++ % std::size(sizes)], text.size() - at);
    std::vector<ModelDriver::Row> rows = {{kAlone, text.subspan(at, count)}};
    add(alone, rows, count);
    rows[0].slot = 0;
    for (int row = 1; row < kRows; ++row) {
      const size_t more = 1 + (piece + static_cast<size_t>(row)) % 3;
      const std::vector<int32_t>& other = others[static_cast<size_t>(row - 1)];
      rows.push_back({row, std::span(other).subspan(at_other % (other.size() - 3), more)});
    }
    ++at_other;
    add(among, rows, count);
    at += count;
  }
  EXPECT_THAT(among, IsSame(under_test.bit_exact(), alone));
  golden_.ExpectClose(among, golden_.results().Floats("logits"), "logits");
  const MemoriaState want = ReadMemoriaState(*driver, kAlone), got = ReadMemoriaState(*driver, 0);
  ASSERT_EQ(got.engrams.size(), want.engrams.size());
  EXPECT_EQ(got.recalled, want.recalled);
  EXPECT_EQ(got.facts, want.facts);
  std::vector<double> lifespans, wanted_lifespans;
  for (size_t i = 0; i < want.engrams.size(); ++i) {
    EXPECT_EQ(got.engrams[i].birth, want.engrams[i].birth);
    EXPECT_EQ(got.engrams[i].type, want.engrams[i].type);
    EXPECT_EQ(got.engrams[i].counts, want.engrams[i].counts);
    lifespans.push_back(got.engrams[i].lifespan);
    wanted_lifespans.push_back(want.engrams[i].lifespan);
  }
  EXPECT_THAT(lifespans, IsSame(under_test.bit_exact(), wanted_lifespans));
}

// In the middle of a segment, at its last token, and at the first one of the next; and so do those
// that were saved and restored.
TEST_P(MemoriaGoldenTest, ForksOfEveryPhaseGoOnAsTheirParents) {
  const std::vector<int32_t> ids = golden_.results().Ints("input_ids");
  const std::span<const int32_t> text = ids;
  const auto length = static_cast<size_t>(golden_.config().segment);
  const std::vector<double> want = golden_.results().Floats("logits");
  const auto vocab = static_cast<int64_t>(golden_.driver().model().info().vocab);
  for (const size_t at : {3 * length - 2, 4 * length, 5 * length + 1}) {
    golden_.driver().Reset(0);
    Feed(text.first(at));
    ModelDriver& driver = golden_.driver();
    driver.Fork(0, 1);
    const auto saved =
        DecodeState(driver.backend(), driver.model(), driver.Slab(0), driver.position(0));
    ASSERT_TRUE(saved.ok()) << saved.status();
    const std::vector<double> parent = Feed(text.subspan(at), {3});
    EXPECT_THAT(FeedSlot(driver, 1, text.subspan(at), {3}), HasSameBits(parent)) << at;
    ASSERT_EQ(EncodeState(driver.backend(), driver.model(), *saved, driver.Slab(1)),
              absl::OkStatus());
    driver.WriteSlab(1, driver.ReadSlab(1), static_cast<int64_t>(at));
    EXPECT_THAT(FeedSlot(driver, 1, text.subspan(at), {3}), HasSameBits(parent)) << at;
    golden_.ExpectClose(parent, {want.begin() + static_cast<int64_t>(at) * vocab, want.end()},
                        "logits");
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MemoriaGoldenTest);
INSTANTIATE_TEST_SUITE_P(Folders, MemoriaGoldenTest,
                         testing::Combine(testing::ValuesIn(MemoriaFolders("memoria_gpt2")),
                                          testing::ValuesIn(AllBackends())),
                         [](const auto& info) {
                           const BackendUnderTest& backend = std::get<1>(info.param);
                           return absl::StrCat(std::get<0>(info.param), "_", backend.device,
                                               backend.isa.empty() ? "" : "_", backend.isa);
                         });

}  // namespace
}  // namespace mneme
