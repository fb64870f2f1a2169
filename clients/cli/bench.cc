// mneme bench: load over gRPC. Open loop with --request-rate, closed loop with --max-concurrency.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "clients/cli/bench_metrics.h"
#include "clients/cli/bench_record.h"
#include "clients/cli/bench_turns.h"
#include "clients/cli/command.h"
#include "clients/cli/request_flags.h"

namespace mneme::cli {
namespace {

constexpr absl::string_view kUsageText =
    R"(usage: mneme bench [FLAGS]

Sends requests with random token ids and prints what `vllm bench serve` prints, and what the server
says of its batches. Without --request-rate all requests are sent at once, as fast as
--max-concurrency lets them. With --turns it holds conversations, which send what is new only.

)";

struct Options {
  Connection connection;
  BenchSettings settings;
  v1::GenerateRequest request;  // of every request, less its prompt
  int input_len = 1024;
  int output_len = 128;
  double range_ratio = 0;
  int num_warmups = 0;
  int turns = 1;
  absl::Duration turn_gap;
  uint64_t seed = 0;
  bool save_result = false;
  bool save_detailed = false;
  std::string result_dir = ".";
  std::string result_filename;
};

// What is sent, and when.
struct PlannedRequest {
  double arrival = 0;  // seconds after the start
  v1::GenerateRequest request;
};

std::vector<PlannedRequest> PlanRequests(const Options& options, int vocab) {
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<int> token(0, vocab - 1);
  const auto length = [&](int mean) {
    const int spread = static_cast<int>(mean * options.range_ratio);
    return std::uniform_int_distribution<int>(std::max(1, mean - spread), mean + spread)(random);
  };
  // Gaps of mean 1 / rate; burstiness 1 is a Poisson process.
  const double rate = options.settings.request_rate;
  const double shape = options.settings.burstiness;
  std::gamma_distribution<double> gap(shape, std::isinf(rate) ? 1 : 1 / (rate * shape));
  std::vector<PlannedRequest> planned(static_cast<size_t>(options.settings.num_prompts) *
                                      options.turns);
  double arrival = 0;
  for (PlannedRequest& one : planned) {
    one.arrival = arrival;
    if (!std::isinf(rate)) arrival += gap(random);
    one.request = options.request;
    const int input = length(options.input_len);
    for (int i = 0; i < input; ++i) one.request.mutable_token_ids()->add_ids(token(random));
    one.request.mutable_stopping()->set_max_tokens(length(options.output_len));
  }
  return planned;
}

// Sends the planned requests from one thread; answers are recorded on gRPC's.
class Load {
 public:
  Load(Client& client, std::optional<int> max_concurrency)
      : client_(client),
        max_concurrency_(max_concurrency.value_or(std::numeric_limits<int>::max())) {}

  // Blocks until all are done, or were cancelled by Stop. Returns the seconds that took.
  double Run(const std::vector<PlannedRequest>& planned, std::vector<RequestRecord>& records) {
    records.assign(planned.size(), {});
    start_ = Now();
    for (size_t i = 0; i < planned.size(); ++i) {
      const double wait = planned[i].arrival - Now() + start_;
      if (wait > 0) absl::SleepFor(absl::Seconds(wait));
      {
        absl::MutexLock lock(&mu_);
        const auto has_room = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
          return open_ < max_concurrency_;
        };
        mu_.Await(absl::Condition(&has_room));
        open_ += 1;
      }
      Send(planned[i].request, records[i]);
    }
    absl::MutexLock lock(&mu_);
    const auto is_idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return open_ == 0; };
    mu_.Await(absl::Condition(&is_idle));
    return Now() - start_;
  }

 private:
  double Now() const { return absl::ToDoubleSeconds(clock_.Monotonic()); }

  // A record is touched by the callbacks of its own call only, which come one at a time.
  void Send(const v1::GenerateRequest& request, RequestRecord& record) {
    auto filler = std::make_shared<RecordFiller>(record, request, Now() - start_);
    client_.GenerateAsync(
        request,
        [this, filler](const v1::GenerateResponse& response) {
          filler->OnMessage(response, Now() - start_);
        },
        [this, filler](const absl::Status& status) {
          filler->OnEnd(status, Now() - start_);
          absl::MutexLock lock(&mu_);
          open_ -= 1;
        });
  }

  Client& client_;
  const int max_concurrency_;
  const RealClock clock_;
  double start_ = 0;
  absl::Mutex mu_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
};

double MeanBetween(const v1::Histogram& before, const v1::Histogram& after) {
  const int64_t count = after.count() - before.count();
  return count <= 0 ? 0 : (after.sum() - before.sum()) / static_cast<double>(count);
}

// What the server counted meanwhile, by its own histograms.
std::map<std::string, double> ServerFigures(const v1::Statistics& before,
                                            const v1::Statistics& after) {
  return {{"server_mean_decode_rows", MeanBetween(before.decode_rows(), after.decode_rows())},
          {"server_mean_step_ms", MeanBetween(before.step_ms(), after.step_ms())},
          {"server_mean_queue_ms", MeanBetween(before.queue_ms(), after.queue_ms())},
          {"server_steps", static_cast<double>(after.steps() - before.steps())}};
}

void AddFlags(FlagSet& flags, Options& options) {
  BenchSettings& settings = options.settings;
  settings.num_prompts = 1000;
  settings.request_rate = std::numeric_limits<double>::infinity();
  flags.Integer("num-prompts", "Requests to send; default 1000.",
                [&](int64_t value) { settings.num_prompts = static_cast<int>(value); });
  flags.Number("request-rate", "Requests per second; default inf: all at once.",
               [&](double value) { settings.request_rate = value; });
  flags.Number("burstiness", "1: Poisson arrivals; less: burstier; more: more even.",
               [&](double value) { settings.burstiness = value; });
  flags.Integer("max-concurrency", "Requests open at once.",
                [&](int64_t value) { settings.max_concurrency = static_cast<int>(value); });
  flags.Integer("random-input-len", "Tokens of a prompt; default 1024.",
                [&](int64_t value) { options.input_len = static_cast<int>(value); });
  flags.Integer("random-output-len", "Tokens of an answer; default 128.",
                [&](int64_t value) { options.output_len = static_cast<int>(value); });
  flags.Number("random-range-ratio", "Lengths vary by this fraction up and down; default 0.",
               [&](double value) { options.range_ratio = value; });
  flags.Add("dataset-name", "random", "Only random is known.", [](absl::string_view text) {
    return text == "random" ? absl::OkStatus()
                            : absl::InvalidArgumentError(
                                  absl::StrCat("\"", text, "\" is not known; prompts are random"));
  });
  flags.Integer(
      "turns",
      "Turns of a conversation in a session of its own; with more than one, --num-prompts "
      "counts conversations. Prints time to first token by turn, and fork latency.",
      [&](int64_t value) { options.turns = static_cast<int>(value); });
  flags.Time("turn-gap", "Pause between an answer and the next turn; default none.",
             [&](absl::Duration value) { options.turn_gap = value; });
  flags.Integer("num-warmups", "Requests sent before the measurement; default 0.",
                [&](int64_t value) { options.num_warmups = static_cast<int>(value); });
  flags.Integer("seed", "Seed of prompts, lengths and arrivals; default 0.",
                [&](int64_t value) { options.seed = static_cast<uint64_t>(value); });
  flags.Number("temperature", "Of the sampling; default 0.", [&](double value) {
    options.request.mutable_sampling()->set_temperature(static_cast<float>(value));
  });
  flags.Bool("ignore-eos", "Generate --random-output-len tokens in any case; on by default.",
             [&](bool value) { options.request.mutable_stopping()->set_ignore_eos(value); });
  flags.String(
      "percentile-metrics", "LIST", "Of ttft,tpot,itl,e2el; default ttft,tpot,itl.",
      [&](const std::string& value) { settings.percentile_metrics = absl::StrSplit(value, ','); });
  flags.Add("metric-percentiles", "LIST", "Default 99.", [&](absl::string_view text) {
    settings.percentiles.clear();
    for (const absl::string_view word : absl::StrSplit(text, ',')) {
      double percentile;
      if (!absl::SimpleAtod(word, &percentile) || !(percentile >= 0 && percentile <= 100)) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", word, "\" is not a number from 0 to 100"));
      }
      settings.percentiles.push_back(percentile);
    }
    return absl::OkStatus();
  });
  flags.Add("goodput", "LIST", "Bounds of a good request, as in ttft:200,tpot:50,e2el:5000 (ms).",
            [&](absl::string_view text) {
              const absl::StatusOr<std::map<std::string, double>> bounds =
                  ParseGoodput(absl::StrSplit(text, absl::ByAnyChar(", ")));
              if (bounds.ok()) settings.goodput_ms = *bounds;
              return bounds.status();
            });
  flags.String("label", "TEXT", "First word of the result's file name; default mneme.",
               [&](std::string value) { settings.label = std::move(value); });
  flags.Bool("save-result", "Write a JSON file.", [&](bool value) { options.save_result = value; });
  flags.Bool("save-detailed", "With the times and texts of every request.",
             [&](bool value) { options.save_detailed = value; });
  flags.String("result-dir", "DIR", "Where to; default here.",
               [&](std::string value) { options.result_dir = std::move(value); });
  flags.String("result-filename", "FILE", "Default {label}-{rate}qps-...-{model}-{date}.json.",
               [&](std::string value) { options.result_filename = std::move(value); });
}

absl::Status CheckOptions(const Options& options) {
  const BenchSettings& settings = options.settings;
  if (settings.num_prompts < 1) return absl::InvalidArgumentError("--num-prompts: at least 1");
  if (options.turns < 1) return absl::InvalidArgumentError("--turns: at least 1");
  if (options.turns > 1 && !std::isinf(settings.request_rate)) {
    return absl::InvalidArgumentError(
        "--request-rate: turns follow each other; --max-concurrency says how many at once");
  }
  if (options.input_len < 1) return absl::InvalidArgumentError("--random-input-len: at least 1");
  if (options.output_len < 1) return absl::InvalidArgumentError("--random-output-len: at least 1");
  if (!(settings.request_rate > 0))
    return absl::InvalidArgumentError("--request-rate: more than 0");
  if (!(settings.burstiness > 0)) return absl::InvalidArgumentError("--burstiness: more than 0");
  if (!(options.range_ratio >= 0 && options.range_ratio < 1)) {
    return absl::InvalidArgumentError("--random-range-ratio: from 0 up to 1, which is too much");
  }
  if (settings.max_concurrency.has_value() && *settings.max_concurrency < 1) {
    return absl::InvalidArgumentError("--max-concurrency: at least 1");
  }
  return absl::OkStatus();
}

absl::Status SaveResult(const Options& options, const BenchMetrics& metrics,
                        const std::vector<RequestRecord>& records,
                        const std::map<std::string, std::string>& extra) {
  const std::string date = absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone());
  const std::string name = options.result_filename.empty() ? ResultFileName(options.settings, date)
                                                           : options.result_filename;
  const std::string path = absl::StrCat(options.result_dir, "/", name);
  std::ofstream file(path, std::ios::binary);
  file << FormatJson(metrics, options.settings, records, date, options.save_detailed, extra);
  file.close();
  if (!file) return absl::InternalError(absl::StrCat("cannot write ", path));
  fprintf(stderr, "saved %s\n", path.c_str());
  return absl::OkStatus();
}

// Unset for plain requests.
std::optional<TurnSettings> ToTurnSettings(const Options& options) {
  if (options.turns == 1) return std::nullopt;
  constexpr int kDefaultConcurrency = 16;  // each takes a thread
  return TurnSettings{.conversations = options.settings.num_prompts,
                      .turns = options.turns,
                      .concurrency = options.settings.max_concurrency.value_or(kDefaultConcurrency),
                      .gap = options.turn_gap,
                      .percentiles = options.settings.percentiles};
}

int Measure(const Options& options, Client& client, const v1::GetInfoResponse& info) {
  const std::vector<PlannedRequest> planned = PlanRequests(options, info.model().vocab_size());
  Load load(client, options.settings.max_concurrency);
  std::vector<RequestRecord> records;
  if (options.num_warmups > 0) {
    const size_t count = std::min<size_t>(options.num_warmups, planned.size());
    std::vector<PlannedRequest> warmups(planned.begin(), planned.begin() + count);
    for (PlannedRequest& warmup : warmups) warmup.arrival = 0;
    load.Run(warmups, records);
  }
  const absl::StatusOr<v1::GetInfoResponse> before = client.GetInfo();
  if (!before.ok()) return ReportError(before.status());
  const std::optional<TurnSettings> turns = ToTurnSettings(options);
  TurnMetrics turn_metrics;
  double duration = 0;
  if (turns.has_value()) {
    std::vector<v1::GenerateRequest> requests;
    for (const PlannedRequest& one : planned) requests.push_back(one.request);
    turn_metrics = MeasureTurns(client, *turns, requests);
    records = turn_metrics.records;
    duration = turn_metrics.duration;
  } else {
    duration = load.Run(planned, records);
  }
  const absl::StatusOr<v1::GetInfoResponse> after = client.GetInfo();
  if (!after.ok()) return ReportError(after.status());

  const BenchMetrics metrics = ComputeMetrics(records, duration, options.settings);
  std::map<std::string, double> server = ServerFigures(before->statistics(), after->statistics());
  server["server_bytes_per_session"] = static_cast<double>(info.capacity().slab_bytes());
  WriteOut(FormatBlock(metrics, options.settings));
  if (turns.has_value()) WriteOut(FormatTurns(turn_metrics, *turns));
  printf("By the server's own count:\n");
  printf("%-40s %-10.2f\n", "Mean rows per decode step:", server["server_mean_decode_rows"]);
  printf("%-40s %-10.2f\n", "Mean step (ms):", server["server_mean_step_ms"]);
  printf("%-40s %-10.2f\n", "Mean time in queue (ms):", server["server_mean_queue_ms"]);
  printf("%-40s %-10lld\n", "Steps:", static_cast<long long>(server["server_steps"]));
  printf("%-40s %-10lld\n",
         "State per session (bytes):", static_cast<long long>(info.capacity().slab_bytes()));
  fflush(stdout);
  for (const RequestRecord& record : records) {
    if (record.ok) continue;
    fprintf(stderr, "first error: %s\n", record.error.c_str());
    break;
  }
  if (options.save_result || options.save_detailed) {
    std::map<std::string, std::string> extra;
    if (turns.has_value()) extra = TurnsAsJson(turn_metrics, *turns);
    for (const auto& [key, value] : server) extra[key] = absl::StrCat(value);
    if (const absl::Status saved = SaveResult(options, metrics, records, extra); !saved.ok()) {
      return ReportError(saved);
    }
  }
  return metrics.failed == 0 ? kOk : kFailed;
}

}  // namespace

int RunBench(const Arguments& arguments) {
  Options options;
  FlagSet flags;
  bool help = false;
  options.connection.AddFlags(flags);
  options.connection.AddWaitFlag(flags);
  options.request.mutable_sampling()->set_temperature(0);
  options.request.mutable_stopping()->set_ignore_eos(true);
  AddFlags(flags, options);
  flags.Bool("help", "Print this.", [&](bool value) { help = value; });
  flags.Alias("-h");
  const absl::StatusOr<std::vector<std::string>> positional = flags.Parse(arguments);
  if (help) {
    WriteOut(absl::StrCat(kUsageText, flags.Help()));
    return kOk;
  }
  if (!positional.ok()) return ReportUsage("bench", positional.status().message());
  if (!positional->empty()) {
    return ReportUsage("bench", absl::StrCat("unexpected argument \"", (*positional)[0], "\""));
  }
  if (const absl::Status check = CheckOptions(options); !check.ok()) {
    return ReportUsage("bench", check.message());
  }
  Client client = options.connection.Connect();
  if (const absl::Status ready = WaitWhileLoading(client, options.connection.wait); !ready.ok()) {
    return ReportError(ready);
  }
  const absl::StatusOr<v1::GetInfoResponse> info = client.GetInfo();
  if (!info.ok()) return ReportError(info.status());
  options.settings.model = info->model().name();
  return Measure(options, client, *info);
}

}  // namespace mneme::cli
