#include "server/grpc/admin_service.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/status_payload.h"
#include "server/grpc/grpc_credentials.h"
#include "server/grpc/raw_messages.h"

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

absl::StatusOr<v1::SetLogLevelResponse> ChangeLogLevel(const Caller& caller,
                                                       const v1::SetLogLevelRequest& request) {
  MNEME_ASSIGN_OR_RETURN(const LogSeverity severity, ToSeverity(request.level()));
  v1::SetLogLevelResponse response;
  response.set_previous(ToMessage(MinLogSeverity()));
  // Whoever turns the log down is in it, at any level.
  LOG(ERROR) << "log level changed level=" << v1::LogLevel_Name(request.level())
             << " by=" << caller.owner;
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

}  // namespace

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return AnswerUnary<v1::SetLogLevelRequest, v1::SetLogLevelResponse>(
      stats_, context, request, response, nullptr,
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
      stats_, context, request, response, &executor_,
      [this, caller = CallerOf(*context, security_, Access::kAdmin)](
          const v1::ReloadRequest&) -> absl::StatusOr<v1::ReloadResponse> {
        MNEME_RETURN_IF_ERROR(caller.status());
        return ReloadFiles(security_);
      });
}

}  // namespace mneme
