// Decode and prefill on a GPU through the whole engine, beside what its memory and its products
// allow. bench/run_gpu.sh sets the figures beside the marks of bench/README.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/standard_streams.h"
#include "base/status_macros.h"
#include "bench/bench_table.h"
#include "bench/device_rates.h"
#include "bench/gpu_bench_sections.h"
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
  int phases = 1;
  int near_context = 1000, far_context = 1000000;
  int slowdown_percent = 0;
  bool no_async_scheduling = false;
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

std::vector<DecodeRun> DecodesOf(const std::string& shape) {
  if (shape == "mom-1.3b") {
    return {{shape, "f32", 1, false}, {shape, "f32", 32, false}, {shape, "f32", 128, false}};
  }
  std::vector<DecodeRun> decodes;
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
    for (const DecodeRun& decode : DecodesOf(shape)) known.insert(decode.rows);
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
      std::vector<DecodeRun> decodes = DecodesOf(shape);
      std::erase_if(decodes, [&](const DecodeRun& d) {
        return !wants("decode") || d.state_dtype != dtype ||
               (!row_counts.empty() && !row_counts.contains(d.rows));
      });
      if (decodes.empty() && dtype != "f32") continue;
      int rows = wants("boundary") ? 64 : 32;
      for (const DecodeRun& decode : decodes) rows = std::max(rows, decode.rows);
      MNEME_ASSIGN_OR_RETURN(const auto bench, Start(flags, models, shape, dtype, rows));
      std::fprintf(stderr, "%s: %s\n", bench->name.c_str(),
                   bench->engine->backend_description().c_str());
      for (const DecodeRun& decode : decodes) {
        MNEME_RETURN_IF_ERROR(
            MeasureDecode(*bench, decode, flags.steps, flags.phases, decode_table));
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
        MNEME_ASSIGN_OR_RETURN(const BenchTable table,
                               MeasureContext(*bench, flags.near_context, flags.far_context));
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
  parser.Add("--phases", "N", &flags.phases, 1, 4096,
             "prompts ahead of decoding differ by up to N - 1 tokens, so that rows end segments "
             "and chunks at times of their own; default 1: all together");
  parser.Add("--near", "N", &flags.near_context, 1, 1 << 30, "short context; default 1000");
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
