// Flags of one subcommand: a table that parses, helps, and finds the nearest spelling.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace mneme::cli {

class FlagSet {
 public:
  // A flag with a value: --name VALUE or --name=VALUE. `set` returns what is wrong with a value.
  // An `environment` variable, if it is set, is applied before the command line.
  void Add(absl::string_view name, absl::string_view value_name, absl::string_view help,
           std::function<absl::Status(absl::string_view)> set, absl::string_view environment = "");

  void String(absl::string_view name, absl::string_view value_name, absl::string_view help,
              std::function<void(std::string)> set, absl::string_view environment = "");
  void Integer(absl::string_view name, absl::string_view help, std::function<void(int64_t)> set);
  void Number(absl::string_view name, absl::string_view help, std::function<void(double)> set);
  // 250ms, 30s, 5m or a number of seconds.
  void Time(absl::string_view name, absl::string_view help, std::function<void(absl::Duration)> set,
            absl::string_view environment = "");
  // One of `values`, which help and errors list.
  void Choice(absl::string_view name, std::vector<std::string> values, absl::string_view help,
              std::function<void(std::string)> set);
  // No value: --name, or --no-name for the opposite.
  void Bool(absl::string_view name, absl::string_view help, std::function<void(bool)> set);

  // One more spelling of the flag added last: "-n", "--max-new-tokens".
  void Alias(absl::string_view spelling);

  // Applies environment and `arguments`; returns what is no flag. "--" ends the flags; "-" is none.
  absl::StatusOr<std::vector<std::string>> Parse(std::span<const std::string> arguments) const;

  // Two columns: flags and what they do.
  std::string Help() const;

 private:
  struct Flag {
    std::vector<std::string> spellings;  // with dashes
    std::string value_name;              // empty: a bool
    std::string help;
    std::string environment;
    std::function<absl::Status(absl::string_view)> set;
  };

  const Flag* Find(absl::string_view spelling) const;
  absl::Status Unknown(absl::string_view spelling) const;

  std::vector<Flag> flags_;
};

absl::StatusOr<absl::Duration> ParseTime(absl::string_view text);

}  // namespace mneme::cli
