#include "server/openai/session_files.h"

#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "server/http/http_error.h"
#include "server/http/url.h"
#include "server/openai/json_body.h"
#include "server/openai/rewind_routes.h"
#include "server/openai/session_json.h"
#include "server/process/out_of_memory.h"
#include "server/requests/request_conversion.h"
#include "server/requests/session_transfers.h"

namespace mneme {
namespace {

constexpr size_t kMaxWaitingFiles = 1024;
constexpr absl::string_view kExport = "/export", kImport = "/import";

// Has the next piece made by the executor whenever the connection has taken the one before.
class FileBody final : public HttpBody, public std::enable_shared_from_this<FileBody> {
 public:
  FileBody(Executor& executor, const std::shared_ptr<HttpCall>& call,
           std::unique_ptr<SessionFileSource> source,
           std::shared_ptr<const SessionTransfers::Transfer> place)
      : executor_(executor), call_(call), source_(std::move(source)), place_(std::move(place)) {}

  State Read(std::string& out) override {
    {
      absl::MutexLock lock(&mu_);
      if (made_) {
        made_ = false;
        out += piece_;
        if (piece_.empty()) {
          if (is_whole_) place_->Complete(source_->bytes());
          return State::kEnd;
        }
        piece_.clear();
        return State::kMore;
      }
      if (being_made_) return State::kLater;  // it was asked for before the last write
      being_made_ = true;
    }
    const bool posted = executor_.TryPost([self = shared_from_this()] { self->Make(); });
    // It ends early: the client has the length of the file, and its checksum.
    return posted ? State::kLater : State::kEnd;
  }

 private:
  void Make() {
    std::string piece;
    bool failed = false;
    RunOrRefuse([&] { piece = source_->Next(); }, [&](const absl::Status&) { failed = true; });
    {
      absl::MutexLock lock(&mu_);
      is_whole_ = !failed && piece.empty();
      piece_ = std::move(piece);
      made_ = true;
      being_made_ = false;
    }
    call_->Wake();
  }

  Executor& executor_;
  const std::shared_ptr<HttpCall> call_;
  const std::unique_ptr<SessionFileSource> source_;  // one task at a time
  const std::shared_ptr<const SessionTransfers::Transfer> place_;
  absl::Mutex mu_;
  bool is_whole_ ABSL_GUARDED_BY(mu_) = false;
  bool made_ ABSL_GUARDED_BY(mu_) = false;
  bool being_made_ ABSL_GUARDED_BY(mu_) = false;
  std::string piece_ ABSL_GUARDED_BY(mu_);
};

// Fields of a query of which one may be there; the others are errors.
absl::StatusOr<std::string> OnlyField(const std::string& query, absl::string_view name) {
  std::map<std::string, std::string> fields;
  MNEME_ASSIGN_OR_RETURN(fields, ParseQuery(query));
  std::string value;
  for (const auto& [field, text] : fields) {
    if (field != name) {
      return FieldError(absl::CHexEscape(field), absl::StrCat("is unknown, expected ", name));
    }
    value = text;
  }
  return value;
}

absl::Status BeginExport(EngineAccess& access, const std::string& owner, const std::string& name,
                         const std::string& query, Executor& executor,
                         const std::shared_ptr<HttpCall>& call) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_ASSIGN_OR_RETURN(const std::string format, OnlyField(query, "format"));
  if (format.empty()) return FieldError("format", "is missing, expected safetensors");
  if (format != "safetensors") {
    return FieldError("format",
                      absl::StrCat("is \"", SanitizeUtf8(format), "\", expected safetensors"));
  }
  MNEME_RETURN_IF_ERROR(ValidateSessionName(name, "session_id"));
  MNEME_ASSIGN_OR_RETURN(std::shared_ptr<const SessionTransfers::Transfer> place,
                         access.facts().session_transfers->Begin(SessionTransfers::kExport));
  MNEME_ASSIGN_OR_RETURN(std::unique_ptr<SessionFileSource> source,
                         engine->ExportSession({owner, name}));
  HttpResponse head;
  head.content_type = "application/octet-stream";
  head.fields.push_back({"X-File-Size", absl::StrCat(source->bytes())});
  call->Stream(std::move(head),
               std::make_shared<FileBody>(executor, call, std::move(source), std::move(place)));
  return absl::OkStatus();
}

absl::StatusOr<Json> ImportFile(EngineAccess& access, const HttpRequest& http,
                                const std::string& name) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.GetForWork());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(name, "session_id"));
  MNEME_ASSIGN_OR_RETURN(const std::string text, OnlyField(http.query, "session_ttl_ms"));
  int64_t ttl_ms = 0;
  if (!text.empty() && !absl::SimpleAtoi(text, &ttl_ms)) {
    return FieldError("session_ttl_ms",
                      absl::StrCat("is \"", SanitizeUtf8(text), "\", expected a number"));
  }
  MNEME_ASSIGN_OR_RETURN(const absl::Duration ttl, ToTtl("session_ttl_ms", ttl_ms, access.facts()));
  const SessionKey key{http.owner, name};
  MNEME_RETURN_IF_ERROR(CheckNameIsFree(*engine, key));
  MNEME_RETURN_IF_ERROR(access.facts().session_transfers->CheckFileBytes(
      *engine, static_cast<int64_t>(http.body.size())));
  MNEME_ASSIGN_OR_RETURN(const ImportedSession imported,
                         engine->ImportSession(key, ttl, http.body));
  // As Admit took it.
  static_cast<const SessionTransfers::Transfer*>(http.place.get())
      ->Complete(static_cast<int64_t>(http.body.size()));
  Json json = SessionJson(imported.session, *engine);
  json["import"] = {{"file_state_dtype", SanitizeUtf8(imported.file_state_dtype)},
                    {"state_dtype", imported.state_dtype},
                    {"rounded_tensors", imported.rounded_tensors}};
  if (imported.engram_capacity > 0) {
    json["import"]["file_engram_capacity"] = imported.file_engram_capacity;
    json["import"]["engram_capacity"] = imported.engram_capacity;
  }
  return json;
}

}  // namespace

SessionFiles::SessionFiles(EngineAccess& engine)
    : engine_(engine), executor_(kTransferThreads, kMaxWaitingFiles) {}

bool SessionFiles::Export(const std::shared_ptr<HttpCall>& call) {
  const HttpRequest& http = call->request();
  absl::string_view name = http.route_argument;
  if (!ConsumeAction(http, kExport, name)) return false;
  const bool posted = executor_.TryPost([this, call, name = std::string(name)] {
    absl::Status status;
    const HttpRequest& request = call->request();
    RunOrRefuse(
        [&] { status = BeginExport(engine_, request.owner, name, request.query, executor_, call); },
        [&](const absl::Status& why) { status = why; });
    if (!status.ok()) call->Send(ErrorResponse(status));
  });
  if (!posted) call->Send(ErrorResponse(TooManyTasks()));
  return true;
}

bool SessionFiles::Import(const std::shared_ptr<HttpCall>& call) {
  absl::string_view name = call->request().route_argument;
  if (!absl::ConsumeSuffix(&name, kImport)) return false;
  const bool posted = executor_.TryPost([this, call, name = std::string(name)] {
    absl::StatusOr<Json> json = absl::InternalError("nothing was imported");
    RunOrRefuse([&] { json = ImportFile(engine_, call->request(), name); },
                [&](const absl::Status& why) { json = why; });
    call->Send(JsonOrErrorResponse(json));
  });
  if (!posted) call->Send(ErrorResponse(TooManyTasks()));
  return true;
}

int64_t SessionFiles::MaxBodyBytes(absl::string_view argument) const {
  const absl::StatusOr<Engine*> engine = engine_.Get();
  if (!engine.ok() || !absl::EndsWith(argument, kImport)) return -1;
  return engine_.facts().session_transfers->MaxFileBytes(**engine);
}

absl::Status SessionFiles::Admit(HttpRequest& request) const {
  if (!absl::EndsWith(request.route_argument, kImport)) return absl::OkStatus();
  MNEME_RETURN_IF_ERROR(engine_.GetForWork().status());
  MNEME_ASSIGN_OR_RETURN(request.place,
                         engine_.facts().session_transfers->Begin(SessionTransfers::kImport));
  return absl::OkStatus();
}

}  // namespace mneme
