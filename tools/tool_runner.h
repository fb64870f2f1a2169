// A model on a backend with a few slots, for tools that feed rows and look at what happens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model_runner.h"
#include "engine/state_pool.h"
#include "kernels/backend.h"
#include "models/model.h"
#include "models/model_config.h"
#include "tools/flag_parser.h"

namespace mneme {

// The flags that choose a model and where it runs.
struct ModelFlags {
  std::string model;
  std::string device = "cpu";
  std::string compute_dtype = "f32";
  std::string state_dtype = "f32";
  std::string isa = "auto";
  int threads = 0;
  int max_context = kDefaultMaxContext;
  int engram_capacity = 0;
  int segment_tokens = 0;

  ModelOptions options(LayerObserver* observer = nullptr) const {
    return {.max_context = max_context,
            .engram_capacity = engram_capacity,
            .segment_tokens = segment_tokens,
            .observer = observer};
  }

  // --model is left out where the folder is a positional argument.
  void AddTo(FlagParser& parser, bool with_model);
};

// The most that a step may hold; memory for it is taken at the start.
struct ToolLimits {
  int slots = 1;
  int rows = 1;
  int tokens = 1;
  int logit_rows = 1;
  bool whole_segments = false;  // as models that classify need them
};

// Members in the order in which they need each other.
struct ToolRunner {
  ModelConfig config;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<StatePool> pool;
  std::unique_ptr<ModelRunner> runner;

  // On failure, `code` is the exit code that fits. Shows progress on standard error if that is a
  // terminal and loading takes more than a second.
  // `observer`: as ModelOptions has it.
  static absl::StatusOr<ToolRunner> Load(const ModelFlags& flags, ExitCode* code,
                                         LayerObserver* observer = nullptr);
  // UNIMPLEMENTED for a model that classifies, unless its segments are fed whole.
  absl::Status Prepare(const ToolLimits& limits);
  // INVALID_ARGUMENT if the model has no room for a sequence of so many tokens (--max-context).
  absl::Status CheckRoom(int64_t tokens) const;
  // INTERNAL, as the server says it, if training made a memory non-finite at one of `count` tokens
  // of the step that the runner fed last, which begin with the step's token `first` and the
  // sequence's token `position`.
  absl::Status CheckMemories(int first, int count, int64_t position) const;
};

// Whitespace-separated token ids. INVALID_ARGUMENT for an empty file, text that is no id, or an id
// outside the vocabulary, with its index.
absl::StatusOr<std::vector<int32_t>> ReadTokenFile(const std::string& path, int vocab);
// The same from text; `source` is for messages.
absl::StatusOr<std::vector<int32_t>> ParseTokens(absl::string_view text, absl::string_view source,
                                                 int vocab);

}  // namespace mneme
