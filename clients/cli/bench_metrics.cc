#include "clients/cli/bench_metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace mneme::cli {
namespace {

struct Metric {
  absl::string_view key;
  absl::string_view name;
  absl::string_view header;
};
constexpr Metric kMetrics[] = {
    {"ttft", "TTFT", "Time to First Token"},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
    {"itl", "ITL", "Inter-token Latency"},
    {"e2el", "E2EL", "End-to-end Latency"},
};

// Per token after the first; nothing for an answer of one token.
std::optional<double> TimePerOutputToken(const RequestRecord& record) {
  if (record.output_tokens < 2) return std::nullopt;
  return (record.latency - record.ttft) / (record.output_tokens - 1);
}

bool IsGood(const RequestRecord& record, const std::map<std::string, double>& bounds_ms) {
  for (const auto& [key, bound] : bounds_ms) {
    const double seconds = key == "ttft"   ? record.ttft
                           : key == "tpot" ? TimePerOutputToken(record).value_or(0)
                                           : record.latency;
    if (1e3 * seconds > bound) return false;
  }
  return true;
}

// Tokens of each second, and requests that were open in it.
void ComputePeaks(const std::vector<RequestRecord>& records, BenchMetrics& metrics) {
  std::map<int, double> tokens;
  std::map<int, int> open;
  for (const RequestRecord& record : records) {
    if (!record.ok) continue;
    double time = record.start + record.ttft;
    for (size_t i = 0; i < record.message_tokens.size(); ++i) {
      if (i > 0) time += record.itls[i - 1];
      tokens[static_cast<int>(time)] += record.message_tokens[i];
    }
    const int end = static_cast<int>(record.start + record.latency);
    for (int second = static_cast<int>(record.start); second <= end; ++second) open[second] += 1;
  }
  for (const auto& [second, count] : tokens) {
    metrics.max_output_tokens_per_s = std::max(metrics.max_output_tokens_per_s, count);
  }
  for (const auto& [second, count] : open) {
    metrics.max_concurrent_requests = std::max(metrics.max_concurrent_requests, count);
  }
}

std::string PercentileName(double percentile) { return absl::StrCat("p", percentile); }

std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.9g", value) : "null";
}

std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&out, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// [f(record), ...]
template <typename F>
std::string List(const std::vector<RequestRecord>& records, F f) {
  return absl::StrCat("[",
                      absl::StrJoin(records, ", ",
                                    [&f](std::string* out, const RequestRecord& record) {
                                      absl::StrAppend(out, f(record));
                                    }),
                      "]");
}

std::string RateText(double rate) { return std::isinf(rate) ? "inf" : absl::StrCat(rate); }

}  // namespace

Summary Summarize(std::vector<double> values, const std::vector<double>& percentiles) {
  Summary summary;
  for (double& value : values) value *= 1e3;
  std::sort(values.begin(), values.end());
  const auto at = [&values](double percentile) {
    if (values.empty()) return 0.0;
    const double rank = percentile / 100 * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(rank);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (rank - static_cast<double>(below)) * (values[above] - values[below]);
  };
  const auto count = static_cast<double>(std::max<size_t>(1, values.size()));
  for (const double value : values) summary.mean += value / count;
  for (const double value : values) {
    summary.std += (value - summary.mean) * (value - summary.mean) / count;
  }
  summary.std = std::sqrt(summary.std);
  summary.median = at(50);
  for (const double percentile : percentiles) {
    summary.percentiles.emplace_back(percentile, at(percentile));
  }
  return summary;
}

BenchMetrics ComputeMetrics(const std::vector<RequestRecord>& records, double duration,
                            const BenchSettings& settings) {
  BenchMetrics metrics;
  metrics.duration = duration;
  std::map<std::string, std::vector<double>> values;
  int good = 0;
  for (const RequestRecord& record : records) {
    if (!record.ok) {
      metrics.failed += 1;
      continue;
    }
    metrics.completed += 1;
    metrics.total_input_tokens += record.input_tokens;
    metrics.total_output_tokens += record.output_tokens;
    good += IsGood(record, settings.goodput_ms) ? 1 : 0;
    values["ttft"].push_back(record.ttft);
    values["e2el"].push_back(record.latency);
    values["itl"].insert(values["itl"].end(), record.itls.begin(), record.itls.end());
    if (const auto tpot = TimePerOutputToken(record)) values["tpot"].push_back(*tpot);
  }
  metrics.request_throughput = metrics.completed / duration;
  metrics.request_goodput = good / duration;
  metrics.output_throughput = static_cast<double>(metrics.total_output_tokens) / duration;
  metrics.total_token_throughput =
      static_cast<double>(metrics.total_input_tokens + metrics.total_output_tokens) / duration;
  ComputePeaks(records, metrics);
  for (const Metric& metric : kMetrics) {
    const std::string key(metric.key);
    metrics.summaries[key] = Summarize(std::move(values[key]), settings.percentiles);
  }
  return metrics;
}

std::string FormatBlock(const BenchMetrics& metrics, const BenchSettings& settings) {
  std::string text;
  const auto title = [&text](absl::string_view words, char fill) {
    const size_t left = (50 - words.size()) / 2;
    absl::StrAppend(&text, std::string(left, fill), words,
                    std::string(50 - words.size() - left, fill), "\n");
  };
  const auto count = [&text](absl::string_view name, int64_t value) {
    absl::StrAppendFormat(&text, "%-40s %-10d\n", name, value);
  };
  const auto number = [&text](absl::string_view name, double value) {
    absl::StrAppendFormat(&text, "%-40s %-10.2f\n", name, value);
  };
  title(" Serving Benchmark Result ", '=');
  count("Successful requests:", metrics.completed);
  count("Failed requests:", metrics.failed);
  if (settings.max_concurrency.has_value()) {
    count("Maximum request concurrency:", *settings.max_concurrency);
  }
  if (!std::isinf(settings.request_rate)) {
    number("Request rate configured (RPS):", settings.request_rate);
  }
  number("Benchmark duration (s):", metrics.duration);
  count("Total input tokens:", metrics.total_input_tokens);
  count("Total generated tokens:", metrics.total_output_tokens);
  number("Request throughput (req/s):", metrics.request_throughput);
  if (!settings.goodput_ms.empty()) {
    number("Request goodput (req/s):", metrics.request_goodput);
  }
  number("Output token throughput (tok/s):", metrics.output_throughput);
  number("Peak output token throughput (tok/s):", metrics.max_output_tokens_per_s);
  number("Peak concurrent requests:", metrics.max_concurrent_requests);
  number("Total token throughput (tok/s):", metrics.total_token_throughput);
  for (const Metric& metric : kMetrics) {
    const auto& shown = settings.percentile_metrics;
    if (std::find(shown.begin(), shown.end(), std::string(metric.key)) == shown.end()) continue;
    const Summary& summary = metrics.summaries.at(std::string(metric.key));
    title(metric.header, '-');
    number(absl::StrCat("Mean ", metric.name, " (ms):"), summary.mean);
    number(absl::StrCat("Median ", metric.name, " (ms):"), summary.median);
    for (const auto& [percentile, value] : summary.percentiles) {
      number(absl::StrCat("P", percentile, " ", metric.name, " (ms):"), value);
    }
  }
  title("", '=');
  return text;
}

std::string FormatJson(const BenchMetrics& metrics, const BenchSettings& settings,
                       const std::vector<RequestRecord>& records, absl::string_view date,
                       bool detailed, const std::map<std::string, std::string>& extra) {
  std::vector<std::pair<std::string, std::string>> members = {
      {"date", Quoted(date)},
      {"backend", Quoted("mneme-grpc")},
      {"label", Quoted(settings.label)},
      {"model_id", Quoted(settings.model)},
      {"num_prompts", absl::StrCat(settings.num_prompts)},
      {"request_rate",
       std::isinf(settings.request_rate) ? Quoted("inf") : Number(settings.request_rate)},
      {"burstiness", Number(settings.burstiness)},
      {"max_concurrency",
       settings.max_concurrency.has_value() ? absl::StrCat(*settings.max_concurrency) : "null"},
      {"duration", Number(metrics.duration)},
      {"completed", absl::StrCat(metrics.completed)},
      {"failed", absl::StrCat(metrics.failed)},
      {"total_input_tokens", absl::StrCat(metrics.total_input_tokens)},
      {"total_output_tokens", absl::StrCat(metrics.total_output_tokens)},
      {"request_throughput", Number(metrics.request_throughput)},
      {"request_goodput", settings.goodput_ms.empty() ? "null" : Number(metrics.request_goodput)},
      {"output_throughput", Number(metrics.output_throughput)},
      {"total_token_throughput", Number(metrics.total_token_throughput)},
      {"max_output_tokens_per_s", Number(metrics.max_output_tokens_per_s)},
      {"max_concurrent_requests", absl::StrCat(metrics.max_concurrent_requests)}};
  for (const auto& [key, summary] : metrics.summaries) {
    members.emplace_back(absl::StrCat("mean_", key, "_ms"), Number(summary.mean));
    members.emplace_back(absl::StrCat("median_", key, "_ms"), Number(summary.median));
    members.emplace_back(absl::StrCat("std_", key, "_ms"), Number(summary.std));
    for (const auto& [percentile, value] : summary.percentiles) {
      members.emplace_back(absl::StrCat(PercentileName(percentile), "_", key, "_ms"),
                           Number(value));
    }
  }
  members.insert(members.end(), extra.begin(), extra.end());
  if (detailed) {
    using R = RequestRecord;
    members.emplace_back("input_lens",
                         List(records, [](const R& r) { return absl::StrCat(r.input_tokens); }));
    members.emplace_back("output_lens",
                         List(records, [](const R& r) { return absl::StrCat(r.output_tokens); }));
    members.emplace_back("ttfts", List(records, [](const R& r) { return Number(r.ttft); }));
    members.emplace_back("itls", List(records, [](const R& r) {
                           return absl::StrCat("[",
                                               absl::StrJoin(r.itls, ", ",
                                                             [](std::string* out, double value) {
                                                               absl::StrAppend(out, Number(value));
                                                             }),
                                               "]");
                         }));
    members.emplace_back("latencies", List(records, [](const R& r) { return Number(r.latency); }));
    members.emplace_back("start_times", List(records, [](const R& r) { return Number(r.start); }));
    members.emplace_back("queue_times", List(records, [](const R& r) { return Number(r.queue); }));
    members.emplace_back("generated_texts",
                         List(records, [](const R& r) { return Quoted(r.text); }));
    members.emplace_back("errors", List(records, [](const R& r) { return Quoted(r.error); }));
  }
  return absl::StrCat("{",
                      absl::StrJoin(members, ", ",
                                    [](std::string* out, const auto& member) {
                                      absl::StrAppend(out, Quoted(member.first), ": ",
                                                      member.second);
                                    }),
                      "}\n");
}

std::string ResultFileName(const BenchSettings& settings, absl::string_view date) {
  const std::vector<std::string> parts = absl::StrSplit(settings.model, '/');
  return absl::StrCat(settings.label, "-", RateText(settings.request_rate), "qps",
                      settings.max_concurrency.has_value()
                          ? absl::StrCat("-concurrency", *settings.max_concurrency)
                          : "",
                      "-", parts.back(), "-", date, ".json");
}

absl::StatusOr<std::map<std::string, double>> ParseGoodput(const std::vector<std::string>& bounds) {
  std::map<std::string, double> result;
  for (const std::string& bound : bounds) {
    const std::vector<std::string> parts = absl::StrSplit(bound, ':');
    double value;
    if (parts.size() != 2 || (parts[0] != "ttft" && parts[0] != "tpot" && parts[0] != "e2el") ||
        !absl::SimpleAtod(parts[1], &value) || value < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", bound, "\" is not ttft:MS, tpot:MS or e2el:MS"));
    }
    result[parts[0]] = value;
  }
  return result;
}

}  // namespace mneme::cli
