#include "server/security/access.h"

#include "absl/strings/match.h"

namespace mneme {

Access GrpcAccess(absl::string_view path) {
  if (absl::StartsWith(path, "/grpc.health.v1.Health/")) return Access::kOpen;
  if (absl::StartsWith(path, "/grpc.reflection.")) return Access::kMonitor;
  if (path == "/mneme.v1.Inference/GetInfo") return Access::kMonitor;
  if (absl::StartsWith(path, "/mneme.v1.Admin/")) return Access::kAdmin;
  return Access::kUse;
}

}  // namespace mneme
