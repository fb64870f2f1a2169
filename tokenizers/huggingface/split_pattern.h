// The patterns of tokenizer.json: of Split and Replace.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/work_meter.h"

namespace mneme {

// Immutable: any thread may call const members at any time.
class SplitPattern {
 public:
  // Takes where a match begins and ends; an error ends the search.
  using MatchSink = absl::FunctionRef<absl::Status(size_t begin, size_t end)>;

  virtual ~SplitPattern() = default;

  // Gives the matches in `text`, which is valid UTF-8, in their order; none overlap. Errors are
  // those of `meter` and `sink`, and INVALID_ARGUMENT, which names the pattern, for a text that it
  // gives up on: see PatternProgram (tokenizers/regex/program.h). Work is linear in the text.
  virtual absl::Status FindAll(absl::string_view text, WorkMeter& meter, MatchSink sink) const = 0;
};

// A pattern in Oniguruma's syntax. Errors as of PatternProgram::Compile.
absl::StatusOr<std::unique_ptr<SplitPattern>> CompileSplitPattern(absl::string_view pattern);

// A text that stands for itself; an empty one is found at each character, and at the end.
std::unique_ptr<SplitPattern> LiteralSplitPattern(absl::string_view text);

// From {"String": ...} or {"Regex": ...}. `key` is where the file at `path` has it, for errors.
absl::StatusOr<std::unique_ptr<SplitPattern>> MakeSplitPattern(const nlohmann::json& pattern,
                                                               absl::string_view path,
                                                               absl::string_view key);

}  // namespace mneme
