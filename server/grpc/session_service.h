// mneme.v1.Sessions: each call a single command of the engine.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "mneme/v1/sessions.grpc.pb.h"
#include "server/requests/engine_access.h"
#include "server/requests/executor.h"
#include "server/security/security.h"

namespace mneme {

class SessionService final
    : public v1::Sessions::WithRawCallbackMethod_Create<
          v1::Sessions::WithRawCallbackMethod_Get<v1::Sessions::WithRawCallbackMethod_List<
              v1::Sessions::WithRawCallbackMethod_Fork<v1::Sessions::WithRawCallbackMethod_Delete<
                  v1::Sessions::WithRawCallbackMethod_InspectMemory<
                      v1::Sessions::WithRawCallbackMethod_ForgetSegments<
                          v1::Sessions::WithRawCallbackMethod_Export<
                              v1::Sessions::WithRawCallbackMethod_Import<
                                  v1::Sessions::WithRawCallbackMethod_CreateCheckpoint<
                                      v1::Sessions::WithRawCallbackMethod_ListCheckpoints<
                                          v1::Sessions::WithRawCallbackMethod_DeleteCheckpoint<
                                              v1::Sessions::WithRawCallbackMethod_Rewind<
                                                  v1::Sessions::Service>>>>>>>>>>>>> {
 public:
  // The engine's session commands wait for its loop; they do so on `executor`. Files of sessions
  // are made and read on `transfers`.
  SessionService(EngineAccess& engine, const Security& security, Executor& executor,
                 Executor& transfers)
      : engine_(engine), security_(security), executor_(executor), transfers_(transfers) {}

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
  grpc::ServerUnaryReactor* CreateCheckpoint(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteCheckpoint(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Rewind(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* InspectMemory(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ForgetSegments(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Export(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Import(grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response) override;

 private:
  // Answers with `handle`, which is told whose sessions the call is about.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AnswerOwner(grpc::CallbackServerContext& context,
                                        const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                        absl::StatusOr<Response> (*handle)(const EngineAccess&,
                                                                           const std::string& owner,
                                                                           const Request&));

  EngineAccess& engine_;
  const Security& security_;
  Executor& executor_;
  Executor& transfers_;
};

}  // namespace mneme
