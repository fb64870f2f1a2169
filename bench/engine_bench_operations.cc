#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/bench_sessions.h"
#include "bench/engine_bench.h"
#include "bench/sample_statistics.h"

namespace mneme {
namespace {

// Tokens each session is fed first: enough that a memory nobody was routed to is rare.
constexpr int kPromptTokens = 16;

// Seconds of steps, and of their operations.
struct StepTimes {
  std::vector<double> whole;
  std::map<std::string, std::vector<double>> parts;

  void Add(double seconds, const std::map<std::string, double>& operations) {
    whole.push_back(seconds);
    for (const auto& [name, part] : operations) parts[name].push_back(part);
  }
};

// The operations of a step, the longest first, and last what lies between them.
void AddRows(const char* step, int64_t rows, int64_t tokens, const StepTimes& times,
             BenchTable& table) {
  const double whole = Median(times.whole);
  std::vector<std::pair<double, std::string>> parts;
  double rest = whole;
  for (const auto& [name, seconds] : times.parts) {
    parts.emplace_back(Median(seconds), name);
    rest -= parts.back().first;
  }
  std::sort(parts.rbegin(), parts.rend());
  parts.emplace_back(rest, "(between)");
  for (const auto& [seconds, name] : parts) {
    table.AddRow({step, rows, tokens, name, seconds * 1e3, 100 * seconds / whole});
  }
}

}  // namespace

absl::StatusOr<BenchTable> BenchOperations(const EngineBenchSettings& settings) {
  BenchTable table("Steps by operation", {{"step", "step"},
                                          {"rows", "rows"},
                                          {"tokens", "tokens"},
                                          {"operation", "operation"},
                                          {"ms", "ms", 3},
                                          {"share_percent", "share %", 1}});
  const int most =
      *std::max_element(settings.operation_rows.begin(), settings.operation_rows.end());
  std::fprintf(stderr, "operations: loading\n");
  MNEME_ASSIGN_OR_RETURN(const auto sessions, BenchSessions::Create({.model = settings.model,
                                                                     .sessions = most,
                                                                     .rows = most,
                                                                     .chunk = settings.chunk,
                                                                     .times_operations = true}));
  for (int i = 0; i < most; ++i) MNEME_RETURN_IF_ERROR(sessions->Feed(i, kPromptTokens).status());
  std::vector<int> all(static_cast<size_t>(most));
  std::iota(all.begin(), all.end(), 0);
  const int steps = settings.rounds * settings.steps;
  for (const int rows : settings.operation_rows) {
    const auto batch = std::span(all).first(static_cast<size_t>(rows));
    MNEME_RETURN_IF_ERROR(sessions->Decode(batch, DrawKind::kGreedy).status());  // warm-up
    StepTimes times;
    for (int step = 0; step < steps; ++step) {
      sessions->TakeOperationSeconds();
      MNEME_ASSIGN_OR_RETURN(const StepCost cost, sessions->Decode(batch, DrawKind::kGreedy));
      times.Add(cost.seconds, sessions->TakeOperationSeconds());
    }
    AddRows("decode", rows, 1, times, table);
  }
  StepTimes times;
  for (int step = 0; step < std::max(3, steps / 4); ++step) {
    sessions->Restart(0);
    sessions->TakeOperationSeconds();
    MNEME_ASSIGN_OR_RETURN(const StepCost cost, sessions->Feed(0, settings.chunk));
    times.Add(cost.seconds, sessions->TakeOperationSeconds());
  }
  AddRows("prompt", 1, settings.chunk, times, table);
  return table;
}

}  // namespace mneme
