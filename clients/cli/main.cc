// mneme: the command line client.
#include <signal.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/spelling.h"
#include "base/standard_streams.h"
#include "clients/cli/command.h"

namespace mneme::cli {
namespace {

struct Command {
  absl::string_view name;
  int (*run)(const Arguments&);
  absl::string_view help;
};

constexpr Command kCommands[] = {
    {"generate", RunGenerate, "continue a prompt, streaming the text"},
    {"chat", RunChat, "talk to a session, line by line"},
    {"classify", RunClassify, "classes of documents, by a model that classifies"},
    {"session", RunSession, "create, get, list, fork and delete sessions, and take them back"},
    {"memory", RunMemory, "what a session's memory holds, for models whose memory are engrams"},
    {"info", RunInfo, "model, capacity and work of the server"},
    {"admin", RunAdmin, "log level, reload, everybody's sessions, for keys marked admin"},
    {"health", RunHealth, "whether the server serves"},
    {"tokenize", RunTokenize, "text to token ids"},
    {"detokenize", RunDetokenize, "token ids to text"},
    {"bench", RunBench, "measure throughput and latency under load"},
};

std::string Usage() {
  std::string text =
      "usage: mneme [--server HOST:PORT] COMMAND ...\n\n"
      "The server's address may also come from MNEME_SERVER; it is 127.0.0.1:50051 otherwise.\n\n";
  for (const Command& command : kCommands) {
    absl::StrAppend(&text, "  ", command.name, std::string(12 - command.name.size(), ' '),
                    command.help, "\n");
  }
  absl::StrAppend(&text,
                  "\nExit codes: 0 done, 1 failed otherwise, 2 arguments, 3 no server, 4 request "
                  "refused or session\nlost, 5 server full or a limit reached, 6 timeout, 7 key "
                  "refused, 130 Ctrl-C.\n\nmneme COMMAND --help tells more.\n");
  return text;
}

int Main(const Arguments& arguments) {
  signal(SIGPIPE, SIG_DFL);  // mneme generate ... | head
  // Flags in front of the command belong to it as well: mneme --server HOST:PORT info.
  Arguments in_front;
  size_t i = 0;
  for (; i < arguments.size() && arguments[i].size() > 1 && arguments[i][0] == '-'; ++i) {
    if (arguments[i] == "--help" || arguments[i] == "-h") {
      WriteOut(Usage());
      return kOk;
    }
    if (arguments[i] == "--version") {
      WriteOut("mneme " MNEME_VERSION "\n");
      return kOk;
    }
    in_front.push_back(arguments[i]);
    const bool takes_value = arguments[i] != "--tls" && arguments[i] != "--no-tls";
    if (takes_value && arguments[i].find('=') == std::string::npos && i + 1 < arguments.size()) {
      in_front.push_back(arguments[++i]);
    }
  }
  if (i == arguments.size()) {
    fputs(Usage().c_str(), stderr);
    return kUsage;
  }
  Arguments rest = in_front;
  rest.insert(rest.end(), arguments.begin() + i + 1, arguments.end());
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (command.name == arguments[i]) return CheckOutput(command.run(rest));
    names.emplace_back(command.name);
  }
  const std::string nearest = NearestSpelling(arguments[i], names);
  fprintf(stderr, "mneme: unknown command \"%s\"%s\n%s", arguments[i].c_str(),
          nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?").c_str(),
          Usage().c_str());
  return kUsage;
}

}  // namespace
}  // namespace mneme::cli

int main(int argc, char** argv) {
  mneme::OpenStandardStreams(argv);
  return mneme::cli::Main(std::vector<std::string>(argv + 1, argv + argc));
}
