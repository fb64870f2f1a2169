#include "clients/cli/session_words.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/spelling.h"

namespace mneme::cli {
namespace {

struct Verb {
  absl::string_view name;
  absl::string_view arguments;  // "[B]": may be left out; "A...": one or more
};

constexpr Verb kVerbs[] = {{"create", "[NAME]"},      {"get", "NAME"},
                           {"list", "[PREFIX]"},      {"fork", "SOURCE [TARGET]"},
                           {"delete", "NAME..."},     {"checkpoint", "NAME [CHECKPOINT]"},
                           {"checkpoints", "NAME"},   {"uncheckpoint", "NAME CHECKPOINT..."},
                           {"rewind", "NAME PLACE"},  {"export", "NAME FILE"},
                           {"import", "FILE [NAME]"}, {"usage", ""}};

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) names.emplace_back(verb.name);
  return names;
}

absl::Status Unknown(const std::string& word) {
  const std::vector<std::string> names = Names();
  const std::string nearest = NearestSpelling(word, names);
  return absl::InvalidArgumentError(
      absl::StrCat("\"", word, "\" is nothing this command can do",
                   nearest.empty() ? absl::StrCat(", expected ", Alternatives(names))
                                   : absl::StrCat("; did you mean ", nearest, "?")));
}

}  // namespace

absl::Status CheckSessionWords(const std::vector<std::string>& words) {
  if (words.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("what of ", Alternatives(Names()), "?"));
  }
  const auto verb = std::find_if(std::begin(kVerbs), std::end(kVerbs),
                                 [&](const Verb& one) { return one.name == words[0]; });
  if (verb == std::end(kVerbs)) return Unknown(words[0]);
  const auto fail = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(what, "; usage: mneme session ", verb->name,
                                                   verb->arguments.empty() ? "" : " ",
                                                   verb->arguments));
  };
  size_t next = 1;
  for (absl::string_view argument : absl::StrSplit(verb->arguments, ' ', absl::SkipEmpty())) {
    const bool may_repeat = absl::ConsumeSuffix(&argument, "...");
    const bool may_miss = absl::ConsumePrefix(&argument, "[");
    absl::ConsumeSuffix(&argument, "]");
    if (next == words.size() && !may_miss) return fail(absl::StrCat(argument, " is missing"));
    const size_t end = may_repeat ? words.size() : std::min(next + 1, words.size());
    for (; next < end; ++next) {
      // A shell's variable is not set, most likely. All names begin with an empty prefix.
      if (words[next].empty() && argument != "PREFIX") {
        return fail(absl::StrCat(argument, " is empty"));
      }
    }
  }
  if (next == words.size()) return absl::OkStatus();
  return fail(absl::StrCat("unexpected argument \"", words[next], "\""));
}

}  // namespace mneme::cli
