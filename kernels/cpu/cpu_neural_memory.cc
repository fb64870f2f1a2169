// Neural memories on the CPU: checks, and how they are divided.
#include <algorithm>

#include "base/log.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/checks.h"
#include "kernels/surprise.h"

namespace mneme {

void CpuKernels::NeuralMemory(const NeuralMemoryArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t heads = args.q.shape[1], dim = args.q.shape[2];
  active_segments_.clear();
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  int64_t tokens = 0, weights = 0;
  for (int s = 0; s < args.segments.count; ++s) {
    if (offsets[s] == offsets[s + 1] || args.segments.slots.as<int32_t>()[s] < 0) continue;
    active_segments_.push_back(s);
    tokens += offsets[s + 1] - offsets[s];
  }
  for (int l = 1; l <= args.network.depth; ++l) {
    weights += args.network.in(l, dim) * args.network.out(l, dim);
  }
  const int64_t scratch_bytes =
      ops_.neural_memory_scratch(args) * static_cast<int64_t>(sizeof(float));
  const auto run = [&](int64_t begin, int64_t end, int worker) {
    auto* scratch = static_cast<float*>(
        workers_[static_cast<size_t>(worker)].neural_memory.Reserve(scratch_bytes));
    for (int64_t i = begin; i < end; ++i) {
      ops_.neural_memory(args, active_segments_[static_cast<size_t>(i / heads)],
                         static_cast<int>(i % heads), scratch);
    }
  };
  const auto tasks = static_cast<int64_t>(active_segments_.size()) * heads;
  if (0.5 * static_cast<double>(tokens * heads * weights) < kWorthSharingNanoseconds) {
    return run(0, tasks, 0);
  }
  pool_.ParallelForDynamic(tasks, 1, run);
}

void CpuKernels::KeepGate(const KeepGateArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.x.shape[0], 1, 3.0 * static_cast<double>(args.x.shape[1]) + 10,
      [&](int64_t begin, int64_t end) { ops_.keep_gate(args, begin, end); });
}

void CpuKernels::ChunkMean(const ChunkMeanArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.x.shape[1], 16, 0.3 * static_cast<double>(args.x.shape[0] + 1),
      [&](int64_t begin, int64_t end) { ops_.chunk_mean(args, begin, end); });
}

void CpuKernels::ChunkPool(const ChunkPoolArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.x.shape[1], 16, 3.0 * static_cast<double>(args.x.shape[0] + 1),
      [&](int64_t begin, int64_t end) { ops_.chunk_pool(args, begin, end); });
}

void CpuKernels::Surprise(const SurpriseArgs& args) {
  Check(args, kCpuActivations);
  For(args.surprise.shape[0], 1, static_cast<double>(args.read.shape[1] * args.read.shape[2]),
      [&](int64_t begin, int64_t end) { SurpriseOnHost<float>(args, begin, end); });
}

}  // namespace mneme
