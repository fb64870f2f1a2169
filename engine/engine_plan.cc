#include "engine/engine_plan.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/human_bytes.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

absl::Status CheckOptions(const EngineOptions& options) {
  const auto at_least = [](absl::string_view name, int64_t value, int64_t low) {
    if (value >= low) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", value, ", expected at least ", low));
  };
  MNEME_RETURN_IF_ERROR(at_least("state_memory_bytes", options.state_memory_bytes, 0));
  MNEME_RETURN_IF_ERROR(at_least("max_sessions", options.max_sessions, 0));
  MNEME_RETURN_IF_ERROR(at_least("host_state_memory_bytes", options.host_state_memory_bytes, 0));
  MNEME_RETURN_IF_ERROR(
      at_least("prefix_cache_memory_bytes", options.prefix_cache_memory_bytes, 0));
  MNEME_RETURN_IF_ERROR(
      at_least("prefix_cache_least_tokens", options.prefix_cache_least_tokens, 1));
  MNEME_RETURN_IF_ERROR(at_least("max_rows", options.max_rows, 1));
  MNEME_RETURN_IF_ERROR(at_least("max_tokens_per_step", options.max_tokens_per_step, 1));
  MNEME_RETURN_IF_ERROR(at_least("max_logit_rows_per_step", options.max_logit_rows_per_step, 1));
  MNEME_RETURN_IF_ERROR(at_least("max_queued_requests", options.max_queued_requests, 1));
  MNEME_RETURN_IF_ERROR(at_least("max_request_tokens", options.max_request_tokens, 0));
  MNEME_RETURN_IF_ERROR(at_least("max_prompt_tokens", options.max_prompt_tokens, 0));
  MNEME_RETURN_IF_ERROR(at_least("stream_capacity_events", options.stream_capacity_events, 1));
  MNEME_RETURN_IF_ERROR(at_least("history_tokens", options.history_tokens, 0));
  MNEME_RETURN_IF_ERROR(at_least("max_idempotency_keys", options.max_idempotency_keys, 1));
  MNEME_RETURN_IF_ERROR(at_least("idempotency_record_bytes", options.idempotency_record_bytes, 0));
  if (options.max_decode_slowdown != 0 && !(options.max_decode_slowdown >= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_decode_slowdown is ", options.max_decode_slowdown, ", expected 0 or at least 1"));
  }
  if (options.default_session_ttl <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("default_session_ttl is ", absl::FormatDuration(options.default_session_ttl),
                     ", expected more than 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EnginePlan> PlanEngine(const Backend& backend, const ModelNeeds& model,
                                      EngineOptions& options) {
  MNEME_RETURN_IF_ERROR(CheckOptions(options));
  if (options.max_tokens_per_step < model.segment) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps have at most ", options.max_tokens_per_step,
                     " tokens (--max-num-batched-tokens), and a segment of this model, which no "
                     "step cuts, has up to ",
                     model.segment, ": expected at least as many"));
  }
  if (const int64_t host = options.host_state_memory_bytes;
      host > 0 && host < 2 * model.slab_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host_state_memory_bytes is ", host, ", expected 0 or at least ", 2 * model.slab_bytes,
        " (two states of this model: one is room for those that change places)"));
  }
  if (model.segment > 0 && model.snapshot_bytes > 0) {
    return absl::InvalidArgumentError(
        "a store of sessions is set (--session-dir), expected none: a model that classifies has no "
        "sessions that outlive a request");
  }
  if (const int64_t prefixes = options.prefix_cache_memory_bytes; prefixes > 0) {
    if (model.segment > 0) {
      return absl::InvalidArgumentError(
          "prefix_cache_memory_bytes (--prefix-cache-memory) is set, expected 0: a model that "
          "classifies has no prompts "
          "that sessions begin with");
    }
    if (prefixes < model.slab_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("prefix_cache_memory_bytes (--prefix-cache-memory) is ", prefixes,
                       ", expected 0 or at least ", model.slab_bytes, " (a state of this model)"));
    }
  }
  options.max_rows = std::min(options.max_rows, options.max_tokens_per_step);
  // Texts that are classified have sessions while they run, and no longer.
  if (model.segment > 0 && (options.max_sessions == 0 || options.max_sessions > options.max_rows)) {
    options.max_sessions = options.max_rows;
  }
  if (options.max_decode_slowdown == 0) {
    options.max_decode_slowdown = backend.preferred_decode_slowdown();
  }
  EnginePlan plan;
  // Slabs get the memory that the runner leaves.
  const RunnerLimits& most = plan.largest_step = LargestStep(options);
  plan.runner_bytes =
      RunnerBytes(most, model.workspace_bytes(most.tokens, most.rows, most.logit_rows),
                  model.outputs, backend.activation_dtype());
  MNEME_ASSIGN_OR_RETURN(plan.available_bytes, backend.AvailableBytes());
  // A device that works on its own has memory of its own.
  const int64_t shared_bytes = backend.asynchronous() ? 0 : model.snapshot_bytes;
  const int64_t left = plan.available_bytes - model.unread_bytes - plan.runner_bytes - shared_bytes;
  absl::StatusOr<CapacityPlan> capacity =
      PlanCapacity(model.slab_bytes, left, backend.ReserveBytes(left), options);
  if (absl::IsResourceExhausted(capacity.status()) && model.growing_bytes > 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(capacity.status().message(), "; ", HumanBytes(model.growing_bytes),
                     " of it are room for the tokens of --max-context, which may be fewer"));
  }
  MNEME_RETURN_IF_ERROR(capacity.status());
  plan.capacity = *std::move(capacity);
  options.max_rows = std::min(options.max_rows, plan.capacity.sessions);
  return plan;
}

}  // namespace mneme
