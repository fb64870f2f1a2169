// The programs of this build as users run them: arguments, what they print, exit codes.
#pragma once

#include <string>
#include <vector>

#include "tests/integration/child_process.h"

namespace mneme {

inline constexpr char kServer[] = MNEME_SERVER_BINARY;
inline constexpr char kClient[] = MNEME_CLIENT_BINARY;
inline constexpr char kLogits[] = MNEME_LOGITS_BINARY;
inline constexpr char kInspect[] = MNEME_INSPECT_BINARY;
inline constexpr char kMakeModel[] = MNEME_MAKE_MODEL_BINARY;

// A small model, without a tokenizer: text is bytes.
inline constexpr char kModel[] = "tests/golden/mom";

// Arguments of a server of kModel on any free ports, and `flags` behind them.
std::vector<std::string> ServerFlags(const std::vector<std::string>& flags = {});

// `command` with more words.
std::vector<std::string> With(std::vector<std::string> command,
                              const std::vector<std::string>& words);

// A server of ServerFlags(flags) that is ready.
class Server : public ChildProcess {
 public:
  explicit Server(const std::vector<std::string>& flags = {});
  std::string address;  // where it listens for gRPC
};

// The outcome of a program.
struct Result {
  int code;
  std::string out;
  std::string err;
};

// Until it has ended. Arguments as of ChildProcess.
Result RunProgram(const std::vector<std::string>& command, const std::string& input = "",
                  const std::vector<std::string>& environment = {});
// kServer with `flags` alone.
Result RunServer(const std::vector<std::string>& flags);
// kClient, which talks to `server`.
Result RunClient(const Server& server, const std::vector<std::string>& words,
                 const std::string& input = "");

// An empty folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  // The path of a file with this text.
  std::string Write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace mneme
