// GenerateRequest to the engine's Request: text becomes tokens, unset fields their defaults.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/work_meter.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "mneme/v1/inference.pb.h"
#include "server/requests/engine_access.h"

namespace mneme {

// Facts that the call brings along beside its message.
struct CallFacts {
  std::string request_id;  // checked; never empty
  std::string owner;       // Caller::owner
  RequestOrigin origin;
  absl::Duration received;                             // on the monotonic clock, as the next one
  absl::Duration deadline = absl::InfiniteDuration();  // when the client stops waiting
};

// INVALID_ARGUMENT with field violations, NOT_FOUND for another model. Checks what only the wire
// can say wrongly; ranges are Engine::Submit's business. Tokenises a text prompt on the caller's
// thread, which takes a while for a long one: counts and ends by `meter`.
absl::StatusOr<Request> ToEngineRequest(const v1::GenerateRequest& request, const CallFacts& call,
                                        const Engine& engine, const ServingFacts& facts,
                                        WorkMeter& meter);
// The same with another prompt than `request` has. `make_prompt` comes last, as it may take long.
absl::StatusOr<Request> ToEngineRequest(const v1::GenerateRequest& request,
                                        absl::FunctionRef<absl::StatusOr<Prompt>()> make_prompt,
                                        const CallFacts& call, const Engine& engine,
                                        const ServingFacts& facts);

// Whether special tokens that the text of a request spells are these tokens. By default they are,
// as in the transformers package.
template <typename Message>
bool ParsesSpecial(const Message& request) {
  return !request.has_parse_special() || request.parse_special();
}

// INVALID_ARGUMENT where it says what is to become of a conversation that is not there.
absl::Status CheckNoMismatch(const v1::GenerateRequest& request);

// ttl_ms as requests give it: 0 is the default (zero), -1 never (infinite). At most ten years, and
// what the server allows.
absl::StatusOr<absl::Duration> ToTtl(absl::string_view field, int64_t ttl_ms,
                                     const ServingFacts& facts);

// How a session is to be kept. INVALID_ARGUMENT for a value that is none.
absl::StatusOr<std::optional<Durability>> ToDurability(absl::string_view field, int durability);

// At most 128 printable ASCII characters.
absl::Status CheckRequestId(absl::string_view id);

// OK for "" and for the name of the model that is served.
absl::Status CheckModelName(absl::string_view name, const ServingFacts& facts);

}  // namespace mneme
