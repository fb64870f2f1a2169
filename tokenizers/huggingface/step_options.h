// Reads the options of one step of tokenizer.json; what is wrong is named with its place in the
// file.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

class StepOptions {
 public:
  // `object` outlives this; `key` is where the file at `path` has it: "normalizer.normalizers[1]".
  StepOptions(const nlohmann::json& object, absl::string_view path, absl::string_view key)
      : object_(object), path_(path), key_(key) {}

  const std::string& path() const { return path_; }
  // An error about one of its options, or about itself if `name` is empty.
  std::string KeyOf(absl::string_view name) const;

  // Without `otherwise` the option has to be there; null is as good as absent.
  absl::StatusOr<bool> Bool(absl::string_view name, std::optional<bool> otherwise = {}) const;
  absl::StatusOr<int64_t> Integer(absl::string_view name,
                                  std::optional<int64_t> otherwise = {}) const;
  absl::StatusOr<std::string> Text(absl::string_view name,
                                   std::optional<absl::string_view> otherwise = {}) const;
  // A text of exactly one character.
  absl::StatusOr<char32_t> Character(absl::string_view name) const;
  absl::StatusOr<const nlohmann::json*> List(absl::string_view name) const;

  // Null if it is absent.
  const nlohmann::json* Find(absl::string_view name) const;

  // INVALID_ARGUMENT: `name` holds what it holds, where `expected` was.
  absl::Status Error(absl::string_view name, absl::string_view expected) const;

 private:
  const nlohmann::json& object_;
  const std::string path_, key_;
};

}  // namespace mneme
