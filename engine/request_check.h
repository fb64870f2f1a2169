// Everything about a request that can be judged without knowing its session.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/request.h"
#include "models/classes.h"

namespace mneme {

inline constexpr int kMaxChoices = 128;
inline constexpr int kMaxSessionNameBytes = 128;
inline constexpr int kMaxIdempotencyKeyBytes = 128;
inline constexpr int kMaxCacheSaltBytes = 128;
inline constexpr int kMaxCacheMarks = 64;
inline constexpr int kMaxPriority = 1000;
// A step of priority is worth so much waiting: it passes by requests that came up to so much
// earlier. So no request is passed by for longer than the largest difference of priorities is
// worth.
inline constexpr absl::Duration kPriorityStep = absl::Milliseconds(100);

// The limits that a request is judged by.
struct RequestBounds {
  int vocab = 0;
  bool has_tokenizer = false;
  int max_sessions = 0;        // slabs there are
  int max_request_tokens = 0;  // 0: none
  int max_prompt_tokens = 0;   // 0: none
  bool has_surprise = false;   // memories that are trained
  bool has_engrams = false;
  bool draws_memory = false;  // ModelInfo::memory_seed
  bool stores_sessions = false;
  const Classes* classes = nullptr;  // null: the model generates text
  std::span<const int32_t> end_tokens;
};

// The error of a request of a kind that the model does not serve; `classify` as in Request.
absl::Status CheckKind(bool classify, const Classes* classes);

// For what a request or a new session asks of its durability.
absl::Status CheckDurability(std::optional<Durability> durability, bool stores_sessions);

// For the seed that a request or a new session brings.
absl::Status CheckMemorySeed(absl::string_view field, std::optional<uint64_t> seed, bool draws);

// A whole number of a request.
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high);

// For response.logprobs and response.prompt_logprobs as a client gives them.
absl::Status CheckLogprobs(absl::string_view field, int value);

// INVALID_ARGUMENT, naming field, value and range; the field is a payload (status_payload.h).
absl::Status ValidateRequest(const Request& request, const RequestBounds& bounds);
absl::Status ValidateSessionName(absl::string_view name, absl::string_view field);
// A place in a session's past, in tokens, has to be one.
absl::Status ValidateRewindPosition(int64_t position, absl::string_view field);

// The field of inference.proto that the prompt came in: "text" or "token_ids".
absl::string_view PromptField(const Prompt& prompt);

// Equal for requests with the same body, in this process and in any other; id, deadline, priority,
// `detached` and `prefix_cache` do not count.
uint64_t RequestDigest(const Request& request);

}  // namespace mneme
