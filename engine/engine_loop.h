// The one loop: takes requests from the mailbox, decides what runs, runs it, sends the results.
//
//   engine_loop.cc  one turn, and the doors for other threads
//   begin.cc        from a submitted request to its first row
//   commit.cc       from a step's result to events and ended requests
//   memory.cc       engrams of sessions
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/admission_queue.h"
#include "engine/engine.h"
#include "engine/engine_stats.h"
#include "engine/generation.h"
#include "engine/idempotency.h"
#include "engine/mailbox.h"
#include "engine/model_runner.h"
#include "engine/outbox.h"
#include "engine/phase_clock.h"
#include "engine/request.h"
#include "engine/request_check.h"
#include "engine/routing_counter.h"
#include "engine/sessions/session_manager.h"
#include "engine/state_pool.h"
#include "engine/step_pipeline.h"
#include "engine/stream_notifier.h"
#include "engine/surprise_counter.h"
#include "engine/throughput_log.h"
#include "engine/token_stream.h"
#include "models/model.h"
#include "models/state_codec.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// The parts that the loop works with; all of it must outlive the loop.
struct EngineParts {
  const Model& model;
  const Tokenizer* tokenizer;  // null: events carry no text
  StatePool& pool;
  ModelRunner& runner;
  HostStates* host = nullptr;         // null: no session is parked
  RoutingCounter* routing = nullptr;  // null: the model has no router, or nobody counts
  StreamNotifier* notifier;           // null: callbacks run on the loop's thread
  EngineStats& stats;
  Clock& clock;
  std::vector<int32_t> end_tokens;
};

// Puts four classes to work, each of which owns its part of the state and knows none of the others
// but those that it is given: AdmissionQueue (requests that wait; who runs, and when),
// SessionManager (sessions and slabs), StepPipeline (the step in flight) and Outbox (events). The
// loop itself owns the requests that run, and is what happens between them: RunOnce admits, plans,
// launches and commits.
//
// The loop thread is whichever thread calls the methods of the second group, one at a time; a test
// may be that thread and take turns one by one.
class EngineLoop {
 public:
  EngineLoop(EngineParts parts, const EngineOptions& options, uint64_t seed);
  ~EngineLoop();  // ends what is left with UNAVAILABLE
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // --- Any thread ---

  // See Engine::Validate and Submit.
  absl::Status Validate(const Request& request) const { return ValidateRequest(request, bounds_); }
  absl::StatusOr<std::shared_ptr<TokenStream>> Submit(Request request);
  // `work` runs on the loop thread between steps. False: too much is queued already, or closed.
  [[nodiscard]] bool Post(std::function<void()> work);
  // New requests are UNAVAILABLE from now on.
  void StopAccepting();
  // True if no request is left, within `timeout`.
  bool AwaitIdle(absl::Duration timeout);
  // Run() returns soon; requests that are left end with UNAVAILABLE.
  void Close() { mailbox_.Close(); }
  absl::Status health() const;
  LoopActivity activity() const { return phases_.activity(); }

  // --- Loop thread ---

  void Run();  // turns until Close()
  // One turn. Waits up to `max_wait` while there is nothing to do.
  void RunOnce(absl::Duration max_wait = absl::InfiniteDuration());

  absl::StatusOr<SessionInfo> CreateSession(const SessionKey& key, absl::Duration ttl);
  absl::StatusOr<SessionInfo> GetSession(const SessionKey& key) const;
  std::vector<SessionInfo> ListSessions(const std::optional<std::string>& owner,
                                        const std::string& name_prefix) const;
  absl::StatusOr<SessionInfo> ForkSession(const SessionKey& source, const SessionKey& target,
                                          absl::Duration ttl);
  absl::Status DeleteSession(const SessionKey& key);
  // Copies an idle session's fields.
  absl::Status ReadState(const SessionKey& key, StateImage& image);
  absl::StatusOr<ForgottenEngrams> ForgetSegments(const SessionKey& key, int64_t first,
                                                  int64_t end);

  // Ends all requests.
  void EndAll(const absl::Status& why);
  // INTERNAL unless every slab is owned exactly once and every session is where the table says.
  absl::Status CheckIntegrity() const;

 private:
  struct Command {
    std::unique_ptr<Generation> submitted;  // or
    std::function<void()> work;
  };
  struct Row {
    Generation* generation;  // null: its choice ended while this step was queued already
    Choice* choice;
  };

  // engine_loop.cc
  void Admit(absl::Duration max_wait);
  void Plan();
  void Launch();
  bool CanRunAhead() const;
  void Commit();
  absl::Duration IdleTimeout() const;
  absl::Duration NextExpiry() const;
  void FillDraws(const StepPlan& plan, SamplingBatch& draws);
  void CancelAndExpire();
  void Deliver();
  void Sweep();
  void PublishStats();
  void PublishWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // begin.cc
  void Take(Command command);
  bool AnswerFromRecord(Generation& generation);
  void Begin(Generation& generation);
  void BeginFirstChoice(Generation& generation, Session* session);
  void SendStart(Generation& generation);
  void Fork(Generation& generation);

  // commit.cc
  void CommitStep();
  void CommitRow(const StepPlan& plan, int row);
  void CommitToken(Generation& generation, Choice& choice, int logit_row);
  void DeliverTokens(Generation& generation);
  void DeliverToken(Generation& generation, Choice& choice);
  void ShowPrompt(Generation& generation, int logit_row, int64_t begin, int64_t end);
  void EndUnsampled(Generation& generation);
  void EndClassified(Generation& generation, int logit_row);
  void FailForLogits(Generation& generation, const Choice& choice);
  void FailForDivergence(Generation& generation, const SurpriseCounter::Row::Divergence& where);
  void FailSpoilt(Generation& generation, const absl::Status& failure);
  void EndWithNothingLeft(Generation& generation, const Choice& choice);
  void FailRows(const StepPlan& plan, const absl::Status& error);
  void End(Generation& generation, const absl::Status& status, TokenEvent last = {});
  void FinishChoices(Generation& generation, const absl::Status& status, TokenEvent& last);
  void ReleaseChoice(Generation& generation, Choice& choice);
  void ReleaseSessions(Generation& generation, const absl::Status& status);
  void CloseRecord(Generation& generation, const TokenEvent& last);
  void MarkEnded(Generation& generation, TokenEvent last);
  void Tell(const Generation& generation, const TokenEvent& last) const;

  // memory.cc
  void CountCrossings(Generation& generation, Choice& choice);
  void BeginMemoryUse(Generation& generation);
  void EndMemoryUse(Generation& generation);
  std::byte* SlabOf(const Session& session) const {
    return parts_.pool.slabs() + session.slot * parts_.pool.slab_bytes();
  }

  // visit(Generation&), those that wait first.
  template <typename Visitor>
  void ForEachRequest(Visitor visit) const {
    for (const auto& generation : queue_.waiting()) visit(*generation);
    for (const auto& generation : running_) visit(*generation);
  }
  absl::Duration Now() const { return parts_.clock.Monotonic(); }

  const EngineParts parts_;
  const EngineOptions options_;
  const RequestBounds bounds_;
  const uint64_t seed_;  // of the seeds of requests that have none

  Mailbox<Command> mailbox_;
  mutable absl::Mutex mu_;
  bool accepting_ ABSL_GUARDED_BY(mu_) = true;
  int unended_ ABSL_GUARDED_BY(mu_) = 0;  // requests submitted whose last event is not sent
  int open_ ABSL_GUARDED_BY(mu_) = 0;  // those of them that the gauges have as running or waiting
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  PhaseClock phases_;

  // Below: loop thread only.
  StepPipeline pipeline_;
  SurpriseCounter surprise_;
  SessionManager sessions_;
  AdmissionQueue queue_;
  IdempotencyTable keys_;
  std::vector<std::unique_ptr<Generation>> running_;
  Outbox outbox_;
  ThroughputLog throughput_;

  // The step that is put together or in flight, kept for their memory: by candidate.
  std::vector<Row> rows_;
  std::vector<RowCandidate> candidates_;
};

}  // namespace mneme
