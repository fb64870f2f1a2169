// From a command line to a checked ServerConfig: default <- file <- environment <- flags.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "mneme/v1/config.pb.h"
#include "server/config/config_file.h"

namespace mneme {

enum class ServerAction { kServe, kPlan, kPrintConfig, kNewApiKey, kHashApiKey, kHelp, kVersion };

struct CommandLine {
  ServerAction action = ServerAction::kServe;
  v1::ServerConfig config;  // every field set
  FieldOrigins origins;     // of those that somebody set
  std::string key_name;     // of kNewApiKey and kHashApiKey; checked by those
  bool has_secret = false;  // among the arguments, where other users of the machine see it
  // A flag or a variable names the model, if only as "", which is a script's variable that is not
  // set.
  bool names_model = false;
  bool serves_demo = false;  // config.model is the demo model: UseDemoModel
  std::string file;          // of --config; empty: none
};

// Whether `path` may be opened once more: a pipe would keep whoever reads it waiting, or be empty.
absl::Status CheckReadAgain(const std::string& path);

// Value of an environment variable, or null: getenv, or a map in tests.
using GetEnvironment = std::function<const char*(const char* name)>;

// `arguments` without the program's name. Errors are INVALID_ARGUMENT (NOT_FOUND for the file of
// --config), name the flag, variable or file position at fault, and suggest the nearest spelling.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments,
                                             const GetEnvironment& environment);

// Its two halves. What was read is complete and may be used where it is no error, so that the
// second half's error can be written as log.format asks.
absl::StatusOr<CommandLine> ReadCommandLine(std::span<const char* const> arguments,
                                            const GetEnvironment& environment);
absl::Status CheckCommandLine(const CommandLine& line);

// Whether log.format is json, as far as that can be told where ReadCommandLine fails: by the flags
// and variables that are in order, and the file if it is. For the line that reports the failure.
bool WantsJsonLog(std::span<const char* const> arguments, const GetEnvironment& environment);

// Ranges, choices, and what fields demand of each other. Messages name a field by its origin, or
// else by its flag.
absl::Status ValidateConfig(const v1::ServerConfig& config, const FieldOrigins& origins = {});

// --grpc-memory, or its default.
int64_t GrpcMemoryBytes(const v1::NetworkSection& network);

// The flags, "--host", in which two configurations differ.
std::vector<std::string> DifferingFlags(const v1::ServerConfig& a, const v1::ServerConfig& b);

// Settings that are allowed and seldom meant, a line for the log each: secrets that others see, and
// the like.
std::vector<std::string> Weaknesses(const CommandLine& line);

// The configuration as a file for --config, a comment before each field; without secrets.
std::string PrintConfig(const v1::ServerConfig& config);

// One line with what differs from the defaults: "model.path=... engine.max_rows=64 ...".
std::string ConfigSummary(const v1::ServerConfig& config);

// The text that --help prints.
std::string HelpText();

}  // namespace mneme
