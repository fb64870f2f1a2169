// mneme.v1.Admin: what operators may do to a running server. Its callers are checked by
// GuardedCredentials.
#pragma once

#include "mneme/v1/admin.grpc.pb.h"
#include "server/requests/engine_access.h"
#include "server/requests/executor.h"
#include "server/security/security.h"

namespace mneme {

class AdminService final
    : public v1::Admin::WithRawCallbackMethod_SetLogLevel<
          v1::Admin::WithRawCallbackMethod_Reload<v1::Admin::WithRawCallbackMethod_ListSessions<
              v1::Admin::WithRawCallbackMethod_DeleteSession<v1::Admin::Service>>>> {
 public:
  // Files are read, and the engine is waited for, on `executor`.
  AdminService(EngineAccess& engine, Security& security, Executor& executor)
      : engine_(engine), security_(security), executor_(executor) {}

  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Reload(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;

 private:
  EngineAccess& engine_;
  Security& security_;
  Executor& executor_;
};

}  // namespace mneme
