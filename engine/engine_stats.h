// The engine's counters, as atomics: published by whoever knows a metrics library, printed by
// others.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/counters.h"
#include "engine/request.h"
#include "engine/status_payload.h"
#include "models/trained_layer.h"

namespace mneme {

// Where the loop's time goes. A device that computes on its own works during kDeliver and kSample,
// and during all others if a step is ahead: kForward is then the launch alone, and kSample holds
// the wait for it.
enum class StepPhase { kIdle, kPlan, kForward, kSample, kCommit, kDeliver };
inline constexpr int kStepPhases = 6;
absl::string_view StepPhaseName(StepPhase phase);  // "idle", "plan", ...

// How a request found its session.
enum class ResumeOutcome {
  kHot,      // on the device, with tokens
  kParked,   // in memory of the host, with tokens
  kStored,   // in the store, with tokens
  kCold,     // there was none, or an empty one
  kRefused,  // there was one, and the request could not go on with it, or it was to be there
  kRewound,  // it went back to where the conversation sent parts from what it had been fed
};
inline constexpr int kResumeOutcomes = 6;

// Why a named session is no more.
enum class SessionEnd {
  kDeleted,  // by a client
  kExpired,  // idle for too long
  kSpoilt,   // a step or its logits failed, or its memory diverged
  kUnborn,   // the request that was to begin it ended before anything was fed
};
inline constexpr int kSessionEnds = 4;

// Layers taken together, so that a deep model has no more series than a shallow one.
class LayerGroups {
 public:
  static constexpr int kMost = 4;

  LayerGroups() = default;  // none
  explicit LayerGroups(int layers) : layers_(layers), count_(std::min(layers, kMost)) {}

  int count() const { return count_; }
  int Of(int layer) const { return layer * count_ / layers_; }
  // "0-5": first and last layer of a group.
  std::string Name(int group) const;

 private:
  // For count(), one behind the last layer.
  int first_layer(int group) const { return (group * layers_ + count_ - 1) / count_; }

  int layers_ = 0, count_ = 0;
};

// How many tokens went to which memory.
class RoutingCounts {
 public:
  // Once, before others read.
  void Resize(int layers, int memories);
  void Add(int layer, int memory, int64_t tokens) {
    counts_[groups_.Of(layer) * memories_ + memory].Add(tokens);
  }

  const LayerGroups& groups() const { return groups_; }
  int memories() const { return memories_; }
  int64_t tokens(int group, int memory) const {
    return counts_[group * memories_ + memory].value();
  }

 private:
  LayerGroups groups_;
  int memories_ = 0;
  std::vector<Counter> counts_;  // [groups, memories]
};

// What memories that are trained at test time say of it.
struct TrainingStats {
  struct Group {
    static std::vector<double> Bounds() {
      return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
              2.5,   5,      10,    25,   50,    100,  250, 500,  1000};
    }
    Histogram surprise{Bounds()};  // of each token: the mean over the group's layers
    Counter steps;                 // of the group's layers, heads together
    int layers = 0;                // that are trained
  };

  // Once, before others read.
  void Resize(int layers, std::span<const TrainedLayer> trained);

  LayerGroups groups;
  std::deque<Group> at;  // by group; those without a trained layer are never counted in
  Counter divergences;   // requests that ended by one
};

// Bounds for steps, in seconds.
inline std::vector<double> StepBounds() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
          0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};
}

// Reports of sessions that cross into another segment, on their engrams.
struct EngramStats {
  static std::vector<double> CountBounds() {
    return {0, 10, 25, 50, 100, 200, 400, 600, 800, 1000, 1500, 2000, 4000, 8000};
  }
  static std::vector<double> AgeBounds() {
    return {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000};
  }
  static std::vector<double> LifespanBounds() {
    return {10, 100, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 1000000};
  }

  static std::vector<double> BoundaryBounds() {
    return {0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025,
            0.005,   0.01,     0.025,   0.05,   0.1,     0.25,   0.5,   1};
  }

  bool exist = false;  // the model makes engrams; set once, before others read
  // Of each crossing, once the segment has begun:
  Histogram long_term{CountBounds()};     // engrams in long-term memory
  Histogram found{CountBounds()};         // by the walk, where there are any
  Histogram recalled_age{AgeBounds()};    // mean age in segments of recalled long-term engrams
  Histogram lifespans{LifespanBounds()};  // the sum of all
  Counter evictions;
  Counter wraps;  // sessions with more segments than their counts hold
  // Whole decode steps in which a session crosses, as step_seconds.
  Histogram step_seconds{StepBounds()};
  // Time that the crossings of such a step took: CrossingBudget::Observe.
  Histogram boundary_seconds{BoundaryBounds()};
};

// New sessions that begin with what others were fed (PrefixCache).
struct PrefixStats {
  Counter hits, misses;    // prompts that began behind a prefix, or with nothing
  Counter waits;           // for a prefix that another prompt was just being fed
  Counter loads;           // of states from the host to a slab; whoever waits has a copy of that
  Counter queried_tokens;  // of those prompts
  Counter hit_tokens;      // Usage::cached_tokens
  Counter answer_hits;     // of `hits`: behind an answer
  Counter snapshots;       // taken
  Counter evictions;       // of them, forgotten
  Gauge bytes_used;        // memory of the host that snapshots take
  Gauge bytes_total;
};

struct EngineStats {
  // Where vLLM has a metric of the same meaning its bounds are among these, so that dashboards fit.
  // Smaller ones are for what takes less time here: nobody queues for a slot that is free, and a
  // session's turn has few new tokens to read.
  static std::vector<double> FirstTokenBounds() {
    return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
            1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
  }
  static std::vector<double> TokenBounds() {
    return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
            0.3,    0.4,     0.5,    0.75,  1,      2.5,   5,    7.5,   10,   20,    40,  80};
  }
  // Bounds for parts of a request that may be over at once, as waiting.
  static std::vector<double> WaitBounds() {
    std::vector<double> bounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005};
    const std::vector<double> longer = RequestBounds();
    bounds.insert(bounds.end(), longer.begin(), longer.end());
    return bounds;
  }
  static std::vector<double> RequestBounds() {
    return {0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,
            15,   20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
  }
  static std::vector<double> RowBounds() {
    return {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024};
  }
  static std::vector<double> ChoiceBounds() { return {1, 2, 5, 10, 20}; }
  static std::vector<double> LengthBounds() {
    return {1,    2,    5,    10,    20,    50,    100,    200,    500,
            1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};
  }

  static std::vector<double> CommandBounds() {
    return {0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025,
            0.005,   0.01,     0.025,   0.05,   0.1,     0.25,   0.5,   1};
  }

  // Steps.
  Histogram step_seconds{StepBounds()};
  std::array<Counter, kStepPhases> phase_nanoseconds;  // of the loop, by StepPhase
  Histogram decode_rows{RowBounds()};                  // of each step that had any
  Histogram tokens_per_step{LengthBounds()};
  Counter ahead_steps;  // that began before the tokens of the one before were known
  Counter failed_steps;
  Counter prompt_tokens;     // Usage::prompt_tokens, as they are fed
  Counter generated_tokens;  // sampled
  Counter resumed_tokens;    // Usage::resumed_tokens
  // Bytes, counted as if a row read and wrote its whole slab; a model that touches a part of it
  // moves less.
  Counter state_bytes;
  Counter weight_bytes;     // all weights once a step
  Counter slab_copy_bytes;  // new sessions and forks (StatePool::copied_bytes)
  RoutingCounts routing;    // empty for models without a router; see RoutingCounter
  TrainingStats training;   // empty for models whose memories are not trained
  EngramStats engrams;
  PrefixStats prefix;

  // Requests.
  Histogram queue_seconds{WaitBounds()};              // submitted -> running
  Histogram prefill_seconds{WaitBounds()};            // running -> first token
  Histogram decode_seconds{RequestBounds()};          // first token -> last
  Histogram inference_seconds{RequestBounds()};       // running -> finished
  Histogram request_seconds{RequestBounds()};         // submitted -> finished
  Histogram first_token_seconds{FirstTokenBounds()};  // submitted -> first token
  Histogram inter_token_seconds{TokenBounds()};
  // Per request: the time from its first token to its last, divided by the tokens behind the first
  // one of its longest choice.
  Histogram output_token_seconds{TokenBounds()};
  Histogram request_prompt_tokens{LengthBounds()};
  Histogram request_generated_tokens{LengthBounds()};
  Histogram request_longest_choice{LengthBounds()};  // tokens of the longest of n answers
  Histogram request_n{ChoiceBounds()};               // answers asked for
  Histogram request_max_tokens{LengthBounds()};      // asked for, or given by default
  std::array<Counter, 6> finished;                   // admitted requests by FinishReason
  Counter contexts_filled;  // those with a choice that ended as its session was full
  // Requests that were never admitted, by absl::StatusCode and by RejectReasons(). Reject() counts.
  std::array<Counter, 17> rejected;
  std::array<Counter, std::size(kReasons) + 1> rejected_reason;
  Counter replayed;  // answered from the record of an idempotency key

  // Sessions.
  std::array<Counter, kResumeOutcomes> resumes;  // requests with a session, by ResumeOutcome
  std::array<Counter, kSessionEnds> sessions_ended;
  Counter sessions_created;
  Counter forked_choices;  // n > 1
  // Forks of sessions: asked -> answered, waiting for a step too.
  Histogram fork_seconds{CommandBounds()};
  // States on their way to memory of the host and back, begun -> there.
  Histogram park_seconds{CommandBounds()};
  Histogram fetch_seconds{CommandBounds()};
  // The store. Turns and changes of sessions: told -> durable.
  Histogram store_seconds{CommandBounds()};
  Counter store_failures;        // of those
  Counter snapshots;             // written
  Counter snapshot_failures;     // of the disk's
  Counter snapshots_over_limit;  // not written, as their keys have stored what they may
  Counter rewinds;               // of sessions
  Counter checkpoints;           // made
  Counter snapshot_bytes;
  Histogram snapshot_seconds{CommandBounds()};  // begun to be written -> durable
  Histogram load_seconds{CommandBounds()};      // asked for -> in its slab, and fed its log
  Counter replayed_tokens;                      // of logs
  Gauge snapshot_lag_tokens;                    // fed to sessions since their newest snapshots

  // Now.
  Gauge requests_running;  // get rows in steps
  Gauge requests_paused;   // of those: but for their readers, who are slow
  Gauge requests_waiting;  // accepted, and not running yet
  Gauge requests_queued;   // of those: found to have to wait; what max_queued_requests bounds
  Gauge slabs_used;
  Gauge slabs_ephemeral;  // of those in use: held by requests and not by named sessions
  Gauge slabs_total;
  Gauge sessions;         // named ones
  Gauge sessions_parked;  // of those
  // That the store alone has, beside those of `sessions`: that can go on here, that cannot.
  Gauge sessions_stored;
  Gauge sessions_lost;
  Gauge sessions_of_other_models;
  Gauge host_bytes_used;  // memory of the host for those that are parked
  Gauge host_bytes_total;

  Counter& finished_by(FinishReason reason) { return finished[static_cast<size_t>(reason)]; }
  const Counter& finished_by(FinishReason reason) const {
    return finished[static_cast<size_t>(reason)];
  }
  // kReasons, and at last "OTHER" for errors without one of them.
  static std::span<const absl::string_view> RejectReasons();
  void Reject(const absl::Status& status);
  Counter& ended_by(SessionEnd end) { return sessions_ended[static_cast<size_t>(end)]; }
  const Counter& ended_by(SessionEnd end) const { return sessions_ended[static_cast<size_t>(end)]; }
  Counter& resumed_as(ResumeOutcome outcome) { return resumes[static_cast<size_t>(outcome)]; }
  const Counter& rejected_by(absl::StatusCode code) const {
    return rejected[static_cast<size_t>(code)];
  }
};

}  // namespace mneme
