// What a step of a neural memory takes of its tokens.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/common/blocks.h"
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

// Loads of a thread that are under way at once.
constexpr int kAhead = 8;

// The channel of a thread in some of a segment's chunks. `turns` blocks share the chunks; the first
// of them has those that reach beyond the segment, the first and the last one, since it alone may
// see the sums of the open chunk.
struct ChunkTurn {
  const int64_t* positions;
  SegmentArrays segments;
  StateView state;
  int64_t chunk;
  int dim, tiles, turns;

  // take(first entry, end, sums of the chunk or null, where to leave them or null, channel).
  template <typename Take>
  __device__ void ForEachChunk(const Take& take) const {
    const int block = static_cast<int>(blockIdx.x) / tiles, turn = block % turns;
    const Segment segment(segments, block / turns);
    const int i = static_cast<int>(blockIdx.x) % tiles * kThreads + static_cast<int>(threadIdx.x);
    if (segment.slot < 0 || segment.first == segment.end || i >= dim) return;
    float* const sums = MemoryAt<float>(state, segment.slot, segment.memory);
    const int64_t open = positions[segment.first] % chunk;
    const int64_t tokens = segment.end - segment.first;
    const int64_t last = (open + tokens - 1) / chunk;
    const int64_t stop = turn == 0 ? last + 1 : last;
    const int64_t step = turns == 1 ? 1 : turn == 0 ? max(last, int64_t{1}) : turns - 1;
    for (int64_t n = turn; n < stop; n += step) {
      const int64_t from = max(n * chunk - open, int64_t{0});
      const int64_t to = min((n + 1) * chunk - open, tokens);
      take(segment.first + static_cast<int>(from), segment.first + static_cast<int>(to),
           n == 0 && open > 0 ? sums : nullptr, n == last ? sums : nullptr, i);
    }
  }
};

__global__ void __launch_bounds__(kThreads)
    ChunkMeanKernel(const float* x, const __grid_constant__ ChunkTurn own, float* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  own.ForEachChunk([&](int from, int end, const float* sums, float* to, int i) {
    float sum = sums == nullptr ? 0.0f : sums[i];
    for (int e = from; e < end; e += kAhead) {
      float values[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (e + n < end) values[n] = x[int64_t{e + n} * own.dim + i];
      }
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (e + n >= end) break;
        sum += values[n];
        y[int64_t{e + n} * own.dim + i] = sum / static_cast<float>(own.chunk);
      }
    }
    if (to != nullptr) to[i] = sum;
  });
}

__global__ void __launch_bounds__(kThreads)
    ChunkPoolKernel(const float* x, const float* logits, const __grid_constant__ ChunkTurn own,
                    float* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  own.ForEachChunk([&](int from, int end, const float* sums, float* to, int i) {
    const int dim = own.dim;
    // Those of nothing: no logit is less.
    float largest = -INFINITY, total = 0, weighted = 0;
    if (sums != nullptr) {
      largest = sums[i];
      total = sums[dim + i];
      weighted = sums[2 * dim + i];
    }
    for (int e = from; e < end; e += kAhead) {
      float own_logits[kAhead], values[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (e + n >= end) break;
        own_logits[n] = logits[int64_t{e + n} * dim + i];
        values[n] = x[int64_t{e + n} * dim + i];
      }
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (e + n >= end) break;
        const float most = fmaxf(largest, own_logits[n]);
        const float old = expf(largest - most), weight = expf(own_logits[n] - most);
        total = fmaf(total, old, weight);
        weighted = fmaf(weighted, old, weight * values[n]);
        largest = most;
        y[int64_t{e + n} * dim + i] = weighted / total;
      }
    }
    if (to == nullptr) return;
    to[i] = largest;
    to[dim + i] = total;
    to[2 * dim + i] = weighted;
  });
}

// A block for each whole chunk of the longest segment and one for the others, up to what keeps a
// device busy.
ChunkTurn TurnsOf(const Device& device, const TensorView& x, const TensorView& positions,
                  const Segments& segments, const StateView& sums, int64_t chunk) {
  constexpr int64_t kMostBlocks = 64;  // of a multiprocessor
  const auto dim = static_cast<int>(x.shape[1]);
  const int tiles = (dim + kThreads - 1) / kThreads;
  const int64_t longest = segments.longest > 0 ? segments.longest : x.shape[0];
  const int64_t most = kMostBlocks * device.multiprocessors() / (int64_t{tiles} * segments.count);
  return {.positions = positions.as<const int64_t>(),
          .segments = ArraysOf(segments),
          .state = sums,
          .chunk = chunk,
          .dim = dim,
          .tiles = tiles,
          .turns = static_cast<int>(
              std::clamp<int64_t>(1 + (longest - 2) / chunk, 1, std::max<int64_t>(most, 1)))};
}

}  // namespace

void KeepGate(Device& device, const KeepGateArgs& args) {
  const int64_t items = args.x.shape.elements();
  if (items == 0) return;
  LaunchOverlapping(device, "KeepGate", KeepGateKernel, BlocksFor(items, kThreads), kThreads, 0, 1,
                    args.x.as<const float>(), args.a_log.as<const float>(),
                    args.dt_bias.as<const float>(), items, static_cast<int>(args.x.shape[1]),
                    args.y.as<float>());
}

void ChunkMean(Device& device, const ChunkMeanArgs& args) {
  if (args.segments.count == 0 || args.x.shape.elements() == 0) return;
  const ChunkTurn own =
      TurnsOf(device, args.x, args.positions, args.segments, args.sums, args.chunk);
  LaunchOverlapping(device, "ChunkMean", ChunkMeanKernel,
                    args.segments.count * own.turns * own.tiles, kThreads, 0, 1,
                    args.x.as<const float>(), own, args.y.as<float>());
}

void ChunkPool(Device& device, const ChunkPoolArgs& args) {
  if (args.segments.count == 0 || args.x.shape.elements() == 0) return;
  const ChunkTurn own =
      TurnsOf(device, args.x, args.positions, args.segments, args.sums, args.chunk);
  LaunchOverlapping(
      device, "ChunkPool", ChunkPoolKernel, args.segments.count * own.turns * own.tiles, kThreads,
      0, 1, args.x.as<const float>(), args.logits.as<const float>(), own, args.y.as<float>());
}

}  // namespace mneme::cuda::neural_memory
