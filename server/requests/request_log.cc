#include "server/requests/request_log.h"

#include <utility>

#include "base/log_fields.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

constexpr size_t kMaxWaitingLines = 8192;

absl::string_view FinishName(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    default:
      return "";  // the outcome says it
  }
}

LogSeverity SeverityOf(const RequestReport& report) {
  return OutcomeOf(report) == "error" ? LogSeverity::kWarning : LogSeverity::kInfo;
}

// False: the line was dropped.
bool Write(const RequestReport& report) {
  LogFields line("request");
  line.Add("id", report.id)
      .Add("trace_id", report.origin.trace_id)
      .Add("span_id", report.origin.span_id)
      .Add("api", report.origin.api)
      .Add("client", report.origin.client)
      .Add("owner", report.session.owner)
      .Add("session", report.session.name)
      .Add("outcome", OutcomeOf(report))
      .Add("finish", FinishName(report.finish));
  if (report.context_full) line.Add("context_full", "true");
  if (!report.status.ok()) {
    line.Add("code", absl::StatusCodeToString(report.status.code()))
        .Add("reason", ReasonOf(report.status).value_or(""));
  }
  if (report.admitted) {
    if (report.n > 1) line.Add("choices", report.n);
    line.Add("prompt_tokens", report.usage.prompt_tokens)
        .Add("cached_tokens", report.usage.resumed_tokens + report.usage.cached_tokens)
        .Add("generated_tokens", report.usage.completion_tokens);
  }
  line.AddMilliseconds("queue_ms", absl::ToDoubleMilliseconds(report.timings.queue));
  if (report.admitted) {
    line.AddMilliseconds("prefill_ms", absl::ToDoubleMilliseconds(report.timings.prefill))
        .AddMilliseconds("decode_ms", absl::ToDoubleMilliseconds(report.timings.decode));
  }
  line.AddMilliseconds("total_ms", absl::ToDoubleMilliseconds(report.total));
  return line.WriteAlways(SeverityOf(report));  // Add has asked for the level
}

}  // namespace

RequestLog::RequestLog(Which which, ServerStats& stats)
    : stats_(stats), which_(which), writer_(/*threads=*/1, kMaxWaitingLines) {}

void RequestLog::Add(RequestReport report) {
  const Which which = which_.load(std::memory_order_relaxed);
  if (which == Which::kNone || (which == Which::kFailed && report.status.ok())) return;
  // The level counts as it is now, not when the writer comes to the line.
  if (SeverityOf(report) < MinLogSeverity()) return;
  auto line = std::make_shared<RequestReport>(std::move(report));
  const auto write = [line = std::move(line), &stats = stats_] {
    if (!Write(*line)) stats.request_log_lines_dropped.Add();
  };
  if (!writer_.TryPost(write)) stats_.request_log_lines_dropped.Add();
}

absl::string_view OutcomeOf(const RequestReport& report) {
  if (report.replayed) return "replayed";
  if (report.status.ok()) return "completed";
  if (absl::IsCancelled(report.status)) return "cancelled";
  if (absl::IsDeadlineExceeded(report.status)) return "deadline";
  return report.admitted ? "error" : "rejected";
}

RequestReport RefusedReport(std::string id, RequestOrigin origin, std::string owner,
                            absl::Status status, absl::Duration total) {
  RequestReport report;
  report.id = std::move(id);
  report.origin = std::move(origin);
  report.session.owner = std::move(owner);
  report.status = std::move(status);
  report.total = total;
  return report;
}

}  // namespace mneme
