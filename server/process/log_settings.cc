#include "server/process/log_settings.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/log_fields.h"
#include "server/config/config.h"

namespace mneme {

namespace {

constexpr std::pair<const char*, LogSeverity> kLevels[] = {{"info", LogSeverity::kInfo},
                                                           {"warning", LogSeverity::kWarning},
                                                           {"error", LogSeverity::kError}};

void ApplyLevel(const v1::LogSection& section) {
  for (const auto& [name, severity] : kLevels) {
    if (section.level() == name) SetMinLogSeverity(severity);
  }
}

std::string LevelInEffect() {
  for (const auto& [name, severity] : kLevels) {
    if (MinLogSeverity() == severity) return name;
  }
  return "";
}

void ApplyFormat(const v1::LogSection& section) {
  SetLogFormat(section.format() == "json" ? LogFormat::kJson : LogFormat::kText);
}

}  // namespace

void ApplyLogSettings(const v1::LogSection& section) {
  ApplyLevel(section);
  ApplyFormat(section);
}

RequestLog::Which RequestsToLog(const v1::LogSection& section) {
  if (section.requests() == "none") return RequestLog::Which::kNone;
  return section.requests() == "failed" ? RequestLog::Which::kFailed : RequestLog::Which::kAll;
}

HttpAccessLog::Which HttpCallsToLog(const v1::LogSection& section) {
  if (section.http() == "all") return HttpAccessLog::Which::kAll;
  if (section.http() == "none") return HttpAccessLog::Which::kNone;
  return section.http() == "failed" ? HttpAccessLog::Which::kFailed
                                    : HttpAccessLog::Which::kNoProbes;
}

void ReloadLogSettings(const v1::ServerConfig& config, const v1::ServerConfig& running,
                       v1::LogSection& last, RequestLog& requests, HttpAccessLog& http_calls) {
  if (config.log().level() != last.level()) ApplyLevel(config.log());
  ApplyFormat(config.log());
  requests.set_which(RequestsToLog(config.log()));
  http_calls.set_which(HttpCallsToLog(config.log()));
  last = config.log();
  const std::string level = LevelInEffect();
  LogFields("log_settings")
      .Message(level == config.log().level() ? "" : "the level stays as an admin has set it")
      .Add("level", level)
      .Add("format", config.log().format())
      .Add("requests", config.log().requests())
      .Add("http", config.log().http())
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
