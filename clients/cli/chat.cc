// mneme chat: a conversation with a session, line by line. Only what is new is ever sent.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "clients/cli/command.h"
#include "clients/cli/memory_use_text.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/session_rewind.h"
#include "clients/cpp/client_session.h"

namespace mneme::cli {
namespace {

constexpr absl::string_view kUsageText =
    R"(usage: mneme chat [FLAGS]

Talks to a session. The model remembers the conversation; each turn sends only what you say, which the
server writes as the model's chat template has it, and shows the answer up to the model's end token or
--stop. At the start it says whether the session is new or how many tokens it goes on after, on
standard error if turns do not come from a terminal. Once a session is in use it has to exist: if it
expires or the server is started anew, the next turn is an error and no invented answer. With
--no-remember each turn is answered in a copy of the session, which stays as it is.

A model without a chat template, and --no-template, get turns as text, wrapped in --prefix and --suffix.
With the defaults a conversation reads, tokens and all,

  <s>User: Hello\nAssistant: Hi.</s>\nUser: ...

)";

constexpr absl::string_view kCommands =
    R"(  /fork [NAME]   go on in a copy of the session, leaving this one as it is
  /reset         forget everything and start anew
  /checkpoint [NAME]
                 name the place where the conversation stands, of servers that store sessions
  /rewind PLACE  go back to a checkpoint, by its name, or to a number of tokens; what came later is
                 gone
  /session       show name, length and size of the session
  /help          show this
  /quit          leave (also Ctrl-D); Ctrl-C stops the current answer only
A line that ends with a backslash goes on in the next one; """ alone begins and ends several lines.
)";

struct Options {
  Connection connection;
  v1::GenerateRequest request;        // of every turn, less its text
  std::optional<bool> uses_template;  // not set: where the model has one
  std::optional<std::string> prefix;  // these three are for turns without a template
  std::optional<std::string> suffix;
  bool default_stop = true;
  bool keep = false;
  bool close = true;

  bool Remembers() const {
    return !request.session().has_remember() || request.session().remember();
  }

  std::string Prefix() const { return prefix.value_or("User: "); }
  std::string Suffix() const { return suffix.value_or("\nAssistant:"); }
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
    // A name that no turn could use is told before anything is typed. Without --must-exist there
    // may be no such session yet: the first turn creates it.
    if (const absl::Status status = LookUpSession(); !status.ok()) return ReportError(status);
    is_cut_ = false;  // what somebody else left is taken for whole
    Greet();
    if (const absl::Status status = ChooseTemplate(); !status.ok()) return ReportError(status);
    int code = kOk;
    while (const std::optional<std::string> turn = ReadTurn(is_terminal_)) {
      const absl::string_view text = absl::StripAsciiWhitespace(*turn);
      if (text == "/quit" || text == "/exit") break;
      if (absl::StartsWith(text, "/")) {
        RunCommand(text);
      } else if (!text.empty()) {
        code = Answer(text);
        if (code == kUnavailable) break;
      }
    }
    if (is_own_ && !options_.keep) (void)client_.DeleteSession(session());
    return code;
  }

 private:
  // Says where the conversation stands. Answers alone are on standard output of a script.
  void Greet() const {
    const std::string where =
        exists_ ? absl::StrCat("session ", session(), ", going on after ", position_, " tokens")
                : absl::StrCat("new session ", session());
    if (is_terminal_) {
      WriteOut(absl::StrCat(where, "; /help lists the commands\n"));
    } else if (!is_own_) {
      fprintf(stderr, "[%s]\n", where.c_str());
    }
  }

  // Whether turns are messages for the model's chat template, or texts.
  absl::Status ChooseTemplate() {
    if (!options_.uses_template.has_value()) {
      const bool is_wrapped = options_.prefix.has_value() || options_.suffix.has_value();
      const absl::StatusOr<v1::GetInfoResponse> info = client_.GetInfo();
      if (!info.ok()) return info.status();
      options_.uses_template = !is_wrapped && info->model().has_chat_template();
      if (!is_wrapped && !*options_.uses_template) {
        fprintf(stderr,
                "[the model has no chat template: turns are sent as \"%s...%s\" (--prefix, "
                "--suffix)]\n",
                absl::CEscape(options_.Prefix()).c_str(), absl::CEscape(options_.Suffix()).c_str());
      }
    }
    const std::string prefix = options_.Prefix();
    const absl::string_view marker = absl::StripAsciiWhitespace(prefix);
    if (!*options_.uses_template && options_.default_stop && !marker.empty()) {
      options_.request.mutable_stopping()->add_stop_strings(absl::StrCat("\n", marker));
    }
    return absl::OkStatus();
  }

  const std::string& session() const { return options_.request.session().name(); }
  void set_session(std::string name) {
    options_.request.mutable_session()->set_name(std::move(name));
  }

  // Learns where the session stands. Elsewhere than after the last answer: in one that was cut off.
  absl::Status LookUpSession() {
    const absl::StatusOr<v1::Session> info = client_.GetSession(session());
    const v1::SessionOptions& session_options = options_.request.session();
    const bool begins =
        (absl::IsNotFound(info.status()) && !session_options.must_exist()) ||
        (absl::IsDataLoss(info.status()) && session_options.replace_lost());  // it was lost
    if (!info.ok() && !begins) return info.status();
    is_unsure_ = false;
    SetExists(info.ok());
    const int64_t position = info.ok() ? info->position() : 0;
    if (position == position_) return absl::OkStatus();
    position_ = position;
    is_cut_ = position > 0;
    ending_.clear();
    return absl::OkStatus();
  }

  // The prompt of a turn: it goes on exactly where the session stands. Turns are lines of their
  // own; the end token and the stop string that ended the last answer are in the session already,
  // though the user did not see them.
  void SetPrompt(absl::string_view turn) {
    std::string text =
        absl::StrCat(position_ > 0 ? "\n" : "", options_.Prefix(), turn, options_.Suffix());
    if (absl::StartsWith(text, ending_)) text.erase(0, ending_.size());
    if (is_cut_ && options_.close && SetClosingPrompt(text)) return;
    options_.request.set_text(std::move(text));
    options_.request.set_parse_special(false);  // what a user says is text
  }

  // The same behind the end token that the last answer did not come to.
  bool SetClosingPrompt(const std::string& text) {
    const absl::StatusOr<v1::GetInfoResponse> info = client_.GetInfo();
    if (!info.ok() || !info->model().has_eos_token_id()) return false;
    v1::TokenizeRequest request;
    request.set_text(text);
    request.set_continuation(true);
    request.set_parse_special(false);
    const absl::StatusOr<v1::TokenizeResponse> tokens = client_.Tokenize(request);
    if (!tokens.ok()) return false;
    v1::TokenIds& prompt = *options_.request.mutable_token_ids();
    prompt.Clear();
    prompt.add_ids(info->model().eos_token_id());
    prompt.mutable_ids()->MergeFrom(tokens->token_ids());
    return true;
  }

  // From now on there has to be a session, or may be none: one that is gone must not come back
  // empty, without a word.
  void SetExists(bool exists) {
    exists_ = exists;
    options_.request.mutable_session()->set_must_exist(exists);
    if (exists) {
      options_.request.mutable_session()->clear_create_if_missing();
      options_.request.mutable_session()->clear_replace_lost();
    }
  }

  // Sends a turn, in the words of the template or as text. Shows the answer as it comes and leaves
  // it in `answer`, and what was counted of it in `usage`.
  absl::Status Send(absl::string_view turn, std::string& answer, v1::Usage& usage) {
    const auto show = [&answer](absl::string_view text) {
      WriteOut(text);
      absl::StrAppend(&answer, text);
    };
    if (*options_.uses_template) {
      ClientSession messages(client_, session());
      *messages.request().mutable_session() = options_.request.session();
      *messages.request().mutable_sampling() = options_.request.sampling();
      *messages.request().mutable_stopping() = options_.request.stopping();
      *messages.request().mutable_response() = options_.request.response();
      const absl::StatusOr<mneme::Answer> answered = messages.Chat(turn, show, &cancel_);
      if (answered.ok()) usage = answered->finished.usage();
      if (answered.ok() && options_.Remembers()) {
        position_ = answered->finished.session().position();
      }
      return answered.status();
    }
    SetPrompt(turn);
    return client_.Generate(
        options_.request,
        [&](const v1::GenerateResponse& response) {
          for (const v1::Output& output : response.outputs()) {
            absl::string_view text = output.text();
            show(answer.empty() ? absl::StripLeadingAsciiWhitespace(text) : text);
            if (!options_.Remembers()) continue;
            is_cut_ = output.finish_reason() == v1::FINISH_REASON_LENGTH;
            ending_ = output.stop_matched();
          }
          if (response.has_finished()) usage = response.finished().usage();
          if (response.has_finished() && options_.Remembers()) {
            position_ = response.finished().session().position();
          }
        },
        &cancel_);
  }

  int Answer(absl::string_view turn) {
    if (is_unsure_) (void)LookUpSession();
    cancel_.Reset();
    answering_ = true;
    std::string answer;
    v1::Usage usage;
    const absl::Status status = Send(turn, answer, usage);
    answering_ = false;
    if (status.ok() && options_.Remembers()) {
      SetExists(true);
      ends_[position_] = {.is_cut = is_cut_, .ending = ending_};
    }
    is_unsure_ = !status.ok();
    const bool stopped = cancel_.cancelled();
    if (!status.ok() && !stopped && answer.empty()) {  // refused
      const int code = ReportError(status);
      if (absl::IsNotFound(status) && exists_) {
        fputs("mneme: the session and what it remembered are gone; /reset begins a new one\n",
              stderr);
      }
      return code;
    }
    if (!absl::EndsWith(answer, "\n")) WriteOut("\n");
    if (status.ok()) {
      if (usage.has_memory_use()) ShowMemoryUse(usage);
      return kOk;
    }
    if (stopped) {
      fputs("[stopped]\n", stderr);
      return kOk;
    }
    return ReportError(status);
  }

  // Below its answer, of which it is no part: on standard error.
  static void ShowMemoryUse(const v1::Usage& usage) {
    constexpr int kMost = 8;
    const std::vector<std::string> texts = MemoryUseTexts(usage.memory_use(), kMost);
    fprintf(stderr, "[drew on %s%s]\n",
            texts.empty() ? "no engrams of earlier segments" : absl::StrJoin(texts, ", ").c_str(),
            usage.memory_evicted() ? "; its memory was full" : "");
  }

  void RunCommand(absl::string_view line) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words[0] == "/help") {
      WriteOut(kCommands);
    } else if (words[0] == "/fork" && words.size() <= 2) {
      Fork(words.size() > 1 ? words[1] : "");
    } else if (words[0] == "/checkpoint" && words.size() <= 2) {
      Checkpoint(words.size() > 1 ? words[1] : "");
    } else if (words[0] == "/rewind" && words.size() == 2) {
      GoBack(words[1]);
    } else if (words[0] == "/reset") {
      const absl::Status status = client_.DeleteSession(session());
      if (!status.ok() && !absl::IsNotFound(status)) {
        (void)ReportError(status);
        return;
      }
      position_ = 0;
      ends_.clear();
      SetExists(false);
      is_cut_ = is_unsure_ = false;
      WriteOut("[a new conversation]\n");
    } else if (words[0] == "/session") {
      const absl::StatusOr<v1::Session> info = client_.GetSession(session());
      if (!info.ok()) {
        ReportMissing(info.status());
        return;
      }
      WriteOut(absl::StrCat("[", info->name(), ": ", info->position(), " tokens in ",
                            info->state_bytes(), " bytes",
                            info->context_full() ? ", as many as it has room for" : "", "]\n"));
    } else {
      WriteOut(absl::StrCat("unknown command ", line, "\n", kCommands));
    }
  }

  // A session that no turn has begun is no error; one that is gone is.
  void ReportMissing(const absl::Status& status) {
    if (absl::IsNotFound(status) && !exists_) {
      WriteOut(absl::StrCat("[", session(), " begins with the next turn]\n"));
    } else {
      (void)ReportError(status);
    }
  }

  void Checkpoint(const std::string& name) {
    v1::CreateCheckpointRequest request;
    request.set_session(session());
    request.set_name(name);
    const absl::StatusOr<v1::Checkpoint> made = client_.CreateCheckpoint(request);
    if (!made.ok()) {
      ReportMissing(made.status());
      return;
    }
    WriteOut(absl::StrCat("[checkpoint ", made->name(), " after ", made->position(), " tokens]\n"));
  }

  void GoBack(const std::string& place) {
    const absl::StatusOr<Place> to = ParsePlace(place);
    if (!to.ok()) {
      WriteOut(absl::StrCat("[", to.status().message(), "]\n"));
      return;
    }
    const absl::StatusOr<v1::Session> rewound = Rewind(client_, session(), *to);
    if (!rewound.ok()) {
      ReportMissing(rewound.status());
      return;
    }
    position_ = rewound->position();
    ends_.erase(ends_.upper_bound(position_), ends_.end());
    // A checkpoint of somebody else's is taken for whole; a position may lie within an answer.
    const auto end = ends_.find(position_);
    is_cut_ = end != ends_.end() ? end->second.is_cut : to->position.has_value() && position_ > 0;
    ending_ = end != ends_.end() ? end->second.ending : "";
    is_unsure_ = false;
    WriteOut(absl::StrCat("[back after ", position_, " tokens]\n"));
  }

  void Fork(const std::string& target) {
    v1::ForkSessionRequest request;
    request.set_source_name(session());
    request.set_target_name(target);
    const absl::StatusOr<v1::Session> fork = client_.ForkSession(request);
    if (!fork.ok()) {
      ReportMissing(fork.status());
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
  bool is_own_ = false;     // named by us: deleted at the end
  bool exists_ = false;     // there was a session, and it must be there still
  int64_t position_ = 0;    // of the session after the last answer; 0: it begins
  bool is_unsure_ = false;  // a turn failed, and the session may hold a part of it
  bool is_cut_ = false;     // the last answer did not come to its end
  std::string ending_;      // stop string that ended it

  struct AnswerEnd {
    bool is_cut = false;
    std::string ending;
  };
  std::map<int64_t, AnswerEnd> ends_;  // by the position of the session behind the answer
};

}  // namespace

int RunChat(const Arguments& arguments) {
  Options options;
  FlagSet flags;
  bool help = false;
  options.connection.AddFlags(flags);
  options.connection.AddWaitFlag(flags);
  AddSamplingFlags(flags, options.request);
  flags.String(
      "session", "NAME", "Session to go on with; default a new one, deleted at the end.",
      [&](std::string value) { options.request.mutable_session()->set_name(std::move(value)); });
  flags.Alias("-s");
  flags.Bool("keep", "Do not delete the session at the end.",
             [&](bool value) { options.keep = value; });
  flags.Bool("must-exist", "Go on with a session that is there, or refuse.",
             [&](bool value) { options.request.mutable_session()->set_must_exist(value); });
  AddSessionFlags(flags, options.request);
  flags.Bool("memory-use",
             "Tell below each answer which segments of the conversation it drew on, and which kind "
             "of memory, on standard error; of models that make engrams.",
             [&](bool value) { options.request.mutable_response()->set_memory_use(value); });
  flags.Bool("template",
             "Send turns as messages for the model's chat template; default if it has one, and "
             "neither --prefix nor --suffix is given. The flags below are for turns without.",
             [&](bool value) { options.uses_template = value; });
  flags.String("prefix", "TEXT", "Comes before what you say; default \"User: \".",
               [&](std::string value) { options.prefix = std::move(value); });
  flags.String("suffix", "TEXT", "Comes after it; default a line break and \"Assistant:\".",
               [&](std::string value) { options.suffix = std::move(value); });
  flags.Bool(
      "close",
      "Close an answer that was cut off, by --max-tokens or Ctrl-C, with the model's end token "
      "before the next turn; on by default, and the chat template's business where there is one.",
      [&](bool value) { options.close = value; });
  flags.Bool("default-stop", "Stop where the model begins a turn of yours; on by default.",
             [&](bool value) { options.default_stop = value; });
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
  if (options.uses_template.value_or(false) && (options.prefix || options.suffix)) {
    return ReportUsage("chat", "--template has neither --prefix nor --suffix");
  }
  if (options.request.session().must_exist() && options.request.session().name().empty()) {
    return ReportUsage("chat", "--must-exist needs a --session");
  }

  if (!options.Remembers() && options.request.session().name().empty()) {
    return ReportUsage("chat", "--no-remember needs a --session");
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
