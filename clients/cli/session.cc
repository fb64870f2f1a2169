// mneme session
// create|get|list|usage|fork|delete|export|import|checkpoint|checkpoints|uncheckpoint|rewind
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/session_file.h"
#include "clients/cli/session_lines.h"
#include "clients/cli/session_rewind.h"
#include "clients/cli/session_words.h"

namespace mneme::cli {
namespace {

constexpr absl::string_view kUsageText =
    R"(usage: mneme session create [NAME] [FLAGS]        take a place for a session
       mneme session get NAME [FLAGS]             show one
       mneme session list [PREFIX] [FLAGS]        show all, or those that begin so
       mneme session usage [FLAGS]                show what all of them take, and may
       mneme session fork SOURCE [TARGET] [FLAGS] copy one, as it is or (--at) as it was
       mneme session checkpoint NAME [CHECKPOINT] name the place where it stands
       mneme session checkpoints NAME             show those places
       mneme session uncheckpoint NAME CHECKPOINT... forget them
       mneme session rewind NAME PLACE            take it back; what came later is gone
       mneme session delete NAME... [FLAGS]       forget them
       mneme session export NAME FILE [FLAGS]     write one to a file; it stays
       mneme session import FILE [NAME] [FLAGS]   make one of a file, here or elsewhere

Without NAME or TARGET the server chooses a name, which is printed. A file holds the memory of the
conversation in clear; mneme-inspect session FILE says what it is of. FILE may be -, which is
standard output or input. A PLACE is a position, in
tokens as list shows them, or the name of a checkpoint; checkpoint:NAME where that is a number.
ROOM is how many tokens a session can be fed. Of its TOKENS the last one, where an answer ended with
it, is fed when the session goes on: a full one has 33 beside a room of 32.
A session that was lost is refused like any other request: exit code 4, of those in mneme --help.

)";

struct Options {
  Connection connection;
  bool json = false;
  bool force = false;
  int64_t ttl_ms = 0;  // 0: the server's default
  bool replace_lost = false;
  v1::Durability durability = v1::DURABILITY_UNSPECIFIED;  // the server's default
  std::optional<uint64_t> memory_seed;
  std::optional<Place> at;  // where a fork begins; without: where its source is
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

int ShowUsage(Client& client, const Options& options) {
  v1::ListSessionsRequest request;
  request.set_page_size(1);
  const absl::StatusOr<v1::ListSessionsResponse> page = client.ListSessions(request);
  if (!page.ok()) return ReportError(page.status());
  PrintSessionUsage(page->usage(), options.json);
  return kOk;
}

// `words`: as CheckSessionWords lets them pass.
int Run(Client& client, const std::vector<std::string>& words, const Options& options) {
  const std::string& verb = words[0];
  if (options.ttl_ms != 0 && verb != "create" && verb != "fork" && verb != "import") {
    return ReportUsage("session",
                       absl::StrCat("--ttl is for create, fork and import, not for ", verb));
  }
  if (options.force && verb != "export") {
    return ReportUsage("session", absl::StrCat("--force is for export, not for ", verb));
  }
  if (options.at.has_value() && verb != "fork") {
    return ReportUsage("session", absl::StrCat("--at is for fork, not for ", verb));
  }
  if (options.replace_lost && verb != "create") {
    return ReportUsage("session", absl::StrCat("--replace-lost is for create, not for ", verb));
  }
  if (options.durability != v1::DURABILITY_UNSPECIFIED && verb != "create") {
    return ReportUsage("session", absl::StrCat("--durability is for create, not for ", verb));
  }
  if (options.memory_seed.has_value() && verb != "create") {
    return ReportUsage("session", absl::StrCat("--memory-seed is for create, not for ", verb));
  }
  const std::string first = words.size() > 1 ? words[1] : "";
  const std::string second = words.size() > 2 ? words[2] : "";
  if (verb == "checkpoint") return MakeCheckpoint(client, first, second, options.json);
  if (verb == "checkpoints") return ListCheckpoints(client, first, options.json);
  if (verb == "uncheckpoint") {
    return DropCheckpoints(client, first, {words.begin() + 2, words.end()});
  }
  if (verb == "rewind") {
    const absl::StatusOr<Place> to = ParsePlace(second);
    if (!to.ok()) return ReportUsage("session", absl::StrCat("PLACE: ", to.status().message()));
    return PrintResult(Rewind(client, first, *to), options);
  }
  if (verb == "export") return ExportSession(client, first, second, options.force, options.json);
  if (verb == "import") {
    return ImportSession(client, first, second, options.ttl_ms, options.json);
  }
  if (verb == "create") {
    v1::CreateSessionRequest request;
    request.set_name(first);
    request.set_ttl_ms(options.ttl_ms);
    request.set_replace_lost(options.replace_lost);
    request.set_durability(options.durability);
    if (options.memory_seed.has_value()) request.set_memory_seed(*options.memory_seed);
    return PrintResult(client.CreateSession(request), options);
  }
  if (verb == "get") return PrintResult(client.GetSession(first), options);
  if (verb == "list") return List(client, first, options);
  if (verb == "usage") return ShowUsage(client, options);
  if (verb == "fork") {
    v1::ForkSessionRequest request;
    request.set_source_name(first);
    request.set_target_name(second);
    request.set_ttl_ms(options.ttl_ms);
    if (options.at.has_value()) {
      if (options.at->position.has_value()) {
        request.set_position(*options.at->position);
      } else {
        request.set_checkpoint(options.at->checkpoint);
      }
    }
    return PrintResult(client.ForkSession(request), options);
  }
  int code = kOk;
  for (size_t i = 1; i < words.size(); ++i) {
    const absl::Status status = client.DeleteSession(words[i]);
    if (!status.ok()) code = ReportError(status);
  }
  return code;
}

}  // namespace

int RunSession(const Arguments& arguments) {
  Options options;
  FlagSet flags;
  options.connection.AddFlags(flags);
  flags.Add("ttl", "TIME",
            "Idle time after which a new session is deleted, or, of a server that stores sessions, "
            "put away until it is used; never: it is not.",
            [&](absl::string_view text) -> absl::Status {
              if (text == "never") {
                options.ttl_ms = -1;
                return absl::OkStatus();
              }
              const absl::StatusOr<absl::Duration> time = ParseTime(text);
              if (time.ok()) options.ttl_ms = absl::ToInt64Milliseconds(*time);
              return time.status();
            });
  flags.Add("at", "PLACE", "Where a fork begins: a position, or a checkpoint of its source.",
            [&](absl::string_view text) -> absl::Status {
              absl::StatusOr<Place> at = ParsePlace(std::string(text));
              if (at.ok()) options.at = *std::move(at);
              return at.status();
            });
  AddReplaceLostFlag(flags, [&](bool value) { options.replace_lost = value; });
  AddDurabilityFlag(flags, [&](v1::Durability value) { options.durability = value; });
  AddMemorySeedFlag(flags, [&](uint64_t seed) { options.memory_seed = seed; });
  flags.Bool("force", "Have an export overwrite a file that exists.",
             [&](bool value) { options.force = value; });
  flags.Bool("json", "Print a line of JSON per session: none where there is none.",
             [&](bool value) { options.json = value; });
  int code = kOk;
  const auto words = ParseWords("session", kUsageText, flags, arguments, code);
  if (!words.has_value()) return code;
  if (const absl::Status complete = CheckSessionWords(*words); !complete.ok()) {
    return ReportUsage("session", complete.message());
  }
  Client client = options.connection.Connect();
  return Run(client, *words, options);
}

}  // namespace mneme::cli
