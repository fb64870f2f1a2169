// The one loop: takes requests from the mailbox, decides what runs, runs it, sends the results.
//
//   engine_loop.cc  one turn, and the doors for other threads
//   admission.cc    from the mailbox to a session with a slab, or a refusal
//   commit.cc       from a step's result to events and ended requests
#pragma once

#include <atomic>
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
#include "engine/engine.h"
#include "engine/engine_stats.h"
#include "engine/generation.h"
#include "engine/idempotency.h"
#include "engine/mailbox.h"
#include "engine/model_runner.h"
#include "engine/phase_clock.h"
#include "engine/request.h"
#include "engine/request_check.h"
#include "engine/routing_counter.h"
#include "engine/sessions/session_manager.h"
#include "engine/state_pool.h"
#include "engine/step_pipeline.h"
#include "engine/stream_notifier.h"
#include "engine/token_stream.h"
#include "models/model.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// What the loop works with; all of it must outlive the loop.
struct EngineParts {
  const Model& model;
  const Tokenizer* tokenizer;  // null: events carry no text
  StatePool& pool;
  ModelRunner& runner;
  RoutingCounter* routing = nullptr;  // null: the model has no router, or nobody counts
  StreamNotifier* notifier;           // null: callbacks run on the loop's thread
  EngineStats& stats;
  Clock& clock;
  std::vector<int32_t> end_tokens;
};

// The loop thread is whichever thread calls the methods of the second group, one at a time; a test
// may be that thread and take turns one by one.
//
// Who runs and who waits. A request runs, that is, gets rows in steps, once it has its slabs and
// steps have room for its rows, one for each choice: no more choices run than max_rows. One whose
// reader is slow lends its rows to others meanwhile, and one with more choices than max_rows runs
// alone; where that makes more than fit, they take turns (scheduler.h). All others wait, in
// order of arrival less what their priority is worth (kPriorityStep): nobody overtakes who waits
// for a row, and what somebody waits for of slabs is kept from later ones. At most
// max_queued_requests wait; one more is RESOURCE_EXHAUSTED, reason QUEUE_FULL.
//
// When no slab is free. Idle named sessions keep theirs, as nothing can be parked yet. A request
// that needs slabs waits as long as those that are free, or will be freed by running requests (the
// ones of ephemeral sessions and additional choices), would do; otherwise only deletion or expiry
// of sessions could help, so it is refused at once: RESOURCE_EXHAUSTED, reason NO_FREE_SLAB, with
// the time to the next expiry as the retry hint. Requests that go on with an existing session need
// no slab, and pass by those that wait for one. CreateSession and ForkSession do not wait: they are
// refused where no slab is free but those that waiting requests will need.
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
  struct Ending {
    std::shared_ptr<TokenStream> stream;
    TokenEvent last;
  };

  // engine_loop.cc
  absl::Duration IdleTimeout() const;
  absl::Duration NextExpiry() const;
  void Admit(absl::Duration max_wait);
  void Plan();
  void Launch();
  bool CanRunAhead() const;
  void Commit();
  void FillDraws(const StepPlan& plan, SamplingBatch& draws);
  void CancelAndExpire();
  void Deliver();
  void Sweep();
  void SendEndings();
  void PublishStats();
  void PublishWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginReport();
  void Report();

  // admission.cc
  void Apply(Command command);
  void Enqueue(std::unique_ptr<Generation> generation);
  bool Replay(Generation& generation);
  bool IsSessionGone(const KeyRecord& record, const SessionKey& key) const;
  absl::Status WithPositionNow(const KeyRecord& record, const SessionKey& key,
                               const absl::Status& status) const;
  bool SupersedesPending(const Request& request, const Session& session) const;
  absl::Status SkipKnownHistory(Generation& g, const Session& session) const;
  absl::Status CheckAgainstSession(const Generation& generation, const Session* session) const;
  int SlabsNeeded(const Generation& generation) const;
  int RowsTaken() const;
  void AdmitWaiting();
  void Queue(Generation& generation, int slabs_needed);
  void Admit(Generation& generation);
  void PrepareFeed(Generation& generation, Session* session) const;
  void PrepareDraws(Generation& generation) const;
  void BeginFirstChoice(Generation& generation, Session* session);
  void SendStart(Generation& generation);
  void LeaveQueue(Generation& generation);
  void Fork(Generation& generation);

  // commit.cc
  void CommitStep();
  void CommitRow(const StepPlan& plan, int row);
  void CommitToken(Generation& generation, Choice& choice, int logit_row);
  void DeliverTokens(Generation& generation);
  void DeliverToken(Generation& generation, Choice& choice);
  void ShowPrompt(Generation& generation, int logit_row, int64_t begin, int64_t end);
  void EndUnsampled(Generation& generation);
  void FailForLogits(Generation& generation, const Choice& choice);
  void EndWithNothingLeft(Generation& generation, const Choice& choice);
  void FailRows(const StepPlan& plan, const absl::Status& error);
  void EndChoice(Choice& choice);
  void End(Generation& generation, const absl::Status& status, TokenEvent last = {});
  void FinishChoices(Generation& generation, const absl::Status& status, TokenEvent& last);
  void CompleteLast(const Generation& generation, const absl::Status& status,
                    TokenEvent& last) const;
  void CloseRecord(Generation& generation, const TokenEvent& last);
  void CountEnd(const Generation& generation, const absl::Status& status);
  void ReleaseSessions(Generation& generation, const absl::Status& status);
  void MarkEnded(Generation& generation, TokenEvent last);
  void Tell(const Generation& generation, const TokenEvent& last) const;
  void Send(Generation& generation, TokenEvent event);
  TokenLogprob LogprobAt(int logit_row, int32_t token, int top) const;

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
  SessionManager sessions_;
  IdempotencyTable keys_;
  std::vector<std::unique_ptr<Generation>> waiting_;  // by arrival and priority
  std::vector<std::unique_ptr<Generation>> running_;
  int slabs_awaited_ = 0;  // that waiting requests will need
  int queued_ = 0;         // requests found to have to wait; at most max_queued_requests
  int64_t arrivals_ = 0;

  // The step that is put together or in flight, kept for their memory: by candidate.
  std::vector<Row> rows_;
  std::vector<RowCandidate> candidates_;

  std::vector<Ending> endings_;  // of requests that ended since the last Sweep()
  std::vector<std::shared_ptr<TokenStream>> to_notify_;

  // Of the last throughput report.
  absl::Duration reported_at_;
  int64_t reported_prompt_tokens_ = 0;
  int64_t reported_generated_tokens_ = 0;
};

}  // namespace mneme
