// Whole segments on the CPU: checks, and how attention is divided.
#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cut_rows.h"
#include "kernels/ops/checks.h"

namespace mneme {

void CpuKernels::IndexWholeSegments(const IndexWholeSegmentsArgs& args) {
  Check(args, kCpuActivations);
  IndexWholeSegmentsOnHost(args);
}

void CpuKernels::SegmentAttention(const SegmentAttentionArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t heads = args.q.shape[1], dim = args.q.shape[2];
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  segment_rows_.clear();
  double nanoseconds = 0;
  int most = 0;
  for (int row = 0; row < static_cast<int>(args.slots.shape[0]); ++row) {
    const int tokens = offsets[row + 1] - offsets[row];
    if (args.slots.as<int32_t>()[row] < 0 || tokens == 0) continue;
    const int seen = args.seen.as<int32_t>()[row];
    segment_rows_.push_back(row);
    most = std::max(most, seen);
    nanoseconds += 0.15 * tokens * static_cast<double>((seen + 1) * heads * dim);
  }
  const auto run = [&](int64_t begin, int64_t end, int worker) {
    constexpr int64_t kPadding = 64;
    auto* scores = static_cast<float*>(workers_[static_cast<size_t>(worker)].attention.Reserve(
        (most + kPadding) * int64_t{sizeof(float)}));
    for (int64_t i = begin; i < end; ++i) {
      ops_.segment_attention(args, segment_rows_[static_cast<size_t>(i / heads)],
                             static_cast<int>(i % heads), scores);
    }
  };
  const int64_t tasks = static_cast<int64_t>(segment_rows_.size()) * heads;
  if (nanoseconds < kWorthSharingNanoseconds) {
    run(0, tasks, 0);
  } else {
    pool_.ParallelForDynamic(tasks, 1, run);
  }
}

}  // namespace mneme
