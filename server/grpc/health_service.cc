#include "server/grpc/health_service.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/grpc/status_conversion.h"

namespace mneme {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One Watch call. Sends the newest status whenever it differs from the last one sent; statuses that
// came and went during a write are skipped.
class HealthService::Watcher final : public grpc::ServerWriteReactor<HealthCheckResponse>,
                                     public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(HealthService& service, bool known) : service_(service), known_(known) {}

  // Writes the status of now, unless the client knows it or is being told. Called after each
  // change. gRPC is called without the lock: it may run a callback before it returns.
  void Advance() ABSL_LOCKS_EXCLUDED(mu_) {
    bool finish = false;
    {
      absl::MutexLock lock(&mu_);
      if (write_in_flight_ || finished_) return;
      if (cancelled_) {
        finish = finished_ = true;
      } else {
        const auto status = known_ ? service_.StatusNow() : HealthCheckResponse::SERVICE_UNKNOWN;
        if (status == sent_) return;
        sent_ = status;
        write_in_flight_ = true;
        response_.set_status(status);
      }
    }
    if (finish) {
      Finish(grpc::Status::CANCELLED);
    } else {
      StartWrite(&response_);
    }
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      write_in_flight_ = false;
      if (!ok) cancelled_ = true;
    }
    Advance();
  }

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      cancelled_ = true;
    }
    Advance();
  }

  void OnDone() override { service_.Forget(this); }

 private:
  HealthService& service_;
  const bool known_;
  HealthCheckResponse response_;  // of the write in flight
  absl::Mutex mu_;
  std::optional<HealthCheckResponse::ServingStatus> sent_ ABSL_GUARDED_BY(mu_);
  bool write_in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

HealthCheckResponse::ServingStatus HealthService::StatusNow() const {
  absl::MutexLock lock(&mu_);
  return serving_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::SetServing(bool serving) {
  {
    absl::MutexLock lock(&mu_);
    serving_ = serving;
  }
  for (const std::shared_ptr<Watcher>& watcher : Watchers()) watcher->Advance();
}

void HealthService::EndWatches() {
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }
  for (const std::shared_ptr<Watcher>& watcher : Watchers()) watcher->OnCancel();
}

std::vector<std::shared_ptr<HealthService::Watcher>> HealthService::Watchers() const {
  absl::MutexLock lock(&mu_);
  return {watchers_.begin(), watchers_.end()};
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!IsKnown(request->service())) {
    reactor->Finish(ToGrpcStatus(
        absl::NotFoundError(absl::StrCat("no service \"", request->service(), "\" here"))));
    return reactor;
  }
  response->set_status(StatusNow());
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  auto watcher = std::make_shared<Watcher>(*this, IsKnown(request->service()));
  bool ending;
  {
    absl::MutexLock lock(&mu_);
    watchers_.insert(watcher);
    ending = ending_;
  }
  if (ending) {
    watcher->OnCancel();
  } else {
    watcher->Advance();
  }
  return watcher.get();
}

void HealthService::Forget(Watcher* watcher) {
  std::shared_ptr<Watcher> last;  // destroyed after the lock is gone
  absl::MutexLock lock(&mu_);
  last = watcher->shared_from_this();
  watchers_.erase(last);
}

}  // namespace mneme
