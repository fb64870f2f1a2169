// Requests through the whole engine: threads, queue, scheduling, delivery; all but the network.

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/bench_stream.h"
#include "bench/engine_bench.h"
#include "bench/sample_statistics.h"
#include "bench/step_traffic.h"
#include "engine/engine.h"

namespace mneme {
namespace {

// Beside slabs: the runner's memory, and the blocks in which the bandwidth is measured.
constexpr int64_t kReserveBytes = int64_t{2} << 30;

struct BenchEngine {
  std::string name;
  int64_t state_bytes = 0;  // of a session
  std::optional<StepTraffic> traffic;
  RealClock clock;
  std::unique_ptr<Engine> engine;
};

// Loads `folder` with room for `sessions`. RESOURCE_EXHAUSTED if they do not fit.
absl::StatusOr<std::unique_ptr<BenchEngine>> StartEngine(const EngineBenchSettings& settings,
                                                         const std::string& folder, int sessions) {
  ModelFlags flags = settings.model;
  flags.model = folder;
  ExitCode code = kExitFailure;
  MNEME_ASSIGN_OR_RETURN(ToolRunner tool, ToolRunner::Load(flags, &code));
  auto bench = std::make_unique<BenchEngine>();
  bench->name = tool.model->info().name;
  bench->state_bytes = tool.model->state_layout().slab_bytes();
  MNEME_ASSIGN_OR_RETURN(bench->traffic, StepTraffic::Create(folder, *tool.model, *tool.backend));
  MNEME_ASSIGN_OR_RETURN(const int64_t available, tool.backend->AvailableBytes());
  if (sessions * bench->state_bytes > available - kReserveBytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d sessions of %s hold %.1f GB, and %.1f GB are available", sessions,
                        bench->name, 1e-9 * sessions * bench->state_bytes, 1e-9 * available));
  }
  const EngineOptions options{.state_memory_bytes = sessions * bench->state_bytes,
                              .max_sessions = sessions,
                              .max_tokens_per_step = settings.chunk};
  MNEME_ASSIGN_OR_RETURN(
      bench->engine,
      Engine::Create(std::move(tool.backend), std::move(tool.model),
                     /*tokenizer=*/nullptr, /*end_tokens=*/{}, options, bench->clock));
  return bench;
}

using Streams = std::vector<std::unique_ptr<BenchStream>>;

std::vector<double> AllGaps(const Streams& streams, double from, double to) {
  std::vector<double> gaps;
  for (const auto& stream : streams) {
    const std::vector<double> of_stream = stream->GapsWithin(from, to);
    gaps.insert(gaps.end(), of_stream.begin(), of_stream.end());
  }
  return gaps;
}

}  // namespace

absl::StatusOr<BenchTable> BenchStreams(const EngineBenchSettings& settings) {
  std::fprintf(stderr, "streams: %d\n", settings.streams);
  MNEME_ASSIGN_OR_RETURN(const auto bench,
                         StartEngine(settings, settings.shallow, settings.streams));
  Engine& engine = *bench->engine;
  BandwidthSampler bandwidth(settings.model.threads, settings.bandwidth_once);
  bandwidth.Measure();

  const int vocab = engine.model_info().vocab;
  const double start = BenchNow();
  Streams streams;
  int64_t asked = 0;
  for (int i = 0; i < settings.streams; ++i) {
    const int tokens = settings.stream_tokens / 2 + settings.stream_tokens * i / settings.streams;
    asked += tokens;
    MNEME_ASSIGN_OR_RETURN(
        auto stream,
        BenchStream::Submit(engine, BenchRequest(RandomTokens(i, settings.stream_prompt, vocab),
                                                 tokens, /*seed=*/static_cast<uint64_t>(i))));
    streams.push_back(std::move(stream));
  }
  int64_t errors = 0, received = 0;
  for (const auto& stream : streams) {
    if (!stream->AwaitEnd().ok()) ++errors;
    received += stream->tokens();
  }
  const double seconds = BenchNow() - start;
  bandwidth.Measure();
  std::vector<double> first;
  for (const auto& stream : streams) {
    if (stream->tokens() > 0) first.push_back(stream->arrivals().front() - stream->submitted());
  }
  const std::vector<double> gaps = AllGaps(streams, start, BenchNow());
  const EngineStats& stats = engine.stats();
  const double rows = stats.decode_rows.mean();
  const double weights = bench->traffic->DecodeWeightBytes(rows);
  const double state = bench->traffic->DecodeStateBytes(rows);
  const double floor = FloorSeconds(bandwidth.median(), weights, state);

  BenchTable table(absl::StrCat("Concurrent requests through the engine, ", bench->name, ", ",
                                engine.backend_description(), ", ", settings.model.compute_dtype),
                   {{"streams", "streams"},
                    {"errors", "errors"},
                    {"missing_tokens", "tokens missing"},
                    {"tokens", "tokens"},
                    {"seconds", "s", 1},
                    {"tokens_per_second", "tokens/s", 1},
                    {"steps", "steps"},
                    {"mean_decode_rows", "mean rows/step", 1},
                    {"first_token_p50_ms", "first token p50 ms", 0},
                    {"inter_token_p50_ms", "inter-token p50 ms", 1},
                    {"inter_token_p99_ms", "p99 ms", 1},
                    {"weight_mb", "weights MB/step", 1},
                    {"state_mb", "state MB/step", 1},
                    {"floor_ms", "floor ms", 1},
                    {"of_floor_percent", "of floor %", 0}});
  const double typical = Median(gaps);
  table.AddRow({int64_t{settings.streams}, errors, asked - received, received, seconds,
                static_cast<double>(received) / seconds, stats.step_seconds.count(), rows,
                Median(first) * 1e3, typical * 1e3, Percentile(gaps, 99) * 1e3, weights / 1e6,
                state / 1e6, floor * 1e3, 100 * floor / typical});
  table.AddNote(absl::StrFormat("%.1f MB of state per session; floor of a step with the mean rows.",
                                static_cast<double>(bench->state_bytes) / 1e6));
  table.AddNote(bandwidth.ToString());
  return table;
}

absl::StatusOr<BenchTable> BenchInterference(const EngineBenchSettings& settings) {
  std::fprintf(stderr, "interference: %d decoding, %d prompt tokens\n", settings.decoders,
               settings.long_prompt);
  MNEME_ASSIGN_OR_RETURN(const auto bench,
                         StartEngine(settings, settings.model.model, settings.decoders + 1));
  Engine& engine = *bench->engine;
  const int vocab = engine.model_info().vocab;
  const auto read_prompt = [&]() -> absl::StatusOr<double> {
    MNEME_ASSIGN_OR_RETURN(
        const auto stream,
        BenchStream::Submit(engine, BenchRequest(RandomTokens(1000, settings.long_prompt, vocab),
                                                 /*tokens=*/1, /*seed=*/1)));
    MNEME_RETURN_IF_ERROR(stream->AwaitEnd());
    return stream->arrivals().front() - stream->submitted();
  };
  BandwidthSampler bandwidth(settings.model.threads, settings.bandwidth_once);
  bandwidth.Measure();
  MNEME_ASSIGN_OR_RETURN(const double alone_before, read_prompt());

  Streams streams;
  for (int i = 0; i < settings.decoders; ++i) {
    MNEME_ASSIGN_OR_RETURN(
        auto stream,
        BenchStream::Submit(engine, BenchRequest(RandomTokens(i, settings.stream_prompt, vocab),
                                                 /*tokens=*/1 << 20, /*seed=*/1)));
    streams.push_back(std::move(stream));
  }
  for (const auto& stream : streams) stream->AwaitTokens(5);
  const auto quiet_phase = [&] {
    std::pair<double, double> span{BenchNow(), 0};
    streams[0]->AwaitTokens(streams[0]->tokens() + settings.quiet_tokens);
    span.second = BenchNow();
    return span;
  };
  const auto before = quiet_phase();
  const double prompt_start = BenchNow();
  MNEME_ASSIGN_OR_RETURN(const double beside, read_prompt());
  const double prompt_end = prompt_start + beside;
  for (const auto& stream : streams) stream->AwaitTokens(stream->tokens() + 2);
  const auto after = quiet_phase();
  for (const auto& stream : streams) {
    if (stream->arrivals().back() < after.first) return absl::InternalError("a stream has ended");
  }
  std::vector<double> quiet = AllGaps(streams, before.first, before.second);
  const std::vector<double> late = AllGaps(streams, after.first, after.second);
  quiet.insert(quiet.end(), late.begin(), late.end());
  const std::vector<double> disturbed = AllGaps(streams, prompt_start, prompt_end);
  streams.clear();  // cancels
  MNEME_ASSIGN_OR_RETURN(const double alone_after, read_prompt());
  bandwidth.Measure();

  const double alone = (alone_before + alone_after) / 2;
  const double floor =
      FloorSeconds(bandwidth.median(), bench->traffic->DecodeWeightBytes(settings.decoders),
                   bench->traffic->DecodeStateBytes(settings.decoders));
  BenchTable table(absl::StrFormat("%d decoding requests and a prompt of %d tokens, %s, %s, %s",
                                   settings.decoders, settings.long_prompt, bench->name,
                                   engine.backend_description(), settings.model.compute_dtype),
                   {{"phase", "phase"},
                    {"inter_token_p50_ms", "inter-token p50 ms", 1},
                    {"inter_token_p99_ms", "p99 ms", 1},
                    {"inter_token_max_ms", "max ms", 1},
                    {"p99_ratio", "p99 ratio", 2},
                    {"prompt_seconds", "prompt s", 2},
                    {"prompt_tokens_per_second", "prompt tokens/s", 1},
                    {"prompt_speed_ratio", "speed ratio", 2},
                    {"floor_ms", "floor ms", 1},
                    {"of_floor_percent", "of floor %", 0},
                    {"gaps", "gaps"}});
  table.AddRow(
      {"prompt alone", {}, {}, {}, {}, alone, settings.long_prompt / alone, 1.0, {}, {}, {}});
  table.AddRow({"decoding alone",
                Median(quiet) * 1e3,
                Percentile(quiet, 99) * 1e3,
                Percentile(quiet, 100) * 1e3,
                1.0,
                {},
                {},
                {},
                floor * 1e3,
                100 * floor / Median(quiet),
                static_cast<int64_t>(quiet.size())});
  table.AddRow({"both",
                Median(disturbed) * 1e3,
                Percentile(disturbed, 99) * 1e3,
                Percentile(disturbed, 100) * 1e3,
                Percentile(disturbed, 99) / Percentile(quiet, 99),
                beside,
                settings.long_prompt / beside,
                alone / beside,
                {},
                {},
                static_cast<int64_t>(disturbed.size())});
  table.AddNote(absl::StrFormat(
      "A decode step of %d rows reads %.1f MB of weights and updates %.1f MB of state.",
      settings.decoders, bench->traffic->DecodeWeightBytes(settings.decoders) / 1e6,
      bench->traffic->DecodeStateBytes(settings.decoders) / 1e6));
  table.AddNote(bandwidth.ToString());
  return table;
}

}  // namespace mneme
