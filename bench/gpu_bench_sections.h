// What gpu_bench measures of an engine that runs on a GPU: decoding, prompts, one beside the other,
// and long contexts.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "bench/bench_table.h"
#include "bench/step_traffic.h"
#include "engine/engine.h"

namespace mneme {

struct DecodeRun {
  std::string shape;
  std::string state_dtype;
  int rows;
  bool sampled;
};

struct BenchEngine {
  RealClock clock;
  std::string name;
  double bandwidth = 0;     // bytes read and written per second by a copy
  double product_rate = 0;  // floating-point operations per second of a large product
  int step_tokens = 0;      // EngineOptions::max_tokens_per_step
  std::optional<StepTraffic> traffic;
  std::unique_ptr<Engine> engine;
};

// Tables that rows are added to.
BenchTable DecodeTable();
// `phases`: prompts differ by up to so many tokens, so that rows come to the ends of their segments
// and chunks each at a time of its own. Those of Memoria always do.
absl::Status MeasureDecode(BenchEngine& bench, const DecodeRun& decode, int steps, int phases,
                           BenchTable& table);
BenchTable PrefillTable();
absl::Status MeasurePrefill(BenchEngine& bench, int prompts, int tokens, BenchTable& table);

// Steps in which rows begin a segment, of models whose sessions have segments.
BenchTable BoundaryTable();
absl::Status MeasureBoundaries(BenchEngine& bench, BenchTable& table);

// Decoding beside a long prompt.
absl::StatusOr<BenchTable> MeasureInterference(BenchEngine& bench);
// Decode steps after prompts of two lengths, in turns.
absl::StatusOr<BenchTable> MeasureContext(BenchEngine& bench, int near_context, int far_context);

}  // namespace mneme
