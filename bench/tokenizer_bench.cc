// How fast a tokenizer loads and encodes, in processor time of one thread. tokenizer_peer.py runs
// it beside the tokenizers package.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "bench/bench_table.h"
#include "bench/sample_statistics.h"
#include "tokenizers/tokenizer_loader.h"
#include "tools/flag_parser.h"

namespace mneme {
namespace {

constexpr double kResolution = 1e-6;  // of the processor's clock, in seconds

struct Settings {
  int rounds = 5;
  int vocab_size = 1 << 18;
  std::string json, ids;
  std::string folder;
  std::vector<std::string> texts;
};

// Processor time, which other programs do not lengthen by taking turns with this one.
double ProcessorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// As 32-bit integers of this machine's order, for whoever compares.
absl::Status WriteIds(const std::string& path, const std::vector<int32_t>& ids) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(ids.data()),
             static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::Status Run(const Settings& settings) {
  const TokenizerFacts facts = {.vocab_size = settings.vocab_size,
                                .bos_token_id = {},
                                .eos_token_id = {},
                                .tokenizer_class = "",
                                .model_type = ""};
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<double> loads;
  for (int i = 0; i < settings.rounds; ++i) {
    tokenizer.reset();
    const double start = ProcessorSeconds();
    MNEME_ASSIGN_OR_RETURN(tokenizer, LoadTokenizer(settings.folder, facts));
    loads.push_back(ProcessorSeconds() - start);
  }
  BenchTable table(absl::StrCat("Tokenizer of ", settings.folder),
                   {{"text", "text", 0},
                    {"bytes", "bytes", 0},
                    {"tokens", "tokens", 0},
                    {"first_mb_per_s", "first MB/s", 2},
                    {"mb_per_s", "MB/s", 2}});
  for (size_t i = 0; i < settings.texts.size(); ++i) {
    MNEME_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(settings.texts[i]));
    std::vector<int32_t> ids;
    std::vector<double> seconds;
    for (int round = 0; round < settings.rounds; ++round) {
      const double start = ProcessorSeconds();
      MNEME_ASSIGN_OR_RETURN(ids, tokenizer->Encode(file.text()));
      seconds.push_back(std::max(ProcessorSeconds() - start, kResolution));
    }
    const double megabytes = static_cast<double>(file.size()) / 1e6;
    table.AddRow({settings.texts[i], file.size(), static_cast<int64_t>(ids.size()),
                  megabytes / seconds.front(), megabytes / Median(seconds)});
    if (!settings.ids.empty()) {
      MNEME_RETURN_IF_ERROR(WriteIds(absl::StrCat(settings.ids, "/", i, ".ids"), ids));
    }
  }
  table.AddNote(absl::StrCat("loaded in ", static_cast<int>(1e3 * Median(loads) + 0.5), " ms"));
  table.Print();
  if (settings.json.empty()) return absl::OkStatus();
  nlohmann::ordered_json json = table.ToJson();
  json["load_s"] = Median(loads);
  std::ofstream file(settings.json);
  file << json.dump(1) << "\n";
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", settings.json));
}

int Main(int argc, char** argv) {
  constexpr absl::string_view kProgram = "tokenizer_bench";
  Settings settings;
  FlagParser flags(
      "Usage: tokenizer_bench [flags] FOLDER TEXT...\n"
      "\n"
      "Loads the tokenizer of a model folder and encodes files with it, on one thread.\n");
  flags.Add("--rounds", "N", &settings.rounds, 1, 1000, "how often; the median is shown");
  flags.Add("--vocab-size", "N", &settings.vocab_size, 1, 1 << 22, "rows of the model's embedding");
  flags.Add("--json", "FILE", &settings.json, "write the results there, too");
  flags.Add("--ids", "FOLDER", &settings.ids,
            "write the ids of the texts there: 0.ids, 1.ids, ...");
  const absl::StatusOr<std::vector<std::string>> arguments = flags.Parse(argc, argv);
  if (flags.help_requested()) {
    std::fputs(flags.Help().c_str(), stdout);
    return kExitOk;
  }
  if (!arguments.ok()) return Report(kProgram, arguments.status(), kExitUsage);
  if (arguments->size() < 2) {
    return Report(kProgram, absl::InvalidArgumentError("expected a folder, and texts behind it"),
                  kExitUsage);
  }
  settings.folder = arguments->front();
  settings.texts.assign(arguments->begin() + 1, arguments->end());
  const absl::Status status = Run(settings);
  return status.ok() ? kExitOk : Report(kProgram, status, kExitFailure);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
