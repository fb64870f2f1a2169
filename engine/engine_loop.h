// The one loop: takes requests from the mailbox, decides what runs, runs it, sends the results.
//
//   engine_loop.cc  one turn, and the doors for other threads
//   begin.cc        from a submitted request to its first row
//   shared_prefixes.cc  where that begins with what others were fed, and what it leaves for others
//   edits.cc        sessions that go back to where a conversation was edited
//   attached.cc     requests that are another one's repetition, and hear what that one says
//   commit.cc       from a step's result to events and ended requests
//   memory.cc       engrams of sessions
//   durable_turns.cc  what the log is told before a request ends, and the answers that it keeps
//   replay.cc       sessions that come from the store, and what waits for them
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
#include "engine/session_commands.h"
#include "engine/sessions/prefix_cache.h"
#include "engine/sessions/session_manager.h"
#include "engine/state_pool.h"
#include "engine/step_pipeline.h"
#include "engine/stream_notifier.h"
#include "engine/surprise_counter.h"
#include "engine/throughput_log.h"
#include "engine/token_stream.h"
#include "models/model.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// The parts that the loop works with; all of it must outlive the loop.
struct EngineParts {
  const Model& model;
  const Tokenizer* tokenizer;  // null: events carry no text
  StatePool& pool;
  ModelRunner& runner;
  HostStates* host = nullptr;         // null: no session is parked with the host
  HostStates* prefixes = nullptr;     // null: no beginnings of prompts are kept
  SessionStore* store = nullptr;      // null: sessions end with the loop
  StoredStates* states = nullptr;     // of the store's; null as well
  uint64_t model_id = 0;              // SessionRecord::model: what stored sessions agree in
  RoutingCounter* routing = nullptr;  // null: the model has no router, or nobody counts
  StreamNotifier* notifier;           // null: callbacks run on the loop's thread
  EngineStats& stats;
  Clock& clock;
  std::vector<int32_t> end_tokens;
};

// Puts five classes to work, each of which owns its part of the state and knows none of the others
// but those that it is given: AdmissionQueue (requests that wait; who runs, and when),
// SessionManager (sessions and slabs), SessionCommands (what is asked of sessions), StepPipeline
// (the step in flight) and Outbox (events). The loop itself owns the requests that run, and is what
// happens between them: RunOnce admits, plans, launches and commits.
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

  SessionCommands& commands() { return commands_; }
  // Runs `work`, which may ask for the slab of that session: at once, or when it has come from the
  // store. Not OK: it did not come.
  void OnSession(const SessionKey& key, std::function<void(const absl::Status&)> work);
  // Runs `work`, which is to make that session: at once, or when others have been parked for it,
  // where MustAwaitRoom says so. Not OK: they cannot be.
  void OnRoom(const SessionKey& key, const NewSession& options, const SessionKey* parent,
              int64_t tokens, std::function<void(const absl::Status&)> work);
  // As OnSession, and with all that the session was fed where only its log says that, as
  // ForgetSegments wants it: it is read on another thread.
  using LoggedWork = std::function<void(const absl::Status&, std::span<const int32_t> logged)>;
  void OnLoggedSession(const SessionKey& key, LoggedWork work);
  // Writes snapshots of idle sessions. False: there is nothing left to be written, and nothing on
  // its way.
  bool SaveSessions();
  // Those of all owners that will be lost when this ends.
  std::vector<SessionInfo> UnsavedSessions() const { return sessions_.Unsaved(); }
  // The last error of the store's; OK where all is well, and without a store.
  absl::Status store_health() const;
  // Whether anything is on its way to the store or from there.
  bool store_is_busy() const;

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
  std::function<uint64_t(const Session&)> Digest() const;
  void PublishWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // begin.cc
  void Take(Command command);
  void TakeIn(Generation& generation);
  bool AnswerFromRecord(Generation& generation);
  void Begin(Generation& generation);
  void AnswerFrom(Generation& generation, const KeyRecord& known);
  Session* BeginSession(Generation& generation);
  void BeginFirstChoice(Generation& generation, Session* session);
  void SendStart(Generation& generation);
  void Fork(Generation& generation);

  // shared_prefixes.cc
  void BeginPrefix(Generation& generation);
  void StartPrefixes();
  void TakeOver(Generation& generation, const PrefixCache::Beginning& beginning);
  void EndPrefix(Generation& generation);
  void AdvancePrefix(Generation& generation);
  void FindCut(Generation& generation) const;
  void KeepEnd(Generation& generation);
  void FinishWhenKept(Generation& generation, TokenEvent last);
  void FinishKept(bool wait);

  // edits.cc
  void SearchCut(Generation& generation);
  void BeginEdit(Generation& generation, Session& session);
  bool TakeCut(Generation& generation) const;
  bool Recut(Prompt& prompt, std::span<const int32_t> fed, int64_t replaced) const;
  void KeepCut(Generation& generation, const Session& session) const;
  bool BeginLoad(Generation& generation);
  void FinishLoads();
  void StandAt(Generation& generation, const StoredState& read);
  void EndLoad(Generation& generation);

  // attached.cc
  bool Attach(Generation& generation, KeyRecord& record);
  void HandOn();
  bool IsUnwanted(Generation& generation);
  void LeaveRecord(Generation& generation);
  void DismissAttached(KeyRecord& record, const absl::Status& forgotten);
  void TakeAgain();

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
  void End(Generation& generation, const absl::Status& why, TokenEvent last = {});
  void Finish(Generation& generation, TokenEvent last);
  void FinishChoices(Generation& generation, const absl::Status& status, TokenEvent& last);
  void ReleaseChoice(Generation& generation, Choice& choice);
  void ReleaseSessions(Generation& generation, const absl::Status& status);
  void CloseRecord(Generation& generation, const TokenEvent& last);
  void MarkEnded(Generation& generation, TokenEvent last);
  void Tell(const Generation& generation, const TokenEvent& last) const;

  // durable_turns.cc
  bool KeepsOldState(const Session& session) const;
  static bool IsUnborn(const Generation& g, const absl::Status& status);
  bool GoesBack(const Generation& g, const absl::Status& status) const;
  bool HasEdited(const Generation& g, const absl::Status& status) const;
  absl::Status WithWhatIsLeft(const Generation& g, const absl::Status& why) const;
  bool MustLog(const Generation& g, const absl::Status& status) const;
  void LogTurn(Generation& g, TokenEvent last);
  void TurnLogged(Generation& g, const absl::Status& status);
  std::optional<RequestRecord> RecordOf(Generation& g, const TokenEvent& last);
  absl::StatusOr<KeyRecord*> FindStoredRecord(const Request& request);

  // replay.cc
  void BeginReplays();
  void FeedNext(Generation& g);
  void CommitReplay(Generation& g, int64_t fed);
  void EndReplay(Generation& g, const absl::Status& status);
  void ReplayAgain(Generation& g);
  absl::Status CheckReplayed(const SessionReplay& replay) const;
  absl::Status ForgetAgain(const Session& session, const RangeForgotten& range);
  std::unique_ptr<Generation> NewErrand(const SessionKey& key);
  void RunErrand(Generation& g);
  void EndErrand(Generation& g, const absl::Status& status);

  // memory.cc
  void CountCrossings(Generation& generation, Choice& choice);
  void BeginMemoryUse(Generation& generation);
  void EndMemoryUse(Generation& generation);

  // visit(Generation&), those that wait first, and those that are attached last.
  template <typename Visitor>
  void ForEachRequest(Visitor visit) const {
    for (const auto& generation : queue_.waiting()) visit(*generation);
    for (const auto& generation : running_) visit(*generation);
    for (const auto& generation : attached_) visit(*generation);
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
  std::unique_ptr<SessionLog> log_;  // null without a store
  SessionManager sessions_;
  std::unique_ptr<PrefixCache> prefixes_;  // null: there is none; outlives all generations
  AdmissionQueue queue_;
  IdempotencyTable keys_;
  SessionCommands commands_;
  std::vector<std::unique_ptr<Generation>> running_;
  // Have ended, but for the log, or for a copy of their state.
  std::vector<std::unique_ptr<Generation>> logging_;
  std::vector<std::unique_ptr<Generation>> attached_;
  Outbox outbox_;
  ThroughputLog throughput_;

  // The step that is put together or in flight, kept for their memory: by candidate.
  std::vector<Row> rows_;
  std::vector<RowCandidate> candidates_;
};

}  // namespace mneme
