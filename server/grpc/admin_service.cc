#include "server/grpc/admin_service.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "server/grpc/grpc_credentials.h"
#include "server/grpc/raw_messages.h"
#include "server/grpc/response_conversion.h"
#include "server/requests/session_listing.h"

namespace mneme {
namespace {

v1::LogLevel ToMessage(LogSeverity severity) {
  return severity == LogSeverity::kInfo      ? v1::LOG_LEVEL_INFO
         : severity == LogSeverity::kWarning ? v1::LOG_LEVEL_WARNING
                                             : v1::LOG_LEVEL_ERROR;
}

absl::StatusOr<LogSeverity> ToSeverity(v1::LogLevel level) {
  switch (level) {
    case v1::LOG_LEVEL_INFO:
      return LogSeverity::kInfo;
    case v1::LOG_LEVEL_WARNING:
      return LogSeverity::kWarning;
    case v1::LOG_LEVEL_ERROR:
      return LogSeverity::kError;
    default:
      return FieldError("level", absl::StrCat("is ", static_cast<int>(level),
                                              ", expected LOG_LEVEL_INFO, _WARNING or _ERROR"));
  }
}

// As --log-level and the event log_settings spell it.
std::string SettingOf(v1::LogLevel level) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::LogLevel_Name(level), "LOG_LEVEL_"));
}

absl::StatusOr<v1::SetLogLevelResponse> ChangeLogLevel(const Caller& caller,
                                                       const v1::SetLogLevelRequest& request) {
  MNEME_ASSIGN_OR_RETURN(const LogSeverity severity, ToSeverity(request.level()));
  v1::SetLogLevelResponse response;
  response.set_previous(ToMessage(MinLogSeverity()));
  // Whoever turns the log down is in it, at any level.
  LogFields("log_level_changed")
      .Add("level", SettingOf(request.level()))
      .Add("by", caller.owner)
      .WriteAlways(LogSeverity::kInfo);
  SetMinLogSeverity(severity);
  return response;
}

absl::StatusOr<v1::ReloadResponse> ReloadFiles(Security& security) {
  if (const absl::Status status = security.Reload(); !status.ok()) {
    return absl::FailedPreconditionError(status.message());
  }
  v1::ReloadResponse response;
  response.set_api_keys(static_cast<int32_t>(security.authenticator().key_count()));
  if (security.tls() == nullptr) return response;
  const std::shared_ptr<const TlsMaterial> material = security.tls()->current();
  response.set_tls_subject(material->subject);
  response.set_tls_expires_at_ms(absl::ToUnixMillis(material->expires));
  return response;
}

// The last session of the page before, "NAME OWNER": names have no spaces, owners may.
std::string PageToken(const SessionKey& last) { return absl::StrCat(last.name, " ", last.owner); }

absl::StatusOr<SessionKey> ReadPageToken(const std::string& token) {
  if (token.empty()) return SessionKey{};
  const std::pair<std::string, std::string> parts = absl::StrSplit(token, absl::MaxSplits(' ', 1));
  if (parts.second.empty()) {
    return FieldError("page_token", "is none that this server gave");
  }
  return SessionKey{.owner = parts.second, .name = parts.first};
}

absl::StatusOr<v1::ListSessionsResponse> ListAllSessions(
    const EngineAccess& access, const v1::AdminListSessionsRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_ASSIGN_OR_RETURN(const size_t page_size, PageSize(request.page_size()));
  MNEME_ASSIGN_OR_RETURN(const SessionKey after, ReadPageToken(request.page_token()));
  SessionQuery query = {.name_prefix = request.name_prefix(), .after = after, .limit = page_size};
  if (!request.owner().empty()) query.owner = request.owner();
  MNEME_ASSIGN_OR_RETURN(const SessionPage page, engine->ListSessions(std::move(query)));
  v1::ListSessionsResponse response = ToSessionPage(page, *engine);
  for (size_t i = 0; i < page.sessions.size(); ++i) {
    response.mutable_sessions(static_cast<int>(i))->set_owner(page.sessions[i].key.owner);
  }
  if (page.has_more) response.set_next_page_token(PageToken(page.sessions.back().key));
  return response;
}

absl::StatusOr<v1::DeleteSessionResponse> DeleteAnySession(
    const EngineAccess& access, const Caller& caller,
    const v1::AdminDeleteSessionRequest& request) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.Get());
  MNEME_RETURN_IF_ERROR(ValidateSessionName(request.name(), "name"));
  MNEME_RETURN_IF_ERROR(engine->DeleteSession({request.owner(), request.name()}));
  LogFields("session_ended_by_admin")
      .Add("owner", request.owner())
      .Add("session", request.name())
      .Add("by", caller.owner)
      .Write(LogSeverity::kWarning);
  return v1::DeleteSessionResponse();
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return AnswerUnary<v1::SetLogLevelRequest, v1::SetLogLevelResponse>(
      engine_.stats(), context, request, response, nullptr,
      [caller = CallerOf(*context, security_, Access::kAdmin)](
          const v1::SetLogLevelRequest& r) -> absl::StatusOr<v1::SetLogLevelResponse> {
        MNEME_RETURN_IF_ERROR(caller.status());
        return ChangeLogLevel(**caller, r);
      });
}

grpc::ServerUnaryReactor* AdminService::Reload(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return AnswerUnary<v1::ReloadRequest, v1::ReloadResponse>(
      engine_.stats(), context, request, response, &executor_,
      [this, caller = CallerOf(*context, security_, Access::kAdmin)](
          const v1::ReloadRequest&) -> absl::StatusOr<v1::ReloadResponse> {
        MNEME_RETURN_IF_ERROR(caller.status());
        return ReloadFiles(security_);
      });
}

grpc::ServerUnaryReactor* AdminService::ListSessions(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return AnswerUnary<v1::AdminListSessionsRequest, v1::ListSessionsResponse>(
      engine_.stats(), context, request, response, &executor_,
      [this, caller = CallerOf(*context, security_, Access::kAdmin)](
          const v1::AdminListSessionsRequest& r) -> absl::StatusOr<v1::ListSessionsResponse> {
        MNEME_RETURN_IF_ERROR(caller.status());
        return ListAllSessions(engine_, r);
      });
}

grpc::ServerUnaryReactor* AdminService::DeleteSession(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  return AnswerUnary<v1::AdminDeleteSessionRequest, v1::DeleteSessionResponse>(
      engine_.stats(), context, request, response, &executor_,
      [this, caller = CallerOf(*context, security_, Access::kAdmin)](
          const v1::AdminDeleteSessionRequest& r) -> absl::StatusOr<v1::DeleteSessionResponse> {
        MNEME_RETURN_IF_ERROR(caller.status());
        return DeleteAnySession(engine_, **caller, r);
      });
}

}  // namespace mneme
