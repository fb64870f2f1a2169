#include "bench/gpu_bench_sections.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "bench/bench_stream.h"
#include "bench/sample_statistics.h"

namespace mneme {
namespace {

constexpr int kPrompt = 8;   // tokens in front of a decode run
constexpr int kWarmUp = 40;  // steps that do not count: more than two fold cycles
// Segments after which the long-term engrams of Memoria are about as many as they will be.
constexpr int kFullMemory = 60;

Request MakeRequest(const BenchEngine& bench, int seed, int prompt, int tokens, bool sampled) {
  Request request = BenchRequest(RandomTokens(seed, prompt, bench.engine->model_info().vocab),
                                 tokens, static_cast<uint64_t>(seed));
  if (!sampled) request.sampling.temperature = 0;
  return request;
}

using Streams = std::vector<std::unique_ptr<BenchStream>>;

// The prompts have `prompt` to `prompt` + `phases` - 1 tokens, in no order: a prompt's rows begin
// to decode some steps later than those before it, which an order would meet.
absl::StatusOr<Streams> StartStreams(BenchEngine& bench, int count, int prompt, int tokens,
                                     bool sampled, int phases = 1) {
  Streams streams;
  for (int i = 0; i < count; ++i) {
    constexpr int64_t kStride = 89;  // a prime, which divides no usual number of rows
    const int length = prompt + static_cast<int>(i * kStride % count * phases / count);
    MNEME_ASSIGN_OR_RETURN(
        auto stream,
        BenchStream::Submit(*bench.engine, MakeRequest(bench, i, length, tokens, sampled)));
    streams.push_back(std::move(stream));
  }
  return streams;
}

// Streams of models whose sessions have segments: with full memories, each in a phase of its own.
// They go on until they are cancelled. All prompts come first: one beside rows that decode waits
// for them.
absl::StatusOr<Streams> StartFull(BenchEngine& bench, int count, bool sampled) {
  const int segment = bench.engine->model_info().segment;
  const auto session = [](int i) { return SessionKey{.name = absl::StrCat("full-", i)}; };
  // Those of the run before have been cancelled.
  while (bench.engine->stats().sessions.value() > 0) absl::SleepFor(absl::Milliseconds(1));
  Streams prompts, streams;
  for (int i = 0; i < count; ++i) {
    Request request = MakeRequest(bench, i, kFullMemory * segment + i * segment / count,
                                  /*tokens=*/1, sampled);
    request.session = session(i);
    MNEME_ASSIGN_OR_RETURN(auto stream, BenchStream::Submit(*bench.engine, std::move(request)));
    prompts.push_back(std::move(stream));
  }
  for (const auto& prompt : prompts) MNEME_RETURN_IF_ERROR(prompt->AwaitEnd());
  for (int i = 0; i < count; ++i) {
    Request request = MakeRequest(bench, count + i, /*prompt=*/1, /*tokens=*/1 << 20, sampled);
    request.session = session(i);
    request.session_ttl = absl::Milliseconds(1);  // once it is cancelled
    MNEME_ASSIGN_OR_RETURN(auto stream, BenchStream::Submit(*bench.engine, std::move(request)));
    streams.push_back(std::move(stream));
  }
  for (const auto& stream : streams) stream->AwaitTokens(kWarmUp);
  return streams;
}

std::vector<double> AllGaps(const Streams& streams, double from, double to) {
  std::vector<double> gaps;
  for (const auto& stream : streams) {
    const std::vector<double> of_stream = stream->GapsWithin(from, to);
    gaps.insert(gaps.end(), of_stream.begin(), of_stream.end());
  }
  return gaps;
}

}  // namespace

// --------------------------------------------------------------------------------------- decode

BenchTable DecodeTable() {
  return BenchTable("Decoding through the engine", {{"model", "model"},
                                                    {"rows", "rows"},
                                                    {"draw", "draw"},
                                                    {"tokens_per_second", "tokens/s", 0},
                                                    {"ms_per_step", "ms/step", 3},
                                                    {"longest_gap_ms", "longest gap ms", 3},
                                                    {"graph_nodes", "graph nodes", 0},
                                                    {"weight_mb", "weights MB", 0},
                                                    {"state_mb", "state MB, read+write", 0},
                                                    {"floor", "floor, tokens/s", 0},
                                                    {"of_floor", "of it %", 0},
                                                    {"deferred_mb", "state MB, held back", 0},
                                                    {"deferred_floor", "floor, tokens/s", 0},
                                                    {"of_deferred_floor", "of it %", 0},
                                                    {"copy_tbs", "copy TB/s", 2}});
}

absl::Status MeasureDecode(BenchEngine& bench, const DecodeRun& decode, int steps, int phases,
                           BenchTable& table) {
  double begin = 0, end = 1e300;  // in which all rows decode
  Streams streams;
  if (bench.engine->model_info().segment > 0) {
    MNEME_ASSIGN_OR_RETURN(streams, StartFull(bench, decode.rows, decode.sampled));
    begin = BenchNow();
    streams[0]->AwaitTokens(streams[0]->tokens() + steps);
    end = BenchNow();
  } else {
    MNEME_ASSIGN_OR_RETURN(streams, StartStreams(bench, decode.rows, kPrompt, kWarmUp + steps,
                                                 decode.sampled, phases));
    for (const auto& stream : streams) MNEME_RETURN_IF_ERROR(stream->AwaitEnd());
    for (const auto& stream : streams) {
      const std::vector<double> arrivals = stream->arrivals();
      begin = std::max(begin, arrivals.at(std::min<size_t>(kWarmUp, arrivals.size() - 1)));
      end = std::min(end, arrivals.back());
    }
  }
  if (end <= begin) {
    return absl::InvalidArgumentError(absl::StrCat("--steps ", steps, ": the first of ",
                                                   decode.rows,
                                                   " rows ended before the last one began"));
  }
  int64_t tokens = 0;
  for (const auto& stream : streams) {
    for (const double at : stream->arrivals()) tokens += at > begin && at <= end ? 1 : 0;
  }
  const double rate = static_cast<double>(tokens) / (end - begin);
  const double weights = bench.traffic->DecodeWeightBytes(decode.rows);
  const double state = 2 * bench.traffic->DecodeStateBytes(decode.rows);
  const double deferred = bench.traffic->DeferredStateBytes(decode.rows);
  const double floor = decode.rows * bench.bandwidth / (weights + state);
  const double deferred_floor = decode.rows * bench.bandwidth / (weights + deferred);
  table.AddRow({bench.name, int64_t{decode.rows}, decode.sampled ? "t 0.8, top_p 0.95" : "greedy",
                rate, 1e3 * decode.rows / rate, Percentile(AllGaps(streams, begin, end), 100) * 1e3,
                bench.engine->decode_graph_nodes(decode.rows), weights / 1e6, state / 1e6, floor,
                100 * rate / floor, deferred / 1e6, deferred_floor, 100 * rate / deferred_floor,
                bench.bandwidth / 1e12});
  return absl::OkStatus();
}

// -------------------------------------------------------------------------------------- prefill

BenchTable PrefillTable() {
  return BenchTable("Prompts through the engine, to the first token of each",
                    {{"model", "model"},
                     {"prompts", "prompts"},
                     {"tokens", "tokens each"},
                     {"ms", "ms", 2},
                     {"tokens_per_second", "tokens/s", 0},
                     {"teraflops", "TFLOP", 2},
                     {"moved_mb", "weights and state MB", 0},
                     {"floor", "floor, tokens/s", 0},
                     {"of_floor", "of it %", 0},
                     {"product_tflops", "large product TFLOP/s", 0},
                     {"copy_tbs", "copy TB/s", 2}});
}

absl::Status MeasurePrefill(BenchEngine& bench, int prompts, int tokens, BenchTable& table) {
  std::vector<double> seconds;
  for (int round = 0; round < 5; ++round) {
    const double start = BenchNow();
    MNEME_ASSIGN_OR_RETURN(const Streams streams,
                           StartStreams(bench, prompts, tokens, /*tokens=*/1, false));
    for (const auto& stream : streams) MNEME_RETURN_IF_ERROR(stream->AwaitEnd());
    if (round > 0) seconds.push_back(BenchNow() - start);  // the first one warms up
  }
  const double median = Median(seconds);
  const double rate = static_cast<double>(prompts) * tokens / median;
  const double flops = bench.traffic->PromptFlops(prompts, tokens);
  const double bytes = bench.traffic->PromptBytes(prompts, tokens, bench.step_tokens);
  const double floor_seconds = std::max(flops / bench.product_rate, bytes / bench.bandwidth);
  const double floor = static_cast<double>(prompts) * tokens / floor_seconds;
  table.AddRow({bench.name, int64_t{prompts}, int64_t{tokens}, median * 1e3, rate, flops / 1e12,
                bytes / 1e6, floor, 100 * rate / floor, bench.product_rate / 1e12,
                bench.bandwidth / 1e12});
  return absl::OkStatus();
}

// --------------------------------------------------------------------------------- interference

// The same prompt several times: of one alone, the slowest step would be the 99th percentile.
absl::StatusOr<BenchTable> MeasureInterference(BenchEngine& bench) {
  constexpr int kDecoders = 32, kLongPrompt = 65536, kPrompts = 4;
  const auto read_prompts = [&](int count) -> absl::StatusOr<std::vector<double>> {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      MNEME_ASSIGN_OR_RETURN(
          const auto stream,
          BenchStream::Submit(*bench.engine, MakeRequest(bench, 1000, kLongPrompt, 1, false)));
      MNEME_RETURN_IF_ERROR(stream->AwaitEnd());
      seconds.push_back(stream->arrivals().front() - stream->submitted());
    }
    return seconds;
  };
  MNEME_RETURN_IF_ERROR(read_prompts(1).status());  // warms up
  MNEME_ASSIGN_OR_RETURN(const std::vector<double> alone, read_prompts(kPrompts));
  MNEME_ASSIGN_OR_RETURN(const Streams streams,
                         StartStreams(bench, kDecoders, kPrompt, 1 << 20, false));
  for (const auto& stream : streams) stream->AwaitTokens(kWarmUp);
  const double quiet_begin = BenchNow();
  streams[0]->AwaitTokens(streams[0]->tokens() + 300);
  const double prompt_begin = BenchNow();
  MNEME_ASSIGN_OR_RETURN(const std::vector<double> beside, read_prompts(kPrompts));
  const double prompt_end = BenchNow();
  const std::vector<double> quiet = AllGaps(streams, quiet_begin, prompt_begin);
  const std::vector<double> disturbed = AllGaps(streams, prompt_begin, prompt_end);
  BenchTable table(absl::StrFormat("%d decoding streams and %d prompts of %d tokens, one by one",
                                   kDecoders, kPrompts, kLongPrompt),
                   {{"model", "model"},
                    {"phase", "phase"},
                    {"p50_ms", "inter-token p50 ms", 2},
                    {"p99_ms", "p99 ms", 2},
                    {"p99_ratio", "p99 ratio", 2},
                    {"prompt_ms", "prompt ms", 1},
                    {"speed_ratio", "prompt's speed ratio", 2},
                    {"moved_mb", "MB at least", 0},
                    {"of_floor", "of floor %", 0}});
  const double p99 = Percentile(quiet, 99);
  const double bytes = bench.traffic->LeastDecodeBytes(kDecoders);
  table.AddRow({bench.name, "prompt alone", {}, {}, {}, Median(alone) * 1e3, 1.0, {}, {}});
  table.AddRow({bench.name,
                "decoding alone",
                Median(quiet) * 1e3,
                p99 * 1e3,
                1.0,
                {},
                {},
                bytes / 1e6,
                100 * bytes / bench.bandwidth / Median(quiet)});
  table.AddRow({bench.name,
                "both",
                Median(disturbed) * 1e3,
                Percentile(disturbed, 99) * 1e3,
                Percentile(disturbed, 99) / p99,
                Median(beside) * 1e3,
                Median(alone) / Median(beside),
                {},
                {}});
  table.AddNote(absl::StrFormat("A copy moves %.2f TB/s.", bench.bandwidth / 1e12));
  return table;
}

// -------------------------------------------------------------------------------------- context

// Decode steps after prompts of both lengths, in turns.
absl::StatusOr<BenchTable> MeasureContext(BenchEngine& bench, int near_context, int far_context) {
  constexpr int kSteps = 300;
  const auto run = [&](int context, std::vector<double>& gaps) -> absl::Status {
    MNEME_ASSIGN_OR_RETURN(const Streams streams,
                           StartStreams(bench, 1, context, kWarmUp + kSteps, false));
    MNEME_RETURN_IF_ERROR(streams[0]->AwaitEnd());
    const std::vector<double> arrivals = streams[0]->arrivals();
    for (size_t i = kWarmUp; i < arrivals.size(); ++i) {
      gaps.push_back(arrivals[i] - arrivals[i - 1]);
    }
    return absl::OkStatus();
  };
  std::vector<double> near, far;
  for (int round = 0; round < 2; ++round) {
    MNEME_RETURN_IF_ERROR(run(near_context, near));
    MNEME_RETURN_IF_ERROR(run(far_context, far));
    MNEME_RETURN_IF_ERROR(run(near_context, near));
  }
  const double bytes = bench.traffic->LeastDecodeBytes(1);
  BenchTable table("Step time late in a session, 1 row", {{"model", "model"},
                                                          {"context", "tokens before"},
                                                          {"p50_ms", "ms/step p50", 4},
                                                          {"ratio", "ratio", 4},
                                                          {"mean_ms", "mean", 4},
                                                          {"mean_ratio", "ratio", 4},
                                                          {"moved_mb", "MB at least", 0},
                                                          {"of_floor", "of floor %", 0}});
  const auto add = [&](int context, const std::vector<double>& gaps) {
    const double seconds = Median(gaps);
    table.AddRow({bench.name, int64_t{context}, seconds * 1e3, seconds / Median(near),
                  Mean(gaps) * 1e3, Mean(gaps) / Mean(near), bytes / 1e6,
                  100 * bytes / bench.bandwidth / seconds});
  };
  add(near_context, near);
  add(far_context, far);
  table.AddNote(absl::StrFormat("A copy moves %.2f TB/s.", bench.bandwidth / 1e12));
  return table;
}

// ------------------------------------------------------------------------------------- boundary

// How much longer the steps take in which rows begin a segment: all of them in one step, as choices
// of one request do, or each at a time of its own.
absl::Status MeasureBoundaries(BenchEngine& bench, BenchTable& table) {
  constexpr int kSegments = 6, kManyRows = 64;
  const int segment = bench.engine->model_info().segment;
  const int prompt = kFullMemory * segment - kWarmUp, tokens = kWarmUp + kSegments * segment;
  for (const int rows : {1, kManyRows}) {
    Request request = MakeRequest(bench, rows, prompt, tokens, false);
    request.n = rows;
    MNEME_ASSIGN_OR_RETURN(const auto stream,
                           BenchStream::Submit(*bench.engine, std::move(request)));
    MNEME_RETURN_IF_ERROR(stream->AwaitEnd());
    const std::vector<double> arrivals = stream->arrivals();
    if (arrivals.size() != static_cast<size_t>(rows) * static_cast<size_t>(tokens)) {
      return absl::UnavailableError("the host was too slow to see every token by itself");
    }
    std::vector<double> all, plain, crossing;
    const auto step = [&](int i) { return arrivals[static_cast<size_t>((i + 1) * rows - 1)]; };
    for (int i = kWarmUp; i < tokens; ++i) {
      all.push_back(step(i) - step(i - 1));  // of the step that fed answer i - 1
      ((prompt + i - 1) % segment == 0 ? crossing : plain).push_back(all.back());
    }
    const double p99 = Percentile(all, 99), median = Median(plain);
    table.AddRow({bench.name, int64_t{rows}, "in one step", median * 1e3, Median(crossing) * 1e3,
                  (Median(crossing) - median) * 1e3, p99 * 1e3, p99 / median});
  }
  MNEME_ASSIGN_OR_RETURN(const Streams streams, StartFull(bench, kManyRows, false));
  const double begin = BenchNow();
  streams[0]->AwaitTokens(streams[0]->tokens() + kSegments * segment);
  // In more than half of the steps none begins a segment.
  const std::vector<double> gaps = AllGaps(streams, begin, BenchNow());
  const double p99 = Percentile(gaps, 99), median = Median(gaps);
  table.AddRow({bench.name,
                int64_t{kManyRows},
                "at all times",
                median * 1e3,
                {},
                {},
                p99 * 1e3,
                p99 / median});
  return absl::OkStatus();
}

BenchTable BoundaryTable() {
  return BenchTable("Decode steps in which rows begin a segment", {{"model", "model"},
                                                                   {"rows", "rows"},
                                                                   {"when", "they begin one"},
                                                                   {"plain_ms", "ms/step p50", 3},
                                                                   {"crossing_ms", "with it", 3},
                                                                   {"boundary_ms", "more", 3},
                                                                   {"p99_ms", "gap p99 ms", 3},
                                                                   {"p99_ratio", "p99 ratio", 2}});
}

}  // namespace mneme
