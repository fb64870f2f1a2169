#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/bench_sessions.h"
#include "bench/engine_bench.h"
#include "bench/sample_statistics.h"

namespace mneme {
namespace {

// Three sessions: one late, and two early ones, whose ratio shows what chance does.
absl::Status MeasureContext(const EngineBenchSettings& settings, const std::string& folder,
                            int64_t far, BenchTable& table, BandwidthSampler& bandwidth) {
  ModelFlags model = settings.model;
  model.model = folder;
  std::fprintf(stderr, "context: %s\n", folder.c_str());
  MNEME_ASSIGN_OR_RETURN(
      const auto sessions,
      BenchSessions::Create({.model = model, .sessions = 3, .chunk = settings.chunk}));
  const int64_t contexts[] = {settings.near_context, far, settings.near_context};
  for (int i = 0; i < 3; ++i) {
    MNEME_RETURN_IF_ERROR(sessions->Feed(i, contexts[i], /*progress=*/true).status());
  }
  std::vector<double> seconds[3], weights, state;
  bandwidth.Measure();
  // The order turns, so that no session always follows the same one.
  for (int step = 0; step < settings.context_steps + 3; ++step) {
    for (int turn = 0; turn < 3; ++turn) {
      const int session = (step + turn) % 3;
      MNEME_ASSIGN_OR_RETURN(const StepCost cost, sessions->Decode({&session, 1}, DrawKind::kTopP));
      if (step < 3) continue;  // warm-up
      seconds[session].push_back(cost.seconds);
      weights.push_back(cost.weight_bytes);
      state.push_back(cost.state_bytes);
    }
  }
  bandwidth.Measure();
  const double near = Median(seconds[0]);
  const double floor = FloorSeconds(bandwidth.median(), Median(weights), Median(state));
  table.AddRow({sessions->model().info().name, int64_t{sessions->model().info().layers},
                int64_t{settings.near_context}, far, near * 1e3, Median(seconds[1]) * 1e3,
                Median(seconds[1]) / near, Median(seconds[2]) / near, Median(weights) / 1e6,
                Median(state) / 1e6, floor * 1e3, 100 * floor / near,
                100 * floor / Mean(seconds[1]), int64_t{settings.context_steps}});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BenchTable> BenchContext(const EngineBenchSettings& settings) {
  BenchTable table("Decode step late in a session against early, one row, " +
                       settings.model.compute_dtype + ", interleaved",
                   {{"model", "model"},
                    {"layers", "layers"},
                    {"near_tokens", "early at"},
                    {"far_tokens", "late at"},
                    {"near_ms", "early ms", 3},
                    {"far_ms", "late ms", 3},
                    {"ratio", "late/early", 4},
                    {"control_ratio", "early/early", 4},
                    {"weight_mb", "weights MB", 1},
                    {"state_mb", "state MB", 1},
                    {"floor_ms", "floor ms", 3},
                    {"of_floor_percent", "of floor %", 1},
                    {"far_mean_of_floor_percent", "late in the mean %", 1},
                    {"steps", "steps"}});
  BandwidthSampler bandwidth(settings.model.threads, settings.bandwidth_once);
  MNEME_RETURN_IF_ERROR(
      MeasureContext(settings, settings.shallow, settings.far_context, table, bandwidth));
  if (settings.far_context_deep > 0 && settings.shallow != settings.model.model) {
    MNEME_RETURN_IF_ERROR(MeasureContext(settings, settings.model.model, settings.far_context_deep,
                                         table, bandwidth));
  }
  table.AddNote(bandwidth.ToString());
  return table;
}

}  // namespace mneme
