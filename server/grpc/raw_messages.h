// Requests are parsed here rather than by gRPC, which answers UNIMPLEMENTED with an empty message
// to bytes that are no message or hold text that is not UTF-8.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "server/grpc/call_names.h"
#include "server/grpc/message_limits.h"
#include "server/grpc/parse_error.h"
#include "server/grpc/status_conversion.h"
#include "server/process/out_of_memory.h"
#include "server/requests/executor.h"
#include "server/requests/server_stats.h"

namespace mneme {

// INVALID_ARGUMENT for anything that is no `Message`, or more than MessageLimits allow, which is
// found before anything is made of it.
template <typename Message>
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, Message& message) {
  grpc::ByteBuffer copy(bytes);  // shares the slices; the reader wants a mutable buffer
  if (constexpr MessageLimits kLimits; !IsWithinBySize(bytes.Length(), kLimits)) {
    grpc::ProtoBufferReader counted(&copy);
    MNEME_RETURN_IF_ERROR(CheckMessageLimits(counted, *Message::descriptor(), kLimits));
  }
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  grpc::Slice slice;
  if (!bytes.DumpToSingleSlice(&slice).ok()) {
    return absl::InternalError("the request's bytes cannot be read");
  }
  return ParseError(absl::string_view(reinterpret_cast<const char*>(slice.begin()), slice.size()),
                    *Message::descriptor());
}

template <typename Message>
grpc::ByteBuffer SerializeMessage(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer;
  (void)grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer);
  return bytes;
}

// "CreateSession" for CreateSessionRequest: the method that takes it, unique over all services.
template <typename Request>
std::string MethodOf() {
  return std::string(absl::StripSuffix(Request::descriptor()->name(), "Request"));
}

// Has a task run on another thread; false if that has too much to do.
using PostTask = std::function<bool(std::function<void()>)>;

// Answers a unary call with `handle(request)`, where `post` has it run if there is one, else at
// once. `stats` must outlive the call.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* AnswerUnary(
    ServerStats& stats, grpc::CallbackServerContext* context, const grpc::ByteBuffer* in,
    grpc::ByteBuffer* out, const PostTask& post,
    std::function<absl::StatusOr<Response>(const Request&)> handle) {
  SendRequestId(*context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto finish = [reactor, &stats](const absl::Status& status) {
    stats.rpcs.Add(MethodOf<Request>(), absl::StatusCodeToString(status.code()));
    reactor->Finish(ToGrpcStatus(status));
  };
  // Both buffers are there until the call is finished.
  auto answer = [finish, in, out, handle = std::move(handle)] {
    absl::Status status;
    const auto work = [&] {
      Request request;
      status = ParseMessage(*in, request);
      if (!status.ok()) return;
      const absl::StatusOr<Response> response = handle(request);
      status = response.status();
      if (status.ok()) *out = SerializeMessage(*response);
    };
    RunOrRefuse(work, [&](const absl::Status& why) { status = why; });
    finish(status);
  };
  if (post == nullptr) {
    answer();
  } else if (!post(std::move(answer))) {
    finish(TooManyTasks());
  }
  return reactor;
}

// The same on `executor`, or at once where that is null.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* AnswerUnary(
    ServerStats& stats, grpc::CallbackServerContext* context, const grpc::ByteBuffer* in,
    grpc::ByteBuffer* out, Executor* executor,
    std::function<absl::StatusOr<Response>(const Request&)> handle) {
  PostTask post;
  if (executor != nullptr) {
    post = [executor](std::function<void()> task) { return executor->TryPost(std::move(task)); };
  }
  return AnswerUnary<Request, Response>(stats, context, in, out, post, std::move(handle));
}

}  // namespace mneme
