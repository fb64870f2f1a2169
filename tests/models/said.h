// Answers of an engine, to be compared with those of another one.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "base/log.h"
#include "engine/token_stream.h"

namespace mneme {

// The likeliest of what comes next, best first; where bits are the same, the rest of an answer,
// too.
struct Said {
  std::vector<double> logprobs;
  std::vector<int32_t> tokens;
  int64_t cached = 0;
};

inline Said Collect(TokenStream& stream) {
  Said said;
  for (;;) {
    const auto event = stream.Next(absl::Seconds(60));
    CHECK(event.has_value()) << "nothing came for a minute";
    for (const TokenLogprob& entry : event->logprobs) {
      for (const TopLogprob& top : entry.top) said.logprobs.push_back(top.logprob);
    }
    said.tokens.insert(said.tokens.end(), event->token_ids.begin(), event->token_ids.end());
    if (!event->is_last) continue;
    CHECK_OK(event->status);
    said.cached = event->usage.cached_tokens;
    return said;
  }
}

}  // namespace mneme
