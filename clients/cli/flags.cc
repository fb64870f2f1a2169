#include "clients/cli/flags.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/spelling.h"
#include "base/status_macros.h"

namespace mneme::cli {
namespace {

constexpr size_t kHelpColumn = 30;
constexpr size_t kHelpWidth = 100;

absl::Status Wrong(absl::string_view spelling, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(spelling, ": ", status.message()));
}

absl::Status Unexpected(absl::string_view text, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\", expected ", expected));
}

// "-1" is a number before it is a flag.
bool IsNegativeNumber(absl::string_view argument) {
  double number;
  return argument.size() > 1 && (absl::ascii_isdigit(argument[1]) || argument[1] == '.') &&
         absl::SimpleAtod(argument, &number);
}

// --max_tokens is --max-tokens.
std::string Normalized(absl::string_view spelling) {
  return absl::StartsWith(spelling, "--") ? absl::StrReplaceAll(spelling, {{"_", "-"}})
                                          : std::string(spelling);
}

}  // namespace

absl::StatusOr<absl::Duration> ParseTime(absl::string_view text) {
  double seconds;
  if (absl::SimpleAtod(text, &seconds) && seconds >= 0 && std::isfinite(seconds)) {
    return absl::Seconds(seconds);
  }
  absl::Duration duration;
  if (absl::ParseDuration(text, &duration) && duration >= absl::ZeroDuration()) return duration;
  return Unexpected(text, "a time (250ms, 30s, 5m or a number of seconds)");
}

void FlagSet::Add(absl::string_view name, absl::string_view value_name, absl::string_view help,
                  std::function<absl::Status(absl::string_view)> set,
                  absl::string_view environment) {
  flags_.push_back({.spellings = {absl::StrCat("--", name)},
                    .value_name = std::string(value_name),
                    .help = std::string(help),
                    .environment = std::string(environment),
                    .set = std::move(set)});
}

void FlagSet::Alias(absl::string_view spelling) { flags_.back().spellings.emplace_back(spelling); }

void FlagSet::String(absl::string_view name, absl::string_view value_name, absl::string_view help,
                     std::function<void(std::string)> set, absl::string_view environment) {
  Add(
      name, value_name, help,
      [set = std::move(set)](absl::string_view text) {
        set(std::string(text));
        return absl::OkStatus();
      },
      environment);
}

void FlagSet::Integer(absl::string_view name, absl::string_view help,
                      std::function<void(int64_t)> set) {
  Add(name, "N", help, [set = std::move(set)](absl::string_view text) {
    int64_t value;
    if (!absl::SimpleAtoi(text, &value) || value > std::numeric_limits<int32_t>::max() ||
        value < std::numeric_limits<int32_t>::min()) {
      return Unexpected(text, "a whole number");
    }
    set(value);
    return absl::OkStatus();
  });
}

void FlagSet::Number(absl::string_view name, absl::string_view help,
                     std::function<void(double)> set) {
  Add(name, "X", help, [set = std::move(set)](absl::string_view text) {
    double value;
    if (!absl::SimpleAtod(text, &value)) {
      return Unexpected(text, "a number");
    }
    set(value);
    return absl::OkStatus();
  });
}

void FlagSet::Time(absl::string_view name, absl::string_view help,
                   std::function<void(absl::Duration)> set, absl::string_view environment) {
  Add(
      name, "TIME", help,
      [set = std::move(set)](absl::string_view text) -> absl::Status {
        MNEME_ASSIGN_OR_RETURN(const absl::Duration time, ParseTime(text));
        set(time);
        return absl::OkStatus();
      },
      environment);
}

void FlagSet::Choice(absl::string_view name, std::vector<std::string> values,
                     absl::string_view help, std::function<void(std::string)> set) {
  const std::string value_name = absl::StrJoin(values, "|");
  Add(name, value_name, help,
      [values = std::move(values), set = std::move(set)](absl::string_view text) {
        if (std::count(values.begin(), values.end(), text) == 0) {
          return Unexpected(text, Alternatives(values));
        }
        set(std::string(text));
        return absl::OkStatus();
      });
}

void FlagSet::Bool(absl::string_view name, absl::string_view help, std::function<void(bool)> set) {
  Add(name, "", help, [set = std::move(set)](absl::string_view text) {
    bool value;
    if (!absl::SimpleAtob(text, &value)) {
      return Unexpected(text, "true or false");
    }
    set(value);
    return absl::OkStatus();
  });
}

const FlagSet::Flag* FlagSet::Find(absl::string_view spelling) const {
  const std::string wanted = Normalized(spelling);
  for (const Flag& flag : flags_) {
    if (std::count(flag.spellings.begin(), flag.spellings.end(), wanted) > 0) return &flag;
  }
  return nullptr;
}

absl::Status FlagSet::Unknown(absl::string_view spelling) const {
  std::vector<std::string> known;
  for (const Flag& flag : flags_) {
    known.insert(known.end(), flag.spellings.begin(), flag.spellings.end());
  }
  const std::string nearest = NearestSpelling(spelling, known);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag ", spelling,
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

absl::StatusOr<std::vector<std::string>> FlagSet::Parse(
    std::span<const std::string> arguments) const {
  for (const Flag& flag : flags_) {
    if (flag.environment.empty()) continue;
    const char* value = getenv(flag.environment.c_str());
    if (value == nullptr || *value == '\0') continue;
    MNEME_RETURN_IF_ERROR(Wrong(flag.environment, flag.set(value)));
  }
  std::vector<std::string> positional;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      positional.insert(positional.end(), arguments.begin() + i + 1, arguments.end());
      break;
    }
    if (argument.size() < 2 || argument[0] != '-' || IsNegativeNumber(argument)) {
      positional.push_back(argument);
      continue;
    }
    const std::vector<std::string> parts = absl::StrSplit(argument, absl::MaxSplits('=', 1));
    const std::string& spelling = parts[0];
    const Flag* flag = Find(spelling);
    if (flag == nullptr && absl::StartsWith(spelling, "--no-") && parts.size() == 1) {
      const Flag* opposite = Find(absl::StrCat("--", spelling.substr(5)));
      if (opposite != nullptr && opposite->value_name.empty()) {
        MNEME_RETURN_IF_ERROR(Wrong(spelling, opposite->set("false")));
        continue;
      }
    }
    if (flag == nullptr) return Unknown(spelling);
    std::string value = "true";
    if (parts.size() > 1) {
      value = parts[1];
    } else if (!flag->value_name.empty()) {
      if (++i == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat(spelling, " needs a value"));
      }
      value = arguments[i];
    }
    MNEME_RETURN_IF_ERROR(Wrong(spelling, flag->set(value)));
  }
  return positional;
}

std::string FlagSet::Help() const {
  std::string text;
  for (const Flag& flag : flags_) {
    std::string left = absl::StrCat("  ", absl::StrJoin(flag.spellings, ", "));
    if (!flag.value_name.empty()) absl::StrAppend(&left, " ", flag.value_name);
    std::string right = flag.help;
    if (!flag.environment.empty()) absl::StrAppend(&right, " [", flag.environment, "]");
    std::string line = left.size() + 2 <= kHelpColumn
                           ? absl::StrFormat("%-*s", kHelpColumn, left)
                           : absl::StrCat(left, "\n", std::string(kHelpColumn, ' '));
    size_t used = kHelpColumn;
    bool is_first = true;
    for (const absl::string_view word : absl::StrSplit(right, ' ')) {
      if (!is_first && used + 1 + word.size() > kHelpWidth) {
        absl::StrAppend(&line, "\n", std::string(kHelpColumn, ' '));
        used = kHelpColumn;
        is_first = true;
      }
      absl::StrAppend(&line, is_first ? "" : " ", word);
      used += word.size() + (is_first ? 0 : 1);
      is_first = false;
    }
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace mneme::cli
