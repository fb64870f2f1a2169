// Decode and prefill on a GPU through the whole engine, beside what its memory and its products
// allow. bench/run_gpu.sh sets the figures beside the marks of bench/README.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/standard_streams.h"
#include "base/status_macros.h"
#include "bench/bench_stream.h"
#include "bench/bench_table.h"
#include "bench/device_rates.h"
#include "bench/sample_statistics.h"
#include "bench/step_traffic.h"
#include "engine/engine.h"
#include "tools/flag_parser.h"
#include "tools/model_maker.h"
#include "tools/tool_runner.h"

namespace mneme {
namespace {

constexpr char kProgram[] = "gpu_bench";
constexpr char kSynopsis[] = R"(usage: gpu_bench [flags]

Measures decoding and prompts of models with random weights on a GPU, through the engine: queue,
scheduler, sampling and delivery of tokens included. Prints for each what the bandwidth of a copy and the
rate of a large product, measured in the same run, would allow.

)";

constexpr int kPrompt = 8;   // tokens in front of a decode run
constexpr int kWarmUp = 40;  // steps that do not count: more than two fold cycles
// Segments after which the long-term engrams of Memoria are about as many as they will be.
constexpr int kFullMemory = 60;

struct Flags {
  std::string shapes = "mom-340m,mom-1.3b";
  std::string sections = "decode,prefill,boundary,interference,context";
  std::string state_dtypes = "f32,f16";
  std::vector<int> rows;  // none: all
  std::string json;
  std::string device = "cuda";
  std::string weight_dtype = "bf16";
  std::string compute_dtype = "bf16";
  int steps = 320;
  int far_context = 1000000;
  int slowdown_percent = 0;
  bool no_async_scheduling = false;
};

struct Decode {
  std::string shape;
  std::string state_dtype;
  int rows;
  bool sampled;
};

// Folder of a model, made once.
class Models {
 public:
  explicit Models(DType weight_dtype) : weight_dtype_(weight_dtype) {}
  ~Models() {
    std::error_code ignored;
    if (!root_.empty()) std::filesystem::remove_all(root_, ignored);
  }
  absl::StatusOr<std::string> Folder(const std::string& shape) {
    if (root_.empty()) {
      std::string path = (std::filesystem::temp_directory_path() / "gpu_bench.XXXXXX").string();
      if (mkdtemp(path.data()) == nullptr) {
        return absl::UnavailableError(absl::StrCat("cannot make the folder ", path));
      }
      root_ = path;
    }
    const std::string folder = absl::StrCat(root_, "/", shape);
    if (std::filesystem::exists(folder)) return folder;
    std::fprintf(stderr, "making %s\n", shape.c_str());
    MNEME_ASSIGN_OR_RETURN(ModelSpec spec, SpecOfShape(shape));
    spec.dtype = weight_dtype_;
    MNEME_RETURN_IF_ERROR(MakeModelFolder(spec, folder, /*overwrite=*/false, nullptr));
    return folder;
  }

 private:
  const DType weight_dtype_;
  std::string root_;
};

struct BenchEngine {
  RealClock clock;
  std::string name;
  double bandwidth = 0;     // bytes read and written per second by a copy
  double product_rate = 0;  // floating-point operations per second of a large product
  int step_tokens = 0;      // EngineOptions::max_tokens_per_step
  std::optional<StepTraffic> traffic;
  std::unique_ptr<Engine> engine;
};

absl::StatusOr<std::unique_ptr<BenchEngine>> Start(const Flags& flags, Models& models,
                                                   const std::string& shape,
                                                   const std::string& state_dtype, int rows) {
  ModelFlags model;
  MNEME_ASSIGN_OR_RETURN(model.model, models.Folder(shape));
  model.device = flags.device;
  model.compute_dtype = flags.compute_dtype;
  model.state_dtype = state_dtype;
  ExitCode code = kExitFailure;
  MNEME_ASSIGN_OR_RETURN(ToolRunner tool, ToolRunner::Load(model, &code));
  auto bench = std::make_unique<BenchEngine>();
  bench->name = absl::StrCat(shape, ", ", state_dtype, " state");
  MNEME_ASSIGN_OR_RETURN(bench->bandwidth, CopyBandwidth(*tool.backend));
  MNEME_ASSIGN_OR_RETURN(bench->product_rate, ProductRate(*tool.backend));
  bench->step_tokens = tool.backend->preferred_step_tokens();
  MNEME_ASSIGN_OR_RETURN(bench->traffic,
                         StepTraffic::Create(model.model, *tool.model, *tool.backend));
  const EngineOptions options{.max_sessions = rows + 1,
                              .async_scheduling = !flags.no_async_scheduling,
                              .max_rows = rows + 1,  // a prompt beside them takes no turn of theirs
                              .max_tokens_per_step = bench->step_tokens,
                              .max_decode_slowdown = flags.slowdown_percent / 100.0};
  MNEME_ASSIGN_OR_RETURN(
      bench->engine,
      Engine::Create(std::move(tool.backend), std::move(tool.model),
                     /*tokenizer=*/nullptr, /*end_tokens=*/{}, options, bench->clock));
  return bench;
}

Request MakeRequest(const BenchEngine& bench, int seed, int prompt, int tokens, bool sampled) {
  Request request = BenchRequest(RandomTokens(seed, prompt, bench.engine->model_info().vocab),
                                 tokens, static_cast<uint64_t>(seed));
  if (!sampled) request.sampling.temperature = 0;
  return request;
}

using Streams = std::vector<std::unique_ptr<BenchStream>>;

// `spread`: prompts are so much longer from the first one to behind the last one.
absl::StatusOr<Streams> StartStreams(BenchEngine& bench, int count, int prompt, int tokens,
                                     bool sampled, int spread = 0) {
  Streams streams;
  for (int i = 0; i < count; ++i) {
    const int length = prompt + i * spread / count;
    MNEME_ASSIGN_OR_RETURN(
        auto stream,
        BenchStream::Submit(*bench.engine, MakeRequest(bench, i, length, tokens, sampled)));
    streams.push_back(std::move(stream));
  }
  return streams;
}

// Of models whose sessions have segments: with full memories, each in a phase of its own. They go
// on until they are cancelled.
absl::StatusOr<Streams> StartFull(BenchEngine& bench, int count, bool sampled) {
  const int segment = bench.engine->model_info().segment;
  MNEME_ASSIGN_OR_RETURN(Streams streams, StartStreams(bench, count, kFullMemory * segment,
                                                       /*tokens=*/1 << 20, sampled, segment));
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

absl::Status MeasureDecode(BenchEngine& bench, const Decode& decode, int steps, BenchTable& table) {
  double begin = 0, end = 1e300;  // in which all rows decode
  Streams streams;
  if (bench.engine->model_info().segment > 0) {
    MNEME_ASSIGN_OR_RETURN(streams, StartFull(bench, decode.rows, decode.sampled));
    begin = BenchNow();
    streams[0]->AwaitTokens(streams[0]->tokens() + steps);
    end = BenchNow();
  } else {
    MNEME_ASSIGN_OR_RETURN(
        streams, StartStreams(bench, decode.rows, kPrompt, kWarmUp + steps, decode.sampled));
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
absl::StatusOr<BenchTable> MeasureContext(BenchEngine& bench, int far_context) {
  constexpr int kNear = 1000, kSteps = 300;
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
    MNEME_RETURN_IF_ERROR(run(kNear, near));
    MNEME_RETURN_IF_ERROR(run(far_context, far));
    MNEME_RETURN_IF_ERROR(run(kNear, near));
  }
  const double bytes = bench.traffic->LeastDecodeBytes(1);
  BenchTable table("Step time late in a session, 1 row", {{"model", "model"},
                                                          {"context", "tokens before"},
                                                          {"p50_ms", "ms/step p50", 4},
                                                          {"ratio", "ratio", 4},
                                                          {"moved_mb", "MB at least", 0},
                                                          {"of_floor", "of floor %", 0}});
  const auto add = [&](int context, double seconds) {
    table.AddRow({bench.name, int64_t{context}, seconds * 1e3, seconds / Median(near), bytes / 1e6,
                  100 * bytes / bench.bandwidth / seconds});
  };
  add(kNear, Median(near));
  add(far_context, Median(far));
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

// ------------------------------------------------------------------------------------------ all

std::vector<Decode> DecodesOf(const std::string& shape) {
  if (shape == "mom-1.3b") {
    return {{shape, "f32", 1, false}, {shape, "f32", 32, false}, {shape, "f32", 128, false}};
  }
  std::vector<Decode> decodes;
  for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    decodes.push_back({shape, "f32", rows, false});
  }
  decodes.push_back({shape, "f32", 1, true});
  decodes.push_back({shape, "f32", 256, true});
  for (const int rows : {1, 32, 256, 512}) decodes.push_back({shape, "f16", rows, false});
  return decodes;
}

absl::StatusOr<DType> WeightDTypeOf(const std::string& name) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (name == Name(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--weight-dtype: \"", name, "\", expected bf16, f16 or f32"));
}

bool Contains(const std::vector<std::string>& list, absl::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// The names of a flag's list, all of them known.
absl::StatusOr<std::vector<std::string>> ListOf(absl::string_view flag, const std::string& text,
                                                const std::vector<std::string>& known) {
  std::vector<std::string> names = absl::StrSplit(text, ',');
  for (const std::string& name : names) {
    if (Contains(known, name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": \"", name, "\", expected some of ", absl::StrJoin(known, ", ")));
  }
  return names;
}

absl::Status CheckRows(const std::vector<int>& rows, const std::vector<std::string>& shapes) {
  std::set<int> known;
  for (const std::string& shape : shapes) {
    for (const Decode& decode : DecodesOf(shape)) known.insert(decode.rows);
  }
  for (const int count : rows) {
    if (known.contains(count)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--rows: ", count, ", expected some of ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

absl::Status Measure(const Flags& flags, nlohmann::ordered_json& report) {
  MNEME_ASSIGN_OR_RETURN(const DType weight_dtype, WeightDTypeOf(flags.weight_dtype));
  MNEME_ASSIGN_OR_RETURN(const auto shapes, ListOf("--shapes", flags.shapes, ShapeNames()));
  MNEME_ASSIGN_OR_RETURN(const auto sections,
                         ListOf("--sections", flags.sections,
                                {"decode", "prefill", "boundary", "interference", "context"}));
  MNEME_ASSIGN_OR_RETURN(const auto state_dtypes,
                         ListOf("--state-dtypes", flags.state_dtypes, {"f32", "f16"}));
  MNEME_RETURN_IF_ERROR(CheckRows(flags.rows, shapes));
  Models models(weight_dtype);
  const auto wants = [&](absl::string_view section) { return Contains(sections, section); };
  const auto keep = [&](const std::string& name, const BenchTable& table) {
    table.Print();
    report[name] = table.ToJson();
  };
  const std::set<int> row_counts(flags.rows.begin(), flags.rows.end());
  BenchTable decode_table = DecodeTable(), prefill_table = PrefillTable(),
             boundary_table = BoundaryTable();
  for (const std::string& shape : shapes) {
    for (const std::string& dtype : state_dtypes) {
      std::vector<Decode> decodes = DecodesOf(shape);
      std::erase_if(decodes, [&](const Decode& d) {
        return !wants("decode") || d.state_dtype != dtype ||
               (!row_counts.empty() && !row_counts.contains(d.rows));
      });
      if (decodes.empty() && dtype != "f32") continue;
      int rows = wants("boundary") ? 64 : 32;
      for (const Decode& decode : decodes) rows = std::max(rows, decode.rows);
      MNEME_ASSIGN_OR_RETURN(const auto bench, Start(flags, models, shape, dtype, rows));
      std::fprintf(stderr, "%s: %s\n", bench->name.c_str(),
                   bench->engine->backend_description().c_str());
      for (const Decode& decode : decodes) {
        MNEME_RETURN_IF_ERROR(MeasureDecode(*bench, decode, flags.steps, decode_table));
      }
      if (wants("decode")) keep("decode", decode_table);  // so far: a later model may fail
      if (dtype != "f32") continue;
      if (wants("prefill")) {
        using Prompts = std::vector<std::pair<int, int>>;
        const Prompts prompts = bench->engine->model_info().segment > 0
                                    ? Prompts{{1, 15000}, {32, 15000}}
                                    : Prompts{{1, 2048}, {1, 8192}, {8, 2048}};
        for (const auto& [count, tokens] : prompts) {
          MNEME_RETURN_IF_ERROR(MeasurePrefill(*bench, count, tokens, prefill_table));
        }
        keep("prefill", prefill_table);
      }
      if (wants("boundary") && bench->engine->model_info().segment > 0) {
        MNEME_RETURN_IF_ERROR(MeasureBoundaries(*bench, boundary_table));
        keep("boundary", boundary_table);
      }
      if (shape != shapes.front()) continue;
      if (wants("interference")) {
        MNEME_ASSIGN_OR_RETURN(const BenchTable table, MeasureInterference(*bench));
        keep("interference", table);
      }
      if (wants("context")) {
        MNEME_ASSIGN_OR_RETURN(const BenchTable table, MeasureContext(*bench, flags.far_context));
        keep("context", table);
      }
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  OpenStandardStreams(argv);
  Flags flags;
  FlagParser parser(kSynopsis);
  parser.Add("--shapes", "A,B", &flags.shapes, "default mom-340m,mom-1.3b");
  parser.Add("--sections", "A,B", &flags.sections,
             "default decode,prefill,boundary,interference,context; boundary is of models with "
             "segments");
  parser.Add("--state-dtypes", "A,B", &flags.state_dtypes,
             "default f32,f16; all but decode is measured with f32 alone");
  parser.Add("--rows", "N,N", &flags.rows, 1, 512,
             "batch sizes of the decode section; default all");
  parser.Add("--device", "NAME", &flags.device, "default cuda");
  parser.Add("--weight-dtype", "TYPE", &flags.weight_dtype, "bf16 (default), f16 or f32");
  parser.Add("--compute-dtype", "TYPE", &flags.compute_dtype,
             "bf16 (default), or f32: activations of products as they are");
  parser.Add("--steps", "N", &flags.steps, 16, 1 << 20, "decode steps that count; default 320");
  parser.Add("--far", "N", &flags.far_context, 1000, 1 << 30, "long context; default 1000000");
  parser.Add("--slowdown", "PERCENT", &flags.slowdown_percent, 0, 10000,
             "the engine's max_decode_slowdown times 100; default 0: the device's own");
  parser.Add("--no-async-scheduling", &flags.no_async_scheduling,
             "no step begins before the host has the tokens of the one before");
  parser.Add("--json", "FILE", &flags.json, "also write the results there");
  const absl::Status parsed = parser.ParseFlags(argc, argv);
  if (parser.help_requested()) {
    std::printf("%s", parser.Help().c_str());
    return kExitOk;
  }
  if (!parsed.ok()) return Report(kProgram, parsed, kExitUsage);
  SetMinLogSeverity(LogSeverity::kWarning);
  nlohmann::ordered_json report;
  absl::Status status = Measure(flags, report);
  // Figures from before a failure are worth keeping.
  if (!flags.json.empty() && !report.empty()) status.Update(WriteJson(report, flags.json));
  if (status.ok()) return kExitOk;
  return Report(kProgram, status, absl::IsInvalidArgument(status) ? kExitUsage : kExitFailure);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
