// A row's logits on a GPU, with other rows and more of them in its step: where they are the same
// bits, and how far they are off where they are not. docs/numerics.md, "Same bits".
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

constexpr int kSameBitsVocab = 259, kMostRows = 64;
constexpr int kSessions = 2 * kMostRows;  // kept as they are; steps go on from copies

struct Setting {
  std::string name;
  GatedDeltaSpec spec;
  DType compute;
  bool one_kernel;  // takes one row and two through all layers (decode/stack/stack.cu)

  // Bounds the difference, relative in norm: other orders of sums, or other roundings. Each of the
  // two is off by docs/numerics.md's estimate for rounded products: of six roundings a layer, five
  // without a router, and one in front of the head.
  double bound() const {
    if (compute == DType::kF32) return 1e-5;
    const int roundings = spec.config.delta.memories > 0 ? 6 : 5;
    return 2 * kUnitBF16 / 2 * (roundings * spec.config.layers + 1);
  }
};

std::vector<Setting> Settings() {
  GatedDeltaSpec wide = TinySpec("mom-tiny");
  wide.dtype = DType::kBF16;
  wide.config.model_dim = wide.config.mlp_dim = 512;
  wide.config.delta.key_dim = wide.config.delta.value_dim = 128;
  // Every memory is every token's: rounding, which depends on the order of sums, flips no choice.
  GatedDeltaSpec unrouted = wide;
  unrouted.config.delta.memories = unrouted.config.delta.top_k = 2;
  GatedDeltaSpec gdn = TinySpec("gdn-tiny");
  gdn.dtype = DType::kBF16;
  return {{"tiny mom, f32 weights", TinySpec("mom-tiny"), DType::kF32, false},
          {"wide mom, bf16 weights, exact products", wide, DType::kF32, true},
          {"wide mom, rounded products", unrouted, DType::kBF16, true},
          {"tiny gated deltanet, rounded products", gdn, DType::kBF16, false}};
}

class CudaSameBitsTest : public CudaTest {
 protected:
  // Sessions that have each read a prompt of their own, alone.
  std::unique_ptr<ModelDriver> Start(const Setting& setting) {
    MakeFolder(setting.spec, folder_);
    auto driver =
        Drive(folder_.path(), AvailableBackends()[0].Make(/*threads=*/2, setting.compute),
              {.slots = kSessions + kMostRows, .max_rows = kMostRows, .max_tokens = 2048});
    for (int session = 0; session < kSessions; ++session) {
      FeedSlot(*driver, session, RandomTokens(3 + session % 9, kSameBitsVocab, session));
    }
    return driver;
  }

  // A step of copies of some sessions, each fed `tokens` tokens of its own. Logits by row.
  static std::vector<std::vector<double>> Step(ModelDriver& driver,
                                               const std::vector<int>& sessions, int tokens) {
    std::vector<std::vector<int32_t>> texts;
    std::vector<ModelDriver::Row> rows;
    for (const int session : sessions) {
      texts.push_back(RandomTokens(tokens, kSameBitsVocab, 1000 + session));
    }
    for (size_t row = 0; row < sessions.size(); ++row) {
      const int copy = kSessions + static_cast<int>(row);
      driver.Fork(sessions[row], copy);
      rows.push_back({copy, texts[row]});
    }
    const auto logits = driver.Step(rows);
    CHECK_OK(logits.status());
    std::vector<std::vector<double>> by_row;
    for (size_t row = 0; row < sessions.size(); ++row) {
      const auto begin = logits->begin() + static_cast<int64_t>(row) * tokens * kSameBitsVocab;
      by_row.emplace_back(begin, begin + int64_t{tokens} * kSameBitsVocab);
    }
    return by_row;
  }
  static std::vector<int> Sessions(int first, int count) {
    std::vector<int> sessions;
    for (int i = 0; i < count; ++i) sessions.push_back(first + i);
    return sessions;
  }
  static std::string Shown(double difference) {
    if (difference == 0) return "same bits";
    char text[32];
    std::snprintf(text, sizeof(text), "%.1e", difference);
    return text;
  }

  // Steps of `tokens` tokens a row.
  void Compare(const Setting& setting, int tokens, const std::vector<int>& row_counts) {
    const auto driver = Start(setting);
    std::printf("  %s, %d tokens a row\n", setting.name.c_str(), tokens);
    for (const int rows : row_counts) {
      SCOPED_TRACE(testing::Message() << setting.name << ", " << rows << " rows of " << tokens);
      const auto batch = Step(*driver, Sessions(0, rows), tokens);
      const auto again = Step(*driver, Sessions(0, rows), tokens);
      for (int row = 0; row < rows; ++row) {
        ASSERT_THAT(again[row], HasSameBits(batch[row])) << "row " << row << " of the same step";
      }
      double alone = 0, company = 0;
      for (const int row : {0, rows / 2, rows - 1}) {
        alone = std::max(alone, RelativeError(Step(*driver, {row}, tokens)[0], batch[row]));
        // Others beside it, and another place.
        std::vector<int> others = Sessions(kMostRows, rows);
        const int place = (row + 1) % rows;
        others[place] = row;
        company =
            std::max(company, RelativeError(Step(*driver, others, tokens)[place], batch[row]));
      }
      std::printf("    %3d rows: beside others %s, alone %s\n", rows, Shown(company).c_str(),
                  Shown(alone).c_str());
      EXPECT_EQ(company, 0);
      EXPECT_LE(alone, tokens == 1 && rows <= 2 && setting.one_kernel ? 0 : setting.bound());
    }
  }

  TestFolder folder_;
};

TEST_F(CudaSameBitsTest, DecodeRowsAloneAndInCompany) {
  for (const Setting& setting : Settings()) {
    Compare(setting, /*tokens=*/1, {1, 2, 3, 8, 16, 17, 40, kMostRows});
  }
}

TEST_F(CudaSameBitsTest, ADecodeRowBesideAPaddingRow) {
  for (const Setting& setting : Settings()) {
    if (!setting.one_kernel) continue;
    SCOPED_TRACE(setting.name);
    const auto driver = Start(setting);
    const std::vector<int32_t> token = RandomTokens(1, kSameBitsVocab, 1000);  // of Step()
    const std::vector<double> want = Step(*driver, {0}, 1)[0];
    for (const int place : {0, 1}) {
      driver->Fork(0, kSessions);
      std::vector<ModelDriver::Row> rows(2, {-1, token});
      rows[place].slot = kSessions;
      const std::vector<int32_t> wanted = {place};
      const auto logits = driver->Step(rows, wanted);
      CHECK_OK(logits.status());
      EXPECT_THAT(std::vector<double>(logits->begin(), logits->end()), HasSameBits(want))
          << "row " << place;
    }
  }
}

// One session in different slots: wherever it was born, and wherever a fork of it lies. Batches are
// so large, and matrices too, that writes are held back; between them few rows meet them.
class CudaSlotTest : public CudaSameBitsTest {
 protected:
  static GatedDeltaSpec Spec() {
    GatedDeltaSpec spec = TinySpec("mom-tiny");
    spec.dtype = DType::kBF16;
    spec.config.model_dim = spec.config.mlp_dim = 512;
    spec.config.delta.key_dim = spec.config.delta.value_dim = 256;
    spec.config.delta.memories = spec.config.delta.top_k = 2;
    return spec;
  }
  std::unique_ptr<ModelDriver> Start(DType state) {
    MakeFolder(Spec(), folder_);
    return Drive(folder_.path(), MakeCuda(DType::kBF16, state),
                 {.slots = 2 * kMostRows, .max_rows = kMostRows, .max_tokens = 8 * kMostRows});
  }

  // Logits after the last token of each row.
  static std::vector<double> StepOf(ModelDriver& driver, const std::vector<int>& slots,
                                    const std::vector<std::vector<int32_t>>& texts) {
    std::vector<ModelDriver::Row> rows;
    std::vector<int32_t> wanted;
    int32_t tokens = 0;
    for (size_t row = 0; row < slots.size(); ++row) {
      rows.push_back({slots[row], texts[row]});
      tokens += static_cast<int32_t>(texts[row].size());
      wanted.push_back(tokens - 1);
    }
    const auto logits = driver.Step(rows, wanted);
    CHECK_OK(logits.status());
    return {logits->begin(), logits->end()};
  }
  // A prompt for every session, if it is `new_sessions`, and more tokens than a cycle has; then
  // some of two sessions alone; then as many again for all. Logits by step.
  static std::vector<std::vector<double>> GoOn(ModelDriver& driver, const std::vector<int>& slots,
                                               bool new_sessions) {
    constexpr int kTokens = 20, kAlone = 3;
    std::vector<std::vector<double>> logits;
    const auto decode = [&](int rows, int steps) {
      const std::vector<int> some(slots.begin(), slots.begin() + rows);
      for (int i = 0; i < steps; ++i) {
        std::vector<std::vector<int32_t>> texts;
        for (int row = 0; row < rows; ++row) {
          texts.push_back(RandomTokens(1, kSameBitsVocab, 1000 * logits.size() + row));
        }
        logits.push_back(StepOf(driver, some, texts));
      }
    };
    if (new_sessions) {
      std::vector<std::vector<int32_t>> prompts;
      for (size_t row = 0; row < slots.size(); ++row) {
        prompts.push_back(RandomTokens(1 + row % 5, kSameBitsVocab, row));
      }
      logits.push_back(StepOf(driver, slots, prompts));
    }
    decode(kMostRows, kTokens);
    decode(2, kAlone);
    decode(kMostRows, kTokens);
    return logits;
  }
  static void ExpectSame(const std::vector<std::vector<double>>& got,
                         const std::vector<std::vector<double>>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t step = 0; step < want.size(); ++step) {
      ASSERT_THAT(got[step], HasSameBits(want[step])) << "step " << step;
    }
  }
  // Begin and end of what a session's first memory has pending.
  static std::pair<int32_t, int32_t> RangeOf(ModelDriver& driver, int slot) {
    const std::vector<std::byte> slab = driver.ReadSlab(slot);
    for (const StateField& field : driver.model().state_layout().fields()) {
      if (field.name != "layers.0.pending_range") continue;
      int32_t range[2];
      std::memcpy(range, slab.data() + field.offset, sizeof(range));
      return {range[0], range[1]};
    }
    ADD_FAILURE() << "no range";
    return {0, 0};
  }
};

TEST_F(CudaSlotTest, ASessionGoesOnWithTheSameBitsInAnySlot) {
  for (const DType state : {DType::kF32, DType::kF16, DType::kI8}) {
    SCOPED_TRACE(testing::Message() << "state " << Name(state));
    const auto driver = Start(state);
    SeededRandom random(/*seed=*/1);
    const auto other_slots = [&random] {
      std::vector<int> slots = random.Permutation(kMostRows);
      for (int& slot : slots) slot += kMostRows;
      return slots;
    };
    const std::vector<int> slots = Sessions(0, kMostRows), born = other_slots();
    for (int session = 0; session < kMostRows; ++session) driver->Fork(session, born[session]);
    const auto first = GoOn(*driver, slots, /*new_sessions=*/true);
    ExpectSame(GoOn(*driver, born, /*new_sessions=*/true), first);

    std::set<std::pair<int32_t, int32_t>> ranges;
    int held_back = 0;
    for (const int slot : slots) {
      const auto range = RangeOf(*driver, slot);
      ranges.insert(range);
      held_back += range.first != range.second ? 1 : 0;
    }
    std::printf("  state %s: %d of %d sessions hold writes back, ranges of %d kinds\n", Name(state),
                held_back, kMostRows, static_cast<int>(ranges.size()));
    // Elsewhere every token is written at once.
    if (state == DType::kI8 || HasHopperKernels()) {
      EXPECT_GT(held_back, kMostRows / 2);
      EXPECT_GT(ranges.size(), 4u) << "sessions fold together";
    }

    const std::vector<int> forks = other_slots();
    for (int session = 0; session < kMostRows; ++session) driver->Fork(session, forks[session]);
    const auto second = GoOn(*driver, slots, /*new_sessions=*/false);
    ExpectSame(GoOn(*driver, forks, /*new_sessions=*/false), second);
  }
}

TEST_F(CudaSameBitsTest, PromptsAloneAndInCompany) {
  for (const Setting& setting : Settings()) Compare(setting, /*tokens=*/30, {1, 2, 5, 20});
}

}  // namespace
}  // namespace mneme
