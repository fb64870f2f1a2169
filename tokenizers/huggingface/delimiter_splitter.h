// The behaviours of tokenizer.json: what becomes of the delimiters that a text is cut at.
#pragma once

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/huggingface/pre_tokenizer.h"
#include "tokenizers/huggingface/step_options.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {

// With "-" and "the-final--countdown":
enum class DelimiterBehavior {
  kRemoved,             // the final countdown
  kIsolated,            // the - final - - countdown
  kMergedWithPrevious,  // the- final- - countdown
  kMergedWithNext,      // the -final - -countdown
  kContiguous,          // the - final -- countdown
};

// From an option that has one of their names in the way of "MergedWithNext".
absl::StatusOr<DelimiterBehavior> DelimiterBehaviorOption(
    const StepOptions& options, absl::string_view name,
    std::optional<DelimiterBehavior> otherwise = {});

// The context of a part of `text` that begins at `begin`.
inline SectionContext ContextAt(size_t begin, SectionContext context) {
  return begin == 0 ? context : SectionContext{.at_text_start = false, .continuation = false};
}

// Cuts one text. Its stretches are given in their order and without gaps: delimiters, and what lies
// between them. Pieces go to the sink as soon as they are known; empty ones never do.
class DelimiterSplitter {
 public:
  DelimiterSplitter(absl::string_view text, SectionContext context, DelimiterBehavior behavior,
                    PieceSink sink)
      : text_(text), context_(context), behavior_(behavior), sink_(sink) {}

  absl::Status Stretch(size_t begin, size_t end, bool is_delimiter) {
    if (behavior_ == DelimiterBehavior::kIsolated) return Emit(begin, end);
    if (behavior_ == DelimiterBehavior::kRemoved) {
      return is_delimiter ? absl::OkStatus() : Emit(begin, end);
    }
    return Merge(begin, end, is_delimiter);
  }

  // After the last stretch.
  absl::Status Finish() { return pending_ ? Emit(begin_, end_) : absl::OkStatus(); }

 private:
  absl::Status Emit(size_t begin, size_t end) {
    if (begin == end) return absl::OkStatus();
    return sink_(text_.substr(begin, end - begin), ContextAt(begin, context_));
  }

  absl::Status Merge(size_t begin, size_t end, bool is_delimiter);

  const absl::string_view text_;
  const SectionContext context_;
  const DelimiterBehavior behavior_;
  const PieceSink sink_;
  // A piece that may still grow, and whether its last stretch is a delimiter.
  bool pending_ = false;
  size_t begin_ = 0, end_ = 0;
  bool last_is_delimiter_ = false;
};

// Each character that is one is a delimiter of its own.
template <typename IsDelimiter>
absl::Status SplitAtCharacters(absl::string_view text, SectionContext context,
                               DelimiterBehavior behavior, const IsDelimiter& is_delimiter,
                               PieceSink sink) {
  DelimiterSplitter splitter(text, context, behavior, sink);
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = CodePointAt(text, at);
    const size_t end = at + c.length;
    if (is_delimiter(c.value)) {
      if (begin < at) {
        if (absl::Status status = splitter.Stretch(begin, at, false); !status.ok()) return status;
      }
      if (absl::Status status = splitter.Stretch(at, end, true); !status.ok()) return status;
      begin = end;
    }
    at = end;
  }
  if (begin < text.size()) {
    if (absl::Status status = splitter.Stretch(begin, text.size(), false); !status.ok()) {
      return status;
    }
  }
  return splitter.Finish();
}

}  // namespace mneme
