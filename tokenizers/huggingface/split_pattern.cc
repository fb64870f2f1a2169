#include "tokenizers/huggingface/split_pattern.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tokenizers/huggingface/step_options.h"
#include "tokenizers/huggingface/word_scanner.h"
#include "tokenizers/regex/program.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {
namespace {

class GeneralPattern final : public SplitPattern {
 public:
  explicit GeneralPattern(PatternProgram program) : program_(std::move(program)) {}

  absl::Status FindAll(absl::string_view text, WorkMeter& meter, MatchSink sink) const override {
    return program_.FindAll(text, meter, sink);
  }

 private:
  const PatternProgram program_;
};

class LiteralPattern final : public SplitPattern {
 public:
  explicit LiteralPattern(absl::string_view literal) : literal_(literal) {}

  absl::Status FindAll(absl::string_view text, WorkMeter& meter, MatchSink sink) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    for (size_t at = 0; at <= text.size();) {
      const size_t begin = text.find(literal_, at);
      if (begin == absl::string_view::npos) break;
      at = begin + literal_.size();
      if (absl::Status status = sink(begin, at); !status.ok()) return status;
      if (literal_.empty()) at += at < text.size() ? CodePointAt(text, at).length : 1;
    }
    return absl::OkStatus();
  }

 private:
  const std::string literal_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SplitPattern>> CompileSplitPattern(absl::string_view pattern) {
  if (auto scanner = MakeWordScanner(pattern); scanner != nullptr) return scanner;
  absl::StatusOr<PatternProgram> program = PatternProgram::Compile(pattern);
  if (!program.ok()) return program.status();
  return std::make_unique<GeneralPattern>(*std::move(program));
}

std::unique_ptr<SplitPattern> LiteralSplitPattern(absl::string_view text) {
  return std::make_unique<LiteralPattern>(text);
}

absl::StatusOr<std::unique_ptr<SplitPattern>> MakeSplitPattern(const nlohmann::json& pattern,
                                                               absl::string_view path,
                                                               absl::string_view key) {
  const StepOptions options(pattern, path, key);
  if (!pattern.is_object() || pattern.size() != 1 ||
      (!pattern.contains("String") && !pattern.contains("Regex"))) {
    return options.Error("", "{\"String\": ...} or {\"Regex\": ...}");
  }
  if (pattern.contains("String")) {
    absl::StatusOr<std::string> literal = options.Text("String");
    if (!literal.ok()) return literal.status();
    return LiteralSplitPattern(*literal);
  }
  absl::StatusOr<std::string> text = options.Text("Regex");
  if (!text.ok()) return text.status();
  auto compiled = CompileSplitPattern(*text);
  if (!compiled.ok()) {
    return absl::Status(compiled.status().code(),
                        absl::StrCat(options.Error("Regex", "a pattern").message(), ": ",
                                     compiled.status().message()));
  }
  return compiled;
}

}  // namespace mneme
