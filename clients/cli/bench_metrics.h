// The result of a load test, in the words and keys of `vllm bench serve`, so that results compare.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme::cli {

// One request. Times in seconds; `start` counts from the start of the benchmark.
struct RequestRecord {
  bool ok = false;
  std::string error;
  double start = 0;
  double ttft = 0;                  // sent -> first token
  std::vector<double> itls;         // between messages with tokens
  std::vector<int> message_tokens;  // in each of those messages; one longer than itls
  double latency = 0;               // sent -> end of the stream
  double queue = 0;                 // by the server's clock: arrival -> admission
  int input_tokens = 0;
  int output_tokens = 0;
  int64_t resumed_tokens = 0;  // in the session's memory before
  std::string text;
};

struct BenchSettings {
  std::string label = "mneme";
  std::string model;
  int num_prompts = 0;
  double request_rate = 0;  // per second; infinity: all at once
  double burstiness = 1;
  std::optional<int> max_concurrency;
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl"};
  std::vector<double> percentiles = {99};
  std::map<std::string, double> goodput_ms;  // "ttft" -> bound
};

// One metric over all requests, in milliseconds.
struct Summary {
  double mean = 0;
  double median = 0;
  double std = 0;
  std::vector<std::pair<double, double>> percentiles;  // percentile -> value
};
// `values` in seconds. Percentiles between two values are interpolated; std is that of the values
// themselves (divided by their number).
Summary Summarize(std::vector<double> values, const std::vector<double>& percentiles);

struct BenchMetrics {
  int completed = 0;
  int failed = 0;
  double duration = 0;
  int64_t total_input_tokens = 0;
  int64_t total_output_tokens = 0;
  double request_throughput = 0;
  double request_goodput = 0;
  double output_throughput = 0;
  double total_token_throughput = 0;
  double max_output_tokens_per_s = 0;        // in the best second
  int max_concurrent_requests = 0;           // in the fullest second
  std::map<std::string, Summary> summaries;  // ttft, tpot, itl, e2el
};

BenchMetrics ComputeMetrics(const std::vector<RequestRecord>& records, double duration,
                            const BenchSettings& settings);

// The "Serving Benchmark Result" block.
std::string FormatBlock(const BenchMetrics& metrics, const BenchSettings& settings);

// One JSON object, with the lists of every request if `detailed`. `extra` are further members,
// already JSON.
std::string FormatJson(const BenchMetrics& metrics, const BenchSettings& settings,
                       const std::vector<RequestRecord>& records, absl::string_view date,
                       bool detailed, const std::map<std::string, std::string>& extra);

// "{label}-{rate}qps-concurrency{N}-{model}-{date}.json"
std::string ResultFileName(const BenchSettings& settings, absl::string_view date);

// "ttft:200" "tpot:50" -> bounds in milliseconds.
absl::StatusOr<std::map<std::string, double>> ParseGoodput(const std::vector<std::string>& bounds);

}  // namespace mneme::cli
