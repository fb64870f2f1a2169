// What every architecture that classifies owes its users. Its texts go through it in whole
// segments, so that these stand where tokens do in ConformanceTest.

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/architecture.h"
#include "models/classes.h"
#include "models/state_codec.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kClassifierSlots = 32;
constexpr int kSegments = 9;  // enough for engrams of every kind

class ClassifierConformanceTest
    : public testing::TestWithParam<std::tuple<const Architecture*, BackendUnderTest>> {
 protected:
  std::unique_ptr<Backend> MakeBackend() const {
    const BackendUnderTest& under_test = std::get<1>(GetParam());
    return under_test.Make();
  }
  bool bit_exact() const { return std::get<1>(GetParam()).bit_exact(); }

  template <typename Check>
  void ForEachNetwork(const Check& check) {
    for (const ModelSpec& spec : ConformanceSpecs(std::get<0>(GetParam())->model_type)) {
      SCOPED_TRACE(spec.config.dump());
      const TestFolder folder;
      MakeFolder(spec, folder);
      const auto driver =
          Drive(folder.path(), MakeBackend(),
                {.slots = kClassifierSlots, .max_rows = kClassifierSlots + 1, .max_tokens = 4200});
      check(*driver);
    }
  }
  static const Classes& ClassesOf(const ModelDriver& driver) {
    return driver.model().info().classes;
  }
  static int Segments(const ModelDriver& driver) {
    return ClassesOf(driver).one_segment ? 1 : kSegments;
  }
  // A text of some segments, the last of which is not full; some of its tokens are of a second
  // text.
  static SegmentedText Text(const ModelDriver& driver, uint64_t seed) {
    const Classes& classes = ClassesOf(driver);
    const int count = Segments(driver) * classes.segment - 1 - static_cast<int>(seed % 3);
    const std::vector<int32_t> tokens = RandomTokens(count, driver.model().info().vocab, seed);
    std::vector<int32_t> types(tokens.size());
    for (size_t i = tokens.size() / 2; i < tokens.size(); ++i) types[i] = classes.types - 1;
    return FillUp(classes, tokens, types);
  }
  // The row that feeds segment `s` to `slot`.
  static ModelDriver::Row Segment(const ModelDriver& driver, const SegmentedText& text, int slot,
                                  int s) {
    const auto length = static_cast<size_t>(ClassesOf(driver).segment);
    const size_t begin = length * static_cast<size_t>(s);
    const size_t count = std::min(length, text.tokens.size() - begin);
    return {slot, std::span(text.tokens).subspan(begin, count),
            std::span(text.types).subspan(begin, count)};
  }
  // Logits of the rows, after the last token of each.
  static std::vector<double> Step(ModelDriver& driver, const std::vector<ModelDriver::Row>& rows) {
    std::vector<int32_t> last;
    int32_t tokens = 0;
    for (const ModelDriver::Row& row : rows) {
      tokens += static_cast<int32_t>(row.tokens.size());
      last.push_back(tokens - 1);
    }
    const auto logits = driver.Step(rows, last);
    CHECK_OK(logits.status());
    return {logits->begin(), logits->end()};
  }
  // Logits after each of a text's segments [first, end).
  static std::vector<double> Feed(ModelDriver& driver, const SegmentedText& text, int slot,
                                  int first, int end) {
    std::vector<double> all;
    for (int s = first; s < end; ++s) {
      const std::vector<double> logits = Step(driver, {Segment(driver, text, slot, s)});
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }
};

TEST_P(ClassifierConformanceTest, ATextIsTheSameAloneAndAmongOthers) {
  ForEachNetwork([&](ModelDriver& driver) {
    const SegmentedText text = Text(driver, 1);
    const std::vector<double> alone = Feed(driver, text, 0, 0, Segments(driver));
    std::vector<double> together;
    std::vector<SegmentedText> others;
    for (int slot = 1; slot < kClassifierSlots; ++slot) others.push_back(Text(driver, 1 + slot));
    const auto outputs = static_cast<int64_t>(driver.model().info().outputs());
    driver.Reset(0);
    for (int s = 0; s < Segments(driver); ++s) {
      // A padding row in front, the text in the middle; others stand elsewhere in theirs.
      std::vector<ModelDriver::Row> rows = {Segment(driver, text, -1, 0)};
      int64_t own = 0;
      for (int slot = 0; slot < kClassifierSlots; ++slot) {
        if (slot == kClassifierSlots / 2) {
          own = static_cast<int64_t>(rows.size());
          rows.push_back(Segment(driver, text, 0, s));
        }
        if (slot > 0 && s >= slot % 3) {
          rows.push_back(
              Segment(driver, others[static_cast<size_t>(slot) - 1], slot, s - slot % 3));
        }
      }
      const std::vector<double> logits = Step(driver, rows);
      together.insert(together.end(), logits.begin() + own * outputs,
                      logits.begin() + (own + 1) * outputs);
    }
    EXPECT_THAT(together, IsSame(bit_exact(), alone));
  });
}

TEST_P(ClassifierConformanceTest, LogitsAreTheSameAtEveryTokenOfARow) {
  ForEachNetwork([&](ModelDriver& driver) {
    const SegmentedText text = Text(driver, 3);
    const ModelDriver::Row row = Segment(driver, text, 0, 0);
    const auto all = driver.Step({&row, 1});
    ASSERT_TRUE(all.ok()) << all.status();
    const auto outputs = static_cast<size_t>(driver.model().info().outputs());
    ASSERT_EQ(all->size(), outputs * row.tokens.size());
    for (size_t t = 1; t < row.tokens.size(); ++t) {
      for (size_t i = 0; i < outputs; ++i) EXPECT_EQ((*all)[t * outputs + i], (*all)[i]);
    }
  });
}

TEST_P(ClassifierConformanceTest, AForkAndItsParentGoTheirOwnWays) {
  ForEachNetwork([&](ModelDriver& driver) {
    const SegmentedText text = Text(driver, 4), other = Text(driver, 5);
    const int end = Segments(driver);
    for (const int at : {0, end / 2, end - 1}) {
      for (const int slot : {0, 1, 2, 3}) driver.Reset(slot);
      Feed(driver, text, 0, 0, at);
      driver.Fork(0, 1);
      const std::vector<double> fork = Feed(driver, other, 1, at, end);
      const std::vector<double> parent = Feed(driver, text, 0, at, end);
      Feed(driver, text, 2, 0, at);
      EXPECT_THAT(Feed(driver, text, 2, at, end), IsSame(bit_exact(), parent)) << "at " << at;
      Feed(driver, text, 3, 0, at);
      EXPECT_THAT(Feed(driver, other, 3, at, end), IsSame(bit_exact(), fork)) << "at " << at;
    }
  });
}

// After another session in its slab, and in one that is all NaN.
TEST_P(ClassifierConformanceTest, ANewSessionSeesNothingOfTheOneBeforeIt) {
  ForEachNetwork([&](ModelDriver& driver) {
    const SegmentedText text = Text(driver, 6);
    const int end = Segments(driver);
    const std::vector<double> want = Feed(driver, text, 0, 0, end);
    Feed(driver, Text(driver, 7), 1, 0, end);
    driver.Reset(1);
    EXPECT_THAT(Feed(driver, text, 1, 0, end), IsSame(bit_exact(), want));
    const auto bytes = static_cast<size_t>(driver.model().state_layout().slab_bytes());
    driver.WriteSlab(2, std::vector<std::byte>(bytes, std::byte{0xff}), 0);  // NaN
    driver.Reset(2);
    EXPECT_THAT(Feed(driver, text, 2, 0, end), IsSame(bit_exact(), want));
  });
}

// Into a slab with a former owner's bytes, and on as if nothing had been.
TEST_P(ClassifierConformanceTest, AStateGoesThroughTheCodecAndOn) {
  ForEachNetwork([&](ModelDriver& driver) {
    const SegmentedText text = Text(driver, 8);
    const int end = Segments(driver), half = end / 2;
    Feed(driver, text, 0, 0, half);
    const auto state =
        DecodeState(driver.backend(), driver.model(), driver.Slab(0), driver.position(0));
    ASSERT_TRUE(state.ok()) << state.status();
    const auto bytes = static_cast<size_t>(driver.model().state_layout().slab_bytes());
    driver.WriteSlab(1, std::vector<std::byte>(bytes, std::byte{0xff}), state->tokens);
    ASSERT_EQ(EncodeState(driver.backend(), driver.model(), *state, driver.Slab(1)),
              absl::OkStatus());
    EXPECT_THAT(Feed(driver, text, 1, half, end),
                IsSame(bit_exact(), Feed(driver, text, 0, half, end)));
  });
}

INSTANTIATE_TEST_SUITE_P(All, ClassifierConformanceTest,
                         testing::Combine(testing::ValuesIn(ArchitecturesThat(/*classify=*/true)),
                                          testing::ValuesIn(OutermostBackends())),
                         ConformanceName);

}  // namespace
}  // namespace mneme
