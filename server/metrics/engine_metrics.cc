// Metrics of what the engine counts.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/metrics/metrics.h"
#include "server/requests/request_totals.h"

namespace mneme {
namespace {

double Now(const Gauge& gauge) { return static_cast<double>(gauge.value()); }

void WriteOutcomes(const EngineStats& stats, const ServerStats& server, MetricWriter& out) {
  const RequestTotals totals = CountRequests(stats, server);
  out.Counter("requests_total", "Generation requests that ended, by outcome.")
      .Value(static_cast<double>(totals.completed), {{"outcome", "completed"}})
      .Value(static_cast<double>(totals.cancelled), {{"outcome", "cancelled"}})
      .Value(static_cast<double>(totals.deadline), {{"outcome", "deadline"}})
      .Value(static_cast<double>(totals.error), {{"outcome", "error"}})
      .Value(static_cast<double>(totals.rejected), {{"outcome", "rejected"}})
      .Value(static_cast<double>(totals.replayed), {{"outcome", "replayed"}});
  out.Counter("request_success_total", "Requests answered in full, by why their text ended.")
      .Value(Count(stats.finished_by(FinishReason::kStop)), {{"finished_reason", "stop"}})
      .Value(Count(stats.finished_by(FinishReason::kLength)), {{"finished_reason", "length"}});
  out.Counter("requests_context_full_total",
              "Requests with an answer that ended because its session has no room for more tokens.")
      .Value(Count(stats.contexts_filled));

  auto codes =
      out.Counter("requests_rejected_total", "Requests refused before they ran, by status code.");
  for (size_t i = 1; i < stats.rejected.size(); ++i) {
    const auto code = static_cast<absl::StatusCode>(i);
    codes.Value(static_cast<double>(CountRejected(stats, server, code)),
                {{"code", absl::StatusCodeToString(code)}});
  }
  auto reasons = out.Counter("admission_rejections_total",
                             "Requests refused before they ran, by the reason of the error.");
  for (const auto& [reason, count] : CountRejectedByReason(stats, server)) {
    reasons.Value(static_cast<double>(count), {{"reason", reason}});
  }
}

void WriteRouting(const RoutingCounts& routing, MetricWriter& out) {
  const LayerGroups& groups = routing.groups();
  if (groups.count() == 0) return;
  auto routed = out.Counter("routed_tokens_total",
                            "Tokens that routers sent to each memory, by group of layers.");
  for (int group = 0; group < groups.count(); ++group) {
    for (int memory = 0; memory < routing.memories(); ++memory) {
      routed.Value(static_cast<double>(routing.tokens(group, memory)),
                   {{"layers", groups.Name(group)}, {"memory", absl::StrCat(memory)}});
    }
  }
}

void WriteTraining(const TrainingStats& training, MetricWriter& out) {
  const LayerGroups& groups = training.groups;
  if (groups.count() == 0) return;
  const auto each = [&](auto&& write) {
    for (int group = 0; group < groups.count(); ++group) {
      if (training.at[group].layers > 0) {
        write(training.at[group], MetricWriter::Labels{{"layers", groups.Name(group)}});
      }
    }
  };
  auto surprise = out.Histogram("memory_surprise",
                                "Loss of memories that are trained while they read: of each token, "
                                "the mean over heads and a group of layers.");
  each([&](const auto& group, auto labels) { surprise.Value(group.surprise, std::move(labels)); });
  auto steps = out.Counter("memory_steps_total",
                           "Steps that such memories took, by group of layers; those of all heads "
                           "count as one.");
  each([&](const auto& group, auto labels) { steps.Value(Count(group.steps), std::move(labels)); });
  out.Counter("memory_divergences_total",
              "Requests that failed because such a memory was no longer finite.")
      .Value(Count(training.divergences));
}

void WriteEngrams(const EngramStats& engrams, MetricWriter& out) {
  if (!engrams.exist) return;
  out.Histogram("memory_long_term_engrams",
                "Engrams in a session's long-term memory, each time it begins a segment.")
      .Value(engrams.long_term);
  out.Histogram("memory_found_engrams",
                "Long-term engrams that a session finds along links as it begins a segment.")
      .Value(engrams.found);
  out.Histogram("memory_recalled_age_segments",
                "Mean age of the long-term engrams that a session recalls as it begins a segment, "
                "in segments.")
      .Value(engrams.recalled_age);
  out.Histogram("memory_lifespan_sum",
                "Lifespans of all engrams of a session, each time it begins a segment.")
      .Value(engrams.lifespans);
  out.Counter("memory_evictions_total",
              "Engrams that lost their place before their lifespan was over.")
      .Value(Count(engrams.evictions));
  out.Counter("memory_history_wraps_total",
              "Sessions that began more segments than their engrams' firings are kept of.")
      .Value(Count(engrams.wraps));
  out.Histogram("memory_boundary_step_seconds",
                "Decode steps in which a session begins a segment: the whole step, as "
                "step_seconds.")
      .Value(engrams.step_seconds);
  out.Histogram("memory_boundary_seconds",
                "What the boundaries between segments took of a decode step: how much longer it "
                "was than those of as many rows without any.")
      .Value(engrams.boundary_seconds);
}

std::string PhaseName(int phase) {
  return std::string(StepPhaseName(static_cast<StepPhase>(phase)));
}

}  // namespace

void WriteRequestMetrics(const EngineStats& stats, const ServerStats& server,
                         const EngineOptions& options, MetricWriter& out) {
  WriteOutcomes(stats, server, out);
  out.Gauge("num_requests_running", "Requests that get rows in steps.")
      .Value(Now(stats.requests_running));
  out.Gauge("num_requests_paused", "Running requests that wait until their clients read.")
      .Value(Now(stats.requests_paused));
  out.Gauge("num_requests_waiting", "Requests accepted that do not run yet.")
      .Value(Now(stats.requests_waiting));
  out.Gauge("max_queued_requests", "Requests that may wait; one more is refused.")
      .Value(options.max_queued_requests);
  out.Counter("prompt_tokens_total", "New prompt tokens fed to the model, cached ones left out.")
      .Value(Count(stats.prompt_tokens));
  out.Counter("generation_tokens_total", "Tokens generated.").Value(Count(stats.generated_tokens));
  out.Counter("resumed_tokens_total",
              "Tokens that requests found in their session's state and that were not fed again.")
      .Value(Count(stats.resumed_tokens));
  out.Counter("cached_tokens_total",
              "Tokens of prompts that new sessions took from the prefix cache.")
      .Value(Count(stats.prefix.hit_tokens));
  out.Histogram("time_to_first_token_seconds", "From submission to the first token in seconds.")
      .Value(stats.first_token_seconds);
  out.Histogram("inter_token_latency_seconds", "Between two tokens of an answer in seconds.")
      .Value(stats.inter_token_seconds);
  out.Histogram("request_time_per_output_token_seconds",
                "From a request's first token to its last, divided by the tokens between, in "
                "seconds.")
      .Value(stats.output_token_seconds);
  out.Histogram("e2e_request_latency_seconds", "From submission to the end in seconds.")
      .Value(stats.request_seconds);
  out.Histogram("request_queue_time_seconds", "From submission until it runs in seconds.")
      .Value(stats.queue_seconds);
  out.Histogram("request_prefill_time_seconds", "From when it runs to the first token in seconds.")
      .Value(stats.prefill_seconds);
  out.Histogram("request_decode_time_seconds", "From the first token to the last in seconds.")
      .Value(stats.decode_seconds);
  out.Histogram("request_inference_time_seconds", "From when it runs to the end in seconds.")
      .Value(stats.inference_seconds);
  out.Histogram("request_prompt_tokens", "New prompt tokens of a request, cached ones left out.")
      .Value(stats.request_prompt_tokens);
  out.Histogram("request_generation_tokens", "Tokens generated for a request, all its choices.")
      .Value(stats.request_generated_tokens);
  out.Histogram("request_max_num_generation_tokens", "Tokens of a request's longest choice.")
      .Value(stats.request_longest_choice);
  out.Histogram("request_params_n", "Answers that a request asks for.").Value(stats.request_n);
  out.Histogram("request_params_max_tokens",
                "Tokens that a request may generate, for each of its choices.")
      .Value(stats.request_max_tokens);
}

void WriteStepMetrics(const EngineStats& stats, const LoopActivity& activity,
                      const EngineOptions& options, MetricWriter& out) {
  out.Histogram("step_seconds", "A step of the engine, launch to sampled tokens, in seconds.")
      .Value(stats.step_seconds);
  out.Histogram("step_decode_rows", "Decoding rows of a step that has any.")
      .Value(stats.decode_rows);
  out.Gauge("step_max_rows", "Rows that a step may have.").Value(options.max_rows);
  out.Histogram("iteration_tokens", "Tokens fed in a step.").Value(stats.tokens_per_step);
  auto phases =
      out.Counter("step_phase_seconds_total",
                  "Where the engine's thread spends its time, in seconds; else it waits.");
  // Waiting is counted when it ends, and so would come in leaps.
  static_assert(static_cast<int>(StepPhase::kIdle) == 0);
  for (int phase = 1; phase < kStepPhases; ++phase) {
    phases.Value(Count(stats.phase_nanoseconds[phase]) * 1e-9, {{"phase", PhaseName(phase)}});
  }
  auto ages =
      out.Gauge("step_phase_age_seconds",
                "Seconds that the engine's thread has been in its phase of a step by now; 0 "
                "for phases it is not in.");
  for (int phase = 1; phase < kStepPhases; ++phase) {
    const bool is_current = static_cast<int>(activity.phase) == phase;
    ages.Value(is_current ? absl::ToDoubleSeconds(activity.in_phase) : 0,
               {{"phase", PhaseName(phase)}});
  }
  out.Counter("steps_ahead_total",
              "Steps that began before the tokens of the one before were known.")
      .Value(Count(stats.ahead_steps));
  out.Counter("steps_failed_total", "Steps that the device could not finish.")
      .Value(Count(stats.failed_steps));
  out.Counter("state_traffic_bytes_total",
              "Bytes of state read and written, as if each row moved its whole slab.")
      .Value(Count(stats.state_bytes));
  out.Counter("weight_traffic_bytes_total", "Bytes of weights read, all of them once a step.")
      .Value(Count(stats.weight_bytes));
  out.Counter("slab_copy_bytes_total", "Bytes copied for new sessions and forks.")
      .Value(Count(stats.slab_copy_bytes));

  WriteRouting(stats.routing, out);
  WriteTraining(stats.training, out);
  WriteEngrams(stats.engrams, out);
}

void WriteSessionMetrics(const EngineStats& stats, const CapacityPlan& capacity,
                         MetricWriter& out) {
  const double used = Now(stats.slabs_used), total = Now(stats.slabs_total);
  const auto slab_bytes = static_cast<double>(capacity.slab_bytes);
  out.Gauge("slabs_used", "State slots in use.").Value(used);
  out.Gauge("slabs_free", "State slots that are free.").Value(total - used);
  out.Gauge("slabs_capacity", "State slots that there are.").Value(total);
  out.Gauge("slabs_ephemeral",
            "State slots in use that are free again when the requests that hold them end.")
      .Value(Now(stats.slabs_ephemeral));
  out.Gauge("slab_bytes", "Size of a slab, the state of one session, in bytes.").Value(slab_bytes);
  out.Gauge("state_bytes", "State in use in bytes.").Value(used * slab_bytes);
  out.Gauge("state_capacity_bytes", "Memory for states in bytes.").Value(total * slab_bytes);

  out.Gauge("sessions", "Named sessions, by where their state is.")
      .Value(Now(stats.sessions) - Now(stats.sessions_parked), {{"residency", "device"}})
      .Value(Now(stats.sessions_parked), {{"residency", "host"}})
      .Value(Now(stats.sessions_stored), {{"residency", "store"}})
      .Value(Now(stats.sessions_lost), {{"residency", "lost"}})
      .Value(Now(stats.sessions_of_other_models), {{"residency", "other_model"}});
  out.Counter("sessions_created_total", "Named sessions begun.")
      .Value(Count(stats.sessions_created));
  static constexpr const char* kEnds[] = {"deleted", "expired", "spoilt", "unborn"};
  static_assert(std::size(kEnds) == kSessionEnds);
  auto ends = out.Counter("sessions_ended_total", "Named sessions that are no more, by reason.");
  for (int end = 0; end < kSessionEnds; ++end) {
    ends.Value(Count(stats.sessions_ended[end]), {{"reason", kEnds[end]}});
  }
  static constexpr const char* kResumes[] = {"hot",  "parked",  "stored",
                                             "cold", "refused", "rewound"};
  static_assert(std::size(kResumes) == kResumeOutcomes);
  auto resumes =
      out.Counter("session_resumes_total", "Requests with a session, by how they found it.");
  for (int outcome = 0; outcome < kResumeOutcomes; ++outcome) {
    resumes.Value(Count(stats.resumes[outcome]), {{"outcome", kResumes[outcome]}});
  }
  out.Histogram("session_fork_seconds",
                "Forks of sessions, asked to answered, in seconds; waits for a running step.")
      .Value(stats.fork_seconds);
  out.Histogram("session_park_seconds", "States moved to memory of the host, in seconds.")
      .Value(stats.park_seconds);
  out.Histogram("session_fetch_seconds", "States moved back from memory of the host, in seconds.")
      .Value(stats.fetch_seconds);
  out.Gauge("host_state_bytes_used", "Memory of the host that states of parked sessions take.")
      .Value(Now(stats.host_bytes_used));
  out.Gauge("host_state_bytes_capacity", "Memory of the host for states of parked sessions.")
      .Value(Now(stats.host_bytes_total));
  out.Histogram("session_store_seconds",
                "Turns and changes of sessions, told the store to durable, in seconds.")
      .Value(stats.store_seconds);
  out.Counter("session_store_failures_total",
              "Turns and changes of sessions that could not be made durable.")
      .Value(Count(stats.store_failures));
  out.Counter("session_snapshots_total", "Snapshots of sessions written.")
      .Value(Count(stats.snapshots));
  out.Counter("session_rewinds_total", "Sessions taken back to where they were.")
      .Value(Count(stats.rewinds));
  out.Counter("session_checkpoints_total", "Checkpoints of sessions made.")
      .Value(Count(stats.checkpoints));
  out.Counter("session_snapshot_failures_total", "Snapshots that could not be written.")
      .Value(Count(stats.snapshot_failures));
  out.Counter("session_snapshots_over_limit_total",
              "Snapshots that were not written as their keys have stored what they may.")
      .Value(Count(stats.snapshots_over_limit));
  out.Counter("session_snapshot_bytes_total", "Bytes of snapshots written.")
      .Value(Count(stats.snapshot_bytes));
  out.Histogram("session_snapshot_seconds", "Snapshots, begun to durable, in seconds.")
      .Value(stats.snapshot_seconds);
  out.Gauge("session_snapshot_lag_tokens",
            "Tokens that sessions were fed since their newest snapshots, all of them together.")
      .Value(Now(stats.snapshot_lag_tokens));
  out.Histogram("session_load_seconds",
                "Sessions that came back from the store, asked for to there, in seconds.")
      .Value(stats.load_seconds);
  out.Counter("session_replayed_tokens_total", "Tokens fed again from logs of sessions.")
      .Value(Count(stats.replayed_tokens));
  const PrefixStats& prefix = stats.prefix;
  out.Counter("prefix_cache_requests_total",
              "Prompts that began a session with the prefix cache, by what they found there.")
      .Value(Count(prefix.hits), {{"outcome", "hit"}})
      .Value(Count(prefix.misses), {{"outcome", "miss"}});
  out.Counter("prefix_cache_answer_hits_total",
              "Hits whose state was kept behind an answer: conversations that went on, or back.")
      .Value(Count(prefix.answer_hits));
  out.Counter("prefix_cache_queries_total", "Tokens of those prompts.")
      .Value(Count(prefix.queried_tokens));
  out.Counter("prefix_cache_hits_total", "Tokens of those prompts that were found.")
      .Value(Count(prefix.hit_tokens));
  out.Counter("prefix_cache_waits_total",
              "Prompts that waited for one that was being fed what they begin with.")
      .Value(Count(prefix.waits));
  out.Counter("prefix_cache_loads_total",
              "States copied from memory of the host; those that come meanwhile share the slab.")
      .Value(Count(prefix.loads));
  out.Counter("prefix_cache_snapshots_total", "States that the prefix cache has kept.")
      .Value(Count(prefix.snapshots));
  out.Counter("prefix_cache_evictions_total", "States that made room for others.")
      .Value(Count(prefix.evictions));
  out.Gauge("prefix_cache_bytes_used", "Memory of the host that states of the prefix cache take.")
      .Value(Now(prefix.bytes_used));
  out.Gauge("prefix_cache_bytes_capacity", "Memory of the host for states of the prefix cache.")
      .Value(Now(prefix.bytes_total));
  out.Counter("forked_choices_total", "States copied for the further choices of a request.")
      .Value(Count(stats.forked_choices));
}

}  // namespace mneme
