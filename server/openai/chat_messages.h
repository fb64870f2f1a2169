// The messages of a chat's body, checked, as the conversation that they are.
#pragma once

#include "absl/status/statusor.h"
#include "server/chat/chat_prompt.h"
#include "server/openai/openai_request.h"

namespace mneme {

// INVALID_ARGUMENT for what is no message, and for what no message may have here.
absl::StatusOr<Conversation> ToConversation(const OpenAiRequest& request);

}  // namespace mneme
