// mneme-inspect: looks into model folders and safetensors files.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/standard_streams.h"
#include "base/status_macros.h"
#include "engine/step_plan.h"
#include "kernels/float16.h"
#include "models/checkpoint.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "models/state_codec.h"
#include "tokenizers/tokenizer_loader.h"
#include "tools/flag_parser.h"
#include "tools/memory_norms.h"
#include "tools/output_files.h"
#include "tools/routing_image.h"
#include "tools/routing_tape.h"
#include "tools/tool_runner.h"

namespace mneme {
namespace {

constexpr char kSynopsis[] =
    R"(usage: mneme-inspect weights FILE|FOLDER            what a safetensors file holds
       mneme-inspect state FOLDER                   layout and size of a session's state
       mneme-inspect routing FOLDER --prompt TEXT   which memory each token goes to, as a table
       mneme-inspect routing FOLDER --tokens FILE   and, with --png FILE, as a heat map
       mneme-inspect diff A B                       how two safetensors files differ

Below it: each memory's share of the tokens, and the norm of its matrices after them.
In a routing table every column is a layer, and its digits are the memories in order of weight. In a heat
map every column is a token, every band of rows a layer and every row of it a memory: dark where the token did
not go, the brighter the larger its weight there.

Exit codes: 0 done (diff: the files are equal by bits), 1 they differ, or anything not below, 2 bad
arguments, 3 the model or file cannot be read, 4 no such device or not enough memory.
)";

constexpr char kProgram[] = "mneme-inspect";

struct InspectFlags {
  ModelFlags model;
  std::string prompt, tokens, png;
  int rows = 64;
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

absl::Status PrintState(const std::string& folder) {
  MNEME_ASSIGN_OR_RETURN(const ModelPlan plan, PlanModel(folder, StateFormat{}));
  const int64_t slab = plan.state_layout.slab_bytes();
  absl::PrintF("%s: %s, %d layers, %d parameters, weights %s\n", plan.info.name,
               plan.info.architecture, plan.info.layers, plan.info.parameters,
               plan.info.weight_dtype);
  absl::PrintF("%s", plan.state_layout.ToString());
  const std::optional<int64_t> most = plan.state_layout.max_tokens();
  const std::string length =
      most.has_value() ? absl::StrCat("for up to ", *most, " tokens") : "however long it is";
  absl::PrintF("a session takes %.2f MiB, %s; %d sessions fit in 1 GiB\n",
               static_cast<double>(slab) / (1 << 20), length, (int64_t{1} << 30) / slab);
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
                const Tokenizer* tokenizer, int rows) {
  const char* separator = tape.memories() > 10 ? "," : "";
  absl::PrintF("%6s %7s %-16s memories by layer, 0 to %d\n", "token", "id", "text",
               tape.layers() - 1);
  for (int64_t token = 0; token < std::min<int64_t>(rows, tape.tokens()); ++token) {
    std::string text;
    if (tokenizer != nullptr) {
      const auto decoded = tokenizer->Decode(
          {&ids[token], 1}, {.skip_special_tokens = false, .at_sequence_start = false});
      if (decoded.ok()) text = absl::StrCat("\"", absl::CHexEscape(*decoded), "\"");
    }
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

int PrintRouting(const InspectFlags& flags) {
  constexpr int kStepTokens = 256;
  if (flags.prompt.empty() == flags.tokens.empty()) {
    return Report(kProgram, absl::InvalidArgumentError("routing needs either --prompt or --tokens"),
                  kExitUsage);
  }
  const absl::Status writable = CheckOutputFiles(
      {{"--png", flags.png}}, {{"--tokens", flags.tokens}}, {"FOLDER", flags.model.model});
  if (!writable.ok()) return Report(kProgram, writable, kExitUsage);
  ExitCode code = kExitFailure;
  auto tool = ToolRunner::Load(flags.model, &code);
  if (!tool.ok()) return Report(kProgram, tool.status(), code);
  TokenizerFacts facts{.vocab_size = tool->config.vocab, .bos_token_id = tool->config.bos_token};
  if (!tool->config.eos_tokens.empty()) facts.eos_token_id = tool->config.eos_tokens.front();
  const auto tokenizer = LoadTokenizer(flags.model.model, facts);
  const auto ids = PromptIds(flags, tool->config, tokenizer);
  if (!ids.ok()) return Report(kProgram, ids.status(), kExitUsage);
  const absl::Status room = tool->CheckRoom(static_cast<int64_t>(ids->size()));
  if (!room.ok()) return Report(kProgram, room, kExitUsage);

  const absl::Status prepared = tool->Prepare({.tokens = kStepTokens});
  if (!prepared.ok()) return Report(kProgram, prepared, kExitDevice);
  auto tape = RoutingTape::Create(*tool->backend, tool->model->info(), kStepTokens);
  if (!tape.ok()) return Report(kProgram, tape.status(), kExitUsage);
  const int slot = *tool->pool->Acquire();
  for (size_t fed = 0; fed < ids->size(); fed += kStepTokens) {
    const auto chunk =
        std::span(*ids).subspan(fed, std::min<size_t>(kStepTokens, ids->size() - fed));
    StepPlan plan;
    plan.AddRow(
        {.slot = slot, .position = static_cast<int64_t>(fed), .tokens = chunk, .samples = true});
    tape->BeginStep(0, static_cast<int>(chunk.size()));
    const absl::Status status = tool->runner->Forward(plan, &*tape);
    if (!status.ok()) return Report(kProgram, status, kExitFailure);
  }
  PrintTable(*tape, *ids, tokenizer.ok() ? tokenizer->get() : nullptr, flags.rows);
  PrintShares(*tape);
  const auto state = DecodeState(*tool->backend, *tool->model,
                                 tool->pool->slabs() + slot * tool->pool->slab_bytes(),
                                 static_cast<int64_t>(ids->size()));
  if (!state.ok()) return Report(kProgram, state.status(), kExitFailure);
  PrintNorms(MemoryNorms(*state));
  if (!flags.png.empty()) {
    const absl::Status status = WriteRoutingImage(*tape, flags.png);
    if (!status.ok()) return Report(kProgram, status, kExitFailure);
    absl::PrintF("\nheat map in %s\n", flags.png);
  }
  return kExitOk;
}

bool HasNumbers(const SafetensorsTensor& tensor) {
  return tensor.dtype == DType::kF64 || tensor.dtype == DType::kF32 ||
         tensor.dtype == DType::kI32 || tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16;
}

// Elements as numbers, of a tensor that has them.
std::vector<double> Values(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
  const std::byte* const bytes = file.Bytes(tensor).data();
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    float f32 = 0;
    int32_t i32 = 0;
    uint16_t half = 0;
    if (tensor.dtype == DType::kF64) {
      std::memcpy(&values[i], bytes + 8 * i, 8);
    } else if (tensor.dtype == DType::kF32) {
      std::memcpy(&f32, bytes + 4 * i, 4);
      values[i] = f32;
    } else if (tensor.dtype == DType::kI32) {
      std::memcpy(&i32, bytes + 4 * i, 4);
      values[i] = i32;
    } else {
      std::memcpy(&half, bytes + 2 * i, 2);
      values[i] = tensor.dtype == DType::kBF16 ? F32FromBF16(half) : F32FromF16(half);
    }
  }
  return values;
}

// One line about a tensor of both files; returns whether it is the same by bits.
bool PrintDifference(const SafetensorsFile& a, const SafetensorsTensor& x, const SafetensorsFile& b,
                     const SafetensorsTensor& y) {
  const std::string name = absl::CHexEscape(x.name);
  if (x.shape != y.shape) {
    absl::PrintF("%-56s shape %s and %s\n", name, ShapeToString(x.shape), ShapeToString(y.shape));
    return false;
  }
  const bool same_type = x.dtype_name == y.dtype_name;
  const std::string types =
      same_type ? "" : absl::StrCat(x.dtype_name, " and ", y.dtype_name, ", ");
  const auto left = a.Bytes(x), right = b.Bytes(y);
  if (same_type && std::equal(left.begin(), left.end(), right.begin(), right.end())) {
    absl::PrintF("%-56s same bits\n", name);
    return true;
  }
  if (!HasNumbers(x) || !HasNumbers(y)) {
    absl::PrintF("%-56s %sbits differ\n", name, types);
    return false;
  }
  const std::vector<double> p = Values(a, x), q = Values(b, y);
  double difference = 0, norm = 0, largest = 0;
  size_t differing = 0;
  for (size_t i = 0; i < std::min(p.size(), q.size()); ++i) {
    const double d = p[i] - q[i];
    difference += d * d;
    norm += q[i] * q[i];
    largest = std::max(largest, std::abs(d));
    if (p[i] != q[i]) ++differing;
  }
  absl::PrintF("%-56s %s%d of %d elements differ, relative error %.3g, largest difference %.3g\n",
               name, types, differing, p.size(),
               norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference), largest);
  return false;
}

absl::StatusOr<bool> PrintDiff(const std::string& path_a, const std::string& path_b) {
  MNEME_ASSIGN_OR_RETURN(const SafetensorsFile a, SafetensorsFile::Open(path_a));
  MNEME_ASSIGN_OR_RETURN(const SafetensorsFile b, SafetensorsFile::Open(path_b));
  bool same = true;
  for (const SafetensorsTensor& tensor : a.header().tensors) {
    const SafetensorsTensor* other = b.header().Find(tensor.name);
    if (other == nullptr) absl::PrintF("%-56s only in %s\n", absl::CHexEscape(tensor.name), path_a);
    same &= other != nullptr && PrintDifference(a, tensor, b, *other);
  }
  for (const SafetensorsTensor& tensor : b.header().tensors) {
    if (a.header().Find(tensor.name) != nullptr) continue;
    absl::PrintF("%-56s only in %s\n", absl::CHexEscape(tensor.name), path_b);
    same = false;
  }
  return same;
}

int Main(int argc, char** argv) {
  OpenStandardStreams(argv);
  InspectFlags flags;
  FlagParser parser(kSynopsis);
  parser.Add("--prompt", "TEXT", &flags.prompt,
             "routing: text for the model's own tokenizer, BOS in front");
  parser.Add("--tokens", "FILE", &flags.tokens, "routing: token ids separated by white space");
  parser.Add("--png", "FILE", &flags.png, "routing: write the heat map");
  parser.Add("--rows", "N", &flags.rows, 0, 1 << 30, "routing: lines of the table; default 64");
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
  if ((command != "weights" && command != "state" && command != "routing" && command != "diff") ||
      words.size() != expected) {
    return Report(kProgram,
                  absl::InvalidArgumentError(
                      "expected weights, state, routing or diff, and what to look at; see --help"),
                  kExitUsage);
  }
  if (command == "routing") {
    flags.model.model = words[1];
    return PrintRouting(flags);
  }
  if (command == "diff") {
    const auto same = PrintDiff(words[1], words[2]);
    if (!same.ok()) return Report(kProgram, same.status(), kExitModel);
    return *same ? kExitOk : kExitFailure;
  }
  const absl::Status status = command == "weights" ? PrintWeights(words[1]) : PrintState(words[1]);
  return status.ok() ? kExitOk : Report(kProgram, status, kExitModel);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
