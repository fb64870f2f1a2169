#include "engine/engine.h"

#include <algorithm>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "engine/engine_loop.h"
#include "engine/engine_plan.h"
#include "engine/model_runner.h"
#include "engine/request_check.h"
#include "engine/routing_counter.h"
#include "engine/state_pool.h"
#include "engine/status_payload.h"
#include "engine/stream_notifier.h"
#include "models/engrams/engram_graph.h"
#include "models/state_codec.h"

namespace mneme {
namespace {

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

class LoopEngine final : public Engine {
 public:
  LoopEngine(std::unique_ptr<Backend> backend, std::unique_ptr<Model> model,
             std::unique_ptr<Tokenizer> tokenizer, const EngineOptions& options, Clock& clock)
      : backend_(std::move(backend)),
        model_(std::move(model)),
        tokenizer_(std::move(tokenizer)),
        options_(options),
        clock_(clock) {}

  ~LoopEngine() override {
    if (loop_ == nullptr) return;
    loop_->StopAccepting();
    loop_->Close();
    if (thread_.joinable()) thread_.join();
    loop_.reset();  // ends what is left, before the notifier goes
  }

  absl::Status Start(std::vector<int32_t> end_tokens) {
    const ModelNeeds needs = {.slab_bytes = SessionBytes(model_->state_layout()),
                              .growing_bytes = model_->state_layout().growing_bytes(),
                              .outputs = model_->info().outputs(),
                              .segment = model_->info().classes.segment,
                              .workspace_bytes = [this](int tokens, int rows, int logit_rows) {
                                return model_->WorkspaceBytes(tokens, rows, logit_rows);
                              }};
    MNEME_ASSIGN_OR_RETURN(const EnginePlan plan, PlanEngine(*backend_, needs, options_));
    capacity_ = plan.capacity;
    MNEME_ASSIGN_OR_RETURN(pool_, StatePool::Create(*backend_, *model_, capacity_.sessions));
    if (options_.host_state_memory_bytes > 0) {
      MNEME_ASSIGN_OR_RETURN(host_states_,
                             HostStates::Create(*backend_, *pool_, options_.host_state_memory_bytes,
                                                model_->state_layout().max_tokens().value_or(1)));
    }
    RunnerLimits limits = LargestStep(options_);
    if (tokenizer_ != nullptr && !model_->info().classes.exist()) {
      limits.banned_tokens = tokenizer_->PaddingIds();
    }
    MNEME_ASSIGN_OR_RETURN(runner_, ModelRunner::Create(*backend_, *model_, *pool_, limits));
    notifier_ = std::make_unique<StreamNotifier>();
    if (model_->info().memories > 0) {
      stats_.routing.Resize(model_->info().layers, model_->info().memories);
      routing_ = std::make_unique<RoutingCounter>(*backend_, stats_.routing);
    }
    loop_ = std::make_unique<EngineLoop>(EngineParts{.model = *model_,
                                                     .tokenizer = tokenizer_.get(),
                                                     .pool = *pool_,
                                                     .runner = *runner_,
                                                     .host = host_states_.get(),
                                                     .routing = routing_.get(),
                                                     .notifier = notifier_.get(),
                                                     .stats = stats_,
                                                     .clock = clock_,
                                                     .end_tokens = std::move(end_tokens)},
                                         options_, RandomSeed());
    LogFields("capacity")
        .Message(capacity_.ToString())
        .Add("sessions", capacity_.sessions)
        .Add("slab_bytes", capacity_.slab_bytes)
        .Add("host_state_bytes", options_.host_state_memory_bytes)
        .Add("rows_per_step", options_.max_rows)
        .Add("tokens_per_step", options_.max_tokens_per_step)
        .Write(LogSeverity::kInfo);
    thread_ = std::thread([this] { loop_->Run(); });
    return absl::OkStatus();
  }

  absl::Status Validate(const Request& request) const override { return loop_->Validate(request); }
  absl::StatusOr<std::shared_ptr<TokenStream>> Submit(Request request) override {
    return loop_->Submit(std::move(request));
  }

  absl::StatusOr<SessionInfo> CreateSession(SessionKey key, absl::Duration ttl) override {
    return OnLoop<absl::StatusOr<SessionInfo>>([&] { return loop_->CreateSession(key, ttl); });
  }
  absl::StatusOr<SessionInfo> GetSession(SessionKey key) override {
    return OnLoop<absl::StatusOr<SessionInfo>>([&] { return loop_->GetSession(key); });
  }
  absl::StatusOr<std::vector<SessionInfo>> ListSessions(std::optional<std::string> owner,
                                                        std::string name_prefix) override {
    return OnLoop<absl::StatusOr<std::vector<SessionInfo>>>(
        [&] { return loop_->ListSessions(owner, name_prefix); });
  }
  absl::StatusOr<SessionInfo> ForkSession(SessionKey source, SessionKey target,
                                          absl::Duration ttl) override {
    const absl::Duration begin = clock_.Monotonic();
    absl::StatusOr<SessionInfo> forked = OnLoop<absl::StatusOr<SessionInfo>>(
        [&] { return loop_->ForkSession(source, target, ttl); });
    if (forked.ok()) {
      stats_.fork_seconds.Observe(absl::ToDoubleSeconds(clock_.Monotonic() - begin));
    }
    return forked;
  }
  absl::Status DeleteSession(SessionKey key) override {
    return OnLoop<absl::Status>([&] { return loop_->DeleteSession(key); });
  }
  absl::StatusOr<ForgottenEngrams> ForgetSegments(SessionKey key, int64_t first,
                                                  int64_t end) override {
    return OnLoop<absl::StatusOr<ForgottenEngrams>>(
        [&] { return loop_->ForgetSegments(key, first, end); });
  }

  absl::StatusOr<MemoryReport> InspectMemory(SessionKey key, const MemoryQuery& query) override {
    const ModelInfo& info = model_->info();
    MNEME_RETURN_IF_ERROR(
        CheckKind(/*classify=*/false, info.classes.exist() ? &info.classes : nullptr));
    if (info.engrams == 0) {
      return WithReason(absl::UnimplementedError(absl::StrCat(
                            "the memory of a model of type ", info.architecture,
                            " is of one piece: expected a model that makes engrams (Memoria)")),
                        kReasonWrongKind);
    }
    const EngramGraph::Parts parts = query.parts();
    StateImage image(model_->state_layout(), EngramGraph::Fields(model_->state_layout(), parts));
    MNEME_RETURN_IF_ERROR(OnLoop<absl::Status>([&] { return loop_->ReadState(key, image); }));
    return ReportMemory(EngramGraph::Read(image.Decode(),
                                          {.tokens = info.segment,
                                           .working = info.working_engrams,
                                           .counted = info.counted_segments},
                                          parts),
                        query);
  }

  void Drain(absl::Duration timeout) override {
    loop_->StopAccepting();
    if (loop_->AwaitIdle(timeout)) return;
    const absl::Status ended = OnLoop<absl::Status>([&] {
      loop_->EndAll(WithReason(
          absl::UnavailableError("the server is shutting down and waited for this request in vain"),
          kReasonDraining));
      return absl::OkStatus();
    });
    if (!ended.ok()) LOG(WARNING) << "requests are left at shutdown: " << ended.ToString();
  }

  const ModelInfo& model_info() const override { return model_->info(); }
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  const CapacityPlan& capacity() const override { return capacity_; }
  const EngineStats& stats() const override { return stats_; }
  const EngineOptions& options() const override { return options_; }
  std::string backend_description() const override { return backend_->description(); }
  int64_t decode_graph_nodes(int rows) const override { return runner_->graph_nodes(rows); }
  absl::Status health() const override { return loop_->health(); }
  LoopActivity activity() const override { return loop_->activity(); }

 private:
  // Runs `command` on the loop thread and waits for it.
  template <typename Result, typename Command>
  Result OnLoop(Command command) {
    std::optional<Result> result;
    absl::Notification done;
    if (!loop_->Post([&] {
          result.emplace(command());
          done.Notify();
        })) {
      return QueueFullError("too many commands are waiting");
    }
    done.WaitForNotification();
    return *std::move(result);
  }

  // In the order in which they need each other.
  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<Model> model_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  EngineOptions options_;
  Clock& clock_;
  CapacityPlan capacity_;
  EngineStats stats_;
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<HostStates> host_states_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<StreamNotifier> notifier_;
  std::unique_ptr<RoutingCounter> routing_;
  std::unique_ptr<EngineLoop> loop_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(std::unique_ptr<Backend> backend,
                                                       std::unique_ptr<Model> model,
                                                       std::unique_ptr<Tokenizer> tokenizer,
                                                       std::vector<int32_t> end_tokens,
                                                       const EngineOptions& options, Clock& clock) {
  auto engine = std::make_unique<LoopEngine>(std::move(backend), std::move(model),
                                             std::move(tokenizer), options, clock);
  MNEME_RETURN_IF_ERROR(engine->Start(std::move(end_tokens)));
  return engine;
}

}  // namespace mneme
