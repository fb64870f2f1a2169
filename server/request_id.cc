#include "server/request_id.h"

#include <cstdint>

#include "absl/random/random.h"
#include "absl/strings/str_format.h"
#include "server/request_conversion.h"

namespace mneme {

std::string ChooseRequestId(absl::string_view own, const grpc::CallbackServerContext& context) {
  if (!own.empty()) return std::string(own);
  const auto& metadata = context.client_metadata();
  if (const auto it = metadata.find("x-request-id"); it != metadata.end()) {
    const std::string id(it->second.data(), it->second.size());
    if (!id.empty() && CheckRequestId(id).ok()) return id;
  }
  absl::BitGen random;
  return absl::StrFormat("req-%016x", absl::Uniform<uint64_t>(random));
}

void SendRequestId(grpc::CallbackServerContext& context) {
  context.AddInitialMetadata("x-request-id", ChooseRequestId("", context));
}

}  // namespace mneme
