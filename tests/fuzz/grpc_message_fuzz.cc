// Messages of gRPC as they come from the wire: those that are none are told why, and the others
// become requests or errors.

#include <google/protobuf/message.h>

#include <cstdint>

#include "engine/status_payload.h"
#include "mneme/v1/inference.pb.h"
#include "mneme/v1/sessions.pb.h"
#include "server/grpc/chat_conversion.h"
#include "server/grpc/memory_conversion.h"
#include "server/grpc/parse_error.h"
#include "server/requests/request_conversion.h"
#include "tests/fuzz/request_fuzz.h"

namespace mneme {
namespace {

template <typename Message>
bool Parse(const uint8_t* data, size_t size, Message& message) {
  if (message.ParseFromArray(data, static_cast<int>(size))) return true;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::Status error = ParseError(bytes, *Message::descriptor());
  Require(absl::IsInvalidArgument(error), "malformed bytes are an invalid argument");
  Require(ReasonOf(error) == "MALFORMED_REQUEST", "with its reason");
  return false;
}

}  // namespace
}  // namespace mneme

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mneme;  // NOLINT(google-build-using-namespace)
  const TimeLimit limit(60);
  v1::GenerateRequest generate;
  if (Parse(data, size, generate)) {
    WorkMeter meter;
    const absl::StatusOr<Request> request =
        ToEngineRequest(generate, {.request_id = "id"}, Served().engine, Served().facts, meter);
    if (request.ok()) Judge(*request);
    Require(request.ok() || absl::IsInvalidArgument(request.status()) ||
                absl::IsNotFound(request.status()),
            "a message is at fault, not the server");
  }
  v1::ChatRequest chat;
  if (Parse(data, size, chat)) {
    WorkMeter meter;
    const absl::StatusOr<Conversation> conversation = ToConversation(chat, meter);
    const absl::StatusOr<Request> request =
        conversation.ok()
            ? ToChatEngineRequest(ToGenerateRequest(chat), *conversation, {.request_id = "id"},
                                  Served().engine, Served().facts, meter)
            : conversation.status();
    if (request.ok()) Judge(*request);
    Require(request.ok() || absl::IsInvalidArgument(request.status()) ||
                absl::IsNotFound(request.status()),
            "messages are at fault, not the server");
  }
  v1::CreateSessionRequest create;
  if (Parse(data, size, create)) (void)ToTtl("ttl_ms", create.ttl_ms(), Served().facts);
  v1::InspectMemoryRequest inspect;
  if (Parse(data, size, inspect)) {
    const absl::StatusOr<MemoryQuery> query = ToMemoryQuery(inspect);
    Require(query.ok() || absl::IsInvalidArgument(query.status()), "a view is at fault");
  }
  v1::TokenizeRequest tokenize;
  (void)Parse(data, size, tokenize);
  return 0;
}
