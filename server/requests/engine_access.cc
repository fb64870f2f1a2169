#include "server/requests/engine_access.h"

#include <utility>

#include "engine/status_payload.h"
#include "server/requests/session_transfers.h"
#include "server/requests/text_encoder.h"

namespace mneme {

absl::StatusOr<Engine*> EngineAccess::Get() const {
  Engine* engine = engine_.load(std::memory_order_acquire);
  if (engine != nullptr) return engine;
  return WithReason(absl::UnavailableError("the model is still loading"), "LOADING");
}

absl::StatusOr<Engine*> EngineAccess::GetForWork() const {
  switch (state()) {
    case v1::SERVER_STATE_DRAINING:
      return WithReason(absl::UnavailableError("the server is shutting down"), kReasonDraining);
    case v1::SERVER_STATE_FAILED:
      return WithReason(absl::UnavailableError("the device failed; the server is about to exit"),
                        kReasonUnhealthy);
    default:
      return Get();
  }
}

absl::Status EngineAccess::CheckReady() const {
  if (const absl::Status work = GetForWork().status(); !work.ok()) return work;
  if (!is_late_.load(std::memory_order_acquire)) return absl::OkStatus();
  return WithReason(absl::UnavailableError("the engine is late with a step; the log says which"),
                    kReasonUnhealthy);
}

void EngineAccess::Publish(Engine& engine, ServingFacts facts) {
  facts_ = std::move(facts);
  if (facts_.encoding_room == nullptr) {
    facts_.encoding_room = std::make_shared<EncodingRoom>(facts_.max_text_bytes);
  }
  if (facts_.session_transfers == nullptr) {
    facts_.session_transfers = std::make_shared<SessionTransfers>(SessionTransfers::Limits());
  }
  engine_.store(&engine, std::memory_order_release);
  v1::ServerState loading = v1::SERVER_STATE_LOADING;  // a drain may have begun meanwhile
  state_.compare_exchange_strong(loading, v1::SERVER_STATE_SERVING);
}

}  // namespace mneme
