// The services' way to the engine, which is not there yet while the model loads and which takes no
// new work while it drains.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "mneme/v1/inference.pb.h"
#include "server/requests/request_log.h"
#include "server/requests/server_stats.h"

namespace mneme {

class ChatTemplate;
class EncodingRoom;
class HttpAccessLog;
class SessionTransfers;

// Set before Publish() and constant from then on.
struct ServingFacts {
  std::string model_name;                 // --served-model-name, or the folder's
  v1::SamplingOptions sampling_defaults;  // of generation_config.json; unset fields are neutral
  int default_max_tokens = 256;
  int64_t max_message_bytes = 0;
  int64_t max_text_bytes = int64_t{2} << 20;
  // Shared by all texts that are encoded; null: as many as there are at once. Publish() makes one
  // of max_text_bytes.
  std::shared_ptr<EncodingRoom> encoding_room;
  // Of both protocols. Null: Publish() makes them.
  std::shared_ptr<SessionTransfers> session_transfers;
  absl::Duration max_session_ttl = absl::InfiniteDuration();  // that a request may ask for
  std::shared_ptr<const ChatTemplate> chat_template;          // null: see chat_template_error
  // Why chats are refused: there is no template, or it uses what is not supported.
  std::string chat_template_error = "the model has no chat template";
  std::string tokenizer_info;  // for clients, as JSON (tokenizer_info.h); empty without a tokenizer
};

// Written by main(), read by every RPC. The engine outlives the gRPC server.
class EngineAccess {
 public:
  // `clock` must outlive it.
  explicit EngineAccess(const Clock& clock) : clock_(clock), start_time_(clock.Now()) {}

  // The engine, for calls that start no work: UNAVAILABLE while the model loads.
  absl::StatusOr<Engine*> Get() const;
  // The engine, for calls that do: UNAVAILABLE while draining, too.
  absl::StatusOr<Engine*> GetForWork() const;
  // Whether clients should be sent here, for health: UNAVAILABLE also while the engine is late with
  // a step. Calls that come all the same wait for it.
  absl::Status CheckReady() const;

  v1::ServerState state() const { return state_.load(std::memory_order_acquire); }
  const Clock& clock() const { return clock_; }
  absl::Time start_time() const { return start_time_; }
  const ServingFacts& facts() const { return facts_; }  // once Get() succeeds

  void SetProgress(int64_t loaded_bytes, int64_t total_bytes) {
    loaded_bytes_.store(loaded_bytes, std::memory_order_relaxed);
    total_bytes_.store(total_bytes, std::memory_order_relaxed);
  }
  int64_t loaded_bytes() const { return loaded_bytes_.load(std::memory_order_relaxed); }
  int64_t total_bytes() const { return total_bytes_.load(std::memory_order_relaxed); }

  // Null: nobody keeps one. Set before the first call, if at all.
  RequestLog* request_log() const { return request_log_; }
  void set_request_log(RequestLog* log) { request_log_ = log; }
  const HttpAccessLog* http_log() const { return http_log_; }
  void set_http_log(const HttpAccessLog* log) { http_log_ = log; }
  // Counted by every service, read by the metrics.
  ServerStats& stats() const { return stats_; }

  void Publish(Engine& engine, ServingFacts facts);
  void SetDraining() { state_.store(v1::SERVER_STATE_DRAINING, std::memory_order_release); }
  void SetLate(bool is_late) { is_late_.store(is_late, std::memory_order_release); }
  void SetFailed() { state_.store(v1::SERVER_STATE_FAILED, std::memory_order_release); }

 private:
  const Clock& clock_;
  const absl::Time start_time_;
  ServingFacts facts_;
  std::atomic<Engine*> engine_{nullptr};
  std::atomic<v1::ServerState> state_{v1::SERVER_STATE_LOADING};
  std::atomic<bool> is_late_{false};
  std::atomic<int64_t> loaded_bytes_{0};
  std::atomic<int64_t> total_bytes_{0};
  mutable ServerStats stats_;
  RequestLog* request_log_ = nullptr;
  const HttpAccessLog* http_log_ = nullptr;
};

}  // namespace mneme
