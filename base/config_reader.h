// Typed, range-checked access to the keys of a configuration object. Included only where one is
// parsed.
#pragma once

#include <cmath>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/json_text.h"
#include "base/spelling.h"

namespace mneme {

// The first thing found wrong is kept in status(), and reading goes on with the default: one check
// at the end instead of one per key.
//
// The reader remembers which keys it was asked for and which values are in force, so that nobody
// keeps such a list by hand: keys of a file that no reader asked for may be misspelled, and two
// objects whose values() are equal mean the same.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, absl::string_view path)
      : object_(object), path_(path) {}

  const absl::Status& status() const { return status_; }

  bool Has(const char* key) const { return Find(key) != nullptr; }

  // `or_else`: what is expected besides, behind the range.
  int Int(const char* key, int otherwise, int64_t low, int64_t high,
          absl::string_view or_else = "") {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return Keep(key, otherwise);
    if (!value->is_number_integer() || IsBelow(*value, low) || IsAbove(*value, high)) {
      Invalid(key, *value, absl::StrCat("an integer from ", low, " to ", high, or_else));
      return otherwise;
    }
    return Keep(key, static_cast<int>(value->get<int64_t>()));
  }
  // Null counts as missing.
  std::optional<int> NullableInt(const char* key, int64_t low, int64_t high) {
    if (IsNull(key)) {
      Keep(key, nullptr);
      return std::nullopt;
    }
    // A refused value is no number to go on with: as if it were null.
    const int refused = static_cast<int>(low) - 1;
    const int value = Int(key, refused, low, high, ", or null");
    return value == refused ? std::nullopt : std::optional<int>(value);
  }

  // In (low, high], or [low, high] with `low_included`.
  double Number(const char* key, double otherwise, double low, double high,
                bool low_included = false) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return Keep(key, otherwise);
    const double number = value->is_number() ? value->get<double>() : std::nan("");
    if (!((number > low || (low_included && number == low)) && number <= high)) {
      Invalid(key, *value,
              low_included ? absl::StrCat("a number from ", low, " to ", high)
                           : absl::StrCat("a number above ", low, " and at most ", high));
      return otherwise;
    }
    return Keep(key, number);
  }

  bool Bool(const char* key, bool otherwise) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return Keep(key, otherwise);
    if (!value->is_boolean()) {
      Invalid(key, *value, "true or false");
      return otherwise;
    }
    return Keep(key, value->get<bool>());
  }

  std::string String(const char* key, absl::string_view otherwise) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return Keep(key, std::string(otherwise));
    if (!value->is_string()) {
      Invalid(key, *value, "a string");
      return std::string(otherwise);
    }
    return Keep(key, value->get<std::string>());
  }

  // Missing or null.
  bool IsNull(const char* key) const {
    const nlohmann::json* value = Find(key);
    return value == nullptr || value->is_null();
  }
  const nlohmann::json* Find(const char* key) const {
    asked_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() ? nullptr : &*it;
  }

  void Invalid(const char* key, const nlohmann::json& value, absl::string_view expected) {
    Fail(absl::StatusCode::kInvalidArgument, key, value, absl::StrCat("expected ", expected));
  }
  void Unsupported(const char* key, const nlohmann::json& value, absl::string_view expected) {
    Fail(absl::StatusCode::kUnimplemented, key, value,
         absl::StrCat("which is not supported; expected ", expected));
  }

  const std::string& path() const { return path_; }
  // Takes over the error and the hints of `part`, a reader of an object within this one that has
  // read all it wants. What its values come to is the caller's to Keep.
  void Adopt(const ConfigReader& part);

  // The value of `key` that is in force, where it follows from other keys.
  template <typename T>
  T Keep(const char* key, T value) {
    asked_.insert(key);
    values_[key] = value;
    return value;
  }
  // These keys are known, and their values have no part in values().
  void Disregard(std::initializer_list<const char*> keys) {
    disregarded_.insert(keys.begin(), keys.end());
  }

  // Whether it was asked for so far, there or not, or disregarded.
  bool IsKnown(absl::string_view key) const {
    return asked_.contains(key) || disregarded_.contains(key);
  }
  // A line for each key of the file that nobody asked for and that is spelled much like one that
  // somebody did: such a key would silently leave its default in force. Other unknown keys are none
  // of ours: upstream writes many that concern training only.
  std::vector<std::string> Hints() const;
  // The key asked for that `key` may be meant to be; empty: none is near.
  absl::string_view Nearest(absl::string_view key) const;
  // For formats whose files have no other keys than those that are known by now.
  void RefuseUnknown() {
    for (const auto& item : object_.items()) {
      if (IsKnown(item.key())) continue;
      const absl::string_view nearest = Nearest(item.key());
      Invalid(item.key().c_str(), item.value(),
              nearest.empty() ? "no such key"
                              : absl::StrCat("no such key; did you mean \"", nearest, "\"?"));
    }
  }
  // For keys that have no default.
  void Require(std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (Has(key) || !status_.ok()) continue;
      status_ = absl::InvalidArgumentError(
          absl::StrCat(path_, ": key \"", key, "\" is missing, and has no default"));
    }
  }
  // The same of one, with more to say.
  void Missing(const char* key, absl::string_view what) {
    if (!status_.ok()) return;
    status_ =
        absl::InvalidArgumentError(absl::StrCat(path_, ": key \"", key, "\" is missing: ", what));
  }
  // Whether somebody asked for the key.
  bool WasAsked(absl::string_view key) const { return asked_.contains(key); }
  // The values in force of keys read so far, one a line and in the order of keys: equal texts where
  // files say the same, whether they spell out a default or not.
  std::string values() const {
    std::string text;
    for (const auto& [key, value] : values_) {
      if (!disregarded_.contains(key)) absl::StrAppend(&text, key, " ", value.dump(), "\n");
    }
    return text;
  }

 private:
  // Integers that do not fit 63 bits are held as unsigned ones.
  static bool IsBelow(const nlohmann::json& value, int64_t low) {
    return value.is_number_unsigned()
               ? low > 0 && value.get<uint64_t>() < static_cast<uint64_t>(low)
               : value.get<int64_t>() < low;
  }
  static bool IsAbove(const nlohmann::json& value, int64_t high) {
    return value.is_number_unsigned() ? value.get<uint64_t>() > static_cast<uint64_t>(high)
                                      : value.get<int64_t>() > high;
  }

  void Fail(absl::StatusCode code, const char* key, const nlohmann::json& value,
            absl::string_view message) {
    if (!status_.ok()) return;
    status_ = absl::Status(
        code, absl::StrCat(path_, ": key \"", key, "\" is ", Shown(value), ", ", message));
  }

  const nlohmann::json& object_;
  const std::string path_;
  absl::Status status_;
  mutable std::set<std::string, std::less<>> asked_;
  std::set<std::string, std::less<>> disregarded_;
  std::map<std::string, nlohmann::json> values_;
  std::vector<std::string> hints_of_parts_;
};

}  // namespace mneme
