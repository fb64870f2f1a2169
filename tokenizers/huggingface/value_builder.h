// Makes values of a JSON parser's events, within limits.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace mneme {

// One value after the other: Begin, and then the events of that value until it is_complete().
// Errors name the file and where in it they are.
class ValueBuilder {
 public:
  static constexpr size_t kMaxDepth = 32;
  static constexpr int64_t kMaxValues = int64_t{1} << 20;  // of all that it makes

  explicit ValueBuilder(absl::string_view file) : file_(file) {}

  // `root` gets the value; `name` says in errors where it is.
  void Begin(nlohmann::json& root, std::string name);
  // After an event.
  bool is_complete() const { return open_.empty(); }

  absl::Status Add(nlohmann::json value);   // one that has no others inside
  absl::Status Open(nlohmann::json empty);  // a list or an object
  absl::Status Key(const std::string& key);
  void Close() { open_.pop_back(); }

 private:
  // Puts `value` where the next one belongs.
  nlohmann::json* Put(nlohmann::json value);
  absl::Status Error(absl::string_view what) const;

  struct Level {
    nlohmann::json* value;
    std::string key;  // of the value under way; of objects
  };
  const std::string file_;
  nlohmann::json* root_ = nullptr;
  std::string name_;
  std::vector<Level> open_;  // what has begun and not ended
  int64_t values_ = 0;
};

}  // namespace mneme
