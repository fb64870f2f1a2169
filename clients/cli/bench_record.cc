#include "clients/cli/bench_record.h"

#include "clients/cpp/error_details.h"

namespace mneme::cli {

RecordFiller::RecordFiller(RequestRecord& record, const v1::GenerateRequest& request, double now)
    : record_(record), last_(now) {
  record_.start = now;
  record_.input_tokens = request.token_ids().ids_size();
}

void RecordFiller::OnMessage(const v1::GenerateResponse& response, double now) {
  int tokens = 0;
  for (const v1::Output& output : response.outputs()) {
    tokens += output.token_ids_size();
    record_.text += output.text();
  }
  if (response.has_started()) record_.resumed_tokens = response.started().resumed_tokens();
  if (response.has_finished()) record_.queue = response.finished().timings().queue_ms() / 1e3;
  if (tokens == 0) return;
  if (record_.output_tokens == 0) {
    record_.ttft = now - record_.start;
  } else {
    record_.itls.push_back(now - last_);
  }
  last_ = now;
  record_.message_tokens.push_back(tokens);
  record_.output_tokens += tokens;
}

void RecordFiller::OnEnd(const absl::Status& status, double now) {
  record_.latency = now - record_.start;
  record_.ok = status.ok();
  if (!status.ok()) record_.error = ReadableError(status);
}

}  // namespace mneme::cli
