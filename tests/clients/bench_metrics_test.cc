#include "clients/cli/bench_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace mneme::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

// First token after 0.1 s, then three more messages 0.2 s apart, the last with two.
RequestRecord Record(double start) {
  return {.ok = true,
          .start = start,
          .ttft = 0.1,
          .itls = {0.2, 0.2, 0.2},
          .message_tokens = {1, 1, 1, 2},
          .latency = 0.7,
          .input_tokens = 10,
          .output_tokens = 5,
          .text = "a \"b\"\n"};
}

BenchSettings Settings() {
  BenchSettings settings;
  settings.model = "folder/model";
  settings.num_prompts = 3;
  settings.request_rate = std::numeric_limits<double>::infinity();
  settings.percentile_metrics = {"ttft", "tpot"};
  return settings;
}

TEST(BenchMetricsTest, PercentilesAreInterpolatedAsNumpyDoes) {
  const Summary summary = Summarize({0.004, 0.001, 0.003, 0.002}, {25, 99});
  EXPECT_DOUBLE_EQ(summary.mean, 2.5);
  EXPECT_DOUBLE_EQ(summary.median, 2.5);
  EXPECT_NEAR(summary.std, 1.118033988749895, 1e-12);
  EXPECT_NEAR(summary.percentiles[0].second, 1.75, 1e-12);
  EXPECT_NEAR(summary.percentiles[1].second, 3.97, 1e-12);
  EXPECT_EQ(Summarize({}, {99}).mean, 0);
}

TEST(BenchMetricsTest, CountsAndRatesLeaveFailuresOut) {
  RequestRecord failed;
  failed.error = "UNAVAILABLE";
  BenchSettings settings = Settings();
  settings.goodput_ms = {{"ttft", 50}};
  const BenchMetrics metrics = ComputeMetrics({Record(0), Record(0.5), failed}, 2, settings);
  EXPECT_EQ(metrics.completed, 2);
  EXPECT_EQ(metrics.failed, 1);
  EXPECT_EQ(metrics.total_input_tokens, 20);
  EXPECT_EQ(metrics.output_throughput, 5);
  EXPECT_EQ(metrics.total_token_throughput, 15);
  EXPECT_EQ(metrics.request_goodput, 0);
  EXPECT_EQ(metrics.max_concurrent_requests, 2);
  EXPECT_EQ(metrics.max_output_tokens_per_s, 7) << "5 of the first, 2 of the second request";
  EXPECT_NEAR(metrics.summaries.at("tpot").mean, 150, 1e-9);
}

TEST(BenchMetricsTest, TheBlockIsThatOfVllm) {
  const std::string block = FormatBlock(ComputeMetrics({Record(0)}, 2, Settings()), Settings());
  EXPECT_THAT(block, AllOf(HasSubstr("============ Serving Benchmark Result ============\n"),
                           HasSubstr("Request throughput (req/s):              0.50      \n"),
                           HasSubstr("---------------Time to First Token----------------\n"),
                           HasSubstr("-----Time per Output Token (excl. 1st token)------\n"),
                           HasSubstr("P99 TTFT (ms):                           100.00    \n")));
  EXPECT_THAT(block, AllOf(Not(HasSubstr("Inter-token")), Not(HasSubstr("goodput"))));
}

TEST(BenchMetricsTest, JsonHasTheUsualKeysAndEscapedTexts) {
  const std::vector<RequestRecord> records = {Record(0)};
  const BenchMetrics metrics = ComputeMetrics(records, 2, Settings());
  const std::string json = FormatJson(metrics, Settings(), records, "d", true, {{"extra", "7"}});
  for (const char* key : {"duration", "completed", "mean_ttft_ms", "p99_itl_ms", "median_e2el_ms",
                          "input_lens", "itls", "start_times", "generated_texts", "extra"}) {
    EXPECT_THAT(json, HasSubstr(std::string("\"") + key + "\": ")) << key;
  }
  EXPECT_THAT(json, HasSubstr(R"(["a \"b\"\u000a"])"));
  EXPECT_THAT(json, HasSubstr("\"request_rate\": \"inf\""));
  EXPECT_THAT(FormatJson(metrics, Settings(), records, "d", false, {}), Not(HasSubstr("itls")));
}

TEST(BenchMetricsTest, ResultsAreNamedAfterTheirSettings) {
  BenchSettings settings = Settings();
  EXPECT_EQ(ResultFileName(settings, "date"), "mneme-infqps-model-date.json");
  settings.max_concurrency = 8;
  settings.request_rate = 2.5;
  EXPECT_EQ(ResultFileName(settings, "date"), "mneme-2.5qps-concurrency8-model-date.json");
}

TEST(BenchMetricsTest, GoodputBoundsAreChecked) {
  EXPECT_THAT(*ParseGoodput({"ttft:200", "e2el:5000"}),
              ElementsAre(Pair("e2el", 5000), Pair("ttft", 200)));
  EXPECT_FALSE(ParseGoodput({"itl:5"}).ok());
  EXPECT_FALSE(ParseGoodput({"ttft"}).ok());
}

}  // namespace
}  // namespace mneme::cli
