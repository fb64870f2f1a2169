// The names under which a call appears in logs and answers: its id, and its trace.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/string_view.h"
#include "server/requests/trace_context.h"

namespace mneme {

// The request's own id, else that of the metadata `x-request-id` if it is a fitting one, else a
// random one.
std::string ChooseRequestId(absl::string_view own, const grpc::CallbackServerContext& context);

// The trace of the metadata `traceparent` and `tracestate`; both are sent back in the initial
// metadata, with this call's span.
TraceContext AnswerTrace(grpc::CallbackServerContext& context);

// Chooses an id for a call whose request has none, and sends it and the trace in the initial
// metadata.
void SendRequestId(grpc::CallbackServerContext& context);

}  // namespace mneme
