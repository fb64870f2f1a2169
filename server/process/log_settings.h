// Settings of the log: applied at start, and again when SIGHUP asks for it.
#pragma once

#include "mneme/v1/config.pb.h"
#include "server/http/http_access_log.h"
#include "server/requests/request_log.h"

namespace mneme {

// `section` has values that ParseCommandLine lets through.
void ApplyLogSettings(const v1::LogSection& section);
RequestLog::Which RequestsToLog(const v1::LogSection& section);
HttpAccessLog::Which HttpCallsToLog(const v1::LogSection& section);

// Takes the log section of `config`, which was just read again, and says so in the log. The level
// is taken where it is another one than in `last`, the section as it was read before: one that an
// admin has set since stays until the configuration changes. Warns where other settings differ from
// `running`: they need a restart.
void ReloadLogSettings(const v1::ServerConfig& config, const v1::ServerConfig& running,
                       v1::LogSection& last, RequestLog& requests, HttpAccessLog& http_calls);

}  // namespace mneme
