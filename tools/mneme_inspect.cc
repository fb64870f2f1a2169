// mneme-inspect: looks into model folders and safetensors files.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/human_bytes.h"
#include "base/standard_streams.h"
#include "base/status_macros.h"
#include "engine/step_plan.h"
#include "models/checkpoint.h"
#include "models/classes.h"
#include "models/context_tables.h"
#include "models/engrams/engram_graph.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "models/state_codec.h"
#include "tokenizers/tokenizer_loader.h"
#include "tools/engram_dump.h"
#include "tools/flag_parser.h"
#include "tools/layer_tape.h"
#include "tools/memory_norms.h"
#include "tools/output_files.h"
#include "tools/routing_image.h"
#include "tools/routing_tape.h"
#include "tools/safetensors_diff.h"
#include "tools/session_view.h"
#include "tools/state_dump.h"
#include "tools/surprise_view.h"
#include "tools/tool_runner.h"

namespace mneme {
namespace {

constexpr char kSynopsis[] =
    R"(usage: mneme-inspect weights FILE|FOLDER            what a safetensors file holds
       mneme-inspect state FOLDER                   layout and size of a session's state
       mneme-inspect routing FOLDER --prompt TEXT   which memory each token goes to, as a table
       mneme-inspect routing FOLDER --tokens FILE   and, with --png FILE, as a heat map
       mneme-inspect surprise FOLDER --prompt TEXT  the loss of each token to memories that are
                                                    trained, and their gates; --format map: a picture
       mneme-inspect state FOLDER --tokens FILE --dump-state OUT.safetensors
                                                    a session's state behind the tokens, and what each
                                                    layer said of them
       mneme-inspect state FOLDER --tokens FILE --dump-engrams OUT.jsonl
                                                    of a model with engrams (Memoria): which there are in
                                                    each segment, as a line of JSON
       mneme-inspect session FILE                   what a session's file says of itself, and whether its
                                                    checksum is right; --json: as a line of JSON
       mneme-inspect diff A B                       how two safetensors files differ

Below a routing table: each memory's share of the tokens, and the norm of its matrices after them.
In a routing table every column is a layer, and its digits are the memories in order of weight. In a heat
map every column is a token, every band of rows a layer and every row of it a memory: dark where the token did
not go, the brighter the larger its weight there. In a map of surprise every column is a token and every line
a layer, or one of its heads with --by-head: the brighter the larger, and red where it is not finite.

A line of --dump-engrams is the memory at a segment's last token, before it is committed: "segment", "position",
and of all engrams, oldest first, "births" (segment * engrams of a segment + index), "types" (1 working, 2
short-term, 3 long-term), "lifespans", "gains" (of their last commit as recalled ones) and "counts", the segments
for which each pair fired; "recalled", the births of those that the segment's tokens attend to; and "found",
"null_candidate", "null_recalled" and "columns" of the retrieval that chose them, and "evicted" since the start.
Working engrams are of the segment before, and of the segment itself where the model classifies: its last one is filled up.

Exit codes: 0 done (diff: the files are equal by bits), 1 they differ, or anything not below, 2 bad
arguments, 3 the model or file cannot be read, 4 no such device or not enough memory.
)";

constexpr char kProgram[] = "mneme-inspect";

struct InspectFlags {
  ModelFlags model;
  bool json = false;
  std::string prompt, tokens, png, dump_state, dump_engrams;
  SurpriseView surprise;
};

std::string Shown(const SafetensorsTensor& tensor) {
  return absl::StrFormat("%-56s %-5s %-20s %13d bytes", absl::CHexEscape(tensor.name),
                         tensor.dtype_name, ShapeToString(tensor.shape), tensor.bytes());
}

absl::Status PrintWeights(const std::string& path) {
  std::error_code error;
  std::vector<const SafetensorsFile*> files;
  Checkpoint checkpoint;
  std::unique_ptr<SafetensorsFile> single;
  if (std::filesystem::is_directory(path, error)) {
    MNEME_ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(path));
    for (const auto& file : checkpoint.files()) files.push_back(file.get());
  } else {
    MNEME_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    single = std::make_unique<SafetensorsFile>(std::move(file));
    files.push_back(single.get());
  }
  int64_t tensors = 0, elements = 0, bytes = 0;
  for (const SafetensorsFile* file : files) {
    absl::PrintF("%s\n", file->path());
    for (const auto& [key, value] : file->header().metadata) {
      absl::PrintF("  %s: %s\n", absl::CHexEscape(key), absl::CHexEscape(value));
    }
    for (const SafetensorsTensor& tensor : file->header().tensors) {
      absl::PrintF("  %s\n", Shown(tensor));
      ++tensors;
      elements += tensor.elements();
      bytes += tensor.bytes();
    }
  }
  absl::PrintF("%d tensors, %d elements, %d bytes\n", tensors, elements, bytes);
  return absl::OkStatus();
}

absl::Status PrintState(const std::string& folder, const ModelOptions& options) {
  MNEME_ASSIGN_OR_RETURN(const ModelPlan plan, PlanModel(folder, StateFormat{}, options));
  const int64_t session = SessionBytes(plan.state_layout);
  absl::PrintF("%s: %s, %d layers, %d parameters, weights %s\n", plan.info.name,
               plan.info.architecture, plan.info.layers, plan.info.parameters,
               plan.info.weight_dtype);
  absl::PrintF("%s", plan.state_layout.ToString());
  const std::optional<int64_t> most = plan.state_layout.max_tokens();
  const std::string length =
      most.has_value() ? absl::StrCat("for up to ", *most, *most == 1 ? " token" : " tokens")
                       : "however long it is";
  absl::PrintF("a session takes %s, %s; %d sessions fit in 1 GiB\n", HumanBytes(session), length,
               (int64_t{1} << 30) / session);
  return absl::OkStatus();
}

// Share of the tokens that each memory gets, by layer.
void PrintShares(const RoutingTape& tape) {
  absl::PrintF("\nshare of tokens per memory, %%\n");
  for (int layer = 0; layer < tape.layers(); ++layer) {
    if (!tape.routed(layer)) continue;
    absl::PrintF("layer %-3d %s\n", layer,
                 absl::StrJoin(tape.Shares(layer), " ", [](std::string* out, double share) {
                   absl::StrAppendFormat(out, "%5.1f", 100 * share);
                 }));
  }
}

// How much each memory holds; the shared one last.
void PrintNorms(const std::vector<std::vector<double>>& norms) {
  absl::PrintF("\nnorm of each memory after the prompt\n");
  for (size_t layer = 0; layer < norms.size(); ++layer) {
    if (norms[layer].empty()) continue;
    absl::PrintF("layer %-3d %s\n", layer,
                 absl::StrJoin(norms[layer], " ", [](std::string* out, double norm) {
                   if (norm < 0) {
                     absl::StrAppend(out, "      -");
                   } else {
                     absl::StrAppendFormat(out, "%7.3g", norm);
                   }
                 }));
  }
}

void PrintTable(const RoutingTape& tape, const std::vector<int32_t>& ids,
                const std::vector<std::string>& texts, int rows) {
  const char* separator = tape.memories() > 10 ? "," : "";
  absl::PrintF("%6s %7s %-16s memories by layer, 0 to %d\n", "token", "id", "text",
               tape.layers() - 1);
  for (int64_t token = 0; token < std::min<int64_t>(rows, tape.tokens()); ++token) {
    const std::string text =
        texts.empty() ? "" : absl::StrCat("\"", absl::CHexEscape(texts[token]), "\"");
    std::vector<std::string> cells;
    for (int layer = 0; layer < tape.layers(); ++layer) {
      if (!tape.routed(layer)) {
        cells.emplace_back("-");
        continue;
      }
      std::vector<int> memories;
      for (int j = 0; j < tape.top_k(); ++j) memories.push_back(tape.memory(token, layer, j));
      cells.push_back(absl::StrJoin(memories, separator));
    }
    absl::PrintF("%6d %7d %-16s %s\n", token, ids[token], text, absl::StrJoin(cells, " "));
  }
  if (tape.tokens() > rows) absl::PrintF("... %d tokens more, see --rows\n", tape.tokens() - rows);
}

// The prompt's ids, from a file or through the model's own tokenizer.
absl::StatusOr<std::vector<int32_t>> PromptIds(
    const InspectFlags& flags, const ModelConfig& config,
    const absl::StatusOr<std::unique_ptr<Tokenizer>>& tokenizer) {
  if (!flags.tokens.empty()) return ReadTokenFile(flags.tokens, config.vocab);
  MNEME_RETURN_IF_ERROR(tokenizer.status());
  MNEME_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                         (*tokenizer)->Encode(flags.prompt, {.add_bos = true}));
  if (ids.empty()) return absl::InvalidArgumentError("--prompt: gives no token");
  return ids;
}

// A model that reads the tokens that the flags name, as one session.
struct ReadPrompt {
  static constexpr int kStepTokens = 256;

  ToolRunner tool;
  std::unique_ptr<LayerTape> tape;       // null: nobody looks on
  std::unique_ptr<Tokenizer> tokenizer;  // null: the model has none
  std::vector<int32_t> ids;
  std::vector<int32_t> types;  // SegmentedText's, of a model that classifies
  int slot = 0;
  size_t fed = 0;                 // of `ids`
  bool shows_divergence = false;  // what is no number is shown, and no error

  // `output`: a file that is to be written, and its flag. `tape` may be null. On failure,
  // `code` is the exit code that fits. `may_classify`: what is read may be a text that the model
  // puts into a class, filled up as such texts are.
  static absl::StatusOr<ReadPrompt> Load(const InspectFlags& flags, const NamedPath& output,
                                         std::unique_ptr<LayerTape> tape, ExitCode* code,
                                         bool may_classify = false) {
    ReadPrompt prompt;
    prompt.tape = std::move(tape);
    *code = kExitUsage;
    if (flags.prompt.empty() == flags.tokens.empty()) {
      return absl::InvalidArgumentError("expected either --prompt or --tokens");
    }
    MNEME_RETURN_IF_ERROR(
        CheckOutputFiles({output}, {{"--tokens", flags.tokens}}, {"FOLDER", flags.model.model}));
    MNEME_ASSIGN_OR_RETURN(prompt.tool, ToolRunner::Load(flags.model, code, prompt.tape.get()));
    *code = kExitUsage;
    const ModelConfig& config = prompt.tool.config;
    TokenizerFacts facts{.vocab_size = config.vocab, .bos_token_id = config.bos_token};
    if (!config.eos_tokens.empty()) facts.eos_token_id = config.eos_tokens.front();
    auto tokenizer = LoadTokenizer(flags.model.model, facts);
    MNEME_ASSIGN_OR_RETURN(prompt.ids, PromptIds(flags, config, tokenizer));
    if (tokenizer.ok()) prompt.tokenizer = *std::move(tokenizer);
    MNEME_RETURN_IF_ERROR(prompt.tool.CheckRoom(static_cast<int64_t>(prompt.ids.size())));
    ToolLimits limits = {.tokens = kStepTokens};
    if (const Classes& classes = prompt.tool.model->info().classes;
        may_classify && classes.exist()) {
      SegmentedText text = FillUp(classes, prompt.ids, {});
      prompt.ids = std::move(text.tokens);
      prompt.types = std::move(text.types);
      limits = {.tokens = classes.segment, .whole_segments = true};
    }
    *code = kExitDevice;
    MNEME_RETURN_IF_ERROR(prompt.tool.Prepare(limits));
    prompt.tool.runner->set_observer(prompt.tape.get());
    prompt.slot = *prompt.tool.pool->Acquire();
    *code = kExitFailure;
    return prompt;
  }

  // `tape` may be null.
  absl::Status Feed(RoutingTape* tape) { return FeedTo(ids.size(), tape); }
  // The tokens before token `end` that were not fed yet; of a model that classifies those of a
  // segment.
  absl::Status FeedTo(size_t end, RoutingTape* tape) {
    while (fed < end) {
      const size_t count = types.empty() ? std::min<size_t>(kStepTokens, end - fed) : end - fed;
      const auto chunk = std::span(ids).subspan(fed, count);
      StepPlan plan;
      plan.AddRow({.slot = slot,
                   .position = static_cast<int64_t>(fed),
                   .tokens = chunk,
                   .types = types.empty() ? std::span<const int32_t>()
                                          : std::span<const int32_t>(types).subspan(fed, count),
                   .samples = true});
      if (tape != nullptr) tape->BeginStep(0, static_cast<int>(chunk.size()));
      MNEME_RETURN_IF_ERROR(tool.runner->Forward(plan, tape));
      if (!shows_divergence) {
        MNEME_RETURN_IF_ERROR(
            tool.CheckMemories(0, static_cast<int>(chunk.size()), static_cast<int64_t>(fed)));
      }
      fed += chunk.size();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<CanonicalState> State() {
    return DecodeState(*tool.backend, *tool.model,
                       tool.pool->slabs() + slot * tool.pool->slab_bytes(),
                       static_cast<int64_t>(fed));
  }

  // The text of each token, empty without a tokenizer.
  std::vector<std::string> Texts() const {
    std::vector<std::string> texts;
    for (size_t i = 0; tokenizer != nullptr && i < ids.size(); ++i) {
      texts.push_back(
          tokenizer
              ->Decode({&ids[i], 1}, {.skip_special_tokens = false, .at_sequence_start = false})
              .value_or(""));
    }
    return texts;
  }
};

int PrintRouting(const InspectFlags& flags) {
  ExitCode code = kExitFailure;
  auto prompt = ReadPrompt::Load(flags, {"--png", flags.png}, /*tape=*/nullptr, &code);
  if (!prompt.ok()) return Report(kProgram, prompt.status(), code);
  const ToolRunner& tool = prompt->tool;
  auto tape = RoutingTape::Create(*tool.backend, tool.model->info(), ReadPrompt::kStepTokens);
  if (!tape.ok()) return Report(kProgram, tape.status(), kExitUsage);
  const absl::Status fed = prompt->Feed(&*tape);
  if (!fed.ok()) return Report(kProgram, fed, kExitFailure);
  PrintTable(*tape, prompt->ids, prompt->Texts(), flags.surprise.rows);
  PrintShares(*tape);
  const auto state = prompt->State();
  if (!state.ok()) return Report(kProgram, state.status(), kExitFailure);
  PrintNorms(MemoryNorms(*state));
  if (!flags.png.empty()) {
    const absl::Status status = WriteRoutingImage(*tape, flags.png);
    if (!status.ok()) return Report(kProgram, status, kExitFailure);
    absl::PrintF("\nheat map in %s\n", flags.png);
  }
  return kExitOk;
}

int PrintSurprise(const InspectFlags& flags) {
  ExitCode code = kExitFailure;
  auto prompt = ReadPrompt::Load(
      flags, {"--dump-state", ""},
      std::make_unique<LayerTape>(std::set<std::string>{"loss", "theta", "eta", "alpha"}), &code);
  if (!prompt.ok()) return Report(kProgram, prompt.status(), code);
  const ModelInfo& info = prompt->tool.model->info();
  const absl::Status valid = CheckSurpriseView(flags.surprise, info);
  if (!valid.ok()) return Report(kProgram, valid, kExitUsage);
  prompt->shows_divergence = true;
  const absl::Status fed = prompt->Feed(/*tape=*/nullptr);
  if (!fed.ok()) return Report(kProgram, fed, kExitFailure);
  const absl::Status shown = CheckSurpriseValue(flags.surprise, info, *prompt->tape);
  if (!shown.ok()) return Report(kProgram, shown, kExitUsage);
  PrintSurprise(flags.surprise, info, *prompt->tape, prompt->ids, prompt->Texts());
  return kExitOk;
}

int DumpState(const InspectFlags& flags) {
  ExitCode code = kExitFailure;
  auto prompt = ReadPrompt::Load(flags, {"--dump-state", flags.dump_state},
                                 std::make_unique<LayerTape>(), &code);
  if (!prompt.ok()) return Report(kProgram, prompt.status(), code);
  absl::Status status = prompt->Feed(/*tape=*/nullptr);
  const auto state = status.ok() ? prompt->State() : status;
  if (!state.ok()) return Report(kProgram, state.status(), kExitFailure);
  status = WriteStateDump(prompt->tool.model->info(), prompt->ids, *state, *prompt->tape,
                          flags.dump_state);
  if (!status.ok()) return Report(kProgram, status, kExitFailure);
  absl::PrintF("state behind %d tokens in %s\n", prompt->ids.size(), flags.dump_state);
  return kExitOk;
}

// Segment by segment, as engrams are forgotten.
absl::Status WriteEngrams(ReadPrompt& prompt, std::ostream& out) {
  const ModelInfo& info = prompt.tool.model->info();
  const int segment = info.classes.exist() ? info.classes.segment : info.segment;
  const auto length = static_cast<size_t>(segment);
  while (prompt.fed < prompt.ids.size()) {
    MNEME_RETURN_IF_ERROR(prompt.FeedTo(std::min(prompt.fed + length, prompt.ids.size()),
                                        /*tape=*/nullptr));
    MNEME_ASSIGN_OR_RETURN(const CanonicalState state, prompt.State());
    const EngramGraph graph = EngramGraph::Read(
        state,
        {.tokens = segment, .working = info.working_engrams, .counted = info.counted_segments},
        {.counts = true});
    out << EngramDumpLine(graph) << "\n";
  }
  return absl::OkStatus();
}

int DumpEngrams(const InspectFlags& flags) {
  ExitCode code = kExitFailure;
  auto prompt =
      ReadPrompt::Load(flags, {"--dump-engrams", flags.dump_engrams}, /*tape=*/nullptr, &code,
                       /*may_classify=*/true);
  if (!prompt.ok()) return Report(kProgram, prompt.status(), code);
  const ModelInfo& info = prompt->tool.model->info();
  if (info.engrams == 0) {
    return Report(kProgram,
                  absl::InvalidArgumentError(
                      absl::StrCat("--dump-engrams: a model of type ", info.architecture,
                                   ", expected one that makes engrams (Memoria)")),
                  kExitUsage);
  }
  std::ofstream file(flags.dump_engrams, std::ios::binary | std::ios::trunc);
  const absl::Status written = WriteEngrams(*prompt, file);
  if (!written.ok()) return Report(kProgram, written, kExitFailure);
  file.close();
  if (!file) {
    return Report(kProgram,
                  absl::UnavailableError(absl::StrCat("cannot write ", flags.dump_engrams)),
                  kExitFailure);
  }
  absl::PrintF("engrams of %d tokens in %s\n", prompt->ids.size(), flags.dump_engrams);
  return kExitOk;
}

int Main(int argc, char** argv) {
  OpenStandardStreams(argv);
  InspectFlags flags;
  FlagParser parser(kSynopsis);
  parser.Add("--prompt", "TEXT", &flags.prompt,
             "what is read: text for the model's own tokenizer, BOS in front");
  parser.Add("--tokens", "FILE", &flags.tokens, "what is read: token ids separated by white space");
  parser.Add("--dump-state", "FILE", &flags.dump_state,
             "state: write tensors of the state, and of each layer and token");
  parser.Add("--dump-engrams", "FILE", &flags.dump_engrams,
             "state: write the engrams of each segment as a line of JSON");
  parser.Add("--png", "FILE", &flags.png, "routing: write the heat map");
  SurpriseView& view = flags.surprise;
  parser.Add("--rows", "N", &view.rows, 0, 1 << 30, "tokens of a table; default 64");
  parser.Add("--format", "NAME", &view.format, "surprise: table (default), csv, json or map");
  parser.Add("--value", "NAME", &view.value, "of a map: loss (default), theta, eta or alpha");
  parser.Add("--layers", "N,...", &view.layers, 0, 1 << 20, "surprise: these layers; default all");
  parser.Add("--by-head", &view.by_head, "surprise: of each head, not the mean over them");
  parser.Add("--columns", "N", &view.columns, 1, 1 << 20, "of a map: tokens a line; default 96");
  parser.Add("--colours", "NAME", &view.colours,
             "of a map: auto (default), 24bit, 256 or none, which is shades");
  parser.Add("--json", &flags.json, "session: print a line of JSON");
  flags.model.AddTo(parser, /*with_model=*/false);
  const auto parsed = parser.Parse(argc, argv);
  if (parser.help_requested()) {
    absl::PrintF("%s", parser.Help());
    return kExitOk;
  }
  if (!parsed.ok()) return Report(kProgram, parsed.status(), kExitUsage);
  const std::vector<std::string>& words = *parsed;
  const std::string command = words.empty() ? "" : words[0];
  const size_t expected = command == "diff" ? 3 : 2;
  const bool known = command == "weights" || command == "state" || command == "routing" ||
                     command == "surprise" || command == "session" || command == "diff";
  if (!known || words.size() != expected) {
    return Report(
        kProgram,
        absl::InvalidArgumentError("expected weights, state, routing, surprise, session or "
                                   "diff, and what to look at; see --help"),
        kExitUsage);
  }
  const bool dumps_state = !flags.dump_state.empty(), dumps_engrams = !flags.dump_engrams.empty();
  if ((dumps_state || dumps_engrams) && (command != "state" || dumps_state == dumps_engrams)) {
    return Report(kProgram,
                  absl::InvalidArgumentError("--dump-state and --dump-engrams: expected one of "
                                             "them, and the command state"),
                  kExitUsage);
  }
  flags.model.model = words[1];
  if (command == "routing") return PrintRouting(flags);
  if (command == "surprise") return PrintSurprise(flags);
  if (dumps_state) return DumpState(flags);
  if (dumps_engrams) return DumpEngrams(flags);
  if (command == "diff") {
    const auto same = PrintDiff(words[1], words[2]);
    if (!same.ok()) return Report(kProgram, same.status(), kExitModel);
    return *same ? kExitOk : kExitFailure;
  }
  if (command == "session") {
    const absl::Status read = PrintSessionFile(words[1], flags.json);
    return read.ok() ? kExitOk : Report(kProgram, read, kExitModel);
  }
  const absl::Status status =
      command == "weights" ? PrintWeights(words[1]) : PrintState(words[1], flags.model.options());
  return status.ok() ? kExitOk : Report(kProgram, status, kExitModel);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
