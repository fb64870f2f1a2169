// mneme chat: a conversation with a session, line by line. Only what is new is ever sent.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "clients/cli/command.h"
#include "clients/cli/request_flags.h"

namespace mneme::cli {
namespace {

constexpr absl::string_view kUsageText =
    R"(usage: mneme chat [FLAGS]

Talks to a session. The model remembers the conversation; each turn sends only the new text, wrapped
in --prefix and --suffix, and shows the answer up to --stop.

)";

constexpr absl::string_view kCommands =
    R"(  /fork [NAME]   go on in a copy of the session, leaving this one as it is
  /reset         forget everything and start anew
  /session       show name, length and size of the session
  /help          show this
  /quit          leave (also Ctrl-D); Ctrl-C stops the current answer only
A line that ends with a backslash goes on in the next one; """ alone begins and ends several lines.
)";

struct Options {
  Connection connection;
  v1::GenerateRequest request;  // of every turn, less its text
  std::string prefix = "User: ";
  std::string suffix = "\nAssistant:";
  bool keep = false;
};

// Reads what one turn says: a line, lines that end with a backslash, or lines between """.
std::optional<std::string> ReadTurn(bool is_terminal) {
  if (is_terminal) WriteOut("> ");
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  std::string text;
  if (absl::StripAsciiWhitespace(line) == R"(""")") {
    while (std::getline(std::cin, line) && absl::StripAsciiWhitespace(line) != R"(""")") {
      absl::StrAppend(&text, text.empty() ? "" : "\n", line);
    }
    return text;
  }
  while (absl::EndsWith(line, "\\")) {
    line.pop_back();
    absl::StrAppend(&text, line, "\n");
    line.clear();
    if (is_terminal) WriteOut(". ");
    if (!std::getline(std::cin, line)) break;
  }
  return absl::StrCat(text, line);
}

class Chat {
 public:
  Chat(Options& options, Client& client)
      : options_(options), client_(client), is_terminal_(isatty(STDIN_FILENO) != 0) {
    if (session().empty()) {
      absl::BitGen random;
      set_session(absl::StrFormat("chat-%08x", absl::Uniform<uint32_t>(random)));
      is_own_ = true;
    }
  }

  // Runs on the thread that takes Ctrl-C.
  void Interrupt() {
    if (answering_) {
      cancel_.Cancel();
    } else if (is_terminal_) {
      WriteOut("\n(Ctrl-D or /quit leaves)\n> ");
    } else {
      _exit(kInterrupted);
    }
  }

  int Run() {
    // A name that no turn could use is told before anything is typed. Most often there is no such
    // session yet: the first turn creates it.
    const absl::Status session_status = client_.GetSession(session()).status();
    if (!session_status.ok() && !absl::IsNotFound(session_status)) {
      return ReportError(session_status);
    }
    if (is_terminal_) {
      WriteOut(absl::StrCat("session ", session(), "; /help lists the commands\n"));
    }
    int code = kOk;
    while (const std::optional<std::string> turn = ReadTurn(is_terminal_)) {
      const absl::string_view text = absl::StripAsciiWhitespace(*turn);
      if (text == "/quit" || text == "/exit") break;
      if (absl::StartsWith(text, "/")) {
        RunCommand(text);
      } else if (!text.empty()) {
        code = Answer(*turn);
        if (code == kUnavailable) break;
      }
    }
    if (is_own_ && !options_.keep) (void)client_.DeleteSession(session());
    return code;
  }

 private:
  const std::string& session() const { return options_.request.session().name(); }
  void set_session(std::string name) {
    options_.request.mutable_session()->set_name(std::move(name));
  }

  int Answer(const std::string& turn) {
    // What the last answer ended with, a stop string most often, was cut off from what the user
    // saw, but its tokens are in the session; the prefix begins on a line of its own all the same.
    options_.request.set_text(
        absl::StrCat(is_first_ ? "" : "\n", options_.prefix, turn, options_.suffix));
    cancel_.Reset();
    answering_ = true;
    std::string answer;
    const absl::Status status = client_.Generate(
        options_.request,
        [&](const v1::GenerateResponse& response) {
          for (const v1::Output& output : response.outputs()) {
            WriteOut(output.text());
            answer += output.text();
          }
        },
        &cancel_);
    answering_ = false;
    const bool stopped = cancel_.cancelled();
    if (!status.ok() && !stopped && answer.empty()) return ReportError(status);  // refused
    if (!absl::EndsWith(answer, "\n")) WriteOut("\n");
    is_first_ = false;
    if (status.ok()) return kOk;
    if (stopped) {
      fputs("[stopped]\n", stderr);
      return kOk;
    }
    return ReportError(status);
  }

  void RunCommand(absl::string_view line) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words[0] == "/help") {
      WriteOut(kCommands);
    } else if (words[0] == "/fork") {
      Fork(words.size() > 1 ? words[1] : "");
    } else if (words[0] == "/reset") {
      const absl::Status status = client_.DeleteSession(session());
      if (!status.ok() && !absl::IsNotFound(status)) {
        (void)ReportError(status);
        return;
      }
      is_first_ = true;
      WriteOut("[a new conversation]\n");
    } else if (words[0] == "/session") {
      const absl::StatusOr<v1::Session> info = client_.GetSession(session());
      if (!info.ok()) {
        (void)ReportError(info.status());
        return;
      }
      WriteOut(absl::StrCat("[", info->name(), ": ", info->position(), " tokens in ",
                            info->state_bytes(), " bytes]\n"));
    } else {
      WriteOut(absl::StrCat("unknown command ", words[0], "\n", kCommands));
    }
  }

  void Fork(const std::string& target) {
    v1::ForkSessionRequest request;
    request.set_source_name(session());
    request.set_target_name(target);
    const absl::StatusOr<v1::Session> fork = client_.ForkSession(request);
    if (!fork.ok()) {
      (void)ReportError(fork.status());
      return;
    }
    WriteOut(absl::StrCat("[", session(), " stays; going on in ", fork->name(), "]\n"));
    is_own_ = false;  // both were asked for by name or are meant to be compared
    set_session(fork->name());
  }

  Options& options_;
  Client& client_;
  const bool is_terminal_;
  CancelToken cancel_;
  std::atomic<bool> answering_{false};
  bool is_own_ = false;  // named by us: deleted at the end
  bool is_first_ = true;
};

}  // namespace

int RunChat(const Arguments& arguments) {
  Options options;
  FlagSet flags;
  bool help = false;
  bool default_stop = true;
  options.connection.AddFlags(flags);
  options.connection.AddWaitFlag(flags);
  AddSamplingFlags(flags, options.request);
  flags.String(
      "session", "NAME", "Session to go on with; default a new one, deleted at the end.",
      [&](std::string value) { options.request.mutable_session()->set_name(std::move(value)); });
  flags.Alias("-s");
  flags.Bool("keep", "Do not delete the session at the end.",
             [&](bool value) { options.keep = value; });
  flags.String("prefix", "TEXT", "Comes before what you say; default \"User: \".",
               [&](std::string value) { options.prefix = std::move(value); });
  flags.String("suffix", "TEXT", "Comes after it; default a line break and \"Assistant:\".",
               [&](std::string value) { options.suffix = std::move(value); });
  flags.Bool("default-stop", "Stop where the model begins a turn of yours; on by default.",
             [&](bool value) { default_stop = value; });
  flags.Bool("help", "Print this.", [&](bool value) { help = value; });
  flags.Alias("-h");
  const absl::StatusOr<std::vector<std::string>> positional = flags.Parse(arguments);
  if (help) {
    WriteOut(absl::StrCat(kUsageText, flags.Help(), "\n", kCommands));
    return kOk;
  }
  if (!positional.ok()) return ReportUsage("chat", positional.status().message());
  if (!positional->empty()) {
    return ReportUsage("chat", absl::StrCat("unexpected argument \"", (*positional)[0], "\""));
  }
  const absl::string_view marker = absl::StripAsciiWhitespace(options.prefix);
  if (default_stop && !marker.empty()) {
    options.request.mutable_stopping()->add_stop_strings(absl::StrCat("\n", marker));
  }

  std::atomic<Chat*> chat_for_interrupt{nullptr};
  const InterruptHandler interrupt([&] {
    if (Chat* chat = chat_for_interrupt.load()) {
      chat->Interrupt();
    } else {
      _exit(kInterrupted);
    }
  });
  Client client = options.connection.Connect();
  if (const absl::Status ready = WaitWhileLoading(client, options.connection.wait); !ready.ok()) {
    return ReportError(ready);
  }
  Chat chat(options, client);
  chat_for_interrupt = &chat;
  const int code = chat.Run();
  chat_for_interrupt = nullptr;
  return code;
}

}  // namespace mneme::cli
