#include "clients/cli/bench_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace mneme::cli {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;

using Kind = LengthDistribution::Kind;
constexpr int kDraws = 20000;
constexpr uint64_t kSeed = 7;

// Sorted.
std::vector<int> Draw(const LengthDistribution& lengths) {
  std::mt19937_64 random(kSeed);
  std::vector<int> values;
  for (int i = 0; i < kDraws; ++i) values.push_back(lengths.Draw(random));
  std::sort(values.begin(), values.end());
  return values;
}

PlanOptions Options(int conversations) {
  PlanOptions options;
  options.seed = kSeed;
  options.conversations = conversations;
  options.request_rate = std::numeric_limits<double>::infinity();
  options.input.center = 8;
  options.output.center = 4;
  options.vocab = 100;
  return options;
}

// Between arrivals: their mean, and their standard deviation over it.
std::pair<double, double> Gaps(const PlanOptions& options) {
  const std::vector<PlannedConversation> plan = PlanRandom(options);
  double sum = 0, squares = 0;
  for (size_t i = 1; i < plan.size(); ++i) {
    const double gap = plan[i].arrival - plan[i - 1].arrival;
    EXPECT_GE(gap, 0);
    sum += gap;
    squares += gap * gap;
  }
  const auto n = static_cast<double>(plan.size() - 1);
  return {sum / n, std::sqrt(squares / n - sum / n * sum / n) / (sum / n)};
}

// A file of its own for each test: they run side by side.
std::string Write(const std::string& text) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "bench_plan_test_",
                   testing::UnitTest::GetInstance()->current_test_info()->name(), "_", getpid());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(BenchPlanTest, FixedAndUniformLengthsStayInTheirRange) {
  EXPECT_THAT(Draw({.kind = Kind::kUniform, .center = 64}), Each(64));
  const std::vector<int> values = Draw({.kind = Kind::kUniform, .center = 100, .spread = 0.3});
  EXPECT_EQ(values.front(), 70);
  EXPECT_EQ(values.back(), 130);
  EXPECT_NEAR(values[kDraws / 2], 100, 2) << "seed " << kSeed;
}

TEST(BenchPlanTest, LogNormalLengthsHaveTheirMedianAndTail) {
  const std::vector<int> values =
      Draw({.kind = Kind::kLogNormal, .center = 200, .spread = 0.8, .max = 2000});
  EXPECT_NEAR(values[kDraws / 2], 200, 6) << "seed " << kSeed;
  // One standard deviation of the logarithm below and above the median.
  EXPECT_NEAR(values[kDraws * 1587 / 10000], 200 * std::exp(-0.8), 5);
  EXPECT_NEAR(values[kDraws * 8413 / 10000], 200 * std::exp(0.8), 20);
  EXPECT_THAT(values, Each(AllOf(Ge(1), Le(2000))));
}

TEST(BenchPlanTest, PresetsAreKnownByName) {
  for (const char* name : {"chat", "code", "summary"}) {
    const LengthPreset* preset = FindPreset(name);
    ASSERT_NE(preset, nullptr) << name;
    EXPECT_NEAR(Draw(preset->input)[kDraws / 2], preset->input.center, 0.05 * preset->input.center);
    EXPECT_LE(Draw(preset->output).back(), preset->output.max);
  }
  EXPECT_EQ(FindPreset("poetry"), nullptr);
}

TEST(BenchPlanTest, ArrivalsHaveTheirRateAndBurstiness) {
  PlanOptions options = Options(kDraws);
  options.request_rate = 50;
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    options.burstiness = burstiness;
    const auto [mean, variation] = Gaps(options);
    EXPECT_NEAR(mean, 0.02, 0.001) << "seed " << kSeed;
    EXPECT_NEAR(variation, 1 / std::sqrt(burstiness), 0.05) << "burstiness " << burstiness;
  }
  const std::vector<PlannedConversation> at_once = PlanRandom(Options(10));
  EXPECT_EQ(at_once.back().arrival, 0);
}

TEST(BenchPlanTest, ConversationsPauseInFrontOfEveryTurnButTheFirst) {
  PlanOptions options = Options(2000);
  options.turns = 3;
  options.think = 5;
  for (const PlannedConversation& one : PlanRandom(options)) {
    ASSERT_THAT(one.turns, SizeIs(3));
    EXPECT_EQ(one.turns[0].think, 0);
    EXPECT_EQ(one.turns[2].think, 5);
    EXPECT_THAT(one.turns[0].token_ids, AllOf(SizeIs(8), Each(AllOf(Ge(0), Le(99)))));
    EXPECT_EQ(one.turns[0].max_tokens, 4);
  }
  options.think_varies = true;
  double sum = 0;
  for (const PlannedConversation& one : PlanRandom(options)) {
    sum += one.turns[1].think + one.turns[2].think;
  }
  EXPECT_NEAR(sum / 4000, 5, 0.3) << "seed " << kSeed;
}

TEST(BenchPlanTest, RandomPromptsMayBeginAlike) {
  PlanOptions options = Options(3);
  options.common = 5;
  const std::vector<PlannedConversation> plan = PlanRandom(options);
  const std::vector<int32_t>& first = plan[0].turns[0].token_ids;
  const std::vector<int32_t>& other = plan[1].turns[0].token_ids;
  EXPECT_THAT(first, SizeIs(13));
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 5, other.begin()));
  EXPECT_NE(first, other);
  options.words = true;
  const std::vector<PlannedConversation> words = PlanRandom(options);
  EXPECT_EQ(words[0].turns[0].text.substr(0, 25), words[2].turns[0].text.substr(0, 25));
  EXPECT_NE(words[0].turns[0].text, words[2].turns[0].text);
}

TEST(BenchPlanTest, OneSeedIsOnePlan) {
  PlanOptions options = Options(5);
  options.input = {.kind = Kind::kLogNormal, .center = 8, .spread = 1};
  const auto prompts = [&] {
    std::vector<std::vector<int32_t>> all;
    for (const PlannedConversation& one : PlanRandom(options)) {
      all.push_back(one.turns[0].token_ids);
    }
    return all;
  };
  const auto first = prompts();
  EXPECT_EQ(prompts(), first);
  options.seed += 1;
  EXPECT_NE(prompts(), first);
  options.words = true;
  EXPECT_TRUE(prompts()[0].empty());
  EXPECT_THAT(PlanRandom(options)[0].turns[0].text, HasSubstr(" "));
}

TEST(BenchPlanTest, ShareGptConversationsBecomeTurns) {
  const absl::StatusOr<Dataset> dataset = ReadDataset(Write(R"([
    {"conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "a b c"},
                       {"from": "human", "value": "two"}, {"from": "gpt", "value": "d"}]},
    {"conversations": []},
    {"conversations": [{"from": "gpt", "value": "I begin"}, {"from": "human", "value": "three"}]}])"));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_THAT(*dataset, SizeIs(2));
  EXPECT_EQ((*dataset)[0][1].prompt, "two");
  EXPECT_EQ((*dataset)[1][0].prompt, "three");

  PlanOptions options = Options(3);
  const auto count = [](const std::string& text) -> absl::StatusOr<int> {
    return static_cast<int>(std::count(text.begin(), text.end(), ' ') + 1);
  };
  const auto plan = PlanDataset(options, *dataset, count);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)[0].turns[0].text, "one");
  EXPECT_EQ((*plan)[0].turns[0].max_tokens, 3) << "as long as the file's answer";
  EXPECT_EQ((*plan)[1].turns[0].max_tokens, 4) << "it has none";
  EXPECT_EQ((*plan)[2].turns[0].text, "one") << "from the beginning again";
  options.turns = 2;
  EXPECT_EQ((*PlanDataset(options, *dataset, count))[1].turns[1].text, "two");
  options.turns = 3;
  EXPECT_THAT(PlanDataset(options, *dataset, count).status().message(), HasSubstr("3 turns"));
}

TEST(BenchPlanTest, JsonLinesMayHoldPromptsOrMessages) {
  const absl::StatusOr<Dataset> dataset =
      ReadDataset(Write("{\"prompt\": \"one\"}\n\n"
                        "{\"messages\": [{\"role\": \"system\", \"content\": \"be brief\"},"
                        " {\"role\": \"user\", \"content\": \"two\"}]}\n"));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_THAT(*dataset, SizeIs(2));
  EXPECT_EQ((*dataset)[1][0].prompt, "two");
}

TEST(BenchPlanTest, FilesThatAreNoDatasetsAreRefused) {
  EXPECT_THAT(ReadDataset("/no/such/file").status().message(), HasSubstr("/no/such/file"));
  EXPECT_THAT(ReadDataset(Write("[{]")).status().message(), HasSubstr("not JSON"));
  EXPECT_THAT(ReadDataset(Write("{\"prompt\": \"a\"}\nnonsense\n")).status().message(),
              HasSubstr(":2: not a JSON object"));
  EXPECT_THAT(ReadDataset(Write("[{\"question\": 1}]")).status().message(),
              HasSubstr("no prompts"));
  EXPECT_FALSE(ReadDataset(Write("[1, \"two\", [3], {\"conversations\": 4}]")).ok());
}

}  // namespace
}  // namespace mneme::cli
