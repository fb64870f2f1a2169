// One token: a block has a tile of channels, each of its four warps a slice of their states, whole
// rows of the state at a time, and the slices' sums meet in shared memory.
#include "kernels/cuda/common/lanes.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/scan/launch.h"
#include "kernels/cuda/scan/token.cuh"

namespace mneme::cuda::scan {
namespace {

constexpr int kHeld = kFewStates / kSlices;  // states of a slice
static_assert(kThreads == kSlices * kWarp);

// kWidth: adjacent channels of a lane.
template <int kWidth, typename Y>
__global__ void __launch_bounds__(kThreads) StepKernel(const __grid_constant__ ScanParams p) {
  constexpr int kTile = kWarp * kWidth;
  __shared__ float sums[kSlices][kTile];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const Segment segment(p.segments, static_cast<int>(blockIdx.x) / p.tiles);
  if (segment.slot < 0 || segment.first == segment.end) return;
  const int slice = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int tile = static_cast<int>(blockIdx.x) % p.tiles * kTile;
  const int channel = tile + lane * kWidth;
  const int64_t row = int64_t{segment.first} * p.channels;
  // The outputs that a thread finishes, once the slices have met.
  const int own = static_cast<int>(threadIdx.x);
  const bool finishes = own < kTile && tile + own < p.channels;
  const int64_t at = row + tile + own;
  float skip = 0, own_u = 0, gate = 0;
  if (finishes) skip = p.skip[tile + own], own_u = p.u[at], gate = p.gate[at];
  if (channel < p.channels) {
    float* state = MemoryAt<float>(p.state, segment.slot, segment.memory) + channel;
    Lanes<kWidth> h[kHeld], rates[kHeld];
    float b[kHeld], c[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int n = slice + j * kSlices;
      h[j] = rates[j] = {};
      b[j] = c[j] = 0;
      if (n >= p.states) continue;
      if (segment.fresh == 0) h[j] = LoadLanes<kWidth>(state + int64_t{n} * p.channels);
      rates[j] = LoadLanes<kWidth>(p.a + int64_t{n} * p.channels + channel);
      b[j] = p.b[int64_t{segment.first} * p.states + n];
      c[j] = p.c[int64_t{segment.first} * p.states + n];
    }
    const Lanes<kWidth> dt = LoadLanes<kWidth>(p.dt + row + channel),
                        u = LoadLanes<kWidth>(p.u + row + channel);
    const Lanes<kWidth> bias = LoadLanes<kWidth>(p.dt_bias + channel);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float step = Softplus(dt.x[i] + bias.x[i]), input = step * u.x[i];
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        h[j].x[i] = NextState(h[j].x[i], Rate(rates[j].x[i]), step, input, b[j]);
        sum = fmaf(c[j], h[j].x[i], sum);
      }
      sums[slice][lane * kWidth + i] = sum;
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int n = slice + j * kSlices;
      if (n >= p.states) continue;
      float* const to = state + int64_t{n} * p.channels;
      if constexpr (kWidth == 4) {
        __stcs(reinterpret_cast<float4*>(to), float4{h[j].x[0], h[j].x[1], h[j].x[2], h[j].x[3]});
      } else {
        __stcs(to, h[j].x[0]);
      }
    }
  }
  __syncthreads();
  if (!finishes) return;
  const float read = (sums[0][own] + sums[1][own]) + (sums[2][own] + sums[3][own]);
  static_cast<Y*>(p.y)[at] = Output<Y>(read, skip, own_u, gate);
}

template <int kWidth>
void Launch(Device& device, ScanParams p, DType output) {
  constexpr int kTile = kWarp * kWidth;
  p.tiles = (p.channels + kTile - 1) / kTile;
  const auto kernel =
      output == DType::kBF16 ? StepKernel<kWidth, __nv_bfloat16> : StepKernel<kWidth, float>;
  LaunchOverlapping(device, "step of a selective scan", kernel, p.segments.count * p.tiles,
                    kThreads, 0, 1, p);
}

}  // namespace

void LaunchStep(Device& device, ScanParams p, DType output, bool in_fours) {
  // Narrow tiles where wide ones would leave multiprocessors without one.
  const int64_t wide_tiles = int64_t{p.segments.count} * ((p.channels + 127) / 128);
  if (in_fours && wide_tiles >= 2 * device.multiprocessors()) return Launch<4>(device, p, output);
  Launch<1>(device, p, output);
}

}  // namespace mneme::cuda::scan
