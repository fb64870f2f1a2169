#include "server/grpc/response_conversion.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "base/utf8.h"
#include "engine/engine_stats.h"
#include "server/config/units.h"
#include "server/requests/request_totals.h"
#include "server/requests/session_listing.h"

namespace mneme {
namespace {

v1::FinishReason ToFinishReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kDeadline:
      return v1::FINISH_REASON_DEADLINE;
    case FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_ERROR;
}

// What moves has its place in a slab.
v1::Residency ToResidency(Residence residence) {
  switch (residence) {
    case Residence::kParked:
      return v1::RESIDENCY_HOST;
    case Residence::kStored:
      return v1::RESIDENCY_STORE;
    case Residence::kLost:
      return v1::RESIDENCY_LOST;
    case Residence::kOtherModel:
      return v1::RESIDENCY_OTHER_MODEL;
    default:
      return v1::RESIDENCY_DEVICE;
  }
}

void FillLogprob(const TokenLogprob& from, v1::TokenLogprob& to) {
  to.set_token_id(from.token);
  if (!std::isnan(from.logprob)) to.set_logprob(from.logprob);
  to.set_text(SanitizeUtf8(from.text));
  for (const TopLogprob& top : from.top) {
    v1::TopLogprob& out = *to.add_top();
    out.set_token_id(top.token);
    out.set_logprob(top.logprob);
    out.set_text(SanitizeUtf8(top.text));
  }
}

// The output that `event` continues, or a new one.
v1::Output& OutputFor(const TokenEvent& event, v1::GenerateResponse& response) {
  if (response.outputs_size() > 0) {
    v1::Output& last = *response.mutable_outputs(response.outputs_size() - 1);
    if (last.choice() == event.choice && last.is_prompt() == event.is_prompt &&
        last.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) {
      return last;
    }
  }
  v1::Output& output = *response.add_outputs();
  output.set_choice(event.choice);
  output.set_is_prompt(event.is_prompt);
  return output;
}

void FillMemoryUse(const MemoryUse& use, v1::MemoryUse& out) {
  for (const MemoryUse::Source& source : use.sources) {
    v1::MemoryUse::Source& to = *out.add_sources();
    to.mutable_segment()->set_segment(source.segment);
    to.mutable_segment()->set_first_token(source.first_token);
    to.mutable_segment()->set_end_token(source.end_token);
    to.set_kind(source.long_term ? v1::ENGRAM_KIND_LONG_TERM : v1::ENGRAM_KIND_SHORT_TERM);
    to.set_engrams(source.engrams);
    to.set_weight(source.weight);
  }
  out.set_evictions(use.evictions);
}

void FillFinished(const TokenEvent& event, const Request& request, v1::Finished& finished) {
  v1::Usage& usage = *finished.mutable_usage();
  usage.set_prompt_tokens(event.usage.prompt_tokens);
  usage.set_completion_tokens(event.usage.completion_tokens);
  usage.set_resumed_tokens(event.usage.resumed_tokens);
  usage.set_replayed_tokens(event.usage.replayed_tokens);
  usage.set_fed_tokens(event.usage.fed_tokens);
  usage.set_cached_tokens(event.usage.cached_tokens);
  usage.set_rewound_from(event.usage.rewound_from);
  if (event.usage.surprise.has_value()) usage.set_surprise(*event.usage.surprise);
  usage.set_memory_evicted(event.usage.memory_evicted);
  if (event.usage.memory_use.has_value()) {
    FillMemoryUse(*event.usage.memory_use, *usage.mutable_memory_use());
  }
  v1::Timings& timings = *finished.mutable_timings();
  timings.set_queue_ms(absl::ToDoubleMilliseconds(event.timings.queue));
  timings.set_prefill_ms(absl::ToDoubleMilliseconds(event.timings.prefill));
  timings.set_decode_ms(absl::ToDoubleMilliseconds(event.timings.decode));
  if (!request.session.name.empty() && !event.session_gone) {
    v1::SessionState& session = *finished.mutable_session();
    session.set_name(request.session.name);
    session.set_position(event.session_position);
    session.set_has_pending_token(event.has_pending_token);
  }
  finished.set_seed(event.seed);
  finished.set_replayed(event.replayed);
  finished.set_session_gone(event.session_gone);
}

void FillTimestamp(absl::Time time, google::protobuf::Timestamp& out) {
  const int64_t nanos = absl::ToUnixNanos(time);
  out.set_seconds(nanos / 1000000000);
  out.set_nanos(static_cast<int32_t>(nanos % 1000000000));
}

// `scale` turns the engine's unit into the message's.
void FillHistogram(const Histogram& from, double scale, v1::Histogram& to) {
  for (const double bound : from.bounds()) to.add_upper_bounds(bound * scale);
  int64_t total = 0;
  for (const int64_t count : from.counts()) {
    to.add_counts(count);
    total += count;
  }
  to.set_count(total);
  to.set_sum(from.sum() * scale);
}

void FillStatistics(const EngineStats& stats, const ServerStats& server, v1::Statistics& out) {
  out.set_requests_running(stats.requests_running.value());
  out.set_requests_waiting(stats.requests_waiting.value());
  out.set_slabs_used(stats.slabs_used.value());
  out.set_slabs_total(stats.slabs_total.value());
  out.set_sessions(stats.sessions.value());
  out.set_steps(stats.step_seconds.count());
  out.set_prompt_tokens(stats.prompt_tokens.value());
  out.set_generated_tokens(stats.generated_tokens.value());
  const RequestTotals totals = CountRequests(stats, server);
  out.set_requests_finished(totals.completed);
  out.set_requests_cancelled(totals.cancelled);
  out.set_requests_expired(totals.deadline);
  out.set_requests_failed(totals.error);
  out.set_requests_rejected(totals.rejected);
  FillHistogram(stats.decode_rows, 1, *out.mutable_decode_rows());
  FillHistogram(stats.step_seconds, 1e3, *out.mutable_step_ms());
  FillHistogram(stats.queue_seconds, 1e3, *out.mutable_queue_ms());
  FillHistogram(stats.first_token_seconds, 1e3, *out.mutable_first_token_ms());
  FillHistogram(stats.inter_token_seconds, 1e3, *out.mutable_inter_token_ms());
}

void FillModel(const Engine& engine, const ServingFacts& facts, v1::ModelDescription& out) {
  const ModelInfo& model = engine.model_info();
  out.set_name(SanitizeUtf8(facts.model_name));
  out.set_architecture(model.architecture);
  out.set_vocab_size(model.vocab);
  out.set_model_dim(model.model_dim);
  out.set_layers(model.layers);
  out.set_parameters(model.parameters);
  out.set_weight_bytes(model.weight_bytes);
  out.set_weight_dtype(model.weight_dtype);
  out.set_fingerprint(absl::StrFormat("%016x", model.fingerprint));
  if (const Tokenizer* tokenizer = engine.tokenizer(); tokenizer != nullptr) {
    out.set_tokenizer(std::string(tokenizer->kind()));
    if (tokenizer->bos_id().has_value()) out.set_bos_token_id(*tokenizer->bos_id());
    if (tokenizer->eos_id().has_value()) out.set_eos_token_id(*tokenizer->eos_id());
    out.set_adds_bos(tokenizer->adds_bos());
  }
  *out.mutable_sampling_defaults() = facts.sampling_defaults;
  out.set_has_chat_template(facts.chat_template != nullptr);
  if (!model.classes.exist()) return;
  for (const std::string& label : model.classes.labels) out.add_classes(SanitizeUtf8(label));
  constexpr const char* kScores[] = {"softmax", "sigmoid", "identity"};
  out.set_class_scores(kScores[static_cast<size_t>(model.classes.scores)]);
  out.set_segment_tokens(model.classes.segment);
  out.set_takes_long_documents(!model.classes.one_segment);
}

void FillLimits(const Engine& engine, const ServingFacts& facts, v1::Limits& out) {
  const EngineOptions& options = engine.options();
  out.set_max_rows_per_step(options.max_rows);
  out.set_max_tokens_per_step(options.max_tokens_per_step);
  out.set_max_queued_requests(options.max_queued_requests);
  out.set_max_request_tokens(options.max_request_tokens);
  out.set_default_max_tokens(facts.default_max_tokens);
  out.set_default_session_ttl_ms(TtlMs(options.default_session_ttl));
  out.set_penalty_history_tokens(options.history_tokens);
  out.set_max_message_bytes(facts.max_message_bytes);
  out.set_max_text_bytes(facts.max_text_bytes);
  out.set_max_context(engine.model_info().max_context);
}

}  // namespace

void AppendEvent(const TokenEvent& event, const Request& request, bool is_first,
                 v1::GenerateResponse& response) {
  if (event.is_start || (is_first && event.is_last && event.status.ok())) {
    v1::Started& started = *response.mutable_started();
    started.set_request_id(request.id);
    started.set_seed(event.seed);
    started.set_resumed_tokens(event.usage.resumed_tokens);
    started.set_prompt_tokens(event.usage.prompt_tokens);
    started.set_cached_tokens(event.usage.cached_tokens);
    started.set_rewound_from(event.usage.rewound_from);
  }
  if (!event.text.empty() || !event.token_ids.empty() || event.finish != FinishReason::kNone) {
    v1::Output& output = OutputFor(event, response);
    output.mutable_text()->append(event.text);
    output.mutable_token_ids()->Add(event.token_ids.begin(), event.token_ids.end());
    for (const TokenLogprob& logprob : event.logprobs) {
      FillLogprob(logprob, *output.add_logprobs());
    }
    output.set_finish_reason(ToFinishReason(event.finish));
    output.set_stop_matched(event.stop_matched);
    output.set_context_full(event.context_full);
  }
  if (event.is_last && event.status.ok()) {
    FillFinished(event, request, *response.mutable_finished());
  }
}

v1::Session ToSessionMessage(const SessionInfo& info, const Engine& engine) {
  v1::Session session;
  session.set_name(info.key.name);
  session.set_position(info.position);
  session.set_has_pending_token(info.has_pending_token);
  session.set_busy(info.busy);
  FillTimestamp(info.created, *session.mutable_create_time());
  FillTimestamp(info.last_used, *session.mutable_last_use_time());
  session.set_ttl_ms(TtlMs(info.ttl));
  if (info.memory_seed.has_value()) session.set_memory_seed(*info.memory_seed);
  session.set_state_bytes(info.state_bytes);
  session.set_stored_bytes(info.stored_bytes);
  const int64_t max_context = MaxContext(info, engine);
  session.set_max_context(max_context);
  session.set_context_full(ContextFull(info, max_context));
  session.set_residency(ToResidency(info.residence));
  if (info.durability.has_value()) {
    session.set_durability(*info.durability == Durability::kTurn ? v1::DURABILITY_TURN
                                                                 : v1::DURABILITY_NONE);
  }
  if (info.may_have_been_at.has_value()) session.set_may_have_been_at(*info.may_have_been_at);
  return session;
}

v1::Checkpoint ToCheckpointMessage(const CheckpointInfo& info) {
  v1::Checkpoint message;
  message.set_name(info.name);
  message.set_position(info.position);
  message.set_has_pending_token(info.has_pending_token);
  FillTimestamp(info.created, *message.mutable_create_time());
  return message;
}

v1::ListSessionsResponse ToSessionPage(const SessionPage& page, const Engine& engine) {
  v1::ListSessionsResponse response;
  response.set_total_count(static_cast<int64_t>(page.total));
  v1::SessionUsage& usage = *response.mutable_usage();
  usage.set_sessions(page.usage.sessions);
  usage.set_max_sessions(page.usage.max_sessions);
  usage.set_stored_bytes(page.usage.stored_bytes);
  usage.set_max_stored_bytes(page.usage.max_stored_bytes);
  usage.set_checkpoints(page.usage.checkpoints);
  usage.set_max_checkpoints(page.usage.max_checkpoints);
  for (const SessionInfo& info : page.sessions) {
    *response.add_sessions() = ToSessionMessage(info, engine);
  }
  return response;
}

v1::GetInfoResponse ToInfo(const EngineAccess& access, absl::string_view version) {
  v1::GetInfoResponse info;
  v1::ServerInfo& server = *info.mutable_server();
  server.set_version(std::string(version));
  server.set_state(access.state());
  FillTimestamp(access.start_time(), *server.mutable_start_time());
  const absl::StatusOr<Engine*> engine = access.Get();
  if (!engine.ok()) {
    server.set_loaded_bytes(access.loaded_bytes());
    server.set_total_bytes(access.total_bytes());
    return info;
  }
  server.set_device((*engine)->backend_description());
  FillModel(**engine, access.facts(), *info.mutable_model());
  const CapacityPlan& plan = (*engine)->capacity();
  info.mutable_capacity()->set_slab_bytes(plan.slab_bytes);
  info.mutable_capacity()->set_state_memory_bytes(plan.state_memory_bytes);
  info.mutable_capacity()->set_max_sessions(plan.sessions);
  FillLimits(**engine, access.facts(), *info.mutable_limits());
  v1::Statistics& statistics = *info.mutable_statistics();
  FillStatistics((*engine)->stats(), access.stats(), statistics);
  statistics.set_session_store_error(std::string((*engine)->store_health().message()));
  if (const SessionStore* store = (*engine)->store(); store != nullptr) {
    const OwnerUsage stored = store->UsageOfAll();
    statistics.set_sessions_stored(stored.sessions);
    statistics.set_stored_bytes(stored.bytes);
  }
  return info;
}

}  // namespace mneme
