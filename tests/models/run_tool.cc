#include "tests/models/run_tool.h"

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace mneme {

ToolOutcome RunTool(const std::string& tool, const std::string& arguments) {
  const char* const folder = std::getenv("MNEME_BIN_DIR");
  const std::string command =
      absl::StrCat(folder != nullptr ? folder : MNEME_TOOLS, "/", tool, " ", arguments, " 2>&1");
  std::FILE* const pipe = popen(command.c_str(), "r");
  CHECK(pipe != nullptr) << command;
  ToolOutcome outcome;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, n);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

}  // namespace mneme
