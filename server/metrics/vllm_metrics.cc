// The names of vLLM that have a meaning here.
#include "absl/strings/str_cat.h"
#include "server/metrics/metrics.h"

namespace mneme {
void WriteVllmMetrics(const EngineStats& stats, const CapacityPlan& capacity, MetricWriter& out) {
  const auto used = static_cast<double>(stats.slabs_used.value());
  const auto total = static_cast<double>(stats.slabs_total.value());
  const double usage = total > 0 ? used / total : 0;
  const auto waiting = static_cast<double>(stats.requests_waiting.value());
  out.Gauge("num_requests_running", "Requests that get rows in steps.")
      .Value(static_cast<double>(stats.requests_running.value()));
  out.Gauge("num_requests_waiting", "Requests accepted that do not run yet.").Value(waiting);
  out.Gauge("num_requests_waiting_by_reason", "Waiting requests, by what they wait for.")
      .Value(waiting, {{"reason", "capacity"}})
      .Value(0, {{"reason", "deferred"}});
  out.Gauge("kv_cache_usage_perc", "Share of state slots in use, 0 to 1.").Value(usage);
  out.Gauge("gpu_cache_usage_perc", "The same under its older name.").Value(usage);
  out.Gauge("cache_config_info", "Always 1; a block is a state slot, of any number of tokens.")
      .Value(1, {{"num_gpu_blocks", absl::StrCat(capacity.sessions)},
                 {"slab_bytes", absl::StrCat(capacity.slab_bytes)}});
  out.Gauge("lora_requests_info", "Always 1; there are no adapters.")
      .Value(1, {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}});

  out.Counter("prompt_tokens_total", "New prompt tokens fed to the model, cached ones left out.")
      .Value(Count(stats.prompt_tokens));
  out.Counter("generation_tokens_total", "Tokens generated.").Value(Count(stats.generated_tokens));
  const double cached = Count(stats.resumed_tokens) + Count(stats.prefix.hit_tokens);
  out.Counter("prompt_tokens_cached_total",
              "Tokens found in sessions' states or in the prefix cache.")
      .Value(cached);
  out.Counter("prefix_cache_queries_total", "The same, and tokens fed.")
      .Value(cached + Count(stats.prompt_tokens));
  out.Counter("prefix_cache_hits_total", "Tokens found in sessions' states or in the prefix cache.")
      .Value(cached);
  out.Counter("num_preemptions_total", "Always 0: nothing is preempted.").Value(0);
  out.Counter("request_success_total", "Requests that ended, by reason.")
      .Value(Count(stats.finished_by(FinishReason::kStop)), {{"finished_reason", "stop"}})
      .Value(Count(stats.finished_by(FinishReason::kLength)), {{"finished_reason", "length"}})
      .Value(Count(stats.finished_by(FinishReason::kCancelled)) +
                 Count(stats.finished_by(FinishReason::kDeadline)),
             {{"finished_reason", "abort"}})
      .Value(Count(stats.finished_by(FinishReason::kError)), {{"finished_reason", "error"}});

  const auto histogram = [&out](const char* name, const char* help, const Histogram& values) {
    out.Histogram(name, help).Value(values);
  };
  histogram("time_to_first_token_seconds", "Time to the first token in seconds.",
            stats.first_token_seconds);
  histogram("inter_token_latency_seconds", "Time between two tokens in seconds.",
            stats.inter_token_seconds);
  histogram("time_per_output_token_seconds", "The same under its older name.",
            stats.inter_token_seconds);
  histogram("request_time_per_output_token_seconds",
            "From a request's first token to its last, divided by the tokens between, in seconds.",
            stats.output_token_seconds);
  histogram("e2e_request_latency_seconds", "Time of a whole request in seconds.",
            stats.request_seconds);
  histogram("request_queue_time_seconds", "Time before it runs in seconds.", stats.queue_seconds);
  histogram("request_prefill_time_seconds", "Time to read the prompt in seconds.",
            stats.prefill_seconds);
  histogram("request_decode_time_seconds", "Time from the first token to the last in seconds.",
            stats.decode_seconds);
  histogram("request_inference_time_seconds", "Time from when it runs to its end in seconds.",
            stats.inference_seconds);
  histogram("request_prompt_tokens", "New prompt tokens of a request, cached ones left out.",
            stats.request_prompt_tokens);
  histogram("request_generation_tokens", "Tokens generated for a request.",
            stats.request_generated_tokens);
  histogram("request_max_num_generation_tokens", "Tokens of a request's longest choice.",
            stats.request_longest_choice);
  histogram("request_params_n", "Answers that a request asks for.", stats.request_n);
  histogram("request_params_max_tokens", "Tokens that a request may generate.",
            stats.request_max_tokens);
  histogram("iteration_tokens_total", "Tokens fed in a step.", stats.tokens_per_step);
}

}  // namespace mneme
