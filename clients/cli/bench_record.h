#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "clients/cli/bench_metrics.h"

namespace mneme::cli {

// Fills a record while its answer streams in. For one thread at a time.
class RecordFiller {
 public:
  // `now`: seconds since the start of the benchmark.
  RecordFiller(RequestRecord& record, int input_tokens, std::function<double()> now);

  // A message with `tokens` of the answer.
  void OnText(int tokens, absl::string_view text);
  void OnResumed(int64_t tokens) { record_.resumed_tokens = tokens; }
  void OnQueue(double seconds) { record_.queue = seconds; }
  // Tokens of a prompt that was sent as text.
  void OnPrompt(int tokens) { record_.input_tokens = tokens; }
  // The server's own count of the answer's tokens, which replaces the sum of the messages'.
  void OnUsage(int output_tokens);
  // `error` is empty for an answer that came to its end.
  void OnEnd(std::string error);

 private:
  RequestRecord& record_;
  const std::function<double()> now_;
  double last_;  // when tokens came, or the start
};

}  // namespace mneme::cli
