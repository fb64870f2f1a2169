// mneme.v1.Admin: what operators may do to a running server. Its callers are checked by
// GuardedCredentials.
#pragma once

#include "mneme/v1/admin.grpc.pb.h"
#include "server/executor.h"
#include "server/security/security.h"
#include "server/server_stats.h"

namespace mneme {

class AdminService final : public v1::Admin::WithRawCallbackMethod_SetLogLevel<
                               v1::Admin::WithRawCallbackMethod_Reload<v1::Admin::Service>> {
 public:
  // Files are read on `executor`.
  AdminService(Security& security, Executor& executor, ServerStats& stats)
      : security_(security), executor_(executor), stats_(stats) {}

  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Reload(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;

 private:
  Security& security_;
  Executor& executor_;
  ServerStats& stats_;
};

}  // namespace mneme
