// Sessions.Export and Sessions.Import: files of sessions, chunk by chunk.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/statusor.h"
#include "server/requests/engine_access.h"
#include "server/requests/executor.h"
#include "server/security/access.h"
#include "server/security/security.h"

namespace mneme {

// Each deletes itself when gRPC is done with it. What takes time is done on `executor`, which has
// at most one task of a call at a time, and must outlive it as `engine` must.
grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportSession(EngineAccess& engine, Executor& executor,
                                                          absl::StatusOr<CallerRef> caller,
                                                          grpc::CallbackServerContext& context,
                                                          const grpc::ByteBuffer& request);
grpc::ServerReadReactor<grpc::ByteBuffer>* ImportSession(EngineAccess& engine, Executor& executor,
                                                         absl::StatusOr<CallerRef> caller,
                                                         grpc::CallbackServerContext& context,
                                                         grpc::ByteBuffer& response);

}  // namespace mneme
