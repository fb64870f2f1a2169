// The common part of `mneme`'s subcommands: the server's address, interruption, errors, exit codes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "clients/cli/flags.h"
#include "clients/cpp/client.h"

namespace google::protobuf {
class Message;
}

namespace mneme::cli {

enum ExitCode {
  kOk = 0,
  kFailed = 1,         // anything not named below
  kUsage = 2,          // arguments of this program
  kUnavailable = 3,    // no server there, or it is loading or draining
  kRefused = 4,        // the server found the request wrong, or has lost the session it is about
  kExhausted = 5,      // queue or memory full; try again later
  kDeadline = 6,       // --timeout passed
  kNotAllowed = 7,     // the server wants an API key, or another one
  kInterrupted = 130,  // Ctrl-C
};
ExitCode ExitCodeOf(const absl::Status& status);

using Arguments = std::vector<std::string>;

// Where the server is, how to be known to it, and how long to wait for it.
struct Connection {
  std::string server = "127.0.0.1:50051";
  bool server_given = false;  // by a flag or the environment
  std::string api_key;
  std::optional<ClientTls> tls;
  absl::Duration timeout = absl::InfiniteDuration();
  absl::Duration wait = absl::Minutes(10);

  void AddFlags(FlagSet& flags);
  void AddWaitFlag(FlagSet& flags);  // for commands that call WaitWhileLoading
  Client Connect() const;

 private:
  // A flag whose value is the text of a file.
  void AddPemFlag(FlagSet& flags, absl::string_view name, absl::string_view help,
                  std::string ClientTls::*text, absl::string_view environment);
  ClientTls& Tls();
};

// Waits while the server loads its model, showing progress on standard error if that is a terminal
// or the load takes long. A server that is not there at all is an error at once.
absl::Status WaitWhileLoading(Client& client, absl::Duration timeout);

// Prints "mneme: NOT_FOUND: ..." with the details in readable form, and returns the exit code.
int ReportError(const absl::Status& status);
// The same for arguments; names the subcommand whose --help would tell.
int ReportUsage(absl::string_view command, absl::string_view message);

// Adds --help (-h) to `flags` and parses: the words that are no flags. Nullopt if the command ends
// here with `code`, because `usage` and the flags were printed, or an error of the arguments was.
std::optional<std::vector<std::string>> ParseWords(absl::string_view command,
                                                   absl::string_view usage, FlagSet& flags,
                                                   const Arguments& arguments, int& code);

// Takes SIGINT from the whole process. While it lives, `on_interrupt` runs on a thread of its own
// for each Ctrl-C. One at a time, and before other threads are started.
class InterruptHandler {
 public:
  explicit InterruptHandler(std::function<void()> on_interrupt);
  ~InterruptHandler();
  InterruptHandler(const InterruptHandler&) = delete;
  InterruptHandler& operator=(const InterruptHandler&) = delete;

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

// Writes and flushes, so that tokens show as they come.
void WriteOut(absl::string_view text);
// `code`, or kFailed with a message if something that was written has been lost.
int CheckOutput(int code);

// A message as one line of JSON with the field names of the proto files, unset numbers included. As
// everywhere in protobuf's JSON, 64-bit numbers are strings.
std::string ToJson(const google::protobuf::Message& message);

// Said in brackets behind an answer that ended so (v1::Output::context_full).
inline constexpr char kContextFullNote[] =
    "the answer ends as its session has no room for more tokens";

// The subcommands. Each parses `arguments`, which follow its name, and returns the exit code.
int RunGenerate(const Arguments& arguments);
int RunChat(const Arguments& arguments);
int RunSession(const Arguments& arguments);
int RunMemory(const Arguments& arguments);
int RunClassify(const Arguments& arguments);
int RunInfo(const Arguments& arguments);
int RunAdmin(const Arguments& arguments);
int RunHealth(const Arguments& arguments);
int RunTokenize(const Arguments& arguments);
int RunDetokenize(const Arguments& arguments);
int RunBench(const Arguments& arguments);

}  // namespace mneme::cli
