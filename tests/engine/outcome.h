// All that a request said, for tests that read an engine's streams as a client does.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/request.h"
#include "engine/token_stream.h"

namespace mneme {

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  TokenEvent last;

  const absl::Status& status() const { return last.status; }
  const Usage& usage() const { return last.usage; }
};

// Reads to the last event. DEADLINE_EXCEEDED where nothing comes for a minute.
inline Outcome Collect(TokenStream& stream) {
  Outcome outcome;
  for (;;) {
    std::optional<TokenEvent> event = stream.Next(absl::Seconds(60));
    if (!event.has_value()) {
      outcome.last.status = absl::DeadlineExceededError("nothing came for a minute");
      return outcome;
    }
    outcome.tokens.insert(outcome.tokens.end(), event->token_ids.begin(), event->token_ids.end());
    for (const TokenLogprob& entry : event->logprobs) outcome.logprobs.push_back(entry.logprob);
    if (!event->is_last) continue;
    outcome.last = *std::move(event);
    return outcome;
  }
}

}  // namespace mneme
