// A chat's messages as the tokens that the model reads.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "server/engine_access.h"
#include "server/openai/openai_request.h"

namespace mneme {

struct ChatPrompt {
  std::vector<int32_t> at_start;   // the conversation from its beginning
  std::vector<int32_t> continued;  // SessionMode::kAppend: the messages as they follow others
};

// INVALID_ARGUMENT for messages that are none, or that the template refuses; FAILED_PRECONDITION
// where the model has no chat template that could be used.
absl::StatusOr<ChatPrompt> ToChatPrompt(const OpenAiRequest& request, const Engine& engine,
                                        const ServingFacts& facts);

// The same tokens up to byte `bytes` of what they stand for, with a boundary there, and the rest
// encoded anew behind it. For a session that ends where the tokenizer would not have cut: see
// ConversationDigest.
absl::StatusOr<std::vector<int32_t>> CutAt(const Tokenizer& tokenizer,
                                           const std::vector<int32_t>& ids, int64_t bytes);

}  // namespace mneme
