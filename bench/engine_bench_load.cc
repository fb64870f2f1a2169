#include <chrono>
#include <cstdint>
#include <vector>

#include "base/status_macros.h"
#include "bench/engine_bench.h"
#include "bench/sample_statistics.h"
#include "models/checkpoint.h"

namespace mneme {

absl::StatusOr<BenchTable> BenchLoad(const EngineBenchSettings& settings) {
  constexpr int kRepeats = 3;
  double bytes = 0;
  {
    MNEME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(settings.model.model));
    for (const auto& file : checkpoint.files()) bytes += static_cast<double>(file->file().size());
  }
  BandwidthSampler bandwidth(settings.model.threads, settings.bandwidth_once);
  std::vector<double> seconds;
  std::string description;
  for (int i = 0; i <= kRepeats; ++i) {
    bandwidth.Measure();
    const auto start = std::chrono::steady_clock::now();
    ExitCode code = kExitFailure;
    MNEME_ASSIGN_OR_RETURN(const ToolRunner tool, ToolRunner::Load(settings.model, &code));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i > 0) seconds.push_back(took.count());
    description = tool.backend->description();
  }
  const double median = Median(seconds);
  // Each byte of the file is read, and written once in its resident layout.
  const double floor = FloorSeconds(bandwidth.median(), bytes, 0);
  BenchTable table("Load, files in the page cache (" + description + ")",
                   {{"file_mb", "file MB", 1},
                    {"seconds", "s", 3},
                    {"gb_per_second", "GB/s", 2},
                    {"seconds_per_gb", "s per GB", 2},
                    {"read_floor_seconds", "reading it, s", 3},
                    {"of_floor_percent", "of floor %", 0}});
  table.AddRow({bytes / 1e6, median, bytes / median / 1e9, median / (bytes / 1e9), floor,
                100 * floor / median});
  table.AddNote(bandwidth.ToString());
  return table;
}

}  // namespace mneme
