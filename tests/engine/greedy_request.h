// A request for exactly so many tokens, each the likeliest, with their logprobs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace mneme {

inline Request GreedyRequest(std::vector<int32_t> prompt, int tokens,
                             const std::string& session = "") {
  Request request;
  request.session.name = session;
  request.prompt.at_start = std::move(prompt);
  request.prompt.same_everywhere = true;
  request.sampling.temperature = 0;
  request.stop.max_tokens = tokens;
  request.stop.ignore_eos = true;
  request.logprobs = 0;
  return request;
}

}  // namespace mneme
