#include "engine/engine_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/timed_wait.h"
#include "engine/replay.h"
#include "engine/status_payload.h"
#include "models/state_bytes.h"
#include "models/weight_scan.h"

namespace mneme {
namespace {

// Whose bits a digest of a state is of, and how they are written: those of other arithmetic differ,
// and so do those of other dtypes of states. 0: nobody's.
uint64_t ArithmeticOf(const Backend& backend, const StateLayout& layout) {
  // Without the number of threads, on which nothing depends.
  const std::string device = backend.description();
  return CombineHashes(HashText(absl::StrCat(device.substr(0, device.find(',')), " ",
                                             Name(backend.compute_dtype()))),
                       HashFormat(layout));
}

constexpr int kMailboxSlack = 1024;  // commands besides requests

std::unique_ptr<PrefixCache> MakePrefixCache(const EngineParts& parts, const EngineOptions& options,
                                             std::function<void()> wake) {
  if (parts.prefixes == nullptr) return nullptr;
  // A sixteenth of the states' memory, so that short prompts do not take more for their tokens.
  constexpr int64_t kLeastTreeBytes = int64_t{1} << 20;
  const int64_t bytes = parts.prefixes->pages() * parts.prefixes->page_bytes();
  return std::make_unique<PrefixCache>(
      parts.pool, *parts.prefixes, parts.stats, std::move(wake),
      PrefixCache::Options{.least_tokens = options.prefix_cache_least_tokens,
                           .max_tree_bytes = std::max(kLeastTreeBytes, bytes / 16),
                           .shared = options.prefix_cache_shared});
}

absl::Status ShuttingDown() {
  return WithReason(absl::UnavailableError("the server is shutting down"), kReasonDraining);
}

}  // namespace

EngineLoop::EngineLoop(EngineParts parts, const EngineOptions& options, uint64_t seed)
    : parts_(std::move(parts)),
      options_(options),
      bounds_(
          {.vocab = parts_.model.info().vocab,
           .has_tokenizer = parts_.tokenizer != nullptr,
           .max_sessions = parts_.pool.slots(),
           .max_request_tokens = options.max_request_tokens,
           .max_prompt_tokens = options.max_prompt_tokens,
           .has_surprise = !parts_.model.info().trained.empty(),
           .has_engrams = parts_.model.info().segment > 0,
           .draws_memory = parts_.model.info().memory_seed.has_value(),
           .stores_sessions = parts_.store != nullptr,
           .classes = parts_.model.info().classes.exist() ? &parts_.model.info().classes : nullptr,
           .end_tokens = parts_.end_tokens}),
      seed_(seed),
      mailbox_(static_cast<size_t>(options.max_queued_requests) + kMailboxSlack),
      phases_(parts_.clock, parts_.stats),
      pipeline_(parts_.runner, parts_.routing, phases_, parts_.stats,
                {.max_rows = options.max_rows,
                 .max_tokens = options.max_tokens_per_step,
                 .max_scored_tokens = options.max_logit_rows_per_step,
                 .max_decode_slowdown = options.max_decode_slowdown,
                 .runs_ahead = options.async_scheduling,
                 .traces = options.trace_steps}),
      surprise_(parts_.model.info(), parts_.stats.training),
      log_(parts_.store == nullptr
               ? nullptr
               : std::make_unique<SessionLog>(
                     *parts_.store, parts_.clock, parts_.stats,
                     SessionLog::Options{.tokenizer = parts_.tokenizer,
                                         .model = parts_.model_id,
                                         .model_name = parts_.model.info().name,
                                         .arithmetic = ArithmeticOf(parts_.pool.backend(),
                                                                    parts_.model.state_layout()),
                                         .engram_capacity = parts_.model.info().engrams,
                                         .durability = options.durability,
                                         .digest = Digest(),
                                         .states = parts_.states},
                     [this] { mailbox_.Wake(); })),
      sessions_(parts_.pool, parts_.clock, parts_.stats,
                {.default_ttl = options.default_session_ttl,
                 .history_tokens = options.history_tokens,
                 .owner_limit = options.owner_session_limit,
                 .host = parts_.host,
                 .log = log_.get(),
                 .states = parts_.states,
                 .snapshot_tokens = options.snapshot_tokens,
                 .turn_snapshot_bytes_per_second = options.turn_snapshot_bytes_per_second,
                 .retention = options.session_retention,
                 .max_checkpoints = options.max_checkpoints,
                 .max_checkpoints_per_owner = options.max_checkpoints_per_owner,
                 .wake = [this] { mailbox_.Wake(); },
                 .on_rewound = [this](int64_t id,
                                      int64_t position) { keys_.ForgetBeyond(id, position); }}),
      prefixes_(MakePrefixCache(parts_, options, [this] { mailbox_.Wake(); })),
      queue_(sessions_, parts_.tokenizer, parts_.stats,
             {.max_rows = options.max_rows,
              .max_queued = options.max_queued_requests,
              .max_context = parts_.model.state_layout().max_tokens(),
              .context_bound = std::string(ContextBound(
                  parts_.model.info(), parts_.model.state_layout().max_tokens().value_or(0))),
              .memory_seed = parts_.model.info().memory_seed.value_or(0)}),
      keys_(options.max_idempotency_keys, options.idempotency_record_bytes),
      commands_({.model = parts_.model,
                 .pool = parts_.pool,
                 .clock = parts_.clock,
                 .sessions = sessions_,
                 .queue = queue_,
                 .keys = keys_,
                 .prefixes = prefixes_.get(),
                 .store = parts_.store},
                bounds_, options.history_tokens),
      outbox_(keys_, parts_.notifier),
      throughput_(parts_.stats, Now()) {
  parts_.stats.engrams.exist = parts_.model.info().engrams > 0;
  if (parts_.states != nullptr) parts_.states->SetWake([this] { mailbox_.Wake(); });
}

std::function<uint64_t(const Session&)> EngineLoop::Digest() const {
  if (parts_.pool.backend().asynchronous()) return nullptr;  // its memory is not the host's
  return [this](const Session& session) {
    return DigestState(parts_.model.state_layout(), parts_.pool.slab(session.slot),
                       session.fed_tokens);
  };
}

EngineLoop::~EngineLoop() {
  mailbox_.Close();
  StopAccepting();
  if (pipeline_.in_flight()) CommitStep();
  for (Command& command : mailbox_.Drain(absl::ZeroDuration())) Take(std::move(command));
  EndAll(ShuttingDown());
  if (prefixes_ != nullptr) FinishKept(/*wait=*/true);
  while (log_ != nullptr && log_->pending() > 0) {
    log_->Await();
    sessions_.Settle();
  }
  Sweep();
  if (parts_.states != nullptr) parts_.states->SetWake(nullptr);
}

// One turn, which takes the tokens of one step. The loop thread alone owns sessions, slabs and the
// runner; none of them has a lock.
//
// A device that works on its own waits for the host from the moment that a step's tokens are drawn
// until the next step begins. So only what decides about that one is done in between: Commit, then
// Admit, Plan and Launch. Clients get their tokens while it computes; but before it is launched if
// that is done kernel by kernel, as it is beside a prompt: such a launch takes ten times as long as
// Deliver, and how long differs from step to step, by as much as tokens would then come late. And
// where there is nothing to decide, the next step is queued before the tokens of this one are
// there: a turn then begins by queueing one more, and Admit has its turn again as soon as
// CanRunAhead finds something to decide.
void EngineLoop::RunOnce(absl::Duration max_wait) {
  if (pipeline_.in_flight()) {  // queued by the turn before
    phases_.BeginTurn(StepPhase::kSample, pipeline_.steps());
    phases_.SetStep(pipeline_.plan().rows(), pipeline_.plan().tokens());
  } else {
    Admit(max_wait);
    Plan();
    if (!pipeline_.plan().empty()) Launch();
  }
  if (pipeline_.in_flight()) {
    if (CanRunAhead()) pipeline_.LaunchNext();
    Commit();
  }
  // Where the device waits for a step to be planned, Launch delivers beside that one.
  const bool waits_for_launch =
      pipeline_.asynchronous() && !pipeline_.in_flight() && !pipeline_.plan().empty();
  if (!waits_for_launch) Deliver();
  phases_.End(StepPhase::kDeliver, StepPhase::kIdle);
}

// Takes what came, and lets in who can run.
void EngineLoop::Admit(absl::Duration max_wait) {
  std::vector<Command> commands = mailbox_.Drain(std::min(max_wait, IdleTimeout()));
  phases_.BeginTurn(StepPhase::kPlan, pipeline_.steps());
  TakeAgain();
  for (Command& command : commands) Take(std::move(command));
  if (running_.empty()) throughput_.Restart(Now());
  sessions_.Settle();
  if (prefixes_ != nullptr) {
    prefixes_->Settle();
    FinishKept(/*wait=*/false);
  }
  BeginReplays();
  CancelAndExpire();  // before what they ask for costs time
  queue_.AdmitInto(
      running_, [this](Generation& g) { Begin(g); },
      [this](Generation& g, const absl::Status& refusal) { End(g, refusal); });
  FinishLoads();
  if (prefixes_ != nullptr) StartPrefixes();
}

// Chooses the rows of the next step among those that could run.
void EngineLoop::Plan() {
  rows_.clear();
  candidates_.clear();
  int paused = 0;
  for (const auto& generation : running_) {
    if (generation->stream->full()) {
      ++paused;  // its reader is slow, and waits for itself only
      continue;
    }
    if (generation->load != nullptr) continue;
    if (generation->prefix != nullptr) {
      if (!generation->prefix->can_run()) continue;
      FindCut(*generation);
    }
    for (Choice& choice : generation->choices) {
      if (choice.session == nullptr || choice.finish != FinishReason::kNone) continue;
      rows_.push_back({generation.get(), &choice});
      candidates_.push_back(NextRow(*generation, choice, parts_.model.info().classes));
    }
  }
  parts_.stats.requests_paused.Set(paused);
  pipeline_.Plan(candidates_);
}

// Tokens of the step before are delivered before a long launch, and after a short one.
void EngineLoop::Launch() {
  const bool quick = pipeline_.launches_quickly();
  if (!quick) Deliver();
  pipeline_.Launch();
  if (quick) Deliver();
  FillDraws(pipeline_.plan(), pipeline_.NewDraws());
  pipeline_.Draw();
}

// Whether the step after the one in flight is known but for its tokens: the same rows, each feeding
// what it draws now, or none, if that is a stop token. No, if anything wants the loop between two
// steps by now: a command, a cancellation, a reader that made room (they wake the mailbox), a
// deadline, a session that expires, a prompt that waits for another one, which may be paused by
// now. A request that waits for a row or a slab does not: that comes by an end.
bool EngineLoop::CanRunAhead() const {
  if (!pipeline_.CanLaunchNext() || mailbox_.ready() || NextExpiry() <= Now()) return false;
  if (prefixes_ != nullptr && prefixes_->anyone_waits()) return false;
  return std::all_of(rows_.begin(), rows_.end(), [](const Row& row) {
    if (row.generation == nullptr) return false;
    const Generation& g = *row.generation;
    return row.choice->cursor == g.feed_tokens() && row.choice->stop.GoesOnUnlessStopped() &&
           g.sampler.draws_ahead() && !g.stream->full();
  });
}

// Takes the tokens of the step in flight. Where another one was queued behind it, rows that have
// ended now feed nothing in that.
void EngineLoop::Commit() {
  CommitStep();
  phases_.End(StepPhase::kCommit, StepPhase::kDeliver);
  if (!pipeline_.ahead()) return;
  for (Row& row : rows_) {
    if (row.generation->ended || row.choice->finish != FinishReason::kNone) {
      row.generation = nullptr;
    }
  }
  pipeline_.TakeNext([this](int candidate) { return rows_[candidate].generation == nullptr; });
}

void EngineLoop::Run() {
  while (!mailbox_.closed()) RunOnce();
}

absl::Duration EngineLoop::IdleTimeout() const {
  if (pipeline_.had_candidates()) return absl::ZeroDuration();
  const absl::Duration next = NextExpiry();
  return next == absl::InfiniteDuration() ? next : std::max(next - Now(), absl::ZeroDuration());
}

// When the next session or request expires, or old sessions are to be looked for.
absl::Duration EngineLoop::NextExpiry() const {
  absl::Duration next = sessions_.NextUpkeep();
  ForEachRequest([&](const Generation& g) { next = std::min(next, g.deadline); });
  return next;
}

// Says what each logit row of the plan is for: a score of the prompt, or a draw.
void EngineLoop::FillDraws(const StepPlan& plan, SamplingBatch& draws) {
  for (int row = 0; row < plan.rows(); ++row) {
    const auto& [generation, choice] = rows_[plan.candidates[row]];
    if (generation->request.classify) continue;
    const RowCandidate& candidate = candidates_[plan.candidates[row]];
    const std::span<const int32_t> fed = plan.row_tokens(row);
    const bool samples = candidate.samples && fed.size() == candidate.tokens.size();
    const int scored = plan.logit_offsets[row + 1] - plan.logit_offsets[row] - (samples ? 1 : 0);
    for (int i = 0; i < scored; ++i) {
      generation->sampler.AppendScore(generation->feed[choice->cursor + i + 1], draws);
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
                                     choice->stop.bans_stop_tokens(), draws);
    }
  }
}

void EngineLoop::CancelAndExpire() {
  sessions_.Expire();
  const absl::Duration now = Now();
  ForEachRequest([&](Generation& g) {
    if (g.ended) return;
    // A call past its deadline drops its stream, too: that is an expiry, not a cancellation.
    if (g.deadline <= now) {
      End(g, absl::DeadlineExceededError(
                 g.is_admitted() ? "the deadline passed while the request was running"
                                 : "the deadline passed while the request was waiting"));
    } else if (IsUnwanted(g)) {
      End(g, absl::CancelledError("the request was cancelled"));
    }
  });
}

// All that the next step does not depend on.
void EngineLoop::Deliver() {
  for (const auto& generation : running_) DeliverTokens(*generation);
  HandOn();
  Sweep();
}

// Forgets the requests that have ended. Whoever gets the last event of one finds it ended in
// everything that can be asked for: sessions, records, counters and gauges.
void EngineLoop::Sweep() {
  queue_.DropEnded();
  for (auto& generation : running_) {
    if (generation->is_held()) logging_.push_back(std::move(generation));
  }
  std::erase(running_, nullptr);
  std::erase_if(logging_, [](const auto& g) { return !g->is_held(); });
  std::erase_if(running_, [](const auto& generation) { return generation->ended; });
  std::erase_if(attached_, [](const auto& generation) { return generation->ended; });
  PublishStats();
  if (const int ended = outbox_.kept(); ended > 0) {
    outbox_.SendLast();
    absl::MutexLock lock(&mu_);
    unended_ -= ended;
  }
  outbox_.Notify();
}

void EngineLoop::PublishStats() {
  {
    absl::MutexLock lock(&mu_);
    open_ -= outbox_.kept();
    parts_.stats.requests_running.Set(static_cast<int64_t>(running_.size()));
    PublishWaiting();
  }
  parts_.stats.requests_queued.Set(queue_.queued());
  sessions_.PublishGauges();
  if (prefixes_ != nullptr) prefixes_->PublishGauges();
  throughput_.WriteIfDue(Now());
}

// All that was accepted and does not run; also what the loop, busy with a step, has not seen yet.
void EngineLoop::PublishWaiting() {
  parts_.stats.requests_waiting.Set(open_ - parts_.stats.requests_running.value());
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
  if (!detached) command.submitted->deadline = command.submitted->request.deadline;
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

bool EngineLoop::SaveSessions() {
  const bool left = sessions_.SnapshotAll();
  return left || store_is_busy();
}

bool EngineLoop::store_is_busy() const {
  if (log_ == nullptr) return false;
  bool busy = log_->pending() > 0 || sessions_.parking().store_is_busy();
  ForEachRequest([&](const Generation& g) { busy |= g.is_searching() || g.load != nullptr; });
  return busy;
}

absl::Status EngineLoop::store_health() const {
  return log_ == nullptr ? absl::OkStatus() : log_->health();
}

absl::Status EngineLoop::CheckIntegrity() const {
  std::vector<int> held;  // slots
  int claims = 0;
  ForEachRequest([&](const Generation& g) { claims += g.claims_session ? 1 : 0; });
  const auto hold = [&](const Generation& g) {
    for (const Choice& choice : g.choices) {
      if (choice.ephemeral == nullptr || choice.ephemeral->slot < 0) continue;
      held.push_back(choice.ephemeral->slot);
    }
  };
  for (const auto& generation : logging_) {
    claims += generation->claims_session ? 1 : 0;
    hold(*generation);
  }
  for (const auto& generation : running_) {
    hold(*generation);
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
