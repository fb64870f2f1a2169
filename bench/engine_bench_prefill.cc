#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/bench_sessions.h"
#include "bench/engine_bench.h"
#include "bench/matrix_product.h"
#include "bench/sample_statistics.h"

namespace mneme {
namespace {

// oneDNN has bf16 products for hosts without the instructions, or refuses; neither is a measure.
bool HasBf16Instructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

// GFLOP/s of oneDNN for the products of a step of `tokens` tokens, each weighted by how often the
// network has it; 0 in builds without oneDNN.
double OneDnnFlops(const std::vector<StepTraffic::Product>& products, int tokens,
                   Backend& backend) {
  constexpr int kRepeats = 5;
  double flops = 0, seconds = 0;
  for (const StepTraffic::Product& shape : products) {
    const int rows = std::max(1, static_cast<int>(shape.share * tokens + 0.5));
    MatrixProduct product(backend, rows, shape.out_features, shape.in_features);
    if (!product.HasOneDnn()) return 0;
    std::vector<double> times;
    product.RunOneDnn();
    for (int i = 0; i < kRepeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      product.RunOneDnn();
      times.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    flops += 2.0 * shape.count * rows * shape.out_features * shape.in_features;
    seconds += shape.count * Median(times);
  }
  return seconds > 0 ? flops / seconds : 0;
}

struct Samples {
  std::vector<double> seconds, floor, one_dnn, share;
  StepCost cost;  // of the last one
};

absl::Status MeasurePrefill(const EngineBenchSettings& settings, const std::string& compute_dtype,
                            BenchTable& table, BandwidthSampler& bandwidth) {
  ModelFlags model = settings.model;
  model.compute_dtype = compute_dtype;
  std::fprintf(stderr, "prefill %s: loading\n", compute_dtype.c_str());
  MNEME_ASSIGN_OR_RETURN(const auto sessions,
                         BenchSessions::Create({.model = model, .chunk = settings.chunk}));
  const bool compare = compute_dtype == "f32" || HasBf16Instructions();
  MNEME_RETURN_IF_ERROR(sessions->Feed(0, settings.chunk).status());  // warm-up
  std::map<int, Samples> samples;
  for (int round = 0; round < settings.prefill_rounds; ++round) {
    std::fprintf(stderr, "prefill %s: round %d of %d\n", compute_dtype.c_str(), round + 1,
                 settings.prefill_rounds);
    const MemoryBandwidth now = bandwidth.Measure();
    std::map<int, double> one_dnn;  // by tokens of a step
    for (const int tokens : settings.prefill_tokens) {
      Samples& s = samples[tokens];
      sessions->Restart(0);
      MNEME_ASSIGN_OR_RETURN(s.cost, sessions->Feed(0, tokens));
      s.seconds.push_back(s.cost.seconds);
      s.floor.push_back(FloorSeconds(now, s.cost.weight_bytes, s.cost.state_bytes));
      if (!compare) continue;
      const int step = std::min(tokens, settings.chunk);
      if (!one_dnn.contains(step)) {
        one_dnn[step] = OneDnnFlops(sessions->traffic().products(), step, sessions->backend());
      }
      if (one_dnn[step] > 0) {
        s.one_dnn.push_back(one_dnn[step]);
        s.share.push_back(s.cost.flops / s.cost.seconds / one_dnn[step]);
      }
    }
  }
  for (const auto& [tokens, s] : samples) {
    const double seconds = Median(s.seconds), floor = Median(s.floor);
    const bool compared = !s.share.empty();
    table.AddRow(
        {int64_t{tokens}, compute_dtype, seconds, tokens / seconds, s.cost.flops / seconds / 1e9,
         compared ? BenchCell(Median(s.one_dnn) / 1e9) : BenchCell(),
         compared ? BenchCell(100 * Median(s.share)) : BenchCell(), s.cost.weight_bytes / 1e6,
         s.cost.state_bytes / 1e6, floor * 1e3, 100 * floor / seconds});
  }
  if (!compare) {
    table.AddNote("oneDNN in bf16: not measured, this host has no bf16 instructions.");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BenchTable> BenchPrefill(const EngineBenchSettings& settings) {
  BenchTable table(
      "Prefill of one session, in steps of up to " + std::to_string(settings.chunk) + " tokens",
      {{"tokens", "tokens"},
       {"compute_dtype", "arithmetic"},
       {"seconds", "s", 3},
       {"tokens_per_second", "tokens/s", 1},
       {"gflops", "GFLOP/s", 1},
       {"onednn_gflops", "oneDNN GFLOP/s", 1},
       {"of_onednn_percent", "of oneDNN %", 1},
       {"weight_mb", "weights MB", 1},
       {"state_mb", "state MB", 1},
       {"floor_ms", "floor ms", 1},
       {"of_floor_percent", "of floor %", 1}});
  BandwidthSampler bandwidth(settings.model.threads, settings.bandwidth_once);
  for (const std::string& compute_dtype : settings.compute_dtypes) {
    MNEME_RETURN_IF_ERROR(MeasurePrefill(settings, compute_dtype, table, bandwidth));
  }
  table.AddNote(bandwidth.ToString());
  return table;
}

}  // namespace mneme
