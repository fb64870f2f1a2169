// What a step of a neural memory takes of its tokens.
#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/neural_memory/keep_gate.cuh"
#include "kernels/cuda/neural_memory/neural_memory.h"

namespace mneme::cuda::neural_memory {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    KeepGateKernel(const float* x, const float* a_log, const float* dt_bias, int64_t items,
                   int heads, float* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= items) return;
  const bool exponential = a_log != nullptr;
  const int head = static_cast<int>(i % heads);
  y[i] = KeepOf(x[i], exponential, exponential ? a_log[head] : 0.0f,
                exponential ? dt_bias[head] : 0.0f);
}

__global__ void __launch_bounds__(kThreads)
    ChunkMeanKernel(const float* x, const int64_t* positions, SegmentArrays segments,
                    StateView state, int64_t chunk, int dim, int tiles, float* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const Segment segment(segments, static_cast<int>(blockIdx.x) / tiles);
  const int i = static_cast<int>(blockIdx.x) % tiles * kThreads + static_cast<int>(threadIdx.x);
  if (segment.slot < 0 || segment.first == segment.end || i >= dim) return;
  float* sums = MemoryAt<float>(state, segment.slot, segment.memory);
  float sum = sums[i];
  for (int e = segment.first; e < segment.end; ++e) {
    const int64_t at = int64_t{e} * dim + i;
    sum = positions[e] % chunk == 0 ? x[at] : sum + x[at];
    y[at] = sum / static_cast<float>(chunk);
  }
  sums[i] = sum;
}

__global__ void __launch_bounds__(kThreads)
    ChunkPoolKernel(const float* x, const float* logits, const int64_t* positions,
                    SegmentArrays segments, StateView state, int64_t chunk, int dim, int tiles,
                    float* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const Segment segment(segments, static_cast<int>(blockIdx.x) / tiles);
  const int i = static_cast<int>(blockIdx.x) % tiles * kThreads + static_cast<int>(threadIdx.x);
  if (segment.slot < 0 || segment.first == segment.end || i >= dim) return;
  float* sums = MemoryAt<float>(state, segment.slot, segment.memory);
  float largest = sums[i], total = sums[dim + i], weighted = sums[2 * dim + i];
  for (int e = segment.first; e < segment.end; ++e) {
    const int64_t at = int64_t{e} * dim + i;
    const float logit = logits[at], value = x[at];
    if (positions[e] % chunk == 0) {
      largest = logit;
      total = 1;
      weighted = value;
    } else {
      const float most = fmaxf(largest, logit);
      const float old = expf(largest - most), own = expf(logit - most);
      total = fmaf(total, old, own);
      weighted = fmaf(weighted, old, own * value);
      largest = most;
    }
    y[at] = weighted / total;
  }
  sums[i] = largest;
  sums[dim + i] = total;
  sums[2 * dim + i] = weighted;
}

}  // namespace

void KeepGate(Device& device, const KeepGateArgs& args) {
  const int64_t items = args.x.shape.elements();
  if (items == 0) return;
  LaunchOverlapping(
      device, "KeepGate", KeepGateKernel, static_cast<int>((items + kThreads - 1) / kThreads),
      kThreads, 0, 1, args.x.as<const float>(), args.a_log.as<const float>(),
      args.dt_bias.as<const float>(), items, static_cast<int>(args.x.shape[1]), args.y.as<float>());
}

void ChunkMean(Device& device, const ChunkMeanArgs& args) {
  const int dim = static_cast<int>(args.x.shape[1]);
  if (args.segments.count == 0 || args.x.shape[0] == 0 || dim == 0) return;
  const int tiles = (dim + kThreads - 1) / kThreads;
  LaunchOverlapping(device, "ChunkMean", ChunkMeanKernel, args.segments.count * tiles, kThreads, 0,
                    1, args.x.as<const float>(), args.positions.as<const int64_t>(),
                    ArraysOf(args.segments), args.sums, args.chunk, dim, tiles, args.y.as<float>());
}

void ChunkPool(Device& device, const ChunkPoolArgs& args) {
  const int dim = static_cast<int>(args.x.shape[1]);
  if (args.segments.count == 0 || args.x.shape[0] == 0 || dim == 0) return;
  const int tiles = (dim + kThreads - 1) / kThreads;
  LaunchOverlapping(device, "ChunkPool", ChunkPoolKernel, args.segments.count * tiles, kThreads, 0,
                    1, args.x.as<const float>(), args.logits.as<const float>(),
                    args.positions.as<const int64_t>(), ArraysOf(args.segments), args.sums,
                    args.chunk, dim, tiles, args.y.as<float>());
}

}  // namespace mneme::cuda::neural_memory
