#include "server/requests/request_id.h"

#include <algorithm>
#include <cstdint>

#include "absl/random/random.h"
#include "absl/strings/str_format.h"

namespace mneme {

bool IsRequestId(absl::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string RequestIdOr(absl::string_view given) {
  if (IsRequestId(given)) return std::string(given);
  absl::BitGen random;
  return absl::StrFormat("req-%016x", absl::Uniform<uint64_t>(random));
}

}  // namespace mneme
