// A chat's messages as the tokens that the model reads, and as a request of the engine's; for both
// protocols.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/work_meter.h"
#include "engine/engine.h"
#include "mneme/v1/inference.pb.h"
#include "server/json.h"
#include "server/requests/engine_access.h"
#include "server/requests/request_conversion.h"

namespace mneme {

// Messages, and how the template is to write them.
struct Conversation {
  Conversation() = default;
  Conversation(const Conversation&) = default;
  Conversation(Conversation&&) = default;
  Conversation& operator=(const Conversation&) = default;
  Conversation& operator=(Conversation&&) = default;
  ~Conversation() {
    TakeApart(messages);
    TakeApart(template_arguments);
  }

  Json messages = Json::array();  // objects, whose role and content are texts; at least one
  Json template_arguments = Json::object();
  bool add_generation_prompt = true;
  // The messages are new, and follow what their session remembers; otherwise they are all of the
  // conversation.
  bool appends = false;
};

struct ChatPrompt {
  std::vector<int32_t> at_start;      // the conversation from its beginning
  std::vector<int64_t> message_ends;  // of it: Prompt::message_ends
  int64_t opening_end = 0;            // Prompt::opening_end
  std::vector<int32_t> continued;  // Conversation::appends: the messages as they follow an answer
  // INVALID_ARGUMENT where the template refuses them there, and only there: see Prompt.
  absl::Status at_start_status;
  absl::Status continued_status;
};

// INVALID_ARGUMENT for messages that the template refuses wherever they could stand, and for
// noncharacters in them; FAILED_PRECONDITION where the model has no chat template that could be
// used. Fields of errors are those of ChatRequest. Counts and ends by `meter`.
absl::StatusOr<ChatPrompt> ToChatPrompt(const Conversation& conversation, const Engine& engine,
                                        const ServingFacts& facts, WorkMeter& meter);

// `generate` says all but the prompt. As ToEngineRequest.
absl::StatusOr<Request> ToChatEngineRequest(const v1::GenerateRequest& generate,
                                            const Conversation& conversation, const CallFacts& call,
                                            const Engine& engine, const ServingFacts& facts,
                                            WorkMeter& meter);

// The same tokens up to byte `bytes` of what they stand for, with a boundary there, and the rest
// encoded anew behind it. For a session that ends where the tokenizer would not have cut: see
// ConversationDigest.
absl::StatusOr<std::vector<int32_t>> CutAt(const Tokenizer& tokenizer,
                                           const std::vector<int32_t>& ids, int64_t bytes,
                                           const ServingFacts& facts, WorkMeter& meter);

}  // namespace mneme
