#include "server/config/config.h"

#include <google/protobuf/message.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/number_text.h"
#include "base/spelling.h"
#include "base/status_macros.h"
#include "server/config/config_file.h"
#include "server/config/demo_model.h"
#include "server/config/flags.h"
#include "server/config/origins.h"
#include "server/config/units.h"
#include "server/net/host_address.h"

namespace mneme {
namespace {

// Shorter keys than this are likely somebody's word; those of --new-api-key have 49 characters.
constexpr size_t kShortKeyBytes = 20;

constexpr absl::string_view kModelFlag = "model";

absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(prefix, ": ", status.message()));
}

// Flags that are no fields of the configuration.
constexpr absl::string_view kOtherFlags[] = {"--config", "--set",         "--print-config",
                                             "--plan",   "--new-api-key", "--hash-api-key",
                                             "--help",   "--version"};
constexpr absl::string_view kOtherFlagsWithValue[] = {"--config", "--set", "--new-api-key",
                                                      "--hash-api-key"};

bool IsAmong(std::span<const absl::string_view> flags, absl::string_view name) {
  return std::count(flags.begin(), flags.end(), name) > 0;
}

absl::Status UnknownFlag(absl::string_view spelled, const FlagTable& table) {
  std::vector<std::string> spellings = table.Spellings();
  for (const absl::string_view other : kOtherFlags) spellings.emplace_back(other);
  const std::string nearest = NearestSpelling(spelled, spellings);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag ", spelled,
      nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"), " (--help lists all)"));
}

// One flag of the command line, in order: "--name value", "--name=value" or "--name".
struct Argument {
  std::string name;  // with its dashes
  std::string value;
};

class ArgumentReader {
 public:
  ArgumentReader(std::span<const char* const> arguments, const FlagTable& table)
      : arguments_(arguments), table_(table) {}

  absl::StatusOr<std::vector<Argument>> ReadAll() {
    std::vector<Argument> all;
    while (next_ < arguments_.size()) {
      MNEME_ASSIGN_OR_RETURN(Argument argument, ReadOne());
      all.push_back(std::move(argument));
    }
    return all;
  }

 private:
  absl::StatusOr<Argument> ReadOne() {
    const absl::string_view text = arguments_[next_++];
    if (text.size() < 2 || text[0] != '-') {
      return absl::InvalidArgumentError(absl::StrCat(
          "unexpected argument \"", text, "\"; the model's folder is given with --model"));
    }
    const size_t equals = text.find('=');
    Argument argument{.name = std::string(text.substr(0, equals))};
    const bool has_value = equals != absl::string_view::npos;
    if (has_value) argument.value = std::string(text.substr(equals + 1));

    if (argument.name == "-h") argument.name = "--help";
    if (argument.name == "--print_config") argument.name = "--print-config";
    const bool is_other = IsAmong(kOtherFlags, argument.name);
    const FlagSpec* flag = table_.Find(argument.name);
    if (flag == nullptr && absl::StartsWith(argument.name, "--no-")) {
      flag = table_.Find(absl::StrCat("--", argument.name.substr(5)));
      if (flag != nullptr && flag->is_bool() && !has_value) {
        return Argument{absl::StrCat("--", flag->name), "false"};
      }
      flag = nullptr;
    }
    if (flag == nullptr && !is_other) return UnknownFlag(argument.name, table_);

    const bool takes_value =
        is_other ? IsAmong(kOtherFlagsWithValue, argument.name) : !flag->is_bool();
    if (has_value) {
      if (is_other && !takes_value) {
        return absl::InvalidArgumentError(absl::StrCat(argument.name, " takes no value"));
      }
      return argument;
    }
    if (!takes_value) {
      argument.value = "true";
      return argument;
    }
    if (next_ == arguments_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(argument.name, " needs a value"));
    }
    argument.value = arguments_[next_++];
    return argument;
  }

  const std::span<const char* const> arguments_;
  const FlagTable& table_;
  size_t next_ = 0;
};

// Fields that nobody set get their defaults, so that what is printed and logged is complete.
void FillDefaults(const FlagTable& table, v1::ServerConfig& config) {
  for (const FlagSpec& flag : table.flags()) {
    const google::protobuf::Message& section =
        config.GetReflection()->GetMessage(config, flag.section);
    if (section.GetReflection()->HasField(section, flag.field)) continue;
    (void)SetField(flag, FieldText(flag, v1::ServerConfig::default_instance()), config);
  }
}

absl::Status CheckFilled(const FlagSpec& flag, absl::string_view given_as,
                         absl::string_view value) {
  if (!flag.options.has_if_empty() || !value.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(given_as, ": is empty, which would ", flag.options.if_empty(), "; expected ",
                   flag.options.secret() ? "a key" : "a path", ", or leave it out"));
}

}  // namespace

absl::Status CheckReadAgain(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISFIFO(info.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--config: \"", path, "\" is a pipe, which cannot be read again"));
}

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments,
                                             const GetEnvironment& environment) {
  MNEME_ASSIGN_OR_RETURN(CommandLine line, ReadCommandLine(arguments, environment));
  MNEME_RETURN_IF_ERROR(CheckCommandLine(line));
  return line;
}

absl::StatusOr<CommandLine> ReadCommandLine(std::span<const char* const> arguments,
                                            const GetEnvironment& environment) {
  const FlagTable table;
  MNEME_ASSIGN_OR_RETURN(const std::vector<Argument> given,
                         ArgumentReader(arguments, table).ReadAll());
  CommandLine line;
  const char* file = environment("MNEME_CONFIG");
  for (const Argument& argument : given) {
    if (argument.name == "--config") {
      file = argument.value.c_str();
      if (argument.value.empty()) {
        return absl::InvalidArgumentError("--config: expected the name of a file, got \"\"");
      }
    }
    if (argument.name == "--help") line.action = ServerAction::kHelp;
    if (argument.name == "--version") line.action = ServerAction::kVersion;
    if (argument.name == "--new-api-key") line.action = ServerAction::kNewApiKey;
    if (argument.name == "--hash-api-key") line.action = ServerAction::kHashApiKey;
    if (line.action != ServerAction::kServe && line.action != ServerAction::kPlan &&
        line.action != ServerAction::kPrintConfig) {
      line.key_name = argument.value;
      return line;
    }
    if (argument.name == "--plan") line.action = ServerAction::kPlan;
    if (argument.name == "--print-config") line.action = ServerAction::kPrintConfig;
  }

  if (file != nullptr && *file != '\0') {
    MNEME_RETURN_IF_ERROR(MergeConfigFile(file, line.config, line.origins));
    line.file = file;
  }
  for (const FlagSpec& flag : table.flags()) {
    const char* value = environment(flag.env.c_str());
    if (value == nullptr) continue;
    MNEME_RETURN_IF_ERROR(CheckFilled(flag, flag.env, value));
    MNEME_RETURN_IF_ERROR(Prefixed(flag.env, SetField(flag, value, line.config)));
    line.origins[flag.path] = flag.env;
    if (flag.name == kModelFlag) line.names_model = true;
  }
  for (const Argument& argument : given) {
    if (argument.name == "--set") {
      MNEME_RETURN_IF_ERROR(MergeConfigText(argument.value, "--set", line.config, line.origins));
    } else if (const FlagSpec* flag = table.Find(argument.name); flag != nullptr) {
      MNEME_RETURN_IF_ERROR(CheckFilled(*flag, argument.name, argument.value));
      MNEME_RETURN_IF_ERROR(Prefixed(argument.name, SetField(*flag, argument.value, line.config)));
      line.origins[flag->path] = argument.name;
      if (flag->options.secret() && !argument.value.empty()) line.has_secret = true;
      if (flag->name == kModelFlag) line.names_model = true;
    }
  }

  FillDefaults(table, line.config);
  return line;
}

bool WantsJsonLog(std::span<const char* const> arguments, const GetEnvironment& environment) {
  std::string format, file;
  for (const absl::string_view text : arguments) {
    // Those who ask for something else than a server read the answer themselves.
    const absl::string_view name = text.substr(0, text.find('='));
    if (name != "--config" && name != "--set" && IsAmong(kOtherFlags, name)) return false;
  }
  if (const char* variable = environment("MNEME_CONFIG"); variable != nullptr) file = variable;
  if (const char* variable = environment("MNEME_LOG_FORMAT"); variable != nullptr) {
    format = variable;
  }
  const auto value_at = [&](size_t i, absl::string_view name) -> std::optional<std::string> {
    std::string text = arguments[i];
    std::replace(text.begin(),
                 text.begin() + static_cast<int64_t>(std::min(text.find('='), text.size())), '_',
                 '-');
    if (text == name && i + 1 < arguments.size()) return arguments[i + 1];
    if (!absl::StartsWith(text, absl::StrCat(name, "="))) return std::nullopt;
    return text.substr(name.size() + 1);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    format = value_at(i, "--log-format").value_or(format);
    file = value_at(i, "--config").value_or(file);
  }
  if (!format.empty() || file.empty()) return format == "json";
  v1::ServerConfig config;
  FieldOrigins origins;
  return CheckReadAgain(file).ok() && MergeConfigFile(file, config, origins).ok() &&
         config.log().format() == "json";
}

absl::Status CheckCommandLine(const CommandLine& line) {
  const bool needs_config = line.action == ServerAction::kServe ||
                            line.action == ServerAction::kPlan ||
                            line.action == ServerAction::kPrintConfig;
  if (!needs_config) return absl::OkStatus();
  MNEME_RETURN_IF_ERROR(ValidateConfig(line.config, line.origins));
  if (line.action != ServerAction::kPrintConfig && line.config.model().path().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model is missing: the folder of a model in Hugging Face form (or MNEME_MODEL, or "
        "model { path: ... } in the file of --config)",
        line.names_model ? ""
                         : absl::StrCat("; the demo model, which is served where none is named, is "
                                        "not at ",
                                        kDemoModelPath, ", seen from this program's folder")));
  }
  return absl::OkStatus();
}

namespace {

absl::Status ValidateSecurity(const v1::SecuritySection& security) {
  if (security.ssl_certfile().empty() != security.ssl_keyfile().empty()) {
    return absl::InvalidArgumentError(
        "--ssl-certfile and --ssl-keyfile: one is given without the other");
  }
  if (!security.ssl_ca_certs().empty() && security.ssl_certfile().empty()) {
    return absl::InvalidArgumentError(
        "--ssl-ca-certs: asking clients for certificates takes TLS; add --ssl-certfile and "
        "--ssl-keyfile");
  }
  if (!security.api_key().empty() && !security.api_key_file().empty()) {
    return absl::InvalidArgumentError(
        "--api-key (or MNEME_API_KEY, which clients read, too) and --api-key-file are both given: "
        "a key in the file has an owner and limits, and goes when its line goes; put all of them "
        "there");
  }
  for (const char c : security.api_key()) {
    if (c > 0x20 && c < 0x7f) continue;
    return absl::InvalidArgumentError(
        "--api-key: has a space or a character that is not printable ASCII, and could not be sent "
        "in a header");
  }
  return absl::OkStatus();
}

// Fewer, and honest calls would be cut off beside a few large ones.
constexpr int64_t kMessagesInGrpcMemory = 4;
constexpr int64_t kDefaultGrpcMemoryBytes = int64_t{1} << 30;

int64_t LeastGrpcMemory(const v1::NetworkSection& network) {
  return kMessagesInGrpcMemory * network.max_message_bytes();
}

absl::Status ValidateNetwork(const v1::NetworkSection& network) {
  if (network.grpc_port() > 0 && network.grpc_port() == network.http_port()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--http-port: ", network.http_port(), " is the port of --grpc-port, too"));
  }
  MNEME_RETURN_IF_ERROR(
      Prefixed("--http-allowed-origins", ParseOrigins(network.http_allowed_origins()).status()));
  if (GrpcMemoryBytes(network) >= LeastGrpcMemory(network)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--grpc-memory: ", FormatBytes(network.grpc_memory_bytes()),
                   ", expected at least ", FormatBytes(LeastGrpcMemory(network)), ", ",
                   kMessagesInGrpcMemory, " times --max-message-size"));
}

absl::Status ValidateSessionTtl(const v1::EngineSection& engine) {
  const int64_t ttl = engine.session_ttl_ms(), most = engine.max_session_ttl_ms();
  if (most == 0 || (ttl > 0 && ttl <= most)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--session-ttl: ", ttl == 0 ? "0, never," : FormatMilliseconds(ttl),
                   " is longer than --max-session-ttl, ", FormatMilliseconds(most)));
}

absl::Status ValidateDecodeSlowdown(const v1::EngineSection& engine) {
  const double slowdown = engine.max_decode_slowdown();
  if (slowdown == 0 || slowdown >= 1) return absl::OkStatus();  // not so NaN
  return absl::InvalidArgumentError(
      absl::StrCat("--max-decode-slowdown (engine.max_decode_slowdown): ", NumberText(slowdown),
                   ", expected 0 (the device's own) or 1 (no limit) to 1000"));
}

}  // namespace

int64_t GrpcMemoryBytes(const v1::NetworkSection& network) {
  if (network.grpc_memory_bytes() > 0) return network.grpc_memory_bytes();
  return std::max(kDefaultGrpcMemoryBytes, LeastGrpcMemory(network));
}

absl::Status ValidateConfig(const v1::ServerConfig& config, const FieldOrigins& origins) {
  const FlagTable table;
  for (const FlagSpec& flag : table.flags()) {
    const auto origin = origins.find(flag.path);
    MNEME_RETURN_IF_ERROR(
        Prefixed(origin != origins.end() ? origin->second : absl::StrCat("--", flag.name),
                 CheckField(flag, config)));
    if (!flag.options.has_takes() || FieldText(flag, config) == DefaultText(flag)) continue;
    const FlagSpec* const other = table.Find(absl::StrCat("--", flag.options.takes()));
    if (!FieldText(*other, config).empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", flag.name, ": does nothing without --",
                                                   other->name, ", which is not given"));
  }
  const v1::SecuritySection& security = config.security();
  MNEME_RETURN_IF_ERROR(ValidateSecurity(security));
  MNEME_RETURN_IF_ERROR(ValidateNetwork(config.server()));
  MNEME_RETURN_IF_ERROR(ValidateSessionTtl(config.engine()));
  MNEME_RETURN_IF_ERROR(ValidateDecodeSlowdown(config.engine()));
  if (config.metrics().host().empty()) {
    return absl::InvalidArgumentError(
        "--metrics-host: is empty, expected an address; 0.0.0.0 or :: for every interface");
  }
  const bool knows_callers = !security.api_key().empty() || !security.api_key_file().empty() ||
                             !security.ssl_ca_certs().empty();
  if (IsAllInterfaces(config.server().host()) && !knows_callers && !config.server().insecure()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--host: \"", config.server().host(),
        "\" means every interface, and anybody could call: add --api-key-file, or --ssl-ca-certs, "
        "or name one address, or add --insecure if the network keeps strangers out"));
  }
  return absl::OkStatus();
}

std::vector<std::string> Weaknesses(const CommandLine& line) {
  const v1::NetworkSection& network = line.config.server();
  const v1::SecuritySection& security = line.config.security();
  const bool has_keys = !security.api_key().empty() || !security.api_key_file().empty();
  std::vector<std::string> lines;
  if (line.has_secret) {
    lines.emplace_back(
        "--api-key on the command line can be read by every user of this machine; MNEME_API_KEY "
        "and "
        "--api-key-file cannot");
  }
  if (!security.api_key().empty() && security.api_key().size() < kShortKeyBytes) {
    lines.push_back(absl::StrCat("the key of --api-key has ", security.api_key().size(),
                                 " characters and can perhaps be guessed; --new-api-key makes "
                                 "better ones"));
  }
  if (has_keys && security.ssl_certfile().empty() && !IsLoopback(network.host())) {
    lines.emplace_back("keys and texts travel unencrypted: --ssl-certfile turns TLS on");
  }
  if (!has_keys && security.ssl_ca_certs().empty() && !IsLoopback(network.host())) {
    lines.push_back(absl::StrCat("without keys or client certificates whoever reaches \"",
                                 network.host(), "\" may use every session"));
  }
  if (!has_keys && network.http_allowed_origins() == "*") {
    lines.emplace_back(
        "--http-allowed-origins * without keys: whatever page is open in a browser that reaches "
        "this server may use every session");
  }
  return lines;
}

std::vector<std::string> DifferingFlags(const v1::ServerConfig& a, const v1::ServerConfig& b) {
  std::vector<std::string> names;
  const FlagTable table;
  for (const FlagSpec& flag : table.flags()) {
    if (FieldText(flag, a) != FieldText(flag, b)) names.push_back(absl::StrCat("--", flag.name));
  }
  return names;
}

std::string ConfigSummary(const v1::ServerConfig& config) {
  std::vector<std::string> fields;
  const FlagTable table;
  for (const FlagSpec& flag : table.flags()) {
    const std::string value = FieldText(flag, config);
    if (value == FieldText(flag, v1::ServerConfig::default_instance())) continue;
    if (flag.options.secret()) {
      fields.push_back(absl::StrCat(flag.path, "=(set)"));
      continue;
    }
    fields.push_back(absl::StrCat(flag.path, "=", value.empty() ? "\"\"" : value));
  }
  return absl::StrJoin(fields, " ");
}

}  // namespace mneme
