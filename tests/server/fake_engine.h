// An Engine without a model: records what it is asked, and streams what a test pushes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "engine/engine.h"
#include "engine/request_check.h"
#include "engine/sessions/session_import.h"
#include "engine/status_payload.h"
#include "tests/support/layout_model.h"
#include "tokenizers/byte_tokenizer.h"

namespace mneme {

// The engine's end of one request. Streams stay alive as long as the engine.
struct FakeRequest {
  Request request;
  std::shared_ptr<TokenStream> stream;

  void Push(TokenEvent event) {
    if (stream->Push(std::move(event))) stream->NotifyReader();
  }
  void PushStart() {
    TokenEvent event{.is_start = true};
    event.usage.prompt_tokens = static_cast<int64_t>(request.prompt.at_start.size());
    event.usage.resumed_tokens = 7;
    event.seed = 42;
    Push(std::move(event));
  }
  void PushText(std::string text, int choice = 0) {
    TokenEvent event{.choice = choice, .text = std::move(text)};
    event.token_ids = {1};
    Push(std::move(event));
  }
  void PushEnd(absl::Status status = absl::OkStatus()) {
    TokenEvent event;
    event.usage.prompt_tokens = static_cast<int64_t>(request.prompt.at_start.size());
    event.finish = status.ok() ? FinishReason::kLength : FinishReason::kError;
    event.is_last = true;
    event.status = std::move(status);
    event.usage.fed_tokens = 11;
    if (request.surprise) event.usage.surprise = 0.25;
    event.session_position = 12;
    event.has_pending_token = true;
    event.seed = 42;
    if (request.on_end != nullptr) std::exchange(request.on_end, nullptr)(event.usage);
    Push(std::move(event));
  }
};

class FakeEngine final : public Engine {
 public:
  FakeEngine() {
    info_.name = "folder";
    info_.architecture = "mom";
    info_.vocab = 259;
    capacity_ = {.slab_bytes = 4096, .state_memory_bytes = 40960, .sessions = 10};
    options_.stream_capacity_events = 16;
    tokenizer_ = *MakeByteTokenizer(info_.vocab, 256, 257);
    set_file_numbers(16);
  }

  // The n-th request submitted, once it is there.
  FakeRequest& WaitForRequest(size_t n) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto there = [this, n]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return requests_.size() > n; };
    mu_.Await(absl::Condition(&there));
    return *requests_[n];
  }
  // Until the reader has cancelled or dropped the n-th request.
  void WaitForCancel(size_t n) ABSL_LOCKS_EXCLUDED(mu_) {
    const std::shared_ptr<TokenStream> stream = WaitForRequest(n).stream;
    absl::MutexLock lock(&wake_mu_);
    const auto there = [&stream] { return stream->cancelled(); };
    wake_mu_.Await(absl::Condition(&there));
  }

  // Submit and Drain answer `status` from now on.
  void RefuseWith(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    refusal_ = std::move(status);
  }
  // Runs with each request while it is being submitted, so before anybody reads its stream.
  void OnSubmit(std::function<void(FakeRequest&)> hook) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    on_submit_ = std::move(hook);
  }
  size_t requests() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return requests_.size();
  }
  void set_rows(int max_rows, int max_queued_requests) {
    options_.max_rows = max_rows;
    options_.max_queued_requests = max_queued_requests;
  }
  void set_max_request_tokens(int tokens) { options_.max_request_tokens = tokens; }
  void set_max_context(int64_t tokens) { info_.max_context = tokens; }
  void RemoveTokenizer() { tokenizer_ = nullptr; }
  // From now on it classifies, and generates nothing.
  void set_classes(Classes classes) { info_.classes = std::move(classes); }

  absl::Status Validate(const Request& request) const override {
    return ValidateRequest(request, {.vocab = info_.vocab,
                                     .has_tokenizer = true,
                                     .max_sessions = 10,
                                     .has_surprise = true,
                                     .has_engrams = true,
                                     .classes = info_.classes.exist() ? &info_.classes : nullptr});
  }
  absl::StatusOr<std::shared_ptr<TokenStream>> Submit(Request request) override {
    absl::MutexLock lock(&mu_);
    if (!refusal_.ok()) return refusal_;
    auto stream = std::make_shared<TokenStream>(options_.stream_capacity_events);
    // An empty critical section wakes those who wait for a condition that only the stream knows.
    stream->SetWaker([this] { absl::MutexLock wake(&wake_mu_); });
    const bool detached = request.detached;
    requests_.push_back(std::make_unique<FakeRequest>(FakeRequest{std::move(request), stream}));
    if (on_submit_ != nullptr) on_submit_(*requests_.back());
    TokenStream* raw = stream.get();
    return std::shared_ptr<TokenStream>(raw, [stream, detached](TokenStream* s) {
      s->SetReadyCallback(nullptr);
      detached ? s->Abandon() : s->Cancel();
    });
  }

  absl::StatusOr<SessionInfo> CreateSession(SessionKey key, NewSession options) override {
    absl::MutexLock lock(&mu_);
    if (sessions_.count(key) > 0) {
      return WithReason(absl::AlreadyExistsError("taken"), kReasonSessionExists);
    }
    return sessions_[key] = {.key = key,
                             .ttl = options.ttl,
                             .memory_seed = options.memory_seed,
                             .state_bytes = 4096,
                             .stored_bytes = 512};
  }
  // Lists of sessions say this from now on.
  void set_usage(const SessionUsage& usage) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    usage_ = usage;
  }
  // The session exists, and its last token is pending.
  void SetPosition(const SessionKey& key, int64_t position) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    sessions_.at(key).position = position;
    sessions_.at(key).has_pending_token = true;
  }
  absl::StatusOr<SessionInfo> GetSession(SessionKey key) override {
    absl::MutexLock lock(&mu_);
    const auto it = sessions_.find(key);
    if (it == sessions_.end()) return WithReason(absl::NotFoundError("none"), kReasonNoSession);
    return it->second;
  }
  absl::StatusOr<SessionPage> ListSessions(SessionQuery query) override {
    absl::MutexLock lock(&mu_);
    std::vector<SessionInfo> infos;
    for (const auto& [key, info] : sessions_) {
      if ((!query.owner.has_value() || key.owner == *query.owner) &&
          absl::StartsWith(key.name, query.name_prefix)) {
        infos.insert(infos.begin(), info);
      }
    }
    SessionPage page = PageOf(std::move(infos), query);
    page.usage = usage_;
    return page;
  }
  absl::StatusOr<SessionInfo> ForkSession(SessionKey source, SessionKey target,
                                          absl::Duration ttl) override {
    absl::StatusOr<SessionInfo> info = GetSession(source);
    if (!info.ok()) return info;
    return CreateSession(target, ttl);
  }
  // Any position up to the session's, and the checkpoints made.
  absl::StatusOr<SessionInfo> RewindSession(SessionKey key, RewindTarget to) override {
    const absl::StatusOr<int64_t> position = PositionAt(key, to);
    if (!position.ok()) return position.status();
    absl::MutexLock lock(&mu_);
    sessions_.at(key).position = *position;
    return sessions_.at(key);
  }
  absl::StatusOr<SessionInfo> ForkSessionAt(SessionKey source, SessionKey target,
                                            absl::Duration ttl, RewindTarget at) override {
    const absl::StatusOr<int64_t> position = PositionAt(source, at);
    if (!position.ok()) return position.status();
    const absl::StatusOr<SessionInfo> made = CreateSession(target, ttl);
    if (!made.ok()) return made;
    absl::MutexLock lock(&mu_);
    sessions_.at(target).position = *position;
    return sessions_.at(target);
  }
  absl::StatusOr<CheckpointInfo> CreateCheckpoint(SessionKey key, std::string name) override {
    const absl::StatusOr<SessionInfo> info = GetSession(key);
    if (!info.ok()) return info.status();
    absl::MutexLock lock(&mu_);
    return checkpoints_[key][name] = {.name = name,
                                      .position = info->position,
                                      .has_pending_token = info->has_pending_token,
                                      .created = absl::FromUnixSeconds(100)};
  }
  absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(SessionKey key) override {
    const absl::StatusOr<SessionInfo> info = GetSession(key);
    if (!info.ok()) return info.status();
    absl::MutexLock lock(&mu_);
    std::vector<CheckpointInfo> all;
    for (const auto& [name, one] : checkpoints_[key]) all.push_back(one);
    return all;
  }
  absl::Status DeleteCheckpoint(SessionKey key, std::string name) override {
    absl::MutexLock lock(&mu_);
    if (checkpoints_[key].erase(name) > 0) return absl::OkStatus();
    return WithReason(absl::NotFoundError("no checkpoint"), kReasonNoCheckpoint);
  }
  absl::Status DeleteSession(SessionKey key) override {
    absl::MutexLock lock(&mu_);
    return sessions_.erase(key) > 0 ? absl::OkStatus() : absl::NotFoundError("none");
  }
  // Answers with what set_report gave; `memory_queries` tells what was asked.
  absl::StatusOr<MemoryReport> InspectMemory(SessionKey key, const MemoryQuery& query) override {
    const absl::StatusOr<SessionInfo> info = GetSession(key);
    if (!info.ok()) return info.status();
    absl::MutexLock lock(&mu_);
    memory_queries_.push_back(query);
    return report_;
  }
  void set_report(absl::StatusOr<MemoryReport> report) {
    absl::MutexLock lock(&mu_);
    report_ = std::move(report);
  }
  std::vector<MemoryQuery> memory_queries() const {
    absl::MutexLock lock(&mu_);
    return memory_queries_;
  }
  // Every segment of a session was one working engram.
  absl::StatusOr<ForgottenSegments> ForgetSegments(SessionKey key, int64_t first,
                                                   int64_t end) override {
    const absl::StatusOr<SessionInfo> info = GetSession(key);
    if (!info.ok()) return info.status();
    return ForgottenSegments{{.working = static_cast<int>(end - first), .short_term = 2},
                             {"dinner"}};
  }

  // A file of one tensor of so many numbers (set_file_numbers), and of the session's position.
  absl::StatusOr<std::unique_ptr<SessionFileSource>> ExportSession(SessionKey key) override {
    const absl::StatusOr<SessionInfo> info = GetSession(key);
    if (!info.ok()) return info.status();
    return std::make_unique<SessionFileSource>(
        SessionFacts{.model = FileModel(), .fed_tokens = info->position},
        std::make_unique<StateCopy>(*file_model_));
  }
  absl::StatusOr<ImportedSession> ImportSession(SessionKey key, absl::Duration ttl,
                                                std::string file) override {
    auto import =
        SessionImport::Read(*file_model_, FileModel(), max_session_file_bytes(), std::move(file));
    if (!import.ok()) return import.status();
    absl::StatusOr<SessionInfo> info = CreateSession(key, ttl);
    if (!info.ok()) return info.status();
    absl::MutexLock lock(&mu_);
    sessions_.at(key).position = import->facts.position();
    return ImportedSession{.session = sessions_.at(key),
                           .file_state_dtype = "f32",
                           .state_dtype = "f16",
                           .rounded_tensors = 3,
                           .file_engram_capacity = 64,
                           .engram_capacity = 128};
  }
  int64_t max_session_file_bytes() const override { return int64_t{64} << 20; }
  // Before sessions are exported or imported.
  void set_file_numbers(int64_t numbers) {
    StateLayout layout;
    layout.Add({.name = "memory", .shape = {numbers}});
    file_model_ = std::make_unique<LayoutModel>(layout, ModelInfo{.vocab = info_.vocab});
  }

  int Drain(absl::Duration) override { return 0; }
  const ModelInfo& model_info() const override { return info_; }
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  const CapacityPlan& capacity() const override { return capacity_; }
  const EngineStats& stats() const override { return stats_; }
  const EngineOptions& options() const override { return options_; }
  std::string backend_description() const override { return "fake"; }
  int64_t decode_graph_nodes(int) const override { return 0; }
  absl::Status health() const override { return absl::OkStatus(); }
  absl::Status store_health() const override { return absl::OkStatus(); }
  const SessionStore* store() const override { return nullptr; }
  LoopActivity activity() const override { return activity_; }
  void set_activity(const LoopActivity& activity) { activity_ = activity; }

  EngineStats stats_;

 private:
  absl::StatusOr<int64_t> PositionAt(const SessionKey& key, const RewindTarget& to) {
    const absl::StatusOr<SessionInfo> info = GetSession(key);
    if (!info.ok()) return info.status();
    absl::MutexLock lock(&mu_);
    if (!to.checkpoint.empty()) {
      const auto found = checkpoints_[key].find(to.checkpoint);
      if (found != checkpoints_[key].end()) return found->second.position;
      return WithReason(absl::NotFoundError("no checkpoint"), kReasonNoCheckpoint);
    }
    if (to.position >= 0 && to.position <= info->position) return to.position;
    return WithReason(absl::OutOfRangeError("no such position"), kReasonPositionGone);
  }
  SessionModel FileModel() const {
    return {.model_type = info_.architecture, .name = info_.name, .state_dtype = "f32"};
  }

  std::unique_ptr<LayoutModel> file_model_;
  ModelInfo info_;
  CapacityPlan capacity_;
  EngineOptions options_;
  LoopActivity activity_;  // for tests of one thread
  std::unique_ptr<Tokenizer> tokenizer_;
  absl::Mutex wake_mu_;
  mutable absl::Mutex mu_;
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  std::function<void(FakeRequest&)> on_submit_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<FakeRequest>> requests_ ABSL_GUARDED_BY(mu_);
  std::map<SessionKey, SessionInfo> sessions_ ABSL_GUARDED_BY(mu_);
  SessionUsage usage_ ABSL_GUARDED_BY(mu_);
  std::map<SessionKey, std::map<std::string, CheckpointInfo>> checkpoints_ ABSL_GUARDED_BY(mu_);
  absl::StatusOr<MemoryReport> report_ ABSL_GUARDED_BY(mu_) = MemoryReport{};
  std::vector<MemoryQuery> memory_queries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
