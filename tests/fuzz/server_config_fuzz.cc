// Configurations: as the text of a file, and as words of a command line.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/config/config.h"
#include "tests/fuzz/bounds.h"

namespace mneme {
namespace {

// A configuration that was accepted has every field within its range, and is the same once printed
// and read.
void Check(const std::vector<std::string>& words, const char* variable) {
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  const GetEnvironment environment = [&](const char* name) -> const char* {
    return std::string(name) == "MNEME_STATE_MEMORY" ? variable : nullptr;
  };
  const absl::StatusOr<CommandLine> line = ParseCommandLine(arguments, environment);
  if (!line.ok()) {
    Require(!line.status().message().empty(), "an error says something");
    return;
  }
  if (line->action != ServerAction::kServe) return;
  Require(ValidateConfig(line->config).ok(), "an accepted configuration is valid");
  v1::ServerConfig shown = line->config;
  shown.mutable_security()->clear_api_key();  // secrets are not printed
  const std::string text = PrintConfig(line->config);
  const std::vector<const char*> again = {"--set", text.c_str()};
  const auto nothing = [](const char*) -> const char* { return nullptr; };
  const absl::StatusOr<CommandLine> reread = ParseCommandLine(again, nothing);
  Require(reread.ok() || !line->config.security().api_key().empty(), "what is printed can be read");
  Require(!reread.ok() || PrintConfig(reread->config) == text, "and means the same");
}

}  // namespace
}  // namespace mneme

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  mneme::Check({"--model", "m", "--set", text}, nullptr);
  std::vector<std::string> words = absl::StrSplit(text, absl::ByAnyChar(" \n"));
  for (std::string& word : words) {
    // A file of the machine that runs this is no business of the input's.
    if (word.find("config") != std::string::npos) word = "--plan";
  }
  const std::string variable = words.back().substr(0, words.back().find('\0'));
  words.insert(words.begin(), {"--model", "m"});
  mneme::Check(words, size % 2 == 0 ? nullptr : variable.c_str());
  return 0;
}
