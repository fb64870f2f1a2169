// A conversation with a session at a terminal, or in a script, line by line.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "clients/cli/command.h"
#include "clients/cli/request_flags.h"
#include "clients/cpp/client_session.h"

namespace mneme::cli {

// The lines that are commands, for --help and /help.
extern const absl::string_view kChatCommands;

struct ChatOptions {
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

class Conversation {
 public:
  // Names the session where `options` does not. Both must outlive it.
  Conversation(ChatOptions& options, Client& client);

  // Runs on the thread that takes Ctrl-C.
  void Interrupt();
  // Reads and answers turns until there are no more. Returns the exit code of the program.
  int Run();

 private:
  // Says where the conversation stands. Answers alone are on standard output of a script.
  void Greet() const;
  // Whether turns are messages for the model's chat template, or texts.
  absl::Status ChooseTemplate();
  // Learns where the session stands. Elsewhere than after the last answer: in one that was cut off.
  absl::Status LookUpSession();
  // The prompt of a turn: it goes on exactly where the session stands. Turns are lines of their
  // own; the end token and the stop string that ended the last answer are in the session already,
  // though the user did not see them.
  void SetPrompt(absl::string_view turn);
  // The same behind the end token that the last answer did not come to.
  bool SetClosingPrompt(const std::string& text);
  // From now on there has to be a session, or may be none: one that is gone must not come back
  // empty, without a word.
  void SetExists(bool exists);
  // A turn leaves this for what is printed below its answer.
  struct Outcome {
    std::string answer;  // as it was shown
    v1::Usage usage;
    bool context_full = false;
  };
  // Sends a turn, in the words of the template or as text. Shows the answer as it comes and leaves
  // it in `outcome`, with what was said of it.
  absl::Status Send(absl::string_view turn, Outcome& outcome);
  int Answer(absl::string_view turn);
  // Below its answer, of which it is no part: on standard error.
  static void ShowMemoryUse(const v1::Usage& usage);
  void RunCommand(absl::string_view line);
  // Whether the server did what was asked of the session; otherwise says why not. A session that no
  // turn has begun is no error; one that is gone is.
  bool Succeeded(const absl::Status& status);
  void Checkpoint(const std::string& name);
  void GoBack(const std::string& place);
  void Fork(const std::string& target);

  const std::string& session() const { return options_.request.session().name(); }
  void set_session(std::string name) {
    options_.request.mutable_session()->set_name(std::move(name));
  }

  ChatOptions& options_;
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

}  // namespace mneme::cli
