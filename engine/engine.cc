#include "engine/engine.h"

#include <algorithm>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "engine/engine_loop.h"
#include "engine/engine_plan.h"
#include "engine/loop_calls.h"
#include "engine/model_identity.h"
#include "engine/model_runner.h"
#include "engine/request_check.h"
#include "engine/routing_counter.h"
#include "engine/sessions/session_import.h"
#include "engine/state_pool.h"
#include "engine/status_payload.h"
#include "engine/stream_notifier.h"
#include "models/engrams/engram_graph.h"
#include "models/state_bytes.h"
#include "models/state_codec.h"
#include "models/weight_scan.h"

namespace mneme {
namespace {

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

class LoopEngine final : public Engine {
 public:
  LoopEngine(std::unique_ptr<Backend> backend, std::unique_ptr<Model> model,
             std::unique_ptr<Tokenizer> tokenizer, const EngineOptions& options, Clock& clock,
             SessionStorage storage)
      : storage_(std::move(storage)),
        backend_(std::move(backend)),
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
    const ModelNeeds needs = {
        .slab_bytes = SessionBytes(model_->state_layout()),
        .growing_bytes = model_->state_layout().growing_bytes(),
        .outputs = model_->info().outputs(),
        .segment = model_->info().classes.segment,
        .workspace_bytes =
            [this](int tokens, int rows, int logit_rows) {
              return model_->WorkspaceBytes(tokens, rows, logit_rows);
            },
        .snapshot_bytes = storage_.store == nullptr
                              ? 0
                              : StoredStates::Bytes(model_->state_layout().slab_bytes())};
    MNEME_ASSIGN_OR_RETURN(const EnginePlan plan, PlanEngine(*backend_, needs, options_));
    capacity_ = plan.capacity;
    MNEME_ASSIGN_OR_RETURN(pool_, StatePool::Create(*backend_, *model_, capacity_.sessions));
    if (options_.host_state_memory_bytes > 0) {
      MNEME_ASSIGN_OR_RETURN(host_states_,
                             HostStates::Create(*backend_, *pool_, options_.host_state_memory_bytes,
                                                model_->state_layout().max_tokens().value_or(1)));
    }
    const uint64_t model = ModelIdentity(*model_, tokenizer_.get());
    if (storage_.store != nullptr) {
      const absl::Status taken = TakeOverFirstIdentity(*storage_.store, *model_, tokenizer_.get());
      if (!taken.ok()) {
        LOG(WARNING) << "sessions that an earlier version stored wait for the next start: "
                     << taken.message();
      }
      const SessionTotals totals = storage_.store->TotalsFor(model);
      LogFields("stored_sessions")
          .Add("model", model_->info().name)
          .Add("identity", absl::StrCat(absl::Hex(model, absl::kZeroPad16)))
          .Add("sessions", totals.all)
          .Add("lost", totals.lost)
          .Add("of_other_models", totals.of_other_models)
          .Write(LogSeverity::kInfo);
      if (totals.of_other_models > 0) {
        LOG(WARNING) << totals.of_other_models << " stored sessions are of other models than this "
                     << "one: they stay as they are, and requests for them are refused";
      }
      const SlabIdentity identity = {
          .model = model,
          .state_format =
              CombineHashes(HashText(backend_->name()), HashLayout(model_->state_layout()))};
      MNEME_ASSIGN_OR_RETURN(states_,
                             StoredStates::Create(*backend_, *model_, *pool_, *storage_.store,
                                                  *storage_.files, identity, stats_));
    }
    if (options_.prefix_cache_memory_bytes > 0) {
      MNEME_ASSIGN_OR_RETURN(
          prefix_states_, HostStates::Create(*backend_, *pool_, options_.prefix_cache_memory_bytes,
                                             model_->state_layout().max_tokens().value_or(1),
                                             HostStates::kPrefixes));
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
    session_model_ =
        SessionModel::Of(model_->info(), backend_->state_format().memory_dtype, tokenizer_.get());
    max_session_file_bytes_ =
        LargestSessionFile(model_->state_layout(), MostTokens(model_->info()));
    loop_ = std::make_unique<EngineLoop>(EngineParts{.model = *model_,
                                                     .tokenizer = tokenizer_.get(),
                                                     .pool = *pool_,
                                                     .runner = *runner_,
                                                     .host = host_states_.get(),
                                                     .prefixes = prefix_states_.get(),
                                                     .store = storage_.store.get(),
                                                     .states = states_.get(),
                                                     .model_id = model,
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
        .Add("prefix_cache_bytes", options_.prefix_cache_memory_bytes)
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

  absl::StatusOr<SessionInfo> CreateSession(SessionKey key, NewSession options) override {
    return WithStoredBytes(calls().DurablyNew<absl::StatusOr<SessionInfo>>(
        [&](SessionCommands::Done done) {
          return loop_->commands().Create(key, options, std::move(done));
        },
        key, options));
  }
  absl::StatusOr<SessionInfo> GetSession(SessionKey key) override {
    return WithStoredBytes(
        calls().OnLoop<absl::StatusOr<SessionInfo>>([&] { return loop_->commands().Get(key); }));
  }
  absl::StatusOr<SessionPage> ListSessions(SessionQuery query) override {
    absl::StatusOr<SessionsHere> here = calls().OnLoop<absl::StatusOr<SessionsHere>>(
        [&] { return loop_->commands().ListHere(query); });
    if (!here.ok()) return here.status();
    return loop_->commands().PageOf(*std::move(here), query);
  }
  absl::StatusOr<SessionInfo> ForkSession(SessionKey source, SessionKey target,
                                          absl::Duration ttl) override {
    const absl::Duration begin = clock_.Monotonic();
    absl::StatusOr<SessionInfo> forked = calls().DurablyNew<absl::StatusOr<SessionInfo>>(
        [&](SessionCommands::Done done) {
          return loop_->commands().Fork(source, target, ttl, std::move(done));
        },
        target, ttl, &source);
    if (forked.ok()) {
      stats_.fork_seconds.Observe(absl::ToDoubleSeconds(clock_.Monotonic() - begin));
    }
    return WithStoredBytes(std::move(forked));
  }
  absl::StatusOr<SessionInfo> RewindSession(SessionKey key, RewindTarget to) override {
    return WithStoredBytes(
        calls().Answered<absl::StatusOr<SessionInfo>>([&](SessionManager::InfoDone done) {
          loop_->commands().Rewind(key, to, std::move(done));
        }));
  }
  absl::StatusOr<SessionInfo> ForkSessionAt(SessionKey source, SessionKey target,
                                            absl::Duration ttl, RewindTarget at) override {
    return WithStoredBytes(
        calls().Answered<absl::StatusOr<SessionInfo>>([&](SessionManager::InfoDone done) {
          loop_->commands().ForkAt(source, target, ttl, at, std::move(done));
        }));
  }
  absl::StatusOr<CheckpointInfo> CreateCheckpoint(SessionKey key, std::string name) override {
    return calls().Answered<absl::StatusOr<CheckpointInfo>>(
        [&](SessionManager::CheckpointDone done) {
          loop_->commands().CreateCheckpoint(key, name, std::move(done));
        });
  }
  // The store is read here, and not by the loop.
  absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(SessionKey key) override {
    MNEME_RETURN_IF_ERROR(GetSession(key).status());
    if (storage_.store == nullptr) return NoStore();
    const auto record = storage_.store->Find(key.owner, key.name);
    if (!record.has_value()) return std::vector<CheckpointInfo>();
    MNEME_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> records,
                           storage_.store->ReadCheckpoints(record->id));
    std::vector<CheckpointInfo> infos;
    for (const CheckpointRecord& one : records) {
      infos.push_back({.name = one.name,
                       .position = one.position + (one.has_pending_token ? 1 : 0),
                       .has_pending_token = one.has_pending_token,
                       .created = one.created});
    }
    return infos;
  }
  // Their names; none where they cannot be read.
  std::vector<std::string> CheckpointsOf(const SessionKey& key) {
    std::vector<std::string> names;
    if (storage_.store == nullptr) return names;
    const auto infos = ListCheckpoints(key);
    if (!infos.ok()) return names;
    for (const CheckpointInfo& one : *infos) names.push_back(one.name);
    return names;
  }
  absl::Status DeleteCheckpoint(SessionKey key, std::string name) override {
    return calls().Answered<absl::Status>([&](SessionCommands::Done done) {
      loop_->commands().DeleteCheckpoint(key, name, std::move(done));
    });
  }
  absl::Status DeleteSession(SessionKey key) override {
    return calls().Durably<absl::Status>(
        [&](SessionCommands::Done done) { return loop_->commands().Delete(key, std::move(done)); });
  }
  absl::StatusOr<ForgottenSegments> ForgetSegments(SessionKey key, int64_t first,
                                                   int64_t end) override {
    std::vector<int32_t> logged;
    const std::vector<std::string> before = CheckpointsOf(key);
    const auto forgotten = calls().Durably<absl::StatusOr<ForgottenEngrams>>(
        [&](SessionCommands::Done done) {
          return loop_->commands().ForgetSegments(key, first, end, std::move(done), logged);
        },
        &key, &logged);
    MNEME_RETURN_IF_ERROR(forgotten.status());
    ForgottenSegments segments = {*forgotten, before};
    if (!before.empty()) {
      const std::vector<std::string> left = CheckpointsOf(key);
      std::erase_if(segments.checkpoints, [&](const std::string& name) {
        return std::find(left.begin(), left.end(), name) != left.end();
      });
    }
    return segments;
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
    int64_t position = 0;
    MNEME_RETURN_IF_ERROR(calls().Durably<absl::Status>(
        [&](SessionCommands::Done done) {
          const absl::Status read = loop_->commands().ReadState(key, image);
          const absl::StatusOr<SessionInfo> session = loop_->commands().Get(key);
          if (session.ok()) position = session->position;
          if (read.ok()) done(read);
          return read;
        },
        &key));
    MNEME_ASSIGN_OR_RETURN(MemoryReport report,
                           ReportMemory(EngramGraph::Read(image.Decode(),
                                                          {.tokens = info.segment,
                                                           .working = info.working_engrams,
                                                           .counted = info.counted_segments},
                                                          parts),
                                        query));
    // As everywhere: with the token that is known and not fed yet.
    report.summary.position = std::max(report.summary.position, position);
    return report;
  }

  absl::StatusOr<std::unique_ptr<SessionFileSource>> ExportSession(SessionKey key) override {
    MNEME_RETURN_IF_ERROR(CheckKind(
        /*classify=*/false, model_->info().classes.exist() ? &model_->info().classes : nullptr));
    SessionFacts facts{.model = session_model_};
    auto state = std::make_unique<StateCopy>(*model_);
    MNEME_RETURN_IF_ERROR(calls().Durably<absl::Status>(
        [&](SessionCommands::Done done) {
          const absl::Status read = loop_->commands().Export(key, facts, *state);
          if (read.ok()) done(read);
          return read;
        },
        &key));
    return std::make_unique<SessionFileSource>(std::move(facts), std::move(state));
  }

  absl::StatusOr<ImportedSession> ImportSession(SessionKey key, absl::Duration ttl,
                                                std::string file) override {
    MNEME_RETURN_IF_ERROR(
        calls().OnLoop<absl::Status>([&] { return loop_->commands().CheckNew(key, ttl); }));
    MNEME_ASSIGN_OR_RETURN(
        SessionImport import,
        SessionImport::Read(*model_, session_model_, max_session_file_bytes(), std::move(file)));
    MNEME_ASSIGN_OR_RETURN(SessionInfo info,
                           WithStoredBytes(calls().DurablyNew<absl::StatusOr<SessionInfo>>(
                               [&](SessionCommands::Done done) {
                                 return loop_->commands().Import(key, ttl, import.facts,
                                                                 *import.state, std::move(done));
                               },
                               key, ttl, /*parent=*/nullptr, import.facts.fed_tokens)));
    return ImportedSession{.session = std::move(info),
                           .file_state_dtype = import.facts.model.state_dtype,
                           .state_dtype = session_model_.state_dtype,
                           .rounded_tensors = import.state->rounded_tensors(),
                           .file_engram_capacity = import.engram_capacity,
                           .engram_capacity = model_->info().engrams};
  }
  int64_t max_session_file_bytes() const override { return max_session_file_bytes_; }

  int Drain(absl::Duration timeout) override {
    loop_->StopAccepting();
    const absl::Duration until = clock_.Monotonic() + timeout;
    if (loop_->AwaitIdle(timeout)) return SaveSessions(until);
    const absl::Status ended = calls().OnLoop<absl::Status>([&] {
      loop_->EndAll(WithReason(
          absl::UnavailableError("the server is shutting down and waited for this request in vain"),
          kReasonDraining));
      return absl::OkStatus();
    });
    if (!ended.ok()) LOG(WARNING) << "requests are left at shutdown: " << ended.ToString();
    return SaveSessions(until);
  }

  const ModelInfo& model_info() const override { return model_->info(); }
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  const CapacityPlan& capacity() const override { return capacity_; }
  const EngineStats& stats() const override { return stats_; }
  const EngineOptions& options() const override { return options_; }
  std::string backend_description() const override { return backend_->description(); }
  int64_t decode_graph_nodes(int rows) const override { return runner_->graph_nodes(rows); }
  absl::Status health() const override { return loop_->health(); }
  absl::Status store_health() const override { return loop_->store_health(); }
  const SessionStore* store() const override { return storage_.store.get(); }
  LoopActivity activity() const override { return loop_->activity(); }

 private:
  LoopCalls calls() { return LoopCalls(*loop_); }

  // As the store has it by now, which the loop does not wait for.
  absl::StatusOr<SessionInfo> WithStoredBytes(absl::StatusOr<SessionInfo> info) const {
    if (info.ok() && storage_.store != nullptr) {
      info->stored_bytes = storage_.store->StoredBytesOf(info->key.owner, info->key.name);
    }
    return info;
  }

  // Until nothing is left, or the time has come. How many are lost.
  int SaveSessions(absl::Duration until) {
    if (storage_.store == nullptr) return 0;
    const auto more = [&] {
      return calls()
          .OnLoop<absl::StatusOr<bool>>([&] { return loop_->SaveSessions(); })
          .value_or(false);
    };
    while (more()) {
      if (clock_.Monotonic() >= until) {
        LOG(WARNING) << "no time is left for snapshots: durable sessions will be fed more of their "
                        "logs, and others that are not in the store are lost";
        break;
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    const auto unsaved = calls().OnLoop<absl::StatusOr<std::vector<SessionInfo>>>(
        [&] { return loop_->UnsavedSessions(); });
    if (!unsaved.ok()) {
      LOG(ERROR) << "which sessions are lost is not known: " << unsaved.status().message();
      return 1;
    }
    for (const SessionInfo& session : *unsaved) {
      LogFields("session_not_saved")
          .Message("the session is lost: it is not durable, and the store did not take it")
          .Add("owner", session.key.owner)
          .Add("session", session.key.name)
          .Add("tokens", session.position)
          .Write(LogSeverity::kError);
    }
    return static_cast<int>(unsaved->size());
  }

  // In the order in which they need each other.
  SessionStorage storage_;
  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<Model> model_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  EngineOptions options_;
  Clock& clock_;
  CapacityPlan capacity_;
  SessionModel session_model_;
  int64_t max_session_file_bytes_ = 0;
  EngineStats stats_;
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<HostStates> host_states_;
  std::unique_ptr<HostStates> prefix_states_;
  std::unique_ptr<StoredStates> states_;
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
                                                       const EngineOptions& options, Clock& clock,
                                                       SessionStorage storage) {
  auto engine =
      std::make_unique<LoopEngine>(std::move(backend), std::move(model), std::move(tokenizer),
                                   options, clock, std::move(storage));
  MNEME_RETURN_IF_ERROR(engine->Start(std::move(end_tokens)));
  return engine;
}

}  // namespace mneme
