// A text that one step after another changes, in two strings that take turns.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace mneme {

class TextSteps {
 public:
  // The result goes to `storage`, unless it is a part of `text`.
  TextSteps(absl::string_view text, std::string& storage) : text_(text), storage_(storage) {}
  TextSteps(const TextSteps&) = delete;
  TextSteps& operator=(const TextSteps&) = delete;

  absl::string_view text() const { return text_; }
  // Where a step may write.
  std::string& free() { return *free_; }
  // Takes what the step made of text(): a part of it, or of free().
  void Set(absl::string_view text) {
    if (LiesIn(text, *free_)) std::swap(free_, taken_);
    text_ = text;
  }

  // Once, at the end.
  absl::string_view Finish() {
    if (!LiesIn(text_, spare_)) return text_;
    const size_t begin = static_cast<size_t>(text_.data() - spare_.data());
    storage_.swap(spare_);
    return absl::string_view(storage_).substr(begin, text_.size());
  }

 private:
  static bool LiesIn(absl::string_view text, const std::string& string) {
    return text.data() >= string.data() && text.data() <= string.data() + string.size();
  }

  absl::string_view text_;
  std::string& storage_;
  std::string spare_;
  std::string* free_ = &storage_;
  std::string* taken_ = &spare_;
};

}  // namespace mneme
