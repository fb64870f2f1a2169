// Measures a model as the server would run it, without the network: loading, decode, prefill, long
// contexts, many streams, a long prompt beside decoding. See bench/README.md.

#include "bench/engine_bench.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/standard_streams.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "bench/bench_table.h"
#include "models/model_config.h"
#include "tools/flag_parser.h"
#include "tools/model_maker.h"

namespace mneme {
namespace {

constexpr char kProgram[] = "engine_bench";
constexpr char kSynopsis[] =
    R"(usage: engine_bench (--model DIR | --shape NAME) [flags]

Measures a model through the engine, without the network, beside the memory bandwidth measured in the same
run. Sections, all of them unless --sections says which:

  load          loading the folder, its files in the page cache
  decode        decode steps by batch size, in f32 and bf16 arithmetic, greedy and sampled
  operations    the same steps, and a prompt's, operation by operation
  prefill       prompts, beside oneDNN's matrix products of the same shapes
  context       a step late in a session against one early in it
  streams       many concurrent requests through queue, scheduler and streams
  interference  decoding requests with and without a long prompt beside them

Contexts of full length and many streams run on a model of the same widths with few layers, made for the
purpose; the names in the tables say which model it was.
)";

struct Section {
  const char* name;
  absl::StatusOr<BenchTable> (*run)(const EngineBenchSettings&);
};
constexpr Section kSections[] = {
    {"load", BenchLoad},
    {"decode", BenchDecode},
    {"operations", BenchOperations},
    {"prefill", BenchPrefill},
    {"context", BenchContext},
    {"streams", BenchStreams},
    {"interference", BenchInterference},
};

struct Flags {
  EngineBenchSettings settings;
  std::string shape, sections, json, compute_dtypes = "f32,bf16";
  bool quick = false;
};

// Removed with everything in it when it goes.
class TempFolder {
 public:
  TempFolder() = default;
  ~TempFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  absl::Status Create() {
    std::error_code error;
    std::string path =
        (std::filesystem::temp_directory_path(error) / "engine_bench.XXXXXX").string();
    if (error || mkdtemp(path.data()) == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot make the folder ", path));
    }
    path_ = path;
    return absl::OkStatus();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

absl::StatusOr<std::string> MakeModel(const ModelSpec& spec, const TempFolder& parent,
                                      const std::string& name) {
  const std::string folder = absl::StrCat(parent.path(), "/", name);
  std::fprintf(stderr, "making %s\n", folder.c_str());
  MNEME_RETURN_IF_ERROR(MakeModelFolder(spec, folder, /*overwrite=*/false, nullptr));
  return folder;
}

// Makes the models that were asked for by shape, or that sections need beside the given one.
absl::Status PrepareModels(Flags& flags, const std::vector<std::string>& sections,
                           TempFolder& temp) {
  MNEME_RETURN_IF_ERROR(temp.Create());
  EngineBenchSettings& settings = flags.settings;
  if (!flags.shape.empty()) {
    MNEME_ASSIGN_OR_RETURN(const ModelSpec spec, SpecOfShape(flags.shape));
    MNEME_ASSIGN_OR_RETURN(settings.model.model, MakeModel(spec, temp, flags.shape));
  }
  settings.shallow = settings.model.model;
  const std::string config_path = absl::StrCat(settings.model.model, "/config.json");
  MNEME_ASSIGN_OR_RETURN(const MappedFile config, MappedFile::Open(config_path));
  MNEME_RETURN_IF_ERROR(ParseModelConfig(config.text(), config_path).status());
  ModelSpec shallow{.config = nlohmann::ordered_json::parse(config.text())};
  const char* key = shallow.config.contains("n_layer") ? "n_layer" : "num_hidden_layers";
  const int layers = shallow.config.value(key, settings.shallow_layers + 1);
  const bool needed =
      absl::c_linear_search(sections, "context") || absl::c_linear_search(sections, "streams");
  if (!needed || layers <= settings.shallow_layers) return absl::OkStatus();
  shallow.config[key] = settings.shallow_layers;
  const std::string name =
      std::filesystem::path(std::string(absl::StripSuffix(settings.model.model, "/")))
          .filename()
          .string();
  MNEME_ASSIGN_OR_RETURN(
      settings.shallow,
      MakeModel(shallow, temp, absl::StrCat(name, "-", settings.shallow_layers, "-layers")));
  return absl::OkStatus();
}

// "AMD EPYC", as the kernel names it; empty where it does not.
std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::pair<std::string, std::string> field = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(field.first) == "model name") {
      return std::string(absl::StripAsciiWhitespace(field.second));
    }
  }
  return "";
}

void UseQuickSizes(EngineBenchSettings& settings) {
  settings.bandwidth_once = true;
  settings.rounds = 1;
  settings.steps = 3;
  settings.decode_rows = {1, 4};
  settings.operation_rows = {1};
  settings.prefill_rounds = 1;
  settings.prefill_tokens = {32, 128};
  settings.chunk = 64;
  settings.near_context = 50;
  settings.far_context = 500;
  settings.far_context_deep = 0;
  settings.context_steps = 20;
  settings.streams = 16;
  settings.stream_prompt = 8;
  settings.stream_tokens = 16;
  settings.decoders = 4;
  settings.quiet_tokens = 20;
  settings.long_prompt = 1000;
}

void AddFlags(Flags& flags, FlagParser& parser) {
  EngineBenchSettings& s = flags.settings;
  parser.Add("--model", "DIR", &s.model.model, "the model's folder");
  parser.Add("--shape", "NAME", &flags.shape,
             absl::StrCat("or a model with random weights, made in a temporary folder:\n",
                          absl::StrJoin(ShapeNames(), ", ")));
  parser.Add("--sections", "A,B,...", &flags.sections, "what to measure; default: everything");
  parser.Add("--json", "FILE", &flags.json, "also write the results there");
  parser.Add("--quick", &flags.quick,
             "sizes for a trial in seconds, mom-tiny unless told; the figures mean nothing");
  parser.Add("--threads", "N", &s.model.threads, 0, 4096,
             "CPU threads; 0 (default): all that this process may use");
  parser.Add("--isa", "NAME", &s.model.isa,
             "auto (default), baseline, avx2, avx512, avx512_bf16 or amx");
  parser.Add("--compute-dtypes", "A,B", &flags.compute_dtypes,
             "arithmetic of decode and prefill, default f32,bf16; the first\nserves the others");
  parser.Add("--rounds", "N", &s.rounds, 1, 1000, "of decode; default 5");
  parser.Add("--steps", "N", &s.steps, 1, 1000, "of each kind in a round; default 4");
  parser.Add("--rows", "N,N,...", &s.decode_rows, 1, 4096,
             "batch sizes of decode; default 1,4,16,32,64");
  parser.Add("--operation-rows", "N,N,...", &s.operation_rows, 1, 4096,
             "batch sizes of operations; default 1,4,16");
  parser.Add("--prompts", "N,N,...", &s.prefill_tokens, 1, 1 << 24,
             "lengths for prefill; default 128,512,2048");
  parser.Add("--chunk", "N", &s.chunk, 1, 1 << 16, "prompt tokens in a step; default 512");
  parser.Add("--near", "N", &s.near_context, 1, 1 << 30, "early position; default 1000");
  parser.Add("--far", "N", &s.far_context, 1, 1 << 30,
             "late position, on the shallow model; default 100000");
  parser.Add("--far-deep", "N", &s.far_context_deep, 0, 1 << 30,
             "late position, on the whole model; default 10000, 0: leave it out");
  parser.Add("--shallow-layers", "N", &s.shallow_layers, 1, 1000,
             "layers of the shallow model; default 2");
  parser.Add("--streams", "N", &s.streams, 1, 1 << 16, "concurrent requests; default 256");
  parser.Add("--stream-tokens", "N", &s.stream_tokens, 2, 1 << 20, "of each, mean; default 64");
  parser.Add("--decoders", "N", &s.decoders, 1, 4096,
             "decoding requests of interference; default 32");
  parser.Add("--long-prompt", "N", &s.long_prompt, 1, 1 << 24,
             "tokens of the prompt beside them; default 4096");
}

absl::StatusOr<std::vector<std::string>> ChosenSections(const Flags& flags) {
  std::vector<std::string> known;
  for (const Section& section : kSections) known.push_back(section.name);
  if (flags.sections.empty()) return known;
  const std::vector<std::string> chosen = absl::StrSplit(flags.sections, ',');
  for (const std::string& name : chosen) {
    if (absl::c_linear_search(known, name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--sections: \"", name, "\", expected some of ", absl::StrJoin(known, ",")));
  }
  return chosen;
}

absl::Status CheckFlags(Flags& flags, const std::vector<std::string>& positional) {
  if (!positional.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", positional[0], "\""));
  }
  if (flags.quick && flags.settings.model.model.empty() && flags.shape.empty()) {
    flags.shape = "mom-tiny";
  }
  if (flags.settings.model.model.empty() == flags.shape.empty()) {
    return absl::InvalidArgumentError("one of --model and --shape is required; see --help");
  }
  flags.settings.compute_dtypes = absl::StrSplit(flags.compute_dtypes, ',');
  for (const std::string& dtype : flags.settings.compute_dtypes) {
    if (dtype != "f32" && dtype != "bf16") {
      return absl::InvalidArgumentError(
          absl::StrCat("--compute-dtypes: \"", dtype, "\", expected f32, bf16 or both"));
    }
  }
  flags.settings.model.compute_dtype = flags.settings.compute_dtypes.front();
  return absl::OkStatus();
}

absl::Status Measure(const Flags& flags, const std::vector<std::string>& sections) {
  const EngineBenchSettings& settings = flags.settings;
  const int threads = settings.model.threads > 0 ? settings.model.threads : AvailableCpus();
  nlohmann::ordered_json report = {
      {"cpu", CpuName()},
      {"threads", threads},
      {"quick", flags.quick},
      {"model", flags.shape.empty() ? settings.model.model : flags.shape}};
  std::printf("%s, %d threads%s\n", CpuName().c_str(), threads,
              flags.quick ? "; a trial run, figures mean nothing" : "");
  for (const Section& section : kSections) {
    if (!absl::c_linear_search(sections, section.name)) continue;
    const absl::StatusOr<BenchTable> table = section.run(settings);
    if (absl::IsResourceExhausted(table.status())) {
      const std::string reason(table.status().message());
      std::printf("\n%s: not measured: %s\n", section.name, reason.c_str());
      report[section.name] = {{"not_measured", reason}};
      continue;
    }
    MNEME_RETURN_IF_ERROR(table.status());
    table->Print();
    report[section.name] = table->ToJson();
  }
  return flags.json.empty() ? absl::OkStatus() : WriteJson(report, flags.json);
}

int Main(int argc, char** argv) {
  OpenStandardStreams(argv);
  // --quick sets sizes that other flags may override, so it is looked for first.
  Flags flags;
  if (std::find(argv, argv + argc, absl::string_view("--quick")) != argv + argc) {
    UseQuickSizes(flags.settings);
  }
  FlagParser parser(kSynopsis);
  AddFlags(flags, parser);
  const auto positional = parser.Parse(argc, argv);
  if (parser.help_requested()) {
    std::printf("%s", parser.Help().c_str());
    return kExitOk;
  }
  if (!positional.ok()) return Report(kProgram, positional.status(), kExitUsage);
  if (const absl::Status status = CheckFlags(flags, *positional); !status.ok()) {
    return Report(kProgram, status, kExitUsage);
  }
  const auto sections = ChosenSections(flags);
  if (!sections.ok()) return Report(kProgram, sections.status(), kExitUsage);

  SetMinLogSeverity(LogSeverity::kWarning);
  TempFolder temp;
  if (const absl::Status status = PrepareModels(flags, *sections, temp); !status.ok()) {
    return Report(kProgram, status, kExitModel);
  }
  const absl::Status status = Measure(flags, *sections);
  return status.ok() ? kExitOk : Report(kProgram, status, kExitFailure);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
