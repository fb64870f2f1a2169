// mneme bench, and load_bench: load over gRPC or HTTP. Open loop with --request-rate, closed loop
// with
// --max-concurrency.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "clients/cli/bench_load.h"
#include "clients/cli/bench_metrics.h"
#include "clients/cli/bench_plan.h"
#include "clients/cli/bench_transport.h"
#include "clients/cli/bench_turns.h"
#include "clients/cli/command.h"

namespace mneme::cli {
namespace {

constexpr absl::string_view kUsageText =
    R"(usage: mneme bench [FLAGS], or load_bench [FLAGS]

Sends requests and prints what `vllm bench serve` prints, and what the server says of its batches.
Without --request-rate all requests are sent at once, as fast as --max-concurrency lets them. With
--turns it holds conversations in sessions, which send what is new only.

)";

constexpr char kHttpServer[] = "127.0.0.1:8000";

enum class Backend { kGrpc, kOpenAi, kOpenAiChat };

struct Options {
  Connection connection;
  BenchSettings settings;
  PlanOptions plan;
  BenchSampling sampling;
  Backend backend = Backend::kGrpc;
  std::string dataset = "random";
  std::string dataset_path;
  double range_ratio = 0;
  double sigma = 1;
  int num_warmups = 0;
  bool save_result = false;
  bool save_detailed = false;
  std::string result_dir = ".";
  std::string result_filename;
};

bool IsFile(const std::string& dataset) { return dataset == "sharegpt" || dataset == "custom"; }

// Mean of what was observed between two looks at a histogram.
double MeanBetween(const ServerCounts::Mean& before, const ServerCounts::Mean& after) {
  const double count = after.count - before.count;
  return count <= 0 ? 0 : (after.sum - before.sum) / count;
}

// The server's own means between two readings of its histograms. Empty if it does not tell.
std::map<std::string, double> ServerFigures(const absl::StatusOr<ServerCounts>& before,
                                            const absl::StatusOr<ServerCounts>& after) {
  if (!before.ok() || !after.ok()) return {};
  return {{"server_mean_decode_rows", MeanBetween(before->decode_rows, after->decode_rows)},
          {"server_mean_step_ms", 1e3 * MeanBetween(before->step_seconds, after->step_seconds)},
          {"server_mean_queue_ms", 1e3 * MeanBetween(before->queue_seconds, after->queue_seconds)},
          {"server_steps", after->step_seconds.count - before->step_seconds.count}};
}

void AddLoadFlags(FlagSet& flags, Options& options) {
  BenchSettings& settings = options.settings;
  PlanOptions& plan = options.plan;
  flags.Choice("backend", {"grpc", "openai", "openai-chat"},
               "Protocol: gRPC, or HTTP with /v1/completions or /v1/chat/completions; default "
               "grpc.",
               [&](const std::string& text) {
                 options.backend = text == "grpc"     ? Backend::kGrpc
                                   : text == "openai" ? Backend::kOpenAi
                                                      : Backend::kOpenAiChat;
               });
  flags.Integer("num-prompts", "Requests to send, or conversations with --turns; default 1000.",
                [&](int64_t value) { settings.num_prompts = static_cast<int>(value); });
  flags.Number("request-rate",
               "Arrivals per second, which wait for no answer; default inf: all at once.",
               [&](double value) { settings.request_rate = value; });
  flags.Number("burstiness", "1: Poisson arrivals; less: burstier; more: more even.",
               [&](double value) { settings.burstiness = value; });
  flags.Integer("max-concurrency", "Requests, or conversations, open at once.",
                [&](int64_t value) { settings.max_concurrency = static_cast<int>(value); });
  flags.Integer(
      "turns",
      "Turns of a conversation in a session of its own. Prints time to first token by turn, and "
      "fork latency.",
      [&](int64_t value) { plan.turns = static_cast<int>(value); });
  const auto set_pause = [&plan](absl::Duration value, bool varies) {
    plan.think = absl::ToDoubleSeconds(value);
    plan.think_varies = varies;
  };
  flags.Time("turn-gap", "Pause between an answer and the next turn; default none.",
             [=](absl::Duration value) { set_pause(value, false); });
  flags.Time("think-time", "Mean of such a pause that varies, exponentially distributed.",
             [=](absl::Duration value) { set_pause(value, true); });
  flags.Integer("num-warmups", "Requests sent before the measurement; default 0.",
                [&](int64_t value) { options.num_warmups = static_cast<int>(value); });
  flags.Integer("seed", "Seed of prompts, lengths and times; default 0.",
                [&](int64_t value) { plan.seed = static_cast<uint64_t>(value); });
  flags.Number("temperature", "Of the sampling; default 0.",
               [&](double value) { options.sampling.temperature = value; });
  flags.Bool("ignore-eos", "Generate as many tokens as planned in any case; on by default.",
             [&](bool value) { options.sampling.ignore_eos = value; });
}

void AddLengthFlags(FlagSet& flags, Options& options) {
  PlanOptions& plan = options.plan;
  flags.Choice(
      "dataset-name", {"random", "lognormal", "chat", "code", "summary", "sharegpt", "custom"},
      "random: lengths fixed or uniform; lognormal; chat, code, summary: lognormal ones of "
      "that kind; sharegpt, custom: prompts from --dataset-path. Default random.",
      [&](std::string text) { options.dataset = std::move(text); });
  flags.String("dataset-path", "FILE",
               "ShareGPT's JSON, or JSONL with a prompt or messages on each line.",
               [&](std::string value) { options.dataset_path = std::move(value); });
  flags.Integer("random-input-len", "Tokens of a prompt, or their median; default 1024.",
                [&](int64_t value) { plan.input.center = static_cast<double>(value); });
  flags.Integer("random-prefix-len",
                "Tokens that all random prompts begin with, beside those; default 0.",
                [&](int64_t value) { plan.common = static_cast<int>(value); });
  flags.Integer("random-output-len", "Tokens of an answer, or their median; default 128.",
                [&](int64_t value) { plan.output.center = static_cast<double>(value); });
  flags.Number("random-range-ratio",
               "random: lengths vary by this fraction up and down; default 0.",
               [&](double value) { options.range_ratio = value; });
  flags.Number("length-sigma", "lognormal: standard deviation of the logarithm; default 1.",
               [&](double value) { options.sigma = value; });
}

void AddResultFlags(FlagSet& flags, Options& options) {
  BenchSettings& settings = options.settings;
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
  const PlanOptions& plan = options.plan;
  const auto wrong = [](absl::string_view what) { return absl::InvalidArgumentError(what); };
  if (settings.num_prompts < 1) return wrong("--num-prompts: at least 1");
  if (plan.turns < 1) return wrong("--turns: at least 1");
  if (plan.input.center < 1) return wrong("--random-input-len: at least 1");
  if (plan.common < 0) return wrong("--random-prefix-len: at least 0");
  if (plan.output.center < 1) return wrong("--random-output-len: at least 1");
  if (!(settings.request_rate > 0)) return wrong("--request-rate: more than 0");
  if (!(settings.burstiness > 0)) return wrong("--burstiness: more than 0");
  if (!(options.range_ratio >= 0 && options.range_ratio < 1)) {
    return wrong("--random-range-ratio: from 0 up to 1, which is too much");
  }
  if (!(options.sigma >= 0 && options.sigma <= 10)) return wrong("--length-sigma: from 0 to 10");
  if (settings.max_concurrency.has_value() && *settings.max_concurrency < 1) {
    return wrong("--max-concurrency: at least 1");
  }
  if (IsFile(options.dataset) == options.dataset_path.empty()) {
    return wrong("--dataset-path: the file of --dataset-name sharegpt or custom");
  }
  return absl::OkStatus();
}

// Sets the options that follow from several flags together.
void Complete(Options& options) {
  PlanOptions& plan = options.plan;
  BenchSettings& settings = options.settings;
  constexpr int kDefaultConversations = 16;
  if (plan.turns > 1 && std::isinf(settings.request_rate) && !settings.max_concurrency) {
    settings.max_concurrency = kDefaultConversations;
  }
  plan.conversations = settings.num_prompts;
  plan.request_rate = settings.request_rate;
  plan.burstiness = settings.burstiness;
  plan.words = options.backend == Backend::kOpenAiChat;
  for (LengthDistribution* lengths : {&plan.input, &plan.output}) {
    if (options.dataset == "lognormal") {
      lengths->kind = LengthDistribution::Kind::kLogNormal;
      lengths->spread = options.sigma;
    } else {
      lengths->spread = options.range_ratio;
    }
  }
  if (const LengthPreset* preset = FindPreset(options.dataset); preset != nullptr) {
    plan.input = preset->input;
    plan.output = preset->output;
  }
  if (options.backend != Backend::kGrpc && !options.connection.server_given) {
    options.connection.server = kHttpServer;
  }
}

std::unique_ptr<BenchTransport> MakeTransport(const Options& options) {
  const PlanOptions& plan = options.plan;
  if (options.backend == Backend::kGrpc) {
    const int streams = std::min(options.settings.num_prompts,
                                 options.settings.max_concurrency.value_or(plan.conversations));
    return MakeGrpcTransport(options.connection, options.sampling, streams);
  }
  return MakeHttpTransport(
      options.connection, options.sampling,
      options.backend == Backend::kOpenAi ? HttpKind::kCompletions : HttpKind::kChat);
}

absl::StatusOr<std::vector<PlannedConversation>> MakePlan(const Options& options,
                                                          BenchTransport& transport) {
  if (!IsFile(options.dataset)) return PlanRandom(options.plan);
  MNEME_ASSIGN_OR_RETURN(const Dataset dataset, ReadDataset(options.dataset_path));
  return PlanDataset(options.plan, dataset,
                     [&](const std::string& text) { return transport.CountTokens(text); });
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

void PrintServerFigures(const std::map<std::string, double>& server, int64_t slab_bytes) {
  if (server.empty()) return;
  printf("By the server's own count:\n");
  printf("%-40s %-10.2f\n", "Mean rows per decode step:", server.at("server_mean_decode_rows"));
  printf("%-40s %-10.2f\n", "Mean step (ms):", server.at("server_mean_step_ms"));
  printf("%-40s %-10.2f\n", "Mean time in queue (ms):", server.at("server_mean_queue_ms"));
  printf("%-40s %-10.0f\n", "Steps:", server.at("server_steps"));
  printf("%-40s %-10lld\n", "State per session (bytes):", static_cast<long long>(slab_bytes));
  fflush(stdout);
}

int Measure(const Options& options, BenchTransport& transport, const ServedModel& model) {
  const absl::StatusOr<std::vector<PlannedConversation>> plan = MakePlan(options, transport);
  if (!plan.ok()) return ReportError(plan.status());
  if (options.num_warmups > 0) {
    const size_t count = std::min<size_t>(options.num_warmups, plan->size());
    std::vector<PlannedConversation> warmups(plan->begin(), plan->begin() + count);
    for (PlannedConversation& warmup : warmups) {
      warmup.arrival = 0;
      warmup.turns.resize(1);
    }
    RunLoad(transport, warmups, options.settings.max_concurrency);
  }
  const absl::StatusOr<ServerCounts> before = transport.Counts();
  const LoadResult result = RunLoad(transport, *plan, options.settings.max_concurrency);
  const absl::StatusOr<ServerCounts> after = transport.Counts();

  const BenchMetrics metrics = ComputeMetrics(result.records, result.duration, options.settings);
  const TurnSettings turns{.conversations = options.settings.num_prompts,
                           .turns = options.plan.turns,
                           .percentiles = options.settings.percentiles};
  std::map<std::string, double> server = ServerFigures(before, after);
  WriteOut(FormatBlock(metrics, options.settings));
  if (turns.turns > 1) WriteOut(FormatTurns(result, turns));
  PrintServerFigures(server, model.slab_bytes);
  for (const RequestRecord& record : result.records) {
    if (record.ok) continue;
    fprintf(stderr, "first error: %s\n", record.error.c_str());
    break;
  }
  if (options.save_result || options.save_detailed) {
    std::map<std::string, std::string> extra;
    if (turns.turns > 1) extra = TurnsAsJson(result, turns);
    if (model.slab_bytes > 0) {
      server["server_bytes_per_session"] = static_cast<double>(model.slab_bytes);
    }
    for (const auto& [key, value] : server) extra[key] = absl::StrCat(value);
    if (const absl::Status saved = SaveResult(options, metrics, result.records, extra);
        !saved.ok()) {
      return ReportError(saved);
    }
  }
  return metrics.failed == 0 ? kOk : kFailed;
}

}  // namespace

int RunBench(const Arguments& arguments) {
  Options options;
  options.settings.num_prompts = 1000;
  options.settings.request_rate = std::numeric_limits<double>::infinity();
  options.plan.input.center = 1024;
  options.plan.output.center = 128;
  FlagSet flags;
  bool help = false;
  options.connection.AddFlags(flags);
  options.connection.AddWaitFlag(flags);
  AddLoadFlags(flags, options);
  AddLengthFlags(flags, options);
  AddResultFlags(flags, options);
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
  Complete(options);
  const std::unique_ptr<BenchTransport> transport = MakeTransport(options);
  const absl::StatusOr<ServedModel> model = transport->Connect(options.connection.wait);
  if (!model.ok()) return ReportError(model.status());
  options.settings.model = model->name;
  options.plan.vocab = model->vocab;
  if (model->vocab == 0) options.plan.words = true;  // nobody knows which token ids there are
  return Measure(options, *transport, *model);
}

}  // namespace mneme::cli
