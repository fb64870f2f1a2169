#include "engine/step_pipeline.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace mneme {

StepPipeline::StepPipeline(ModelRunner& runner, RoutingCounter* routing, PhaseClock& phases,
                           EngineStats& stats, const Options& options)
    : runner_(runner),
      routing_(routing),
      phases_(phases),
      stats_(stats),
      options_(options),
      prefill_budget_(options.max_tokens, options.max_rows, options.max_decode_slowdown),
      crossing_budget_(options.max_rows, options.max_decode_slowdown) {}

StepLimits StepPipeline::Limits(std::span<const RowCandidate> candidates) {
  const auto decode_rows = static_cast<int>(
      std::count_if(candidates.begin(), candidates.end(),
                    [](const RowCandidate& row) { return row.tokens.size() == 1; }));
  const bool prefills = decode_rows < static_cast<int>(candidates.size());
  const int beside = std::min(decode_rows, options_.max_rows);
  const int segment = runner_.segment();
  StepLimits limits = {.max_rows = options_.max_rows,
                       .max_tokens = options_.max_tokens,
                       .max_scored_tokens = options_.max_scored_tokens,
                       .prefill_tokens = 0,
                       .likely_sizes = true,
                       .segment = segment};
  double reserved = 0;
  if (segment > 0 && decode_rows > 0) {
    limits.max_crossings = crossing_budget_.Most(beside);
    const auto crossing =
        std::count_if(candidates.begin(), candidates.end(), [&](const RowCandidate& row) {
          return row.tokens.size() == 1 && row.position > 0 && row.position % segment == 0;
        });
    reserved =
        crossing_budget_.Added(static_cast<int>(std::min<int64_t>(crossing, limits.max_crossings)));
  }
  if (prefills) limits.prefill_tokens = prefill_budget_.Tokens(beside, reserved);
  return limits;
}

void StepPipeline::Plan(std::span<const RowCandidate> candidates) {
  CHECK(!in_flight_);
  plan_ = PlanStep(candidates, Limits(candidates), std::move(plan_));
  const bool follows = had_candidates();
  candidates_ = static_cast<int>(candidates.size());
  phases_.SetStep(plan_.rows(), plan_.tokens());
  step_began_ = phases_.End(StepPhase::kPlan, StepPhase::kDeliver);
  if (plan_.empty()) return;
  tokens_since_ = follows ? sampled_at_ : step_began_;
  watched_by_ = routing_ == nullptr ? nullptr : routing_->ForStep(plan_.decode_rows);
}

void StepPipeline::Launch() {
  phases_.End(StepPhase::kDeliver, StepPhase::kForward);
  runner_.Begin(plan_, watched_by_);
  phases_.End(StepPhase::kForward, StepPhase::kDeliver);
}

SamplingBatch& StepPipeline::NewDraws() {
  phases_.End(StepPhase::kDeliver, StepPhase::kSample);
  Trace();
  draws_.Clear();
  return draws_;
}

void StepPipeline::Draw() {
  if (!runner_.classifies()) runner_.BeginSample(draws_, results_[flying_]);
  in_flight_ = true;
}

bool StepPipeline::CanLaunchNext() const {
  if (!options_.runs_ahead || !runner_.asynchronous() || runner_.classifies() ||
      !ModelRunner::DecodesOnly(plan_) || plan_.rows() != candidates_) {
    return false;
  }
  return runner_.CrossingsOf(plan_.positions, /*more=*/1) <= crossing_budget_.Most(plan_.rows());
}

void StepPipeline::LaunchNext() {
  CHECK(in_flight_ && !ahead_);
  phases_.End(StepPhase::kSample, StepPhase::kForward);
  runner_.BeginNext();
  for (SamplingRow& row : draws_.rows) ++row.position;
  runner_.BeginSample(draws_, results_[1 - flying_]);
  stats_.ahead_steps.Add();
  ahead_ = true;
  phases_.End(StepPhase::kForward, StepPhase::kSample);
}

absl::Status StepPipeline::Finish() {
  CHECK(in_flight_);
  in_flight_ = false;
  absl::Status status =
      runner_.classifies() ? runner_.ReadClasses(results_[flying_]) : runner_.FinishSample();
  if (!status.ok() && ahead_) {
    ahead_ = false;
    status.Update(runner_.FinishSample());
  }
  finished_ = flying_;
  sampled_at_ = phases_.End(StepPhase::kSample, StepPhase::kCommit);
  if (!status.ok()) return status;
  if (plan_.prefill_tokens() == 0 && runner_.segment() > 0) {
    const auto boundaries = crossing_budget_.Observe(
        plan_.decode_rows, runner_.CrossingsOf(plan_.positions), sampled_at_ - tokens_since_);
    if (boundaries.has_value()) {
      stats_.engrams.boundary_seconds.Observe(absl::ToDoubleSeconds(*boundaries));
    }
  }
  prefill_budget_.Observe(plan_.decode_rows, plan_.prefill_tokens(), sampled_at_ - tokens_since_);
  CountStep();
  return absl::OkStatus();
}

void StepPipeline::CountStep() {
  ++steps_;
  stats_.step_seconds.Observe(absl::ToDoubleSeconds(sampled_at_ - step_began_));
  if (result().reports.count() > 0 && ModelRunner::DecodesOnly(plan_)) {
    stats_.engrams.step_seconds.Observe(absl::ToDoubleSeconds(sampled_at_ - step_began_));
  }
  // Rows that had ended when the step was queued fed nothing.
  const auto padding = static_cast<int>(std::count(plan_.slots.begin(), plan_.slots.end(), -1));
  const int decode_rows = plan_.decode_rows - padding;
  if (decode_rows > 0) stats_.decode_rows.Observe(decode_rows);
  if (plan_.tokens() > padding) stats_.tokens_per_step.Observe(plan_.tokens() - padding);
  stats_.weight_bytes.Add(runner_.weight_bytes());
  stats_.state_bytes.Add(2 * runner_.slab_bytes() * (plan_.rows() - padding));
}

void StepPipeline::TakeNext(absl::FunctionRef<bool(int candidate)> ended) {
  CHECK(ahead_);
  ahead_ = false;
  in_flight_ = true;
  flying_ = 1 - flying_;
  step_began_ = tokens_since_ = sampled_at_;
  for (int row = 0; row < plan_.rows(); ++row) {
    plan_.token_ids[row] = result().tokens[row];
    ++plan_.positions[row];
    if (ended(plan_.candidates[row])) plan_.slots[row] = -1;
  }
  Trace();
}

void StepPipeline::Trace() const {
  if (options_.traces) LOG(INFO) << "step " << steps_ << ": " << plan_.ToString();
}

}  // namespace mneme
