// Products of rounded activations (compute dtype bf16) on the released code's checkpoints: logits
// at equal routing, and how often rounding alone changes the routing.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "tests/models/golden.h"
#include "tests/models/recorded_routing.h"
#include "tests/models/rounded_weights.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kRows = 24;  // that go side by side
constexpr int kMaxTokens = 1024;
// Bounds the error of logits, in norm: about 2^-9 for each of the 4 products of 2 or 3 layers and
// the last one (docs/numerics.md, "Compute dtype bf16"). Checkpoints keep to it at every position,
// where their own weights meet rounded activations; one of those whose weights are rounded only
// here, for the sake of more such products, has two positions of some hundred where logits nearly
// cancel.
constexpr double kBound = 2e-2;
constexpr double kBoundWhereLogitsCancel = 8e-2;
// Choices change where the logits of two memories lie closer than their errors differ. The second
// and the third of four normal variables lie within d of each other with a chance of 1.7 d; with
// errors of kBound each that is 7 % of tokens, one of whose two choices flips. What it writes then
// is read by later tokens, whose choices see more than rounding: half as much again.
constexpr double kFlipBound = 0.05;

// A sequence, what the reference says after each token, and where it routed them.
struct Answered {
  std::span<const int32_t> ids;
  std::vector<double> logits;
  RoutingChoices choices;
};

class RoundedGoldenTest : public testing::TestWithParam<std::tuple<std::string, BackendUnderTest>> {
 protected:
  struct Weights {
    std::string name, folder;
    bool stored = false;
  };
  void SetUp() override {
    name_ = std::get<0>(GetParam());
    golden_ = ReadGolden(name_);
    WriteRounded(name_, rounded_);
    const auto plan = PlanModel(GoldenFolder(name_), StateFormat{});
    ASSERT_TRUE(plan.ok()) << plan.status();
    layers_ = plan->info.layers;
    top_k_ = plan->info.top_k;
    stored_in_bf16_ = plan->info.weight_dtype == "bf16";
  }
  std::vector<Weights> AllWeights() const {
    return {{"as stored", GoldenFolder(name_), true}, {"in bf16", rounded_.path(), false}};
  }
  std::unique_ptr<ModelDriver> Drive(const Weights& weights, bool reference) const {
    const BackendUnderTest& backend = std::get<1>(GetParam());
    return mneme::Drive(weights.folder,
                        reference ? MakeReference() : backend.Make(/*threads=*/2, DType::kBF16),
                        {.slots = kRows, .max_rows = kRows, .max_tokens = kMaxTokens});
  }
  Answered AskReference(const Weights& weights, std::span<const int32_t> ids) const {
    const auto driver = Drive(weights, /*reference=*/true);
    RecordedRouting record(driver->backend());
    driver->set_routing(&record);
    std::vector<double> logits = FeedSlot(*driver, 0, ids);
    return {ids, std::move(logits), record.recorded()};
  }
  // Logits of the last of `rows` rows that feed the sequence side by side, in such steps.
  std::vector<double> Feed(const Weights& weights, const Answered& want,
                           const std::vector<int>& steps, int rows = 1) const {
    const auto driver = Drive(weights, /*reference=*/false);
    RecordedRouting force(driver->backend(), Recut(want.choices, layers_, top_k_, steps, rows));
    driver->set_routing(&force);
    std::vector<double> logits;
    int64_t at = 0;
    for (const int tokens : steps) {
      std::vector<ModelDriver::Row> batch;
      for (int row = 0; row < rows; ++row) batch.push_back({row, want.ids.subspan(at, tokens)});
      const auto step = driver->Step(batch);
      CHECK_OK(step.status());
      logits.insert(logits.end(), step->end() - int64_t{tokens} * golden_.vocab, step->end());
      at += tokens;
    }
    return logits;
  }
  // Steps of `first` tokens and then of `size`, of so many tokens in all.
  static std::vector<int> Steps(size_t all, int first, int size) {
    std::vector<int> steps;
    for (int left = static_cast<int>(all); left > 0; left -= steps.back()) {
      steps.push_back(std::min(left, steps.empty() ? first : size));
    }
    return steps;
  }

  std::string name_;
  Golden golden_;
  TestFolder rounded_;
  int layers_ = 0, top_k_ = 0;
  bool stored_in_bf16_ = false;
};

TEST_P(RoundedGoldenTest, EveryPositionIsCloseAtEqualRouting) {
  const Sensitivity sensitivity = MeasureSensitivity(name_);
  for (const Weights& weights : AllWeights()) {
    SCOPED_TRACE(weights.name);
    Answered prompt = AskReference(weights, golden_.input_ids);
    Answered text = AskReference(weights, golden_.long_input_ids);
    if (weights.stored) {
      prompt.logits = golden_.logits;
      std::copy(golden_.long_logits_last16.begin(), golden_.long_logits_last16.end(),
                text.logits.end() - static_cast<int64_t>(golden_.long_logits_last16.size()));
    }
    const size_t size = prompt.ids.size();
    // The CPU rounds what meets f32 weights as well.
    const bool exact = std::get<1>(GetParam()).device == "cuda" || stored_in_bf16_;
    const double bound = std::max(weights.stored && exact ? kBound : kBoundWhereLogitsCancel,
                                  sensitivity.worst_bound());
    const double bound_in_norm = std::max(kBound, sensitivity.norm_bound());
    double norm = 0;
    std::string line;
    const auto check = [&](const std::string& what, const Answered& want,
                           const std::vector<int>& steps, int rows = 1) {
      const std::vector<double> got = Feed(weights, want, steps, rows);
      const double worst = WorstRowError(got, want.logits, golden_.vocab);
      EXPECT_LE(worst, bound) << what;
      const double error = RelativeError(got, want.logits);
      EXPECT_LE(error, bound_in_norm) << what;
      norm = std::max(norm, error);
      char number[32];
      std::snprintf(number, sizeof(number), " %.1e", worst);
      line += (line.empty() ? "" : ", ") + what + number;
    };
    check("prompt", prompt, {static_cast<int>(size)});
    check("in parts", prompt, Steps(size, 7, 13));
    check("token by token", prompt, Steps(size, golden_.step_begin, 1));
    check(std::to_string(kRows) + " rows", prompt, Steps(size, golden_.step_begin, 1), kRows);
    check("long", text, Steps(text.ids.size(), 64, 64));
    check("long by tokens", text, Steps(text.ids.size(), 1, 1));
    std::printf(
        "  %s, weights %s: worst position of %s; in norm %.1e; by rounded weights %.1e, in norm "
        "%.1e\n",
        name_.c_str(), weights.name.c_str(), line.c_str(), norm, sensitivity.worst,
        sensitivity.norm);
  }
}

TEST_P(RoundedGoldenTest, RoundingFlipsFewChoices) {
  if (top_k_ == 0) return;  // no router
  for (const Weights& weights : AllWeights()) {
    SCOPED_TRACE(weights.name);
    FlippedChoices sum;
    for (const std::vector<int32_t>* ids : {&golden_.input_ids, &golden_.long_input_ids}) {
      const Answered want = AskReference(weights, *ids);
      for (const int size : {64, 1}) {
        const auto driver = Drive(weights, /*reference=*/false);
        RecordedRouting record(driver->backend());
        driver->set_routing(&record);
        FeedSlot(*driver, 0, *ids, {size});
        const FlippedChoices flips = CompareChoices(
            record.recorded(), Recut(want.choices, layers_, top_k_, Steps(ids->size(), size, size)),
            top_k_);
        EXPECT_LE(flips.share(), kFlipBound) << ids->size() << " tokens in steps of " << size;
        sum.flipped += flips.flipped;
        sum.all += flips.all;
      }
    }
    std::printf("  %s, weights %s: %lld of %lld choices flipped, %.2f %%\n", name_.c_str(),
                weights.name.c_str(), static_cast<long long>(sum.flipped),
                static_cast<long long>(sum.all), 100 * sum.share());
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, RoundedGoldenTest,
                         testing::Combine(testing::ValuesIn(GoldenNames()),
                                          testing::Values(AvailableBackends().back())),
                         [](const testing::TestParamInfo<RoundedGoldenTest::ParamType>& info) {
                           return std::get<0>(info.param) + "_" +
                                  BackendName(testing::TestParamInfo<BackendUnderTest>(
                                      std::get<1>(info.param), 0));
                         });

}  // namespace
}  // namespace mneme
