// Steps on their way through the device: planned, launched, drawn from, queued ahead, finished.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/crossing_budget.h"
#include "engine/engine_stats.h"
#include "engine/model_runner.h"
#include "engine/phase_clock.h"
#include "engine/prefill_budget.h"
#include "engine/routing_counter.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/step_plan.h"

namespace mneme {

// Knows rows by their candidates and slots, and neither sessions nor requests. The order of calls:
//
//   Plan, Launch, NewDraws, Draw      the step is in flight
//     LaunchNext                      perhaps: so is the one after it, of the same rows
//   Finish                            result() is the step's, and the caller acts on it
//     TakeNext                        after LaunchNext: the other one is the step in flight now
//
// plan() is that of the step in flight or, without one, the last that was planned. result() is that
// of the step that finished last; Draw and LaunchNext may write over it.
//
// Ends the phases of a turn that are its own: kPlan, kForward, kSample. Owned and called by one
// thread, the runner's. Whatever the constructor takes must outlive it.
class StepPipeline {
 public:
  struct Options {
    int max_rows = 1;
    int max_tokens = 1;              // of a step
    int max_scored_tokens = 1;       // StepLimits
    double max_decode_slowdown = 0;  // PrefillBudget, CrossingBudget
    bool runs_ahead = false;         // where the device works on its own
    bool traces = false;             // logs every plan
  };
  // `routing` may be null: nobody counts.
  StepPipeline(ModelRunner& runner, RoutingCounter* routing, PhaseClock& phases, EngineStats& stats,
               const Options& options);

  // Chooses among the sequences that could run. Nothing is in flight.
  void Plan(std::span<const RowCandidate> candidates);
  // Whether Launch() takes microseconds and not milliseconds.
  bool launches_quickly() const { return runner_.Replays(plan_, watched_by_); }
  // The forward pass of the plan, which is not empty.
  void Launch();
  // Empty, to be filled with a row for each logit row of the plan.
  SamplingBatch& NewDraws();
  void Draw();

  // Whether the step after the one in flight is known but for its tokens, as far as the plan goes:
  // it has all candidates, each row feeds what it draws now, no more of them cross than may, and
  // the device need not be waited for.
  bool CanLaunchNext() const;
  // That step, in which a row is padding if it draws one of its end tokens now.
  void LaunchNext();

  // Waits for the tokens of the step in flight. After an error nothing is in flight any more, the
  // step that was ahead has failed with it, and the slabs of the plan's rows are spoilt.
  absl::Status Finish();
  // The step that LaunchNext() launched is in flight now, and plan() is its plan. A row whose
  // candidate has ended feeds nothing in it.
  void TakeNext(absl::FunctionRef<bool(int candidate)> ended);

  bool in_flight() const { return in_flight_; }
  bool ahead() const { return ahead_; }
  bool asynchronous() const { return runner_.asynchronous(); }
  const StepPlan& plan() const { return plan_; }
  const StepResult& result() const { return results_[finished_]; }
  // When its tokens came.
  absl::Duration sampled_at() const { return sampled_at_; }
  int64_t steps() const { return steps_; }  // finished without an error
  // Whether the last Plan() had any candidates: another one may.
  bool had_candidates() const { return candidates_ > 0; }

 private:
  StepLimits Limits(std::span<const RowCandidate> candidates);
  void Trace() const;
  void CountStep();

  ModelRunner& runner_;
  RoutingCounter* const routing_;
  PhaseClock& phases_;
  EngineStats& stats_;
  const Options options_;
  PrefillBudget prefill_budget_;
  CrossingBudget crossing_budget_;

  StepPlan plan_;
  int candidates_ = 0;                     // that plan_ was chosen from
  RoutingObserver* watched_by_ = nullptr;  // the step of plan_
  SamplingBatch draws_;
  bool in_flight_ = false;
  bool ahead_ = false;
  // In turns, so that one can be read while the other is drawn.
  std::array<StepResult, 2> results_;
  int flying_ = 0;    // of results_: the step in flight, or the next one
  int finished_ = 0;  // of results_: the step that finished last
  int64_t steps_ = 0;
  absl::Duration step_began_;
  // Since when the step's decoding rows wait for its tokens: those of the step before, where it
  // followed at once.
  absl::Duration tokens_since_;
  absl::Duration sampled_at_;
};

}  // namespace mneme
