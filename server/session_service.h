// mneme.v1.Sessions: each call a single command of the engine.
#pragma once

#include "mneme/v1/sessions.grpc.pb.h"
#include "server/engine_access.h"
#include "server/executor.h"

namespace mneme {

class SessionService final
    : public v1::Sessions::WithRawCallbackMethod_Create<v1::Sessions::WithRawCallbackMethod_Get<
          v1::Sessions::WithRawCallbackMethod_List<v1::Sessions::WithRawCallbackMethod_Fork<
              v1::Sessions::WithRawCallbackMethod_Delete<v1::Sessions::Service>>>>> {
 public:
  // The engine's session commands wait for its loop; they do so on `executor`.
  SessionService(EngineAccess& engine, Executor& executor) : engine_(engine), executor_(executor) {}

  grpc::ServerUnaryReactor* Create(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Fork(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;

 private:
  EngineAccess& engine_;
  Executor& executor_;
};

}  // namespace mneme
