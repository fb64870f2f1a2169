// A chat's messages as the tokens that the model reads.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/work_meter.h"
#include "engine/engine.h"
#include "server/engine_access.h"
#include "server/openai/json_body.h"

namespace mneme {

// What is said, and how the template is to write it.
struct Conversation {
  Json messages;  // a list
  // False: they are the whole conversation. True: they are new, and follow what a session
  // remembers.
  bool appends = false;
  bool add_generation_prompt = true;
  Json template_arguments = Json::object();
};

struct ChatPrompt {
  std::vector<int32_t> at_start;   // the conversation from its beginning
  std::vector<int32_t> continued;  // Conversation::appends: the messages as they follow others
};

// INVALID_ARGUMENT for messages that are none, or that the template refuses; FAILED_PRECONDITION
// where the model has no chat template that could be used. Counts and ends by `meter`.
absl::StatusOr<ChatPrompt> ToChatPrompt(const Conversation& conversation, const Engine& engine,
                                        const ServingFacts& facts, WorkMeter& meter);

// The same tokens up to byte `bytes` of what they stand for, with a boundary there, and the rest
// encoded anew behind it. For a session that ends where the tokenizer would not have cut: see
// ConversationDigest.
absl::StatusOr<std::vector<int32_t>> CutAt(const Tokenizer& tokenizer,
                                           const std::vector<int32_t>& ids, int64_t bytes,
                                           const ServingFacts& facts, WorkMeter& meter);

}  // namespace mneme
