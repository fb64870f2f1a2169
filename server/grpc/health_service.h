// grpc.health.v1.Health. gRPC's own implementation reports SERVING from the moment the port is
// open; this one begins with NOT_SERVING.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace mneme {

// Thread-safe. All services share one status, known as "" and by their full names.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit HealthService(std::set<std::string> services) : services_(std::move(services)) {}

  // Tells every watcher, if it changed.
  void SetServing(bool serving) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all Watch calls, which would otherwise stay open, and those that still come; for a server
  // that shuts down.
  void EndWatches() ABSL_LOCKS_EXCLUDED(mu_);

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;

  bool IsKnown(const std::string& service) const {
    return service.empty() || services_.count(service) > 0;
  }
  grpc::health::v1::HealthCheckResponse::ServingStatus StatusNow() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<Watcher>> Watchers() const ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(Watcher* watcher) ABSL_LOCKS_EXCLUDED(mu_);

  const std::set<std::string> services_;
  mutable absl::Mutex mu_;  // taken under a watcher's own, never the other way round
  bool serving_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
