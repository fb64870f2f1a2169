#include "clients/cli/bench_record.h"

#include <utility>

namespace mneme::cli {

RecordFiller::RecordFiller(RequestRecord& record, int input_tokens, std::function<double()> now)
    : record_(record), now_(std::move(now)), last_(now_()) {
  record_.start = last_;
  record_.input_tokens = input_tokens;
}

void RecordFiller::OnText(int tokens, absl::string_view text) {
  record_.text.append(text.data(), text.size());
  if (tokens == 0) return;
  const double now = now_();
  if (record_.message_tokens.empty()) {
    record_.ttft = now - record_.start;
  } else {
    record_.itls.push_back(now - last_);
  }
  last_ = now;
  record_.message_tokens.push_back(tokens);
  record_.output_tokens += tokens;
}

void RecordFiller::OnUsage(int output_tokens) {
  if (!record_.message_tokens.empty()) {
    // Messages without text are not sent over HTTP: their tokens belong to the last one's time.
    record_.message_tokens.back() += output_tokens - record_.output_tokens;
  }
  record_.output_tokens = output_tokens;
}

void RecordFiller::OnEnd(std::string error) {
  record_.latency = now_() - record_.start;
  record_.ok = error.empty();
  record_.error = std::move(error);
}

}  // namespace mneme::cli
