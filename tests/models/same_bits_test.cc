// A row's logits on a GPU, with other rows and more of them in its step: where they are the same
// bits, and how far they are off where they are not. docs/numerics.md, "Same bits".
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kVocab = 259, kMostRows = 64;
constexpr int kSessions = 2 * kMostRows;  // kept as they are; steps go on from copies

struct Setting {
  std::string name;
  ModelSpec spec;
  DType compute;
  bool one_kernel;  // takes one row and two through all layers (decode_layers.cu)

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
  ModelSpec wide = TinySpec("mom-tiny");
  wide.dtype = DType::kBF16;
  wide.config.model_dim = wide.config.mlp_dim = 512;
  wide.config.delta.key_dim = wide.config.delta.value_dim = 128;
  // Every memory is every token's: rounding, which depends on the order of sums, flips no choice.
  ModelSpec unrouted = wide;
  unrouted.config.delta.memories = unrouted.config.delta.top_k = 2;
  ModelSpec gdn = TinySpec("gdn-tiny");
  gdn.dtype = DType::kBF16;
  return {{"tiny mom, f32 weights", TinySpec("mom-tiny"), DType::kF32, false},
          {"wide mom, bf16 weights, exact products", wide, DType::kF32, true},
          {"wide mom, rounded products", unrouted, DType::kBF16, true},
          {"tiny gated deltanet, rounded products", gdn, DType::kBF16, false}};
}

class CudaSameBitsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (AvailableBackends()[0].device != "cuda") GTEST_SKIP() << "needs MNEME_TEST_DEVICE=cuda";
  }

  // Sessions that have each read a prompt of their own, alone.
  std::unique_ptr<ModelDriver> Start(const Setting& setting) {
    MakeFolder(setting.spec, folder_);
    auto driver =
        Drive(folder_.path(), AvailableBackends()[0].Make(/*threads=*/2, setting.compute),
              {.slots = kSessions + kMostRows, .max_rows = kMostRows, .max_tokens = 2048});
    for (int session = 0; session < kSessions; ++session) {
      FeedSlot(*driver, session, RandomTokens(3 + session % 9, kVocab, session));
    }
    return driver;
  }

  // A step of copies of some sessions, each fed `tokens` tokens of its own. Logits by row.
  static std::vector<std::vector<double>> Step(ModelDriver& driver,
                                               const std::vector<int>& sessions, int tokens) {
    std::vector<std::vector<int32_t>> texts;
    std::vector<ModelDriver::Row> rows;
    for (const int session : sessions) {
      texts.push_back(RandomTokens(tokens, kVocab, 1000 + session));
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
      const auto begin = logits->begin() + static_cast<int64_t>(row) * tokens * kVocab;
      by_row.emplace_back(begin, begin + int64_t{tokens} * kVocab);
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
    const std::vector<int32_t> token = RandomTokens(1, kVocab, 1000);  // of Step()
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

TEST_F(CudaSameBitsTest, PromptsAloneAndInCompany) {
  for (const Setting& setting : Settings()) Compare(setting, /*tokens=*/30, {1, 2, 5, 20});
}

}  // namespace
}  // namespace mneme
