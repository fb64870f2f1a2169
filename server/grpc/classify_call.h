// Classify over gRPC.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/requests/engine_access.h"
#include "server/requests/text_encoder.h"
#include "server/security/security.h"

namespace mneme {

// Answers the call. Long texts are parsed and tokenised on a lane; all else is the engine's. All
// arguments outlive the call.
grpc::ServerUnaryReactor* ClassifyOverGrpc(EngineAccess& access, Security& security,
                                           TextExecutors& executors,
                                           grpc::CallbackServerContext& context,
                                           const grpc::ByteBuffer& request,
                                           grpc::ByteBuffer& response);

}  // namespace mneme
