// Command lines of the offline tools: --name value, --name=value, --switch, and positional
// arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

// Exit codes of the tools, as mneme-server's.
enum ExitCode {
  kExitOk = 0,
  kExitFailure = 1,  // anything not below
  kExitUsage = 2,    // bad arguments, or an input file other than the model's
  kExitModel = 3,    // the model cannot be loaded
  kExitDevice = 4,   // no such device on this host, or not enough memory
};

// Prints "<program>: <message>" on standard error and returns the code.
int Report(absl::string_view program, const absl::Status& status, ExitCode code);

class FlagParser {
 public:
  // `synopsis` is what --help begins with; it ends in a line feed.
  explicit FlagParser(std::string synopsis) : synopsis_(std::move(synopsis)) {}

  // `name` with its dashes, `value` its placeholder in the help. What the variables hold beforehand
  // is the default.
  void Add(absl::string_view name, absl::string_view value, std::string* target,
           absl::string_view help);
  void Add(absl::string_view name, absl::string_view value, int* target, int low, int high,
           absl::string_view help);
  void Add(absl::string_view name, absl::string_view value, uint64_t* target,
           absl::string_view help);
  // A comma-separated list of integers in [low, high].
  void Add(absl::string_view name, absl::string_view value, std::vector<int>* target, int low,
           int high, absl::string_view help);
  void Add(absl::string_view name, bool* target, absl::string_view help);

  // Returns the positional arguments. INVALID_ARGUMENT names the flag, what was given and what was
  // expected. --help sets help_requested() and is otherwise an ordinary switch.
  absl::StatusOr<std::vector<std::string>> Parse(int argc, char** argv);
  // The same where there are none: INVALID_ARGUMENT names one that is.
  absl::Status ParseFlags(int argc, char** argv);

  bool help_requested() const { return help_requested_; }
  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string value;  // empty: a switch
    std::string help;
    std::function<absl::Status(absl::string_view)> set;
  };
  void AddFlag(Flag flag) { flags_.push_back(std::move(flag)); }

  const std::string synopsis_;
  std::vector<Flag> flags_;
  bool help_requested_ = false;
};

}  // namespace mneme
