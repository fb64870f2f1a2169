// mneme.v1.Inference: checks requests, hands them to the engine, and converts what comes back.
#pragma once

#include "absl/strings/string_view.h"
#include "mneme/v1/inference.grpc.pb.h"
#include "server/grpc/raw_messages.h"
#include "server/grpc/stream_writer.h"
#include "server/requests/engine_access.h"
#include "server/requests/request_conversion.h"
#include "server/requests/text_encoder.h"
#include "server/security/security.h"

namespace mneme {

class InferenceService final
    : public v1::Inference::WithRawCallbackMethod_Generate<
          v1::Inference::WithRawCallbackMethod_Chat<v1::Inference::WithRawCallbackMethod_Classify<
              v1::Inference::WithRawCallbackMethod_Tokenize<
                  v1::Inference::WithRawCallbackMethod_Detokenize<
                      v1::Inference::WithRawCallbackMethod_GetInfo<v1::Inference::Service>>>>>> {
 public:
  InferenceService(EngineAccess& engine, Security& security)
      : engine_(engine), security_(security) {}
  // For good: texts that wait or are worked on are given up, with UNAVAILABLE.
  void AbandonTexts() { executors_.Abandon(); }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Chat(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Classify(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;

 private:
  template <typename Message>
  void Begin(grpc::CallbackServerContext& context, const grpc::ByteBuffer& bytes,
             const absl::StatusOr<CallerRef>& caller, CallFacts call, StreamWriter& writer);
  // A stream, for Generate and Chat. Messages that are not short are parsed on a lane.
  template <typename Message>
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Answer(absl::string_view method,
                                                     grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request);
  // Where a unary call about a text of so many bytes is answered; null: at once.
  PostTask LanesFor(const grpc::CallbackServerContext& context, size_t bytes);

  EngineAccess& engine_;
  Security& security_;
  TextExecutors executors_;
};

}  // namespace mneme
