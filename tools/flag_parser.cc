#include "tools/flag_parser.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/spelling.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

absl::StatusOr<int> ParseInt(absl::string_view text, int low, int high) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\", expected an integer from ", low, " to ", high));
  }
  return value;
}

}  // namespace

int Report(absl::string_view program, const absl::Status& status, ExitCode code) {
  absl::FPrintF(stderr, "%s: %s\n", program, status.message());
  return code;
}

void FlagParser::Add(absl::string_view name, absl::string_view value, std::string* target,
                     absl::string_view help) {
  AddFlag(
      {std::string(name), std::string(value), std::string(help), [target](absl::string_view text) {
         if (text.empty()) return absl::InvalidArgumentError("an empty value");
         *target = std::string(text);
         return absl::OkStatus();
       }});
}

void FlagParser::Add(absl::string_view name, absl::string_view value, int* target, int low,
                     int high, absl::string_view help) {
  AddFlag({std::string(name), std::string(value), std::string(help),
           [=](absl::string_view text) -> absl::Status {
             MNEME_ASSIGN_OR_RETURN(*target, ParseInt(text, low, high));
             return absl::OkStatus();
           }});
}

void FlagParser::Add(absl::string_view name, absl::string_view value, uint64_t* target,
                     absl::string_view help) {
  AddFlag(
      {std::string(name), std::string(value), std::string(help), [target](absl::string_view text) {
         if (absl::SimpleAtoi(text, target)) return absl::OkStatus();
         return absl::InvalidArgumentError(
             absl::StrCat("\"", text, "\", expected an integer from 0 to 2^64 - 1"));
       }});
}

void FlagParser::Add(absl::string_view name, absl::string_view value, std::vector<int>* target,
                     int low, int high, absl::string_view help) {
  AddFlag({std::string(name), std::string(value), std::string(help),
           [=](absl::string_view text) -> absl::Status {
             target->clear();
             for (const absl::string_view part : absl::StrSplit(text, ',')) {
               MNEME_ASSIGN_OR_RETURN(const int number, ParseInt(part, low, high));
               target->push_back(number);
             }
             return absl::OkStatus();
           }});
}

void FlagParser::Add(absl::string_view name, bool* target, absl::string_view help) {
  AddFlag({std::string(name), "", std::string(help), [target](absl::string_view) {
             *target = true;
             return absl::OkStatus();
           }});
}

absl::StatusOr<std::vector<std::string>> FlagParser::Parse(int argc, char** argv) {
  std::vector<std::string> positional;
  bool only_positional = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (only_positional || !absl::StartsWith(arg, "-") || arg == "-") {
      positional.push_back(arg);
      continue;
    }
    if (arg == "--") {
      only_positional = true;
      continue;
    }
    if (arg == "--help" || arg == "-h") {
      help_requested_ = true;
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    const Flag* flag = nullptr;
    std::vector<std::string> names = {"--help"};
    for (const Flag& candidate : flags_) {
      names.push_back(candidate.name);
      if (candidate.name == name) flag = &candidate;
    }
    if (flag == nullptr) {
      const std::string nearest = NearestSpelling(name, names);
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag ", name, nearest.empty() ? "" : ", did you mean ", nearest,
                       nearest.empty() ? "; see --help" : "?"));
    }
    std::string text;
    if (equals != std::string::npos) {
      if (flag->value.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(name, " takes no value"));
      }
      text = arg.substr(equals + 1);
    } else if (!flag->value.empty()) {
      if (i + 1 == argc) {
        return absl::InvalidArgumentError(absl::StrCat(name, " lacks its value, ", flag->value));
      }
      text = argv[++i];
    }
    if (const absl::Status status = flag->set(text); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
    }
  }
  return positional;
}

absl::Status FlagParser::ParseFlags(int argc, char** argv) {
  MNEME_ASSIGN_OR_RETURN(const std::vector<std::string> positional, Parse(argc, argv));
  if (positional.empty() || help_requested_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected argument \"", positional.front(), "\""));
}

std::string FlagParser::Help() const {
  std::string text = absl::StrCat(synopsis_, "\n");
  for (const Flag& flag : flags_) {
    const std::string left =
        absl::StrCat("  ", flag.name, flag.value.empty() ? "" : " ", flag.value);
    bool first = true;
    for (const absl::string_view line : absl::StrSplit(flag.help, '\n')) {
      absl::StrAppendFormat(&text, "%-26s %s\n", first ? left : "", line);
      first = false;
    }
  }
  return text;
}

}  // namespace mneme
