// Keeps many short texts without an allocation for each.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"

namespace mneme {

// Texts of Add stay where they are for as long as the arena lives, also when that is moved.
class TextArena {
 public:
  absl::string_view Add(absl::string_view text) {
    if (text.empty()) return {};
    if (text.size() > left_) {
      left_ = std::max(kBlockBytes, text.size());
      blocks_.push_back(std::unique_ptr<char[]>(new char[left_]));
      next_ = blocks_.back().get();
    }
    char* const begin = next_;
    std::memcpy(begin, text.data(), text.size());
    next_ += text.size();
    left_ -= text.size();
    return {begin, text.size()};
  }

 private:
  static constexpr size_t kBlockBytes = size_t{1} << 18;

  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace mneme
