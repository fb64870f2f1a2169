// The name under which a call appears in logs and answers.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

// The request's own id, else that of the metadata `x-request-id` if it is a fitting one, else a
// random one.
std::string ChooseRequestId(absl::string_view own, const grpc::CallbackServerContext& context);

// Chooses an id for a call whose request has none, and sends it in the initial metadata.
void SendRequestId(grpc::CallbackServerContext& context);

}  // namespace mneme
