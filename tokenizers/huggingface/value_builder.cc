#include "tokenizers/huggingface/value_builder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"

namespace mneme {

void ValueBuilder::Begin(nlohmann::json& root, std::string name) {
  root_ = &root;
  name_ = std::move(name);
  open_.clear();
}

absl::Status ValueBuilder::Add(nlohmann::json value) {
  if (++values_ > kMaxValues) {
    return Error(
        absl::StrCat("the file has more than ", kMaxValues, " values beside the vocabulary"));
  }
  Put(std::move(value));
  return absl::OkStatus();
}

absl::Status ValueBuilder::Open(nlohmann::json empty) {
  if (open_.size() == kMaxDepth) {
    return Error(absl::StrCat("is nested deeper than ", kMaxDepth, " levels"));
  }
  if (++values_ > kMaxValues) {
    return Error(
        absl::StrCat("the file has more than ", kMaxValues, " values beside the vocabulary"));
  }
  open_.push_back({Put(std::move(empty)), ""});
  return absl::OkStatus();
}

absl::Status ValueBuilder::Key(const std::string& key) {
  Level& level = open_.back();
  if (level.value->contains(key)) {
    return Error(absl::StrCat("key ", Shown(key), " occurs twice"));
  }
  level.key = key;
  return absl::OkStatus();
}

nlohmann::json* ValueBuilder::Put(nlohmann::json value) {
  if (open_.empty()) {
    *root_ = std::move(value);
    return root_;
  }
  Level& level = open_.back();
  if (level.value->is_array()) {
    level.value->push_back(std::move(value));
    return &level.value->back();
  }
  return &(*level.value->emplace(level.key, std::move(value)).first);
}

absl::Status ValueBuilder::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": ", name_, ": ", what));
}

}  // namespace mneme
