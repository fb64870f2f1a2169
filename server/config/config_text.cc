// The configuration for people's eyes: --help and --print-config.
#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/config/config.h"
#include "server/config/flags.h"

namespace mneme {
namespace {

using google::protobuf::FieldDescriptor;

// Breaks at spaces, with `indent` before each line; ends with a line break.
std::string Wrap(absl::string_view text, absl::string_view indent, size_t width) {
  std::string out;
  std::string line;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > width) {
      absl::StrAppend(&out, indent, line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  if (!line.empty()) absl::StrAppend(&out, indent, line, "\n");
  return out;
}

absl::string_view SectionTitle(absl::string_view section) {
  if (section == "model") return "Model";
  if (section == "device") return "Device";
  if (section == "engine") return "Sessions and batching";
  if (section == "server") return "Network";
  if (section == "security") return "Security";
  if (section == "metrics") return "Metrics";
  return "Logs";
}

std::string ValueName(const FlagSpec& flag) {
  if (flag.options.choice_size() > 0) return absl::StrJoin(flag.options.choice(), "|");
  if (flag.options.unit() == v1::Flag::BYTES) return "SIZE";
  if (flag.options.unit() == v1::Flag::MILLISECONDS) return "TIME";
  if (flag.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return "TEXT";
  return "N";
}

std::string FlagHelp(const FlagSpec& flag) {
  std::vector<std::string> shorts;
  std::vector<std::string> spellings = {absl::StrCat("--", flag.name)};
  for (const std::string& alias : flag.aliases) {
    if (absl::StartsWith(alias, "-")) {
      shorts.push_back(alias);
    } else {
      spellings.push_back(absl::StrCat("--", alias));
    }
  }
  shorts.insert(shorts.end(), spellings.begin(), spellings.end());
  std::string text = Wrap(absl::StrCat(absl::StrJoin(shorts, ", "),
                                       flag.is_bool() ? "" : absl::StrCat(" ", ValueName(flag))),
                          "  ", 100);
  absl::StrAppend(&text, Wrap(flag.options.help(), "        ", 96));
  const std::string value = DefaultText(flag);
  absl::StrAppend(&text, "        [", value.empty() ? "" : absl::StrCat("default ", value, "; "),
                  flag.env, "]\n");
  return text;
}

constexpr absl::string_view kIntroduction =
    R"(mneme-server: serves a language model with recurrent memory over gRPC and HTTP.

  mneme-server                              serve the small demo model that comes with it
  mneme-server --model DIR                  serve it on 127.0.0.1: gRPC 50051, HTTP 8000
  mneme-server --model DIR --plan           how many sessions fit, without loading it
  mneme-server --config FILE --print-config what file, environment and flags amount to

A flag goes before its environment variable (in brackets below), that before the file given with
--config, that before the default. SIZE is 8GiB, 512MiB or a number of bytes; TIME is 250ms, 30s,
5m, 1h30m or a number of seconds. SIGINT or SIGTERM drains: health turns to NOT_SERVING, new work
is refused, running requests get --shutdown-timeout to finish, calls 2 s more to receive their last
messages, and the process 3 s to end; a second signal ends it at once. SIGHUP reads API keys,
certificates and the settings of the log again.

Exit codes: 0 drained, 2 arguments, configuration or API keys, 3 the model does not load, 4 no such
device or not enough memory, threads or files, 5 cannot listen or TLS files not in order, 6 device
error or stuck step while serving, 7 ended by force 5 s after --shutdown-timeout, 8 drained, and
sessions that are not durable could not be saved (the log names them), 130 or 143 second signal.
)";

constexpr absl::string_view kOtherFlagsHelp = R"(
General
  --config FILE
        Read settings from FILE, protobuf text format; see deploy/mneme.textproto.
        [MNEME_CONFIG]
  --set TEXT
        Set fields in the file's syntax, as often as needed: --set 'engine { max_rows: 32 }'.
  --plan
        Print how many sessions fit, and exit. Refuses what would be refused at start, but for a
        port that is taken: tokenizer, weights, keys and certificates are read as they are then.
  --print-config
        Print the effective configuration as a file for --config, and exit.
  --new-api-key NAME
        Make a key: print it, and its line for the file of --api-key-file, and exit.
  --hash-api-key NAME
        Read a key from standard input, print its line for that file, and exit.
  --version
        Print the version and exit.
  -h, --help
        Print this and exit.
)";

}  // namespace

std::string HelpText() {
  std::string text(kIntroduction);
  const FlagTable table;
  const FieldDescriptor* section = nullptr;
  for (const FlagSpec& flag : table.flags()) {
    if (flag.section != section) {
      section = flag.section;
      absl::StrAppend(&text, "\n", SectionTitle(section->name()), "\n");
    }
    absl::StrAppend(&text, FlagHelp(flag));
  }
  absl::StrAppend(&text, kOtherFlagsHelp);
  return text;
}

std::string PrintConfig(const v1::ServerConfig& config) {
  std::string text =
      "# Configuration of mneme-server, for --config. Each value can also be given as the flag or "
      "the\n"
      "# environment variable named before it, which win over this file.\n";
  const FlagTable table;
  const FieldDescriptor* section = nullptr;
  for (const FlagSpec& flag : table.flags()) {
    if (flag.section != section) {
      absl::StrAppend(&text, section == nullptr ? "" : "}\n", "\n", flag.section->name(), " {\n");
    } else {
      absl::StrAppend(&text, "\n");
    }
    section = flag.section;
    absl::StrAppend(&text, Wrap(flag.options.help(), "  # ", 100));
    const std::string default_text = DefaultText(flag);
    absl::StrAppend(&text, "  # --", flag.name, ", ", flag.env,
                    default_text.empty() ? "" : absl::StrCat("; default ", default_text), "\n");
    const google::protobuf::Message& message =
        config.GetReflection()->GetMessage(config, flag.section);
    if (flag.options.secret() && !FieldText(flag, config).empty()) {
      absl::StrAppend(&text, "  # ", flag.field->name(), " is set; secrets are not printed\n");
      continue;
    }
    std::string value;
    google::protobuf::TextFormat::PrintFieldValueToString(message, flag.field, -1, &value);
    absl::StrAppend(&text, "  ", flag.field->name(), ": ", value, "\n");
  }
  absl::StrAppend(&text, "}\n");
  return text;
}

}  // namespace mneme
