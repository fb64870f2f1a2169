// Bodies of /v1/completions and /v1/chat/completions, as what the native interface would be asked.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "mneme/v1/inference.pb.h"
#include "server/chat/chat_prompt.h"
#include "server/openai/body_fields.h"
#include "server/openai/json_body.h"

namespace mneme {

enum class OpenAiKind { kCompletion, kChat };

struct OpenAiRequest {
  OpenAiKind kind = OpenAiKind::kCompletion;
  // All but the prompt and the request's id.
  v1::GenerateRequest generate;
  std::vector<v1::GenerateRequest> prompts;  // kCompletion: only their prompt is set; at least one
  Conversation conversation;                 // kChat
  bool stream = false;
  bool include_usage = false;
  BodyFields names;  // for errors about `generate` and `prompts`
};

// The fields `messages`, `add_generation_prompt`, `chat_template_kwargs` and `reasoning_effort`.
void ReadMessages(JsonFields& fields, OpenAiRequest& out);

// The field `durability`, of a session.
v1::Durability ReadDurability(JsonFields& fields);
// The field `memory_seed`, of a session.
std::optional<uint64_t> ReadMemorySeed(JsonFields& fields);

// Errors name the field of the body. Ranges are the engine's to check.
absl::StatusOr<OpenAiRequest> ToOpenAiRequest(OpenAiKind kind, const Json& body,
                                              const HttpRequest& http);

}  // namespace mneme
