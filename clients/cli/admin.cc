// mneme admin: what an operator may do to a running server.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "clients/cli/command.h"

namespace mneme::cli {
namespace {

constexpr char kUsageText[] =
    "usage: mneme admin log-level info|warning|error [FLAGS]: what the server logs from now on\n"
    "       mneme admin reload [FLAGS]: read API keys and certificates again\n\n"
    "Both need an API key marked admin.\n\n";

int SetLogLevel(Client& client, const std::string& word) {
  v1::LogLevel level;
  if (!v1::LogLevel_Parse(absl::StrCat("LOG_LEVEL_", absl::AsciiStrToUpper(word)), &level)) {
    return ReportUsage("admin",
                       absl::StrCat("log-level: \"", word, "\" is none of info, warning, error"));
  }
  const absl::StatusOr<v1::SetLogLevelResponse> response = client.SetLogLevel(level);
  return response.ok() ? kOk : ReportError(response.status());
}

int Reload(Client& client) {
  const absl::StatusOr<v1::ReloadResponse> response = client.Reload();
  if (!response.ok()) return ReportError(response.status());
  std::string text = absl::StrCat(response->api_keys(), " API keys\n");
  if (!response->tls_subject().empty()) {
    const absl::Time expires = absl::FromUnixMillis(response->tls_expires_at_ms());
    absl::StrAppend(&text, "certificate ", response->tls_subject(), ", expires ",
                    absl::FormatTime("%Y-%m-%d %H:%M UTC", expires, absl::UTCTimeZone()), "\n");
  }
  WriteOut(text);
  return kOk;
}

}  // namespace

int RunAdmin(const Arguments& arguments) {
  Connection connection;
  FlagSet flags;
  connection.AddFlags(flags);
  int code = kOk;
  const auto words = ParseWords("admin", kUsageText, flags, arguments, code);
  if (!words.has_value()) return code;
  const bool sets_level = words->size() == 2 && (*words)[0] == "log-level";
  if (!sets_level && *words != std::vector<std::string>{"reload"}) {
    return ReportUsage("admin", "expected log-level LEVEL or reload");
  }
  Client client = connection.Connect();
  return sets_level ? SetLogLevel(client, (*words)[1]) : Reload(client);
}

}  // namespace mneme::cli
