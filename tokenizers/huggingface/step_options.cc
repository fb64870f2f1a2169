#include "tokenizers/huggingface/step_options.h"

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/utf8.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {
namespace {

std::string Held(const nlohmann::json* value) {
  return value == nullptr ? "absent" : absl::StrCat("is ", Shown(*value));
}

}  // namespace

std::string StepOptions::KeyOf(absl::string_view name) const {
  return name.empty() ? key_ : absl::StrCat(key_, ".", name);
}

const nlohmann::json* StepOptions::Find(absl::string_view name) const {
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::Status StepOptions::Error(absl::string_view name, absl::string_view expected) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", KeyOf(name), " ",
                                                 Held(name.empty() ? &object_ : Find(name)),
                                                 ", expected ", expected));
}

absl::StatusOr<bool> StepOptions::Bool(absl::string_view name,
                                       std::optional<bool> otherwise) const {
  const nlohmann::json* value = Find(name);
  if (value == nullptr && otherwise.has_value()) return *otherwise;
  if (value == nullptr || !value->is_boolean()) return Error(name, "true or false");
  return value->get<bool>();
}

absl::StatusOr<int64_t> StepOptions::Integer(absl::string_view name,
                                             std::optional<int64_t> otherwise) const {
  const nlohmann::json* value = Find(name);
  if (value == nullptr && otherwise.has_value()) return *otherwise;
  if (value == nullptr || !value->is_number_integer()) return Error(name, "an integer");
  return value->get<int64_t>();
}

absl::StatusOr<std::string> StepOptions::Text(absl::string_view name,
                                              std::optional<absl::string_view> otherwise) const {
  const nlohmann::json* value = Find(name);
  if (value == nullptr && otherwise.has_value()) return std::string(*otherwise);
  if (value == nullptr || !value->is_string()) return Error(name, "a text");
  return value->get<std::string>();
}

absl::StatusOr<char32_t> StepOptions::Character(absl::string_view name) const {
  absl::StatusOr<std::string> text = Text(name);
  if (!text.ok()) return text.status();
  if (text->empty() || !IsValidUtf8(*text) || CodePointAt(*text, 0).length != text->size()) {
    return Error(name, "a text of one character");
  }
  return CodePointAt(*text, 0).value;
}

absl::StatusOr<const nlohmann::json*> StepOptions::List(absl::string_view name) const {
  const nlohmann::json* value = Find(name);
  if (value == nullptr || !value->is_array()) return Error(name, "a list");
  return value;
}

}  // namespace mneme
