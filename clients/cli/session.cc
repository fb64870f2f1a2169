// mneme session create|get|list|fork|delete
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/session_lines.h"

namespace mneme::cli {
namespace {

constexpr absl::string_view kUsageText =
    R"(usage: mneme session create [NAME] [FLAGS]        take a place for a session
       mneme session get NAME [FLAGS]             show one
       mneme session list [PREFIX] [FLAGS]        show all, or those that begin so
       mneme session fork SOURCE [TARGET] [FLAGS] copy one
       mneme session delete NAME... [FLAGS]       forget them

Without NAME or TARGET the server chooses a name, which is printed.

)";

struct Options {
  Connection connection;
  bool json = false;
  int64_t ttl_ms = 0;  // 0: the server's default
};

int PrintResult(const absl::StatusOr<v1::Session>& session, const Options& options) {
  if (!session.ok()) return ReportError(session.status());
  if (!options.json) PrintSessionHeader(/*owners=*/false);
  PrintSession(*session, options.json, /*owners=*/false);
  return kOk;
}

int List(Client& client, const std::string& prefix, const Options& options) {
  v1::ListSessionsRequest request;
  request.set_name_prefix(prefix);
  return PrintSessionPages(
      request, options.json, /*owners=*/false,
      [&client](const v1::ListSessionsRequest& page) { return client.ListSessions(page); });
}

int Run(Client& client, const std::vector<std::string>& words, const Options& options) {
  const std::string& verb = words[0];
  const size_t names = words.size() - 1;
  if (options.ttl_ms != 0 && verb != "create" && verb != "fork") {
    return ReportUsage("session", absl::StrCat("--ttl is for create and fork, not for ", verb));
  }
  if (verb == "create" && names <= 1) {
    v1::CreateSessionRequest request;
    if (names == 1) request.set_name(words[1]);
    request.set_ttl_ms(options.ttl_ms);
    return PrintResult(client.CreateSession(request), options);
  }
  if (verb == "get" && names == 1) return PrintResult(client.GetSession(words[1]), options);
  if (verb == "list" && names <= 1) return List(client, names == 1 ? words[1] : "", options);
  if (verb == "fork" && (names == 1 || names == 2)) {
    v1::ForkSessionRequest request;
    request.set_source_name(words[1]);
    if (names == 2) request.set_target_name(words[2]);
    request.set_ttl_ms(options.ttl_ms);
    return PrintResult(client.ForkSession(request), options);
  }
  if (verb == "delete" && names >= 1) {
    int code = kOk;
    for (size_t i = 1; i < words.size(); ++i) {
      const absl::Status status = client.DeleteSession(words[i]);
      if (!status.ok()) code = ReportError(status);
    }
    return code;
  }
  return ReportUsage("session",
                     absl::StrCat("\"", verb, "\" with ", names, names == 1 ? " name" : " names",
                                  " is nothing this command can do"));
}

}  // namespace

int RunSession(const Arguments& arguments) {
  Options options;
  FlagSet flags;
  options.connection.AddFlags(flags);
  flags.Add("ttl", "TIME", "Idle time after which a new session is deleted; never: it is not.",
            [&](absl::string_view text) -> absl::Status {
              if (text == "never") {
                options.ttl_ms = -1;
                return absl::OkStatus();
              }
              const absl::StatusOr<absl::Duration> time = ParseTime(text);
              if (time.ok()) options.ttl_ms = absl::ToInt64Milliseconds(*time);
              return time.status();
            });
  flags.Bool("json", "Print a line of JSON per session: none where there is none.",
             [&](bool value) { options.json = value; });
  int code = kOk;
  const auto words = ParseWords("session", kUsageText, flags, arguments, code);
  if (!words.has_value()) return code;
  if (words->empty()) return ReportUsage("session", "create, get, list, fork or delete?");
  Client client = options.connection.Connect();
  return Run(client, *words, options);
}

}  // namespace mneme::cli
