#include "server/log_settings.h"

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/log_fields.h"
#include "server/config/config.h"

namespace mneme {

void ApplyLogSettings(const v1::LogSection& section) {
  SetMinLogSeverity(section.level() == "error"     ? LogSeverity::kError
                    : section.level() == "warning" ? LogSeverity::kWarning
                                                   : LogSeverity::kInfo);
  SetLogFormat(section.format() == "json" ? LogFormat::kJson : LogFormat::kText);
}

RequestLog::Which RequestsToLog(const v1::LogSection& section) {
  if (section.requests() == "none") return RequestLog::Which::kNone;
  return section.requests() == "failed" ? RequestLog::Which::kFailed : RequestLog::Which::kAll;
}

void ReloadLogSettings(const v1::ServerConfig& config, const v1::ServerConfig& running,
                       RequestLog& requests) {
  ApplyLogSettings(config.log());
  requests.set_which(RequestsToLog(config.log()));
  LogFields("log_settings")
      .Add("level", config.log().level())
      .Add("format", config.log().format())
      .Add("requests", config.log().requests())
      .Write(LogSeverity::kWarning);
  v1::ServerConfig before = running, after = config;
  before.clear_log();
  after.clear_log();
  if (const std::vector<std::string> flags = DifferingFlags(before, after); !flags.empty()) {
    LogFields("restart_needed")
        .Message("settings changed that take effect after a restart only")
        .Add("flags", absl::StrJoin(flags, " "))
        .Write(LogSeverity::kWarning);
  }
}

}  // namespace mneme
