#include "engine/engine_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/timed_wait.h"
#include "engine/scheduler.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

constexpr absl::Duration kReportInterval = absl::Seconds(10);
constexpr int kMailboxSlack = 1024;  // commands besides requests

absl::Status ShuttingDown() {
  return WithReason(absl::UnavailableError("the server is shutting down"), kReasonDraining);
}

}  // namespace

EngineLoop::EngineLoop(EngineParts parts, const EngineOptions& options, uint64_t seed)
    : parts_(std::move(parts)),
      options_(options),
      bounds_({.vocab = parts_.model.info().vocab,
               .has_tokenizer = parts_.tokenizer != nullptr,
               .max_sessions = parts_.pool.slots(),
               .max_request_tokens = options.max_request_tokens,
               .max_prompt_tokens = options.max_prompt_tokens,
               .end_tokens = parts_.end_tokens}),
      seed_(seed),
      mailbox_(static_cast<size_t>(options.max_queued_requests) + kMailboxSlack),
      sessions_(parts_.pool, parts_.clock, parts_.stats,
                {.default_ttl = options.default_session_ttl,
                 .history_tokens = options.history_tokens,
                 .owner_limit = options.owner_session_limit}),
      keys_(options.max_idempotency_keys, options.idempotency_record_bytes),
      prefill_budget_(options.max_tokens_per_step, options.max_rows, options.max_decode_slowdown),
      phase_began_(Now()),
      reported_at_(Now()) {}

EngineLoop::~EngineLoop() {
  mailbox_.Close();
  StopAccepting();
  if (in_flight_) FinishStep();
  for (Command& command : mailbox_.Drain(absl::ZeroDuration())) Apply(std::move(command));
  EndAll(ShuttingDown());
}

// One turn, which takes the tokens of one step. The loop thread alone owns sessions, slabs and the
// runner; none of them has a lock.
//
// A device that works on its own waits for the host from the moment that a step's tokens are drawn
// until the next step begins. So only what decides about that one is done in between: Commit, then
// BeginStep. Clients get their tokens while it computes; but before it is launched if that is done
// kernel by kernel, as it is beside a prompt: such a launch takes ten times as long as Deliver, and
// how long differs from step to step, by as much as tokens would then come late. And where there is
// nothing to decide, the next step is queued before the tokens of this one are there: a turn then
// begins by queueing one more, and BeginStep has its turn again as soon as CanRunAhead finds
// something to decide.
void EngineLoop::RunOnce(absl::Duration max_wait) {
  if (!in_flight_) {
    BeginStep(max_wait);
  } else {
    watch_.BeginTurn(EndPhase(StepPhase::kIdle, StepPhase::kSample), steps_);
    watch_.SetStep(plan_.rows(), plan_.tokens());
  }
  if (in_flight_) {
    if (CanRunAhead()) BeginNextStep();
    FinishStep();
    EndPhase(StepPhase::kCommit, StepPhase::kDeliver);
  }
  if (ahead_) TakeNextStep();
  if (in_flight_ || plan_.empty() || !parts_.runner.asynchronous()) Deliver();
  if (in_flight_) std::swap(result_, next_result_);
  EndPhase(StepPhase::kDeliver, StepPhase::kIdle);
}

// Takes what came, and begins a step if there is anything to do.
void EngineLoop::BeginStep(absl::Duration max_wait) {
  const bool follows = had_candidates_;
  std::vector<Command> commands = mailbox_.Drain(std::min(max_wait, IdleTimeout()));
  watch_.BeginTurn(EndPhase(StepPhase::kIdle, StepPhase::kPlan), steps_);
  for (Command& command : commands) Apply(std::move(command));
  if (running_.empty()) BeginReport();
  CancelAndExpire();  // before what they ask for costs time
  AdmitWaiting();

  const std::vector<RowCandidate>& candidates = Runnable();
  plan_ = PlanStep(candidates, Limits(), std::move(plan_));  // limits follow from the candidates
  const StepPlan& plan = plan_;
  had_candidates_ = !candidates.empty();
  watch_.SetStep(plan.rows(), plan.tokens());
  step_began_ = EndPhase(StepPhase::kPlan, StepPhase::kDeliver);
  if (plan.empty()) return;
  tokens_since_ = follows ? sampled_at_ : step_began_;
  RoutingObserver* const routing =
      parts_.routing == nullptr ? nullptr : parts_.routing->ForStep(plan.decode_rows);
  // Tokens of the step before are delivered before a long launch, and after a short one.
  const bool short_launch = parts_.runner.Replays(plan, routing);
  if (!short_launch) Deliver();
  EndPhase(StepPhase::kDeliver, StepPhase::kForward);
  parts_.runner.Begin(plan, routing);
  EndPhase(StepPhase::kForward, StepPhase::kDeliver);
  if (short_launch) Deliver();
  EndPhase(StepPhase::kDeliver, StepPhase::kSample);
  parts_.runner.BeginSample(DrawsOf(plan), result_);
  in_flight_ = true;
}

// Whether the step after the one in flight is known but for its tokens: the same rows, each feeding
// what it draws now, or none, if that is a stop token. No, if anything wants the loop between two
// steps by now: a command, a cancellation, a reader that made room (they wake the mailbox), a
// deadline, a session that expires. Who waits for a row or a slab does not: it comes by an end.
bool EngineLoop::CanRunAhead() const {
  if (!options_.async_scheduling || !parts_.runner.asynchronous()) return false;
  if (!ModelRunner::DecodesOnly(plan_) || plan_.rows() != static_cast<int>(candidates_.size()) ||
      mailbox_.ready() || NextExpiry() <= Now()) {
    return false;
  }
  return std::all_of(rows_.begin(), rows_.end(), [](const Row& row) {
    if (row.generation == nullptr) return false;
    const Generation& g = *row.generation;
    return row.choice->cursor == g.feed_tokens() && row.choice->stop.GoesOnUnlessStopped() &&
           g.sampler.draws_ahead() && !g.stream->full();
  });
}

void EngineLoop::BeginNextStep() {
  EndPhase(StepPhase::kSample, StepPhase::kForward);
  parts_.runner.BeginNext();
  for (SamplingRow& row : draws_.rows) ++row.position;
  parts_.runner.BeginSample(draws_, next_result_);
  parts_.stats.ahead_steps.Add();
  ahead_ = true;
  EndPhase(StepPhase::kForward, StepPhase::kSample);
}

// Waits for the tokens of the step in flight.
void EngineLoop::FinishStep() {
  in_flight_ = false;
  absl::Status status = parts_.runner.FinishSample();
  if (!status.ok() && ahead_) {
    ahead_ = false;
    status.Update(parts_.runner.FinishSample());
  }
  sampled_at_ = EndPhase(StepPhase::kSample, StepPhase::kCommit);
  if (!status.ok()) return FailRows(plan_, status);
  prefill_budget_.Observe(plan_.decode_rows, plan_.prefill_tokens(), sampled_at_ - tokens_since_);
  parts_.stats.step_seconds.Observe(absl::ToDoubleSeconds(sampled_at_ - step_began_));
  Commit(plan_);
}

// The step that was ahead is the one in flight now.
void EngineLoop::TakeNextStep() {
  ahead_ = false;
  in_flight_ = true;
  step_began_ = tokens_since_ = sampled_at_;
  for (int row = 0; row < plan_.rows(); ++row) {
    plan_.token_ids[row] = result_.tokens[row];
    ++plan_.positions[row];
    Row& of = rows_[plan_.candidates[row]];
    if (of.generation == nullptr) continue;
    if (of.generation->ended || of.choice->finish != FinishReason::kNone) {
      of.generation = nullptr;
      plan_.slots[row] = -1;
    }
  }
  if (options_.trace_steps) LOG(INFO) << "step " << steps_ << ": " << plan_.ToString();
}

void EngineLoop::Run() {
  while (!mailbox_.closed()) RunOnce();
}

absl::Duration EngineLoop::IdleTimeout() const {
  if (had_candidates_) return absl::ZeroDuration();
  const absl::Duration next = NextExpiry();
  return next == absl::InfiniteDuration() ? next : std::max(next - Now(), absl::ZeroDuration());
}

// When the next session or request expires.
absl::Duration EngineLoop::NextExpiry() const {
  absl::Duration next = sessions_.NextExpiry();
  for (const auto* queue : {&waiting_, &running_}) {
    for (const auto& generation : *queue) next = std::min(next, generation->deadline);
  }
  return next;
}

const std::vector<RowCandidate>& EngineLoop::Runnable() {
  rows_.clear();
  candidates_.clear();
  int paused = 0;
  for (const auto& generation : running_) {
    if (generation->stream->full()) {
      ++paused;  // its reader is slow, and waits for itself only
      continue;
    }
    for (Choice& choice : generation->choices) {
      if (choice.session == nullptr || choice.finish != FinishReason::kNone) continue;
      rows_.push_back({generation.get(), &choice});
      candidates_.push_back(NextRow(*generation, choice));
    }
  }
  parts_.stats.requests_paused.Set(paused);
  return candidates_;
}

StepLimits EngineLoop::Limits() {
  int decode_rows = 0;
  for (const RowCandidate& row : candidates_) decode_rows += row.tokens.size() == 1 ? 1 : 0;
  const bool prefills = decode_rows < static_cast<int>(candidates_.size());
  return {.max_rows = options_.max_rows,
          .max_tokens = options_.max_tokens_per_step,
          .max_scored_tokens = options_.max_logit_rows_per_step,
          .prefill_tokens =
              prefills ? prefill_budget_.Tokens(std::min(decode_rows, options_.max_rows)) : 0,
          .likely_sizes = true};
}

const SamplingBatch& EngineLoop::DrawsOf(const StepPlan& plan) {
  if (options_.trace_steps) LOG(INFO) << "step " << steps_ << ": " << plan.ToString();
  draws_.Clear();
  for (int row = 0; row < plan.rows(); ++row) {
    const auto& [generation, choice] = rows_[plan.candidates[row]];
    const RowCandidate& candidate = candidates_[plan.candidates[row]];
    const std::span<const int32_t> fed = plan.row_tokens(row);
    const bool samples = candidate.samples && fed.size() == candidate.tokens.size();
    const int scored = plan.logit_offsets[row + 1] - plan.logit_offsets[row] - (samples ? 1 : 0);
    for (int i = 0; i < scored; ++i) {
      generation->sampler.AppendScore(generation->feed[choice->cursor + i + 1], draws_);
    }
    // A prompt joins the history as it is fed, and the draw after its last token sees all of it. A
    // pending token is in there since it was sampled.
    if (choice->cursor < generation->feed_tokens()) {
      const bool pending_first = generation->feeds_pending && choice->cursor == 0;
      for (const int32_t token : fed.subspan(pending_first ? 1 : 0)) {
        choice->session->history.Push(token, /*generated=*/false);
      }
    }
    if (samples) {
      const int64_t position = choice->session->fed_tokens + static_cast<int64_t>(fed.size());
      generation->sampler.AppendDraw(choice->session->history, choice->index, position,
                                     choice->stop.bans_stop_tokens(), draws_);
    }
  }
  return draws_;
}

void EngineLoop::CancelAndExpire() {
  sessions_.Expire();
  const absl::Duration now = Now();
  for (auto* queue : {&waiting_, &running_}) {
    for (const auto& generation : *queue) {
      if (generation->ended) continue;
      // A call past its deadline drops its stream, too: that is an expiry, not a cancellation.
      if (generation->deadline <= now) {
        End(*generation,
            absl::DeadlineExceededError(generation->is_admitted()
                                            ? "the deadline passed while the request was running"
                                            : "the deadline passed while the request was waiting"));
      } else if (generation->stream->cancelled()) {
        End(*generation, absl::CancelledError("the request was cancelled"));
      }
    }
  }
}

// All that the next step does not depend on.
void EngineLoop::Deliver() {
  for (const auto& generation : running_) DeliverTokens(*generation);
  Sweep();
}

void EngineLoop::Sweep() {
  for (auto* queue : {&waiting_, &running_}) {
    std::erase_if(*queue, [](const auto& generation) { return generation->ended; });
  }
  PublishStats();
  SendEndings();
  if (parts_.notifier != nullptr) {
    parts_.notifier->Notify(to_notify_);
  } else {
    for (const auto& stream : std::exchange(to_notify_, {})) stream->NotifyReader();
  }
}

// Whoever has a last event finds its request ended in everything that can be asked for: sessions,
// records, counters and gauges.
void EngineLoop::SendEndings() {
  if (endings_.empty()) return;
  for (auto& [stream, last] : endings_) {
    if (stream->Push(std::move(last))) to_notify_.push_back(std::move(stream));
  }
  absl::MutexLock lock(&mu_);
  unended_ -= static_cast<int>(endings_.size());
  endings_.clear();
}

// What has passed since the end of another phase belongs to this one; `next` begins. Returns the
// time.
absl::Duration EngineLoop::EndPhase(StepPhase phase, StepPhase next) {
  const absl::Duration now = Now();
  parts_.stats.phase_nanoseconds[static_cast<size_t>(phase)].Add(
      absl::ToInt64Nanoseconds(now - phase_began_));
  phase_began_ = now;
  watch_.Enter(next, now);
  return now;
}

void EngineLoop::PublishStats() {
  {
    absl::MutexLock lock(&mu_);
    open_ -= static_cast<int>(endings_.size());
    parts_.stats.requests_running.Set(static_cast<int64_t>(running_.size()));
    PublishWaiting();
  }
  parts_.stats.requests_queued.Set(queued_);
  sessions_.PublishGauges();
  if (Now() - reported_at_ >= kReportInterval) Report();
}

// All that was accepted and does not run; also what the loop, busy with a step, has not seen yet.
void EngineLoop::PublishWaiting() {
  parts_.stats.requests_waiting.Set(open_ - parts_.stats.requests_running.value());
}

// Idle time counts for nothing.
void EngineLoop::BeginReport() {
  reported_at_ = Now();
  reported_prompt_tokens_ = parts_.stats.prompt_tokens.value();
  reported_generated_tokens_ = parts_.stats.generated_tokens.value();
}

void EngineLoop::Report() {
  const double seconds = absl::ToDoubleSeconds(Now() - reported_at_);
  const int64_t new_prompt = parts_.stats.prompt_tokens.value() - reported_prompt_tokens_;
  const int64_t new_generated = parts_.stats.generated_tokens.value() - reported_generated_tokens_;
  BeginReport();
  LOG(INFO) << absl::StrFormat(
      "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: "
      "%d reqs, Waiting: %d reqs, State slots used: %.1f%% (%d of %d)",
      static_cast<double>(new_prompt) / seconds, static_cast<double>(new_generated) / seconds,
      parts_.stats.requests_running.value(), parts_.stats.requests_waiting.value(),
      100.0 * parts_.pool.used_slots() / parts_.pool.slots(), parts_.pool.used_slots(),
      parts_.pool.slots());
}

absl::StatusOr<std::shared_ptr<TokenStream>> EngineLoop::Submit(Request request) {
  const auto refuse = [this](absl::Status status) {
    parts_.stats.Reject(status);
    return status;
  };
  const absl::Status valid = ValidateRequest(request, bounds_);
  if (!valid.ok()) return refuse(valid);

  auto stream = std::make_shared<TokenStream>(options_.stream_capacity_events);
  stream->SetWaker([this] { mailbox_.Wake(); });
  const bool detached = request.detached;
  const absl::Duration now = Now();
  Command command;
  command.submitted = std::make_unique<Generation>(std::move(request), stream, now);
  command.submitted->deadline = command.submitted->request.deadline;
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) {
      return refuse(WithReason(
          absl::UnavailableError(absl::StrCat("the engine has failed: ", failure_.message())),
          kReasonUnhealthy));
    }
    if (!accepting_) return refuse(ShuttingDown());
    if (!mailbox_.TryPush(std::move(command))) {
      return refuse(QueueFullError("requests arrive faster than the engine takes them"));
    }
    ++unended_;
    ++open_;
    PublishWaiting();
  }
  // The reader's handle: the loop keeps the stream itself.
  TokenStream* raw = stream.get();
  return std::shared_ptr<TokenStream>(raw,
                                      [stream = std::move(stream), detached](TokenStream*) mutable {
                                        stream->SetReadyCallback(nullptr);
                                        if (detached) {
                                          stream->Abandon();
                                        } else {
                                          stream->Cancel();
                                        }
                                        stream.reset();
                                      });
}

bool EngineLoop::Post(std::function<void()> work) {
  Command command;
  command.work = std::move(work);
  return mailbox_.TryPush(std::move(command));
}

void EngineLoop::StopAccepting() {
  absl::MutexLock lock(&mu_);
  accepting_ = false;
}

bool EngineLoop::AwaitIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return unended_ == 0; };
  return AwaitFor(mu_, absl::Condition(&idle), timeout);
}

absl::StatusOr<SessionInfo> EngineLoop::CreateSession(const SessionKey& key, absl::Duration ttl) {
  return sessions_.Create(key, ttl, slabs_awaited_);
}

absl::StatusOr<SessionInfo> EngineLoop::GetSession(const SessionKey& key) const {
  return sessions_.Get(key);
}

std::vector<SessionInfo> EngineLoop::ListSessions(const std::optional<std::string>& owner,
                                                  const std::string& name_prefix) const {
  return sessions_.List(owner, name_prefix);
}

absl::StatusOr<SessionInfo> EngineLoop::ForkSession(const SessionKey& source,
                                                    const SessionKey& target, absl::Duration ttl) {
  return sessions_.Fork(source, target, ttl, slabs_awaited_);
}

absl::Status EngineLoop::DeleteSession(const SessionKey& key) { return sessions_.Delete(key); }

absl::Status EngineLoop::CheckIntegrity() const {
  std::vector<int> held;  // slots
  int claims = 0;
  for (const auto* queue : {&waiting_, &running_}) {
    for (const auto& generation : *queue) claims += generation->claims_session ? 1 : 0;
  }
  for (const auto& generation : running_) {
    for (const Choice& choice : generation->choices) {
      if (choice.ephemeral == nullptr || choice.ephemeral->slot < 0) continue;
      held.push_back(choice.ephemeral->slot);
    }
    held.insert(held.end(), generation->reserved_slots.begin(), generation->reserved_slots.end());
    if (generation->named() && !generation->claims_session && !generation->ended) {
      return absl::InternalError("a running request does not claim its session");
    }
  }
  return sessions_.CheckIntegrity(held, claims);
}

absl::Status EngineLoop::health() const {
  absl::MutexLock lock(&mu_);
  return failure_;
}

}  // namespace mneme
