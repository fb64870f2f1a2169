// mneme admin: what an operator may do to a running server.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "clients/cli/command.h"
#include "clients/cli/session_lines.h"

namespace mneme::cli {
namespace {

constexpr char kUsageText[] =
    "usage: mneme admin log-level info|warning|error [FLAGS]: what the server logs from now on\n"
    "       mneme admin reload [FLAGS]: read API keys and certificates again\n"
    "       mneme admin sessions [PREFIX] [FLAGS]: sessions of all owners\n"
    "       mneme admin delete-session OWNER NAME... [FLAGS]: end sessions of anybody\n\n"
    "All need an API key marked admin.\n\n";

struct Options {
  Connection connection;
  std::string owner;
  bool json = false;
};

int SetLogLevel(Client& client, const std::string& word) {
  v1::LogLevel level;
  if (!v1::LogLevel_Parse(absl::StrCat("LOG_LEVEL_", absl::AsciiStrToUpper(word)), &level)) {
    return ReportUsage("admin",
                       absl::StrCat("log-level: \"", word, "\", expected info, warning or error"));
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

int ListSessions(Client& client, const std::string& prefix, const Options& options) {
  v1::AdminListSessionsRequest request;
  request.set_name_prefix(prefix);
  request.set_owner(options.owner);
  return PrintSessionPages(
      request, options.json, /*owners=*/true,
      [&client](const v1::AdminListSessionsRequest& page) { return client.ListAllSessions(page); });
}

int DeleteSessions(Client& client, const std::vector<std::string>& words) {
  int code = kOk;
  for (size_t i = 2; i < words.size(); ++i) {
    const absl::Status status = client.DeleteSessionOf(words[1], words[i]);
    if (!status.ok()) code = ReportError(status);
  }
  return code;
}

int Run(Client& client, const std::vector<std::string>& words, const Options& options) {
  const std::string& verb = words[0];
  if (verb == "log-level" && words.size() == 2) return SetLogLevel(client, words[1]);
  if (verb == "reload" && words.size() == 1) return Reload(client);
  if (verb == "sessions" && words.size() <= 2) {
    return ListSessions(client, words.size() == 2 ? words[1] : "", options);
  }
  if (verb == "delete-session" && words.size() >= 3) return DeleteSessions(client, words);
  return ReportUsage("admin",
                     "expected log-level LEVEL, reload, sessions [PREFIX] or delete-session OWNER "
                     "NAME...");
}

}  // namespace

int RunAdmin(const Arguments& arguments) {
  Options options;
  FlagSet flags;
  options.connection.AddFlags(flags);
  flags.String("owner", "NAME", "sessions: those of this owner alone.",
               [&](std::string owner) { options.owner = std::move(owner); });
  flags.Bool("json", "sessions: print a line of JSON per session.",
             [&](bool value) { options.json = value; });
  int code = kOk;
  const auto words = ParseWords("admin", kUsageText, flags, arguments, code);
  if (!words.has_value()) return code;
  if (words->empty()) {
    return ReportUsage("admin", "log-level, reload, sessions or delete-session?");
  }
  Client client = options.connection.Connect();
  return Run(client, *words, options);
}

}  // namespace mneme::cli
