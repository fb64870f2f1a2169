// One token: a block has a tile of channels, each of its four warps a slice of their states, whole
// rows of the state at a time, and the slices' sums meet in shared memory.
#include <algorithm>

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/common/lanes.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/scan/launch.h"
#include "kernels/cuda/scan/token.cuh"

namespace mneme::cuda::scan {
namespace {

constexpr int kHeld = kFewStates / kSlices;  // states of a slice
static_assert(kThreads == kSlices * kWarp);

__device__ inline bool HasToken(const Segment& segment) {
  return segment.slot >= 0 && segment.first != segment.end;
}

// The parameters that a lane's kWidth adjacent channels have in its slice, and the skip of the
// channel that a thread finishes. They are weights, and come while the kernel ahead still runs.
template <int kWidth>
struct Parameters {
  __device__ Parameters(const ScanParams& p, int slice, int channel, int finished) {
    const bool exists = channel < p.channels;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int n = slice + j * kSlices;
      rates[j] = {};
      if (exists && n < p.states) {
        rates[j] = LoadLanes<kWidth>(p.a + int64_t{n} * p.channels + channel);
      }
#pragma unroll
      for (float& rate : rates[j].x) rate = Rate(rate);
    }
    if (exists) bias = LoadLanes<kWidth>(p.dt_bias + channel);
    if (finished < p.channels) skip = p.skip[finished];
  }

  Lanes<kWidth> rates[kHeld], bias = {};
  float skip = 0;
};

__device__ inline float SumSlices(const float a, const float b, const float c, const float d) {
  return (a + b) + (c + d);
}

// Tiles of a channel for each lane: where there are few tiles, or rows do not go in fours.
template <typename Y>
__global__ void __launch_bounds__(kThreads) NarrowKernel(const __grid_constant__ ScanParams p) {
  __shared__ float sums[kSlices][kWarp];
  LetNextKernelStart();
  const int slice = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int channel = static_cast<int>(blockIdx.x) % p.tiles * kWarp + lane;
  const Parameters<1> parameters(p, slice, channel, channel);
  WaitForPreviousKernel();
  const Segment segment(p.segments, static_cast<int>(blockIdx.x) / p.tiles);
  if (!HasToken(segment)) return;
  const bool exists = channel < p.channels;
  const int64_t at = int64_t{segment.first} * p.channels + channel;
  float u = 0, gate = 0;
  if (exists) {
    float* const state = MemoryAt<float>(p.state, segment.slot, segment.memory) + channel;
    float h[kHeld], b[kHeld], c[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int n = slice + j * kSlices;
      h[j] = b[j] = c[j] = 0;
      if (n >= p.states) continue;
      if (segment.fresh == 0) h[j] = state[int64_t{n} * p.channels];
      b[j] = p.b[int64_t{segment.first} * p.states + n];
      c[j] = p.c[int64_t{segment.first} * p.states + n];
    }
    u = p.u[at];
    if (slice == 0) gate = p.gate[at];
    const float step = Softplus(p.dt[at] + parameters.bias.x[0]), input = step * u;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      h[j] = NextState(h[j], parameters.rates[j].x[0], step, input, b[j]);
      sum = fmaf(c[j], h[j], sum);
    }
    sums[slice][lane] = sum;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int n = slice + j * kSlices;
      if (n < p.states) __stcs(state + int64_t{n} * p.channels, h[j]);
    }
  }
  __syncthreads();
  if (slice > 0 || !exists) return;
  const float read = SumSlices(sums[0][lane], sums[1][lane], sums[2][lane], sums[3][lane]);
  static_cast<Y*>(p.y)[at] = Output<Y>(read, parameters.skip, u, gate);
}

// Tiles of four channels for each lane. A block stays with a tile, of which it keeps the
// parameters, and takes it through every so many segments. What these bring comes by way of shared
// memory, that of the next ones while one is worked on: registers, and the cache in front of them,
// have no room for as much as has to be on its way.
constexpr int kTile = 4 * kWarp;
static_assert(kTile == kThreads);                         // a thread finishes a channel
constexpr int kStages = 3, kBlocks = 6, kBlocksOnce = 4;  // of a multiprocessor

struct alignas(16) Stage {
  float state[kFewStates][kTile];
  float u[kTile], dt[kTile], gate[kTile];
  float b[kFewStates], c[kFewStates];
};

// kOnce: as many blocks as tiles of all segments.
template <bool kOnce, typename Y>
__global__ void __launch_bounds__(kThreads, kOnce ? kBlocksOnce : kBlocks)
    WideKernel(const __grid_constant__ ScanParams p) {
  __shared__ Stage stages[kOnce ? 1 : kStages];
  __shared__ float sums[kSlices][kTile];
  LetNextKernelStart();
  const int slice = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int own = static_cast<int>(threadIdx.x);
  const int tile = static_cast<int>(blockIdx.x) % p.tiles * kTile, channel = tile + lane * 4;
  const bool exists = channel < p.channels;
  const Parameters<4> parameters(p, slice, channel, tile + own);
  WaitForPreviousKernel();

  // Each thread copies what it reads of the state.
  const auto fill = [&](const Segment& segment, Stage& stage) {
    if (exists) {
      const float* const state = MemoryAt<float>(p.state, segment.slot, segment.memory) + channel;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        const int n = slice + j * kSlices;
        if (segment.fresh != 0 || n >= p.states) continue;
        CopyAsync16(&stage.state[n][lane * 4], state + int64_t{n} * p.channels);
      }
      const int64_t row = int64_t{segment.first} * p.channels + channel;
      if (slice == 0) CopyAsync16(&stage.u[lane * 4], p.u + row);
      if (slice == 1) CopyAsync16(&stage.dt[lane * 4], p.dt + row);
      if (slice == 2) CopyAsync16(&stage.gate[lane * 4], p.gate + row);
    }
    const int n = lane % kFewStates;
    if (slice == 3 && n < p.states) {
      const int64_t from = int64_t{segment.first} * p.states + n;
      if (lane < kFewStates) {
        CopyAsync4(&stage.b[n], p.b + from);
      } else {
        CopyAsync4(&stage.c[n], p.c + from);
      }
    }
  };
  const auto take = [&](const Segment& segment, const Stage& stage) {
    if (exists) {
      float* const state = MemoryAt<float>(p.state, segment.slot, segment.memory) + channel;
      const Lanes<4> dt = LoadLanes<4>(&stage.dt[lane * 4]), u = LoadLanes<4>(&stage.u[lane * 4]);
      Lanes<4> steps, inputs, of_slice = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        steps.x[i] = Softplus(dt.x[i] + parameters.bias.x[i]);
        inputs.x[i] = steps.x[i] * u.x[i];
      }
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        const int n = slice + j * kSlices;
        if (n >= p.states) continue;
        Lanes<4> h = {};
        if (segment.fresh == 0) h = LoadLanes<4>(&stage.state[n][lane * 4]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          h.x[i] = NextState(h.x[i], parameters.rates[j].x[i], steps.x[i], inputs.x[i], stage.b[n]);
          of_slice.x[i] = fmaf(stage.c[n], h.x[i], of_slice.x[i]);
        }
        __stcs(reinterpret_cast<float4*>(state + int64_t{n} * p.channels),
               float4{h.x[0], h.x[1], h.x[2], h.x[3]});
      }
      SaveLanes(&sums[slice][lane * 4], of_slice);
    }
    __syncthreads();
    if (tile + own >= p.channels) return;
    const float read = SumSlices(sums[0][own], sums[1][own], sums[2][own], sums[3][own]);
    static_cast<Y*>(p.y)[int64_t{segment.first} * p.channels + tile + own] =
        Output<Y>(read, parameters.skip, stage.u[own], stage.gate[own]);
  };

  int s = static_cast<int>(blockIdx.x) / p.tiles;
  if constexpr (kOnce) {
    const Segment segment(p.segments, s);
    if (!HasToken(segment)) return;
    fill(segment, stages[0]);
    AwaitCopies();
    __syncthreads();
    take(segment, stages[0]);
  } else {
    const int count = p.segments.count, apart = static_cast<int>(gridDim.x) / p.tiles;
    // Past the last one: one that has no token.
    const auto find = [&](int at) {
      Segment segment(p.segments, min(at, count - 1));
      if (at >= count) segment.slot = -1;
      return segment;
    };
    const auto begin = [&](const Segment& segment, Stage& stage) {
      if (HasToken(segment)) fill(segment, stage);
      CommitCopies();
    };
    static_assert(kStages == 3);
    const Segment first = find(s), second = find(s + apart);
    Segment next = find(s + 2 * apart);
    begin(first, stages[0]);
    begin(second, stages[1]);
    int at = 0;
    for (; s < count; s += apart) {
      const Segment segment(p.segments, s);
      WaitCopies<kStages - 2>();
      __syncthreads();  // and nobody reads the stage before any longer
      begin(next, stages[at == 0 ? kStages - 1 : at - 1]);
      next = find(s + kStages * apart);
      const Stage& stage = stages[at];
      at = at == kStages - 1 ? 0 : at + 1;
      if (HasToken(segment)) take(segment, stage);
    }
  }
}

int TilesOf(int channels, int tile) { return (channels + tile - 1) / tile; }

void LaunchNarrow(Device& device, ScanParams p, DType output) {
  p.tiles = TilesOf(p.channels, kWarp);
  const auto kernel = output == DType::kBF16 ? NarrowKernel<__nv_bfloat16> : NarrowKernel<float>;
  LaunchOverlapping(device, "step of a selective scan", kernel, p.segments.count * p.tiles,
                    kThreads, 0, 1, p);
}

template <bool kOnce>
void LaunchWide(Device& device, const ScanParams& p, DType output, int segments) {
  const auto kernel =
      output == DType::kBF16 ? WideKernel<kOnce, __nv_bfloat16> : WideKernel<kOnce, float>;
  LaunchOverlapping(device, "step of a selective scan", kernel, segments * p.tiles, kThreads, 0, 1,
                    p);
}

}  // namespace

void LaunchStep(Device& device, ScanParams p, DType output, bool in_fours) {
  p.tiles = TilesOf(p.channels, kTile);
  const int count = p.segments.count, at_once = device.multiprocessors() / p.tiles;
  // Narrow tiles where wide ones would leave multiprocessors without one.
  if (!in_fours || count < 2 * at_once) return LaunchNarrow(device, p, output);
  if (count <= kBlocksOnce * at_once) return LaunchWide<true>(device, p, output, count);
  LaunchWide<false>(device, p, output,
                    std::clamp(kBlocks * device.multiprocessors() / p.tiles, 1, count));
}

}  // namespace mneme::cuda::scan
