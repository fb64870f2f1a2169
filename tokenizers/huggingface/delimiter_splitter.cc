#include "tokenizers/huggingface/delimiter_splitter.h"

#include <string>

namespace mneme {

absl::StatusOr<DelimiterBehavior> DelimiterBehaviorOption(
    const StepOptions& options, absl::string_view name,
    std::optional<DelimiterBehavior> otherwise) {
  if (otherwise.has_value() && options.Find(name) == nullptr) return *otherwise;
  const auto text = options.Text(name);
  if (!text.ok()) return text.status();
  if (*text == "Removed") return DelimiterBehavior::kRemoved;
  if (*text == "Isolated") return DelimiterBehavior::kIsolated;
  if (*text == "MergedWithPrevious") return DelimiterBehavior::kMergedWithPrevious;
  if (*text == "MergedWithNext") return DelimiterBehavior::kMergedWithNext;
  if (*text == "Contiguous") return DelimiterBehavior::kContiguous;
  return options.Error(name,
                       "one of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

absl::Status DelimiterSplitter::Merge(size_t begin, size_t end, bool is_delimiter) {
  bool grows = false;
  switch (behavior_) {
    case DelimiterBehavior::kContiguous:
      grows = is_delimiter == last_is_delimiter_;
      break;
    case DelimiterBehavior::kMergedWithPrevious:
      grows = is_delimiter && !last_is_delimiter_;
      break;
    default:  // kMergedWithNext
      grows = !is_delimiter && last_is_delimiter_;
  }
  if (pending_ && grows) {
    end_ = end;
  } else {
    if (absl::Status status = Finish(); !status.ok()) return status;
    begin_ = begin;
    end_ = end;
    pending_ = true;
  }
  last_is_delimiter_ = is_delimiter;
  return absl::OkStatus();
}

}  // namespace mneme
