// ChatRequest as what Generate would be asked and the conversation beside it.
#pragma once

#include "absl/status/statusor.h"
#include "base/work_meter.h"
#include "mneme/v1/inference.pb.h"
#include "server/chat/chat_prompt.h"

namespace mneme {

// All but the prompt.
v1::GenerateRequest ToGenerateRequest(const v1::ChatRequest& request);

// INVALID_ARGUMENT with the field for what is no conversation. Counts and ends by `meter`.
absl::StatusOr<Conversation> ToConversation(const v1::ChatRequest& request, WorkMeter& meter);

}  // namespace mneme
