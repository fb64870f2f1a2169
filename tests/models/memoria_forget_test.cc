// What is forgotten of Memoria's sessions, and all that is not.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/state_codec.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/memoria_state.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kForgetVocab = 259;

class MemoriaForgetTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  MemoriaForgetTest() {
    MakeFolder(MatrixSpec("gpt2_with_memoria"), folder_);
    config_ = ReadMemoriaConfig(folder_.path());
  }
  std::unique_ptr<ModelDriver> Make(int capacity = 0) {
    return MakeOn(GetParam().Make(), capacity);
  }
  std::unique_ptr<ModelDriver> MakeOn(std::unique_ptr<Backend> backend, int capacity = 0) {
    return Drive(folder_.path(), std::move(backend), {.slots = 2, .max_rows = 2, .max_tokens = 200},
                 {.engram_capacity = capacity});
  }
  std::vector<int32_t> Text(int tokens, uint64_t seed) const {
    return RandomTokens(tokens, kForgetVocab, seed);
  }
  static CanonicalState Decode(ModelDriver& driver, int slot) {
    auto state =
        DecodeState(driver.backend(), driver.model(), driver.Slab(slot), driver.position(slot));
    CHECK_OK(state.status());
    return *std::move(state);
  }
  static void Encode(ModelDriver& driver, int slot, const CanonicalState& state) {
    CHECK_OK(EncodeState(driver.backend(), driver.model(), state, driver.Slab(slot)));
  }
  // In place, as the engine does it.
  static absl::StatusOr<ForgottenEngrams> Forget(ModelDriver& driver, int slot, int64_t first,
                                                 int64_t end) {
    CanonicalState state = Decode(driver, slot);
    auto forgotten = driver.model().ForgetSegments(state, first, end);
    if (forgotten.ok()) Encode(driver, slot, state);
    return forgotten;
  }

  TestFolder folder_;
  MemoriaConfig config_;
};

TEST_P(MemoriaForgetTest, TheCodecChangesNoBitOfWhatFollows) {
  const int segment = config_.segment;
  for (const int fed : {1, segment, segment + 1, 7 * segment + 3, 12 * segment, 12 * segment + 1}) {
    const auto driver = Make(/*capacity=*/13);
    const std::vector<int32_t> text = Text(fed, 1), more = Text(5 * segment, 2);
    for (const int slot : {0, 1}) FeedSlot(*driver, slot, text, {9});
    Encode(*driver, 0, Decode(*driver, 0));
    EXPECT_EQ(FeedSlot(*driver, 0, more, {1, 4, 30}), FeedSlot(*driver, 1, more, {1, 4, 30}))
        << fed;
    const CanonicalState through = Decode(*driver, 0), untouched = Decode(*driver, 1);
    for (size_t i = 0; i < through.tensors.size(); ++i) {
      EXPECT_EQ(through.tensors[i].bytes, untouched.tensors[i].bytes) << through.tensors[i].name;
    }
  }
}

struct Range {
  int64_t first, end;
};

// The rows of engrams in a layer's context, and their sums, as bytes: working ones first.
std::vector<std::vector<std::byte>> ContextRows(const CanonicalState& state,
                                                const EngramRules& rules,
                                                const std::vector<size_t>& rows) {
  std::vector<std::vector<std::byte>> context;
  const auto copy = [&](const std::byte* from, size_t bytes) {
    context.emplace_back(from, from + bytes);
  };
  for (const StateTensor& tensor : state.tensors) {
    if (absl::EndsWith(tensor.name, ".engram_keys") ||
        absl::EndsWith(tensor.name, ".engram_values")) {
      const size_t bytes = tensor.bytes.size() / static_cast<size_t>(rules.attended());
      for (const size_t row : rows) copy(tensor.bytes.data() + row * bytes, bytes);
    } else if (tensor.name == "engrams.weights") {
      const auto size = static_cast<size_t>(SizeOf(tensor.dtype));
      const auto room = static_cast<size_t>(rules.recalled());
      const auto working = static_cast<size_t>(rules.working);
      for (size_t line = 0; line < tensor.bytes.size(); line += room * size) {
        for (const size_t row : rows) {
          if (row >= working) copy(tensor.bytes.data() + line + (row - working) * size, size);
        }
      }
    }
  }
  return context;
}

TEST_P(MemoriaForgetTest, WhatIsForgottenIsGoneAndAllElseIsTheSameToTheBit) {
  const int64_t open = 12;
  const auto working = static_cast<uint32_t>(config_.rules.working);
  int recalled_ones = 0, kinds[4] = {};
  for (const Range range : {Range{0, 1}, Range{0, 4}, Range{3, 9}, Range{9, 11}, Range{10, 11},
                            Range{11, 12}, Range{0, 12}}) {
    SCOPED_TRACE(testing::Message() << range.first << " to " << range.end);
    const auto driver = Make();
    const std::vector<int32_t> text = Text(static_cast<int>(open) * config_.segment + 2, 5);
    for (const int slot : {0, 1}) FeedSlot(*driver, slot, text, {7});
    const std::vector<std::byte> neighbour = driver->ReadSlab(1);
    const CanonicalState old = Decode(*driver, 0);
    const MemoriaState before = ReadMemoriaState(*driver, 0);
    const auto forgotten = Forget(*driver, 0, range.first, range.end);
    ASSERT_TRUE(forgotten.ok()) << forgotten.status();
    const CanonicalState now = Decode(*driver, 0);
    const MemoriaState after = ReadMemoriaState(*driver, 0);
    EXPECT_EQ(driver->ReadSlab(1), neighbour);

    const auto goes = [&](size_t i) {
      const int64_t of = before.engrams[i].birth / working;
      return of >= range.first && of < range.end;
    };
    std::vector<size_t> left, rows, rows_now;  // engrams, and rows of the context
    ForgottenEngrams wanted;
    size_t working_row = 0;
    for (size_t i = 0; i < before.engrams.size(); ++i) {
      const EngramType type = before.engrams[i].type;
      if (goes(i)) {
        ++kinds[static_cast<int>(type)];
        ++(type == EngramType::kWorking     ? wanted.working
           : type == EngramType::kShortTerm ? wanted.short_term
                                            : wanted.long_term);
      } else {
        left.push_back(i);
      }
      if (type != EngramType::kWorking) continue;
      if (!goes(i)) {
        rows_now.push_back(rows.size());
        rows.push_back(working_row);
      }
      ++working_row;
    }
    EXPECT_EQ(*forgotten, wanted);
    ASSERT_EQ(after.engrams.size(), left.size());
    for (size_t i = 0; i < left.size(); ++i) {
      const MemoriaState::Engram &got = after.engrams[i], &want = before.engrams[left[i]];
      EXPECT_EQ(got.birth, want.birth);
      EXPECT_EQ(got.type, want.type);
      EXPECT_EQ(got.lifespan, want.lifespan);
      EXPECT_EQ(got.x, want.x);
      std::vector<int32_t> counts;
      for (const size_t j : left) counts.push_back(want.counts[j]);
      EXPECT_EQ(got.counts, counts);
    }
    std::vector<uint32_t> recalled, recalled_now;
    for (size_t n = 0; n < before.recalled.size(); ++n) {
      if (goes(before.recalled[n])) {
        ++recalled_ones;
        continue;
      }
      rows_now.push_back(working + recalled.size());
      rows.push_back(working + n);
      recalled.push_back(before.engrams[before.recalled[n]].birth);
    }
    for (const size_t i : after.recalled) recalled_now.push_back(after.engrams[i].birth);
    EXPECT_EQ(recalled_now, recalled);
    EXPECT_EQ(ContextRows(now, config_.rules, rows_now), ContextRows(old, config_.rules, rows));
    EXPECT_EQ(after.facts[kEngramsWorking], config_.rules.working - wanted.working);
    const auto gone = static_cast<int32_t>(before.recalled.size() - recalled.size());
    EXPECT_EQ(after.facts[kEngramColumns], before.facts[kEngramColumns] - gone);

    // Nothing of their vectors is left anywhere in the slab.
    const std::vector<std::byte> slab = driver->ReadSlab(0);
    for (const StateTensor& tensor : old.tensors) {
      if (tensor.name != "engrams.vectors") continue;
      const auto row = static_cast<size_t>(tensor.bytes.size() / tensor.shape[0]);
      for (int64_t slot = 0; slot < tensor.shape[0]; ++slot) {
        const std::byte* x = tensor.bytes.data() + slot * static_cast<int64_t>(row);
        const auto of = [&](const CanonicalState& state) {
          for (const StateTensor& t : state.tensors) {
            if (t.name == "engrams.types") return t.bytes[static_cast<size_t>(slot)];
          }
          return std::byte{0};
        };
        if (of(old) == std::byte{0} || of(now) != std::byte{0}) continue;
        EXPECT_EQ(std::search(slab.begin(), slab.end(), x, x + row), slab.end());
      }
    }
  }
  EXPECT_GT(recalled_ones, 0);
  for (const EngramType type :
       {EngramType::kWorking, EngramType::kShortTerm, EngramType::kLongTerm}) {
    EXPECT_GT(kinds[static_cast<int>(type)], 0) << "the ranges have none of some kind";
  }
}

// On every device, however the text that follows is cut, and as float64 has it.
TEST_P(MemoriaForgetTest, SessionsGoOnWithWhatIsLeft) {
  const int segment = config_.segment, fed = 12 * segment + 2;
  for (const Range range : {Range{11, 12}, Range{9, 12}, Range{0, 6}, Range{0, 12}}) {
    SCOPED_TRACE(testing::Message() << range.first << " to " << range.end);
    const auto run = [&](std::unique_ptr<ModelDriver> driver, const std::vector<int>& chunks,
                         bool forgets) {
      FeedSlot(*driver, 0, Text(fed, 5), {7});
      if (forgets) CHECK_OK(Forget(*driver, 0, range.first, range.end).status());
      std::vector<double> logits = FeedSlot(*driver, 0, Text(8 * segment, 6), chunks);
      return std::pair(std::move(logits), ReadMemoriaState(*driver, 0));
    };
    const auto [logits, state] = run(Make(), {}, true);
    const auto [by_token, by_token_state] = run(Make(), {1}, true);
    EXPECT_THAT(by_token, IsSame(GetParam().bit_exact(), logits));
    const auto [wanted, wanted_state] = run(MakeOn(MakeReference()), {}, true);
    EXPECT_LE(RelativeError(logits, wanted), 1e-4);
    ASSERT_EQ(state.engrams.size(), wanted_state.engrams.size());
    EXPECT_EQ(state.facts, wanted_state.facts);
    EXPECT_EQ(state.recalled, wanted_state.recalled);
    for (size_t i = 0; i < state.engrams.size(); ++i) {
      EXPECT_EQ(state.engrams[i].birth, wanted_state.engrams[i].birth);
      EXPECT_EQ(state.engrams[i].type, wanted_state.engrams[i].type);
      EXPECT_EQ(state.engrams[i].counts, wanted_state.engrams[i].counts);
    }
    EXPECT_NE(run(Make(), {}, false).first, logits) << "the engrams mattered";
  }
}

TEST_P(MemoriaForgetTest, WhatIsNotThereCannotBeForgotten) {
  const auto driver = Make();
  const int segment = config_.segment;
  EXPECT_EQ(Forget(*driver, 0, 0, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  // The second segment is full, and open until the next token comes.
  FeedSlot(*driver, 0, Text(2 * segment, 3), {5});
  const CanonicalState before = Decode(*driver, 0);
  const absl::Status open = Forget(*driver, 0, 0, 2).status();
  EXPECT_EQ(open.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(open.message()), testing::HasSubstr("segment 1 is open"));
  EXPECT_EQ(Forget(*driver, 0, 1, int64_t{1} << 62).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const CanonicalState after = Decode(*driver, 0);
  for (size_t i = 0; i < before.tensors.size(); ++i) {
    EXPECT_EQ(after.tensors[i].bytes, before.tensors[i].bytes) << before.tensors[i].name;
  }
  EXPECT_EQ(Forget(*driver, 0, 0, 1)->working, config_.rules.working);
  const CanonicalState without = Decode(*driver, 0);
  EXPECT_EQ(Forget(*driver, 0, 0, 1)->total(), 0) << "it was forgotten before";
  const CanonicalState again = Decode(*driver, 0);
  for (size_t i = 0; i < without.tensors.size(); ++i) {
    EXPECT_EQ(again.tensors[i].bytes, without.tensors[i].bytes) << without.tensors[i].name;
  }
  FeedSlot(*driver, 0, Text(segment, 4), {5});
}

INSTANTIATE_TEST_SUITE_P(Backends, MemoriaForgetTest, testing::ValuesIn(AllBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
