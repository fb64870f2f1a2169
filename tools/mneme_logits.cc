// mneme-logits: what a model says after each token of a file, as a safetensors file.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/standard_streams.h"
#include "base/status_macros.h"
#include "engine/step_plan.h"
#include "models/classes.h"
#include "models/safetensors_writer.h"
#include "tools/flag_parser.h"
#include "tools/output_files.h"
#include "tools/recall_comparison.h"
#include "tools/routing_tape.h"
#include "tools/tool_runner.h"

namespace mneme {
namespace {

constexpr char kSynopsis[] =
    R"(usage: mneme-logits --model DIR --tokens FILE --out OUT.safetensors [flags]

Feeds the token ids of FILE (separated by white space) to a model as one session and writes

  logits  f32 [T, vocab]   row t: after feeding token t
  tokens  i32 [N]          with --greedy N: the most likely continuation

Of a model that classifies: f32 [S, classes], row s after the document's segment s, the last one filled
up as the model wants it. Segments are never cut, so that --chunks, --batch and --greedy mean nothing there.

With --compare-recall it prints instead which segment of a model that makes engrams is the first to recall others
in the arithmetic of --compute-dtype than in f32; --out is not needed.

How the tokens are fed (--chunks, --batch) must not change the result: on the CPU not by one bit.

  mneme-logits --model m --tokens ids.txt --out a.safetensors
  mneme-logits --model m --tokens ids.txt --out b.safetensors --chunks 7,1,13 --batch 8
  mneme-inspect diff a.safetensors b.safetensors

Exit codes: 0 done, 2 bad arguments or token file, 3 the model cannot be loaded, 4 no such device or
not enough memory, 1 anything else.
)";

constexpr char kProgram[] = "mneme-logits";
constexpr int kMaxChunk = 4096;
constexpr int kDefaultChunk = 512;
constexpr int kMaxBatch = 1024;

struct LogitsFlags {
  ModelFlags model;
  std::string tokens, out, routing_out, routing_in;
  std::vector<int> chunks;
  int batch = 1;
  int greedy = 0;
  bool compare_recall = false;
};

// Sessions that keep the one of interest company: they join, feed random tokens in random portions,
// pause, leave, and join again.
class Companions {
 public:
  static constexpr int kMaxTokens = 8;   // of one companion in one step
  static constexpr int kMaxLength = 40;  // in all

  Companions(StatePool& pool, int count, int vocab) : pool_(pool), vocab_(vocab), members_(count) {}

  // Adds this step's rows, and calls `add_main` at a random place between them.
  void AddRows(StepPlan& plan, const std::function<void()>& add_main) {
    const int place = Random(static_cast<int>(members_.size()) + 1);
    for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
      if (i == place) add_main();
      AddRow(plan, members_[static_cast<size_t>(i)]);
    }
    if (place == static_cast<int>(members_.size())) add_main();
  }

  // Uniform in [0, n); the same sequence in every run.
  int Random(int n) {
    return static_cast<int>(UniformDouble(/*seed=*/1, /*stream=*/0, draws_++) * n);
  }

 private:
  struct Member {
    std::optional<int> slot;
    int64_t position = 0;  // tokens fed
    int tokens_left = 0;
  };

  void AddRow(StepPlan& plan, Member& member) {
    // Not before: the slot of a row of this step must not be given to another row of it.
    if (member.slot.has_value() && member.tokens_left == 0) {
      pool_.Release(*member.slot);
      member.slot.reset();
    }
    if (!member.slot.has_value()) {
      if (Random(2) == 0) return;
      member.slot = pool_.Acquire();
      member.position = 0;
      member.tokens_left = 1 + Random(kMaxLength);
    }
    if (Random(4) == 0) return;  // pauses
    std::vector<int32_t> tokens(
        static_cast<size_t>(std::min(member.tokens_left, 1 + Random(kMaxTokens))));
    for (int32_t& token : tokens) token = Random(vocab_);
    plan.AddRow({.slot = *member.slot, .position = member.position, .tokens = tokens});
    member.position += static_cast<int64_t>(tokens.size());
    member.tokens_left -= static_cast<int>(tokens.size());
  }

  StatePool& pool_;
  const int vocab_;
  std::vector<Member> members_;
  uint64_t draws_ = 0;
};

// Feeds the session, alone or in company, and hands out its logits.
class Feeder {
 public:
  Feeder(ToolRunner& tool, const LogitsFlags& flags, RoutingTape* tape)
      : tool_(tool),
        flags_(flags),
        tape_(tape),
        companions_(*tool.pool, flags.batch - 1, tool.config.vocab) {}

  // The session joins when the others are under way.
  absl::Status Start() {
    for (int step = 0; step < 3 && flags_.batch > 1; ++step) MNEME_RETURN_IF_ERROR(StepOthers());
    slot_ = tool_.pool->Acquire();
    return slot_.has_value() ? absl::OkStatus() : absl::ResourceExhaustedError("no free slab");
  }

  // The number of tokens to feed next, of `left`.
  size_t NextChunk(size_t left) {
    const size_t size = flags_.chunks.empty()
                            ? kDefaultChunk
                            : static_cast<size_t>(flags_.chunks[steps_++ % flags_.chunks.size()]);
    return std::min(size, left);
  }

  // One step; returns the logits after each token, valid until the next.
  absl::StatusOr<std::span<const float>> Feed(std::span<const int32_t> tokens) {
    while (flags_.batch > 1 && companions_.Random(5) == 0) MNEME_RETURN_IF_ERROR(StepOthers());
    plan_.Clear();
    int first_token = 0;
    companions_.AddRows(plan_, [&] {
      first_token = plan_.tokens();
      plan_.AddRow({.slot = *slot_,
                    .position = position_,
                    .tokens = tokens,
                    .scored_tokens = static_cast<int>(tokens.size())});
    });
    const auto count = static_cast<int>(tokens.size());
    if (tape_ != nullptr) tape_->BeginStep(first_token, count);
    MNEME_RETURN_IF_ERROR(tool_.runner->Forward(plan_, tape_));
    MNEME_RETURN_IF_ERROR(tool_.CheckMemories(first_token, count, position_));
    position_ += count;
    logits_.resize(tokens.size() * static_cast<size_t>(tool_.config.vocab));
    MNEME_RETURN_IF_ERROR(tool_.runner->ReadLogits(logits_));
    return std::span<const float>(logits_);
  }

 private:
  absl::Status StepOthers() {
    plan_.Clear();
    companions_.AddRows(plan_, [] {});
    if (plan_.empty()) return absl::OkStatus();
    if (tape_ != nullptr) tape_->BeginStep(0, 0);
    return tool_.runner->Forward(plan_, tape_);
  }

  ToolRunner& tool_;
  const LogitsFlags& flags_;
  RoutingTape* tape_;
  Companions companions_;
  StepPlan plan_;
  std::optional<int> slot_;
  int64_t position_ = 0;  // tokens that it was fed
  std::vector<float> logits_;
  size_t steps_ = 0;
};

// Ties to the lower id.
int32_t MostLikely(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

absl::Status WriteLogits(ToolRunner& tool, const LogitsFlags& flags, std::span<const int32_t> ids,
                         RoutingTape* tape) {
  const int vocab = tool.config.vocab;
  std::vector<SafetensorsSpec> specs = {
      {"logits", DType::kF32, {static_cast<int64_t>(ids.size()), vocab}}};
  if (flags.greedy > 0) specs.push_back({"tokens", DType::kI32, {flags.greedy}});
  MNEME_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::Create(
          flags.out, specs,
          {{"model", tool.model->info().name},
           {"fingerprint", absl::StrFormat("%016x", tool.model->info().fingerprint)},
           {"backend", tool.backend->description()},
           {"compute_dtype", flags.model.compute_dtype},
           {"chunks", absl::StrJoin(flags.chunks, ",")},
           {"batch", absl::StrCat(flags.batch)}}));
  Feeder feeder(tool, flags, tape);
  MNEME_RETURN_IF_ERROR(feeder.Start());
  int32_t next = 0;
  while (!ids.empty()) {
    const std::span<const int32_t> chunk = ids.first(feeder.NextChunk(ids.size()));
    MNEME_ASSIGN_OR_RETURN(const std::span<const float> logits, feeder.Feed(chunk));
    MNEME_RETURN_IF_ERROR(writer->Write(std::as_bytes(logits)));
    next = MostLikely(logits.last(static_cast<size_t>(vocab)));
    ids = ids.subspan(chunk.size());
  }
  std::vector<int32_t> continuation;
  for (int i = 0; i < flags.greedy; ++i) {
    continuation.push_back(next);
    if (i + 1 == flags.greedy) break;
    MNEME_ASSIGN_OR_RETURN(const std::span<const float> logits, feeder.Feed({&next, 1}));
    next = MostLikely(logits);
  }
  MNEME_RETURN_IF_ERROR(writer->Write(std::as_bytes(std::span<const int32_t>(continuation))));
  if (!flags.routing_out.empty()) MNEME_RETURN_IF_ERROR(tape->Save(flags.routing_out));
  return writer->Finish();
}

// A document's logits, segment by segment.
absl::Status WriteClassLogits(ToolRunner& tool, const LogitsFlags& flags,
                              std::span<const int32_t> ids) {
  const ModelInfo& info = tool.model->info();
  const SegmentedText text = FillUp(info.classes, ids, {});
  const auto length = static_cast<size_t>(info.classes.segment);
  const size_t segments = (text.tokens.size() + length - 1) / length;
  const std::vector<SafetensorsSpec> specs = {
      {"logits", DType::kF32, {static_cast<int64_t>(segments), info.outputs()}}};
  MNEME_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::Create(flags.out, specs,
                                {{"model", info.name},
                                 {"fingerprint", absl::StrFormat("%016x", info.fingerprint)},
                                 {"backend", tool.backend->description()},
                                 {"compute_dtype", flags.model.compute_dtype}}));
  const int slot = *tool.pool->Acquire();
  std::vector<float> logits(static_cast<size_t>(info.outputs()));
  for (size_t at = 0; at < text.tokens.size(); at += length) {
    const size_t count = std::min(length, text.tokens.size() - at);
    StepPlan plan;
    plan.AddRow({.slot = slot,
                 .position = static_cast<int64_t>(at),
                 .tokens = std::span(text.tokens).subspan(at, count),
                 .types = std::span(text.types).subspan(at, count),
                 .samples = true});
    MNEME_RETURN_IF_ERROR(tool.runner->Forward(plan));
    MNEME_RETURN_IF_ERROR(tool.runner->ReadLogits(std::span(logits)));
    MNEME_RETURN_IF_ERROR(writer->Write(std::as_bytes(std::span<const float>(logits))));
  }
  return writer->Finish();
}

// What is wrong with a document for a model that classifies, or with flags beside it.
absl::Status CheckDocument(const Classes& classes, const LogitsFlags& flags, size_t tokens) {
  if (flags.greedy > 0 || flags.batch > 1 || !flags.chunks.empty() || !flags.routing_in.empty() ||
      !flags.routing_out.empty()) {
    return absl::InvalidArgumentError(
        "the model classifies documents, whose segments are never cut: expected none of --greedy, "
        "--batch, --chunks, --routing-in and --routing-out");
  }
  if (tokens == 0 || (classes.one_segment && tokens > static_cast<size_t>(classes.segment))) {
    return absl::InvalidArgumentError(absl::StrCat("a document of ", tokens,
                                                   " tokens, expected 1 to ", classes.segment,
                                                   ", the positions that the model has"));
  }
  return absl::OkStatus();
}

absl::Status CheckFlags(const LogitsFlags& flags, const std::vector<std::string>& positional) {
  if (!positional.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", positional[0], "\""));
  }
  for (const auto& [name, value] :
       {std::pair("--model", &flags.model.model), std::pair("--tokens", &flags.tokens),
        std::pair("--out", &flags.out)}) {
    if (value->empty() && !(flags.compare_recall && value == &flags.out)) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is required; see --help"));
    }
  }
  if (flags.compare_recall && flags.model.compute_dtype == "f32") {
    return absl::InvalidArgumentError(
        "--compare-recall compares another arithmetic with f32: expected --compute-dtype bf16");
  }
  if (flags.batch > 1 && !flags.routing_in.empty()) {
    return absl::InvalidArgumentError(
        "--routing-in works for a session that is alone, not with --batch");
  }
  return CheckOutputFiles({{"--out", flags.out}, {"--routing-out", flags.routing_out}},
                          {{"--tokens", flags.tokens}, {"--routing-in", flags.routing_in}},
                          {"--model", flags.model.model});
}

// Two runs, one behind the other, so that only one model is in memory.
int CompareRecall(const LogitsFlags& flags, std::span<const int32_t> ids) {
  std::vector<Recalls> runs;
  for (const std::string& compute_dtype : {std::string("f32"), flags.model.compute_dtype}) {
    ModelFlags model = flags.model;
    model.compute_dtype = compute_dtype;
    ExitCode code = kExitFailure;
    auto tool = ToolRunner::Load(model, &code);
    if (!tool.ok()) return Report(kProgram, tool.status(), code);
    const absl::Status room = tool->CheckRoom(static_cast<int64_t>(ids.size()));
    if (!room.ok()) return Report(kProgram, room, kExitUsage);
    const absl::Status prepared = tool->Prepare({.tokens = kDefaultChunk, .logit_rows = 1});
    if (!prepared.ok()) return Report(kProgram, prepared, kExitDevice);
    auto recalls = RecallsOf(*tool, ids);
    if (!recalls.ok()) {
      return Report(kProgram, recalls.status(),
                    absl::IsInvalidArgument(recalls.status()) ? kExitUsage : kExitFailure);
    }
    runs.push_back(*std::move(recalls));
  }
  absl::PrintF("%s\n", FirstDifference(runs[0], runs[1]));
  return kExitOk;
}

int Main(int argc, char** argv) {
  OpenStandardStreams(argv);
  LogitsFlags flags;
  FlagParser parser(kSynopsis);
  flags.model.AddTo(parser, /*with_model=*/true);
  parser.Add("--tokens", "FILE", &flags.tokens, "token ids separated by white space");
  parser.Add("--out", "FILE", &flags.out, "safetensors file to write");
  parser.Add(
      "--chunks", "N,N,...", &flags.chunks, 1, kMaxChunk,
      absl::StrCat("tokens per step; after the last size the first one follows again, until\n"
                   "all tokens are fed; default: ",
                   kDefaultChunk));
  parser.Add("--batch", "N", &flags.batch, 1, kMaxBatch,
             "N - 1 other sessions run beside it, joining and leaving");
  parser.Add("--greedy", "N", &flags.greedy, 0, 1 << 24,
             "also continue with the N most likely tokens");
  parser.Add("--routing-out", "FILE", &flags.routing_out, "write each layer's choice of memories");
  parser.Add("--routing-in", "FILE", &flags.routing_in,
             "force the choices that --routing-out wrote, to compare\nrounded arithmetic at equal "
             "routing; refused with --batch above 1,\nwhose other sessions have no such choices");
  parser.Add("--compare-recall", &flags.compare_recall,
             "print the first segment that recalls other engrams than in f32");
  const auto positional = parser.Parse(argc, argv);
  if (parser.help_requested()) {
    absl::PrintF("%s", parser.Help());
    return kExitOk;
  }
  if (!positional.ok()) return Report(kProgram, positional.status(), kExitUsage);
  if (const absl::Status status = CheckFlags(flags, *positional); !status.ok()) {
    return Report(kProgram, status, kExitUsage);
  }

  // The token file is checked against the vocabulary before weights are read.
  const auto config = ReadModelConfig(flags.model.model, flags.model.segment_tokens);
  if (!config.ok()) return Report(kProgram, config.status(), kExitModel);
  const auto ids = ReadTokenFile(flags.tokens, config->vocab);
  if (!ids.ok()) return Report(kProgram, ids.status(), kExitUsage);
  if (flags.compare_recall) return CompareRecall(flags, *ids);
  ExitCode code = kExitFailure;
  auto tool = ToolRunner::Load(flags.model, &code);
  if (!tool.ok()) return Report(kProgram, tool.status(), code);

  if (const Classes& classes = tool->model->info().classes; classes.exist()) {
    if (const absl::Status status = CheckDocument(classes, flags, ids->size()); !status.ok()) {
      return Report(kProgram, status, kExitUsage);
    }
    absl::Status status =
        tool->Prepare({.tokens = classes.segment, .logit_rows = 1, .whole_segments = true});
    if (!status.ok()) return Report(kProgram, status, kExitDevice);
    status = WriteClassLogits(*tool, flags, *ids);
    return status.ok() ? kExitOk : Report(kProgram, status, kExitFailure);
  }

  const int64_t fed = static_cast<int64_t>(ids->size()) + std::max(0, flags.greedy - 1);
  const int64_t longest = flags.batch > 1 ? std::max<int64_t>(fed, Companions::kMaxLength) : fed;
  if (const absl::Status room = tool->CheckRoom(longest); !room.ok()) {
    return Report(kProgram, room, kExitUsage);
  }

  int chunk = std::min<int>(kDefaultChunk, static_cast<int>(ids->size()));
  if (!flags.chunks.empty()) chunk = *std::max_element(flags.chunks.begin(), flags.chunks.end());
  const int step_tokens = chunk + (flags.batch - 1) * Companions::kMaxTokens;
  const absl::Status prepared = tool->Prepare(
      {.slots = flags.batch, .rows = flags.batch, .tokens = step_tokens, .logit_rows = chunk});
  if (!prepared.ok()) return Report(kProgram, prepared, kExitDevice);

  std::optional<RoutingTape> tape;
  if (!flags.routing_in.empty() || !flags.routing_out.empty()) {
    auto made = RoutingTape::Create(*tool->backend, tool->model->info(), step_tokens);
    if (!made.ok()) return Report(kProgram, made.status(), kExitUsage);
    tape.emplace(*std::move(made));
  }
  if (!flags.routing_in.empty()) {
    const absl::Status status = tape->LoadForced(flags.routing_in, fed);
    if (!status.ok()) return Report(kProgram, status, kExitUsage);
  }
  const absl::Status status = WriteLogits(*tool, flags, *ids, tape.has_value() ? &*tape : nullptr);
  return status.ok() ? kExitOk : Report(kProgram, status, kExitFailure);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
