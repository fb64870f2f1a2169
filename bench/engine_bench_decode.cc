#include <algorithm>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "bench/bench_sessions.h"
#include "bench/engine_bench.h"
#include "bench/sample_statistics.h"

namespace mneme {
namespace {

// Tokens each session is fed first: enough that a memory nobody was routed to is rare.
constexpr int kPromptTokens = 16;
// Beside slabs: weights, workspace, and the blocks in which the bandwidth is measured.
constexpr int64_t kReserveBytes = int64_t{2} << 30;

struct Samples {
  std::vector<double> seconds, sampling, weights, state, floor, share;

  void Add(const StepCost& cost, const MemoryBandwidth& bandwidth) {
    const double least = FloorSeconds(bandwidth, cost.weight_bytes, cost.state_bytes);
    seconds.push_back(cost.seconds);
    sampling.push_back(cost.sampling_seconds);
    weights.push_back(cost.weight_bytes);
    state.push_back(cost.state_bytes);
    floor.push_back(least);
    share.push_back(least / cost.seconds);
  }
};

absl::StatusOr<int64_t> AvailableBytes() {
  MNEME_ASSIGN_OR_RETURN(const auto backend, MakeBackend("cpu", {.threads = 1}));
  return backend->AvailableBytes();
}

constexpr DrawKind kKinds[] = {DrawKind::kGreedy, DrawKind::kTopP};

absl::Status MeasureDecode(const EngineBenchSettings& settings, const std::string& compute_dtype,
                           BenchTable& table, BandwidthSampler& bandwidth) {
  ModelFlags model = settings.model;
  model.compute_dtype = compute_dtype;
  MNEME_ASSIGN_OR_RETURN(const ModelPlan plan,
                         PlanModel(model.model, StateFormat{}, model.options()));
  MNEME_ASSIGN_OR_RETURN(const int64_t available, AvailableBytes());
  const int64_t room = available - plan.info.weight_bytes - kReserveBytes;
  std::vector<int> batches;
  for (const int rows : settings.decode_rows) {
    if (rows * plan.state_layout.slab_bytes() <= room) {
      batches.push_back(rows);
    } else {
      table.AddNote(absl::StrFormat("%d rows %s: not measured, %.1f GB of state do not fit", rows,
                                    compute_dtype, 1e-9 * rows * plan.state_layout.slab_bytes()));
    }
  }
  if (batches.empty()) return absl::OkStatus();
  const int most = *std::max_element(batches.begin(), batches.end());
  std::fprintf(stderr, "decode %s: loading\n", compute_dtype.c_str());
  MNEME_ASSIGN_OR_RETURN(
      const auto sessions,
      BenchSessions::Create(
          {.model = model, .sessions = most, .rows = most, .chunk = settings.chunk}));
  for (int i = 0; i < most; ++i) MNEME_RETURN_IF_ERROR(sessions->Feed(i, kPromptTokens).status());
  std::vector<int> all(static_cast<size_t>(most));
  std::iota(all.begin(), all.end(), 0);

  std::vector<Samples> samples(batches.size() * std::size(kKinds));
  for (int round = 0; round < settings.rounds; ++round) {
    std::fprintf(stderr, "decode %s: round %d of %d\n", compute_dtype.c_str(), round + 1,
                 settings.rounds);
    const MemoryBandwidth now = bandwidth.Measure();
    for (size_t b = 0; b < batches.size(); ++b) {
      const auto rows = std::span(all).first(static_cast<size_t>(batches[b]));
      MNEME_RETURN_IF_ERROR(sessions->Decode(rows, DrawKind::kTopP).status());  // warm-up
      for (int step = 0; step < settings.steps; ++step) {
        for (size_t k = 0; k < std::size(kKinds); ++k) {
          MNEME_ASSIGN_OR_RETURN(const StepCost cost, sessions->Decode(rows, kKinds[k]));
          samples[b * std::size(kKinds) + k].Add(cost, now);
        }
      }
    }
  }
  for (size_t b = 0; b < batches.size(); ++b) {
    for (size_t k = 0; k < std::size(kKinds); ++k) {
      const Samples& s = samples[b * std::size(kKinds) + k];
      const double seconds = Median(s.seconds);
      table.AddRow({int64_t{batches[b]}, compute_dtype, Name(kKinds[k]), seconds * 1e3,
                    batches[b] / seconds, Median(s.sampling) * 1e3, Median(s.weights) / 1e6,
                    Median(s.state) / 1e6, Median(s.floor) * 1e3, 100 * Median(s.share),
                    static_cast<int64_t>(s.seconds.size())});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BenchTable> BenchDecode(const EngineBenchSettings& settings) {
  BenchTable table("Decode, one token per row and step", {{"rows", "rows"},
                                                          {"compute_dtype", "arithmetic"},
                                                          {"sampling", "sampling"},
                                                          {"ms_per_step", "ms/step", 2},
                                                          {"tokens_per_second", "tokens/s", 1},
                                                          {"sampling_ms", "sampling ms", 2},
                                                          {"weight_mb", "weights MB", 1},
                                                          {"state_mb", "state MB", 1},
                                                          {"floor_ms", "floor ms", 2},
                                                          {"of_floor_percent", "of floor %", 1},
                                                          {"steps", "steps"}});
  BandwidthSampler bandwidth(settings.model.threads, settings.bandwidth_once);
  for (const std::string& compute_dtype : settings.compute_dtypes) {
    MNEME_RETURN_IF_ERROR(MeasureDecode(settings, compute_dtype, table, bandwidth));
  }
  table.AddNote(bandwidth.ToString());
  return table;
}

}  // namespace mneme
