#include "tools/tool_runner.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "engine/engine_stats.h"
#include "engine/surprise_counter.h"
#include "kernels/reference/reference_backend.h"

namespace mneme {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> MakeToolBackend(const ModelFlags& flags) {
  BackendOptions options{.threads = flags.threads, .isa = flags.isa};
  options.compute_dtype = flags.compute_dtype == "bf16" ? DType::kBF16 : DType::kF32;
  if (flags.compute_dtype != "bf16" && flags.compute_dtype != "f32") {
    return absl::InvalidArgumentError(
        absl::StrCat("--compute-dtype: \"", flags.compute_dtype, "\", expected f32 or bf16"));
  }
  if (flags.state_dtype == "f16") {
    options.state_dtype = DType::kF16;
  } else if (flags.state_dtype == "int8") {
    options.state_dtype = DType::kI8;
  } else if (flags.state_dtype != "f32") {
    return absl::InvalidArgumentError(
        absl::StrCat("--state-dtype: \"", flags.state_dtype, "\", expected f32, f16 or int8"));
  }
  if (flags.device == "reference") return MakeReferenceBackend(options);
  return MakeBackend(flags.device, options);
}

// Percentages on one line, from the second second on.
class ProgressLine {
 public:
  void operator()(int64_t done, int64_t total) {
    using std::chrono::steady_clock;
    if (!isatty(STDERR_FILENO) || steady_clock::now() - start_ < std::chrono::seconds(1)) return;
    const int percent = static_cast<int>(100 * done / std::max<int64_t>(total, 1));
    if (percent == shown_) return;
    shown_ = percent;
    std::fprintf(stderr, "\rloading %3d %%%s", percent, percent == 100 ? "\n" : "");
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int shown_ = -1;
};

}  // namespace

void ModelFlags::AddTo(FlagParser& parser, bool with_model) {
  if (with_model)
    parser.Add("--model", "DIR", &model, "folder with config.json and model.safetensors");
  parser.Add("--device", "NAME", &device,
             "cpu (default), cuda, or reference: float64, one token at a time");
  parser.Add("--compute-dtype", "TYPE", &compute_dtype,
             "f32 (default), or bf16: activations rounded before matrix products");
  parser.Add("--state-dtype", "TYPE", &state_dtype,
             "f32 (default), or with cuda f16 or int8: how matrix memories are stored");
  parser.Add("--max-context", "N", &max_context, 1, 1 << 24,
             "tokens that a sequence may have where the model has attention to all (8192)");
  parser.Add("--engram-capacity", "N", &engram_capacity, 0, 8192,
             "engrams that a sequence has room for where the model makes some; 0 (default): what"
             " follows from the model");
  parser.Add("--segment-tokens", "N", &segment_tokens, 0, 1 << 30,
             "tokens of a segment where the model has some, and its config.json does not say");
  parser.Add("--isa", "NAME", &isa, "auto (default), baseline, avx2, avx512, avx512_bf16 or amx");
  parser.Add("--threads", "N", &threads, 0, 4096,
             "CPU threads; 0 (default): all that this process may use");
}

absl::StatusOr<ToolRunner> ToolRunner::Load(const ModelFlags& flags, ExitCode* code,
                                            LayerObserver* observer) {
  ToolRunner tool;
  auto backend = MakeToolBackend(flags);
  if (!backend.ok()) {
    *code = absl::IsInvalidArgument(backend.status()) ? kExitUsage : kExitDevice;
    return backend.status();
  }
  tool.backend = *std::move(backend);
  *code = kExitModel;
  ProgressLine progress;
  MNEME_ASSIGN_OR_RETURN(tool.config, ReadModelConfig(flags.model, flags.segment_tokens));
  auto model = LoadModel(flags.model, *tool.backend, std::ref(progress), flags.options(observer));
  if (absl::IsResourceExhausted(model.status())) *code = kExitDevice;
  MNEME_RETURN_IF_ERROR(model.status());
  tool.model = *std::move(model);
  return tool;
}

absl::Status ToolRunner::Prepare(const ToolLimits& limits) {
  if (model->info().classes.exist() && !limits.whole_segments) {
    return absl::UnimplementedError(
        absl::StrCat("model_type \"", model->info().architecture,
                     "\" classifies, and is fed whole segments, not tokens; mneme-logits does so"));
  }
  MNEME_ASSIGN_OR_RETURN(pool, StatePool::Create(*backend, *model, limits.slots));
  MNEME_ASSIGN_OR_RETURN(
      runner, ModelRunner::Create(
                  *backend, *model, *pool,
                  {.rows = limits.rows, .tokens = limits.tokens, .logit_rows = limits.logit_rows}));
  return absl::OkStatus();
}

absl::Status ToolRunner::CheckRoom(int64_t tokens) const {
  const std::optional<int64_t> most = model->state_layout().max_tokens();
  if (!most.has_value() || tokens <= *most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a sequence of ", tokens,
                                                 " tokens, expected at most ", *most, ", ",
                                                 ContextBound(model->info(), *most)));
}

absl::Status ToolRunner::CheckMemories(int first, int count, int64_t position) const {
  StepSurprise surprise;
  MNEME_RETURN_IF_ERROR(runner->ReadSurprise(surprise));
  TrainingStats stats;
  const SurpriseCounter::Row row =
      SurpriseCounter(model->info(), stats).Count(surprise, first, first + count, position);
  return row.divergence.has_value() ? SurpriseCounter::ErrorOf(*row.divergence) : absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ParseTokens(absl::string_view text, absl::string_view source,
                                                 int vocab) {
  std::vector<int32_t> tokens;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t\r\n\v\f"), absl::SkipEmpty())) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(word, &id) || id < 0 || id >= vocab) {
      return absl::InvalidArgumentError(absl::StrCat(source, ": token ", tokens.size(), " is \"",
                                                     word.substr(0, 40),
                                                     "\", expected an id from 0 to ", vocab - 1));
    }
    tokens.push_back(static_cast<int32_t>(id));
  }
  if (tokens.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": holds no token, expected at least one"));
  }
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> ReadTokenFile(const std::string& path, int vocab) {
  MNEME_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseTokens(file.text(), path, vocab);
}

}  // namespace mneme
