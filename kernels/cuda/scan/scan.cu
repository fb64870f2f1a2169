// Scans along segments with all states in registers. A warp has eight channels, a sector of the
// state's rows, and each channel has four lanes, between which its states are dealt out: enough
// threads to wait for memory together in a decode step, and two shuffles for a sum.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/scan/scan.h"

namespace mneme::cuda::scan {
namespace {

constexpr int kThreads = 128;
constexpr int kWarpChannels = 8, kSlices = kWarp / kWarpChannels;
constexpr int kBlockChannels = kThreads / kWarp * kWarpChannels;

__device__ inline float Softplus(float z) { return z > 20.0f ? z : log1pf(expf(z)); }

struct ScanParams {
  const float *u, *dt, *b, *c, *a, *dt_bias, *skip, *gate;
  SegmentArrays segments;
  StateView state;
  void* y;
  int channels, states, tiles;
};

// The inputs of one token, as a lane holds them.
template <int kHeld>
struct Inputs {
  float u, dt, gate;
  float b[kHeld], c[kHeld];
};

// kHeld: states of a lane. kAhead: the next token's inputs are loaded while one is worked on.
template <int kHeld, bool kAhead, typename Y>
__global__ void __launch_bounds__(kThreads) ScanKernel(const __grid_constant__ ScanParams p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const Segment segment(p.segments, static_cast<int>(blockIdx.x) / p.tiles);
  if (segment.slot < 0 || segment.first == segment.end) return;
  const int lane = threadIdx.x % kWarp, slice = lane / kWarpChannels;
  const int first = static_cast<int>(blockIdx.x) % p.tiles * kBlockChannels +
                    static_cast<int>(threadIdx.x) / kWarp * kWarpChannels;
  if (first >= p.channels) return;  // whole warps: lanes meet in shuffles
  const bool exists = first + lane % kWarpChannels < p.channels;
  const int channel = exists ? first + lane % kWarpChannels : p.channels - 1;
  const auto state_of = [&](int j) { return slice + j * kSlices; };

  float* state = MemoryAt<float>(p.state, segment.slot, segment.memory) + channel;
  float h[kHeld], a[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int n = state_of(j);
    const bool has = n < p.states;
    a[j] = has ? p.a[int64_t{n} * p.channels + channel] : 0.0f;
    h[j] = has && segment.fresh == 0 ? state[int64_t{n} * p.channels] : 0.0f;
  }
  const float dt_bias = p.dt_bias[channel], skip = p.skip[channel];

  const auto load = [&](int entry) {
    Inputs<kHeld> in;
    const int64_t at = int64_t{entry} * p.channels + channel;
    in.u = p.u[at], in.dt = p.dt[at], in.gate = p.gate[at];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int n = state_of(j);
      const int64_t of = int64_t{entry} * p.states + n;
      in.b[j] = n < p.states ? p.b[of] : 0.0f;
      in.c[j] = n < p.states ? p.c[of] : 0.0f;
    }
    return in;
  };
  Inputs<kHeld> next = load(segment.first);
  for (int entry = segment.first; entry < segment.end; ++entry) {
    const Inputs<kHeld> in = next;
    if (kAhead && entry + 1 < segment.end) next = load(entry + 1);
    const float step = Softplus(in.dt + dt_bias), input = step * in.u;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      h[j] = fmaf(expf(step * a[j]), h[j], input * in.b[j]);
      sum = fmaf(in.c[j], h[j], sum);
    }
#pragma unroll
    for (int offset = kWarpChannels; offset < kWarp; offset *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, offset);
    }
    if (slice == 0 && exists) {
      const float y = fmaf(skip, in.u, sum) * Silu(in.gate);
      static_cast<Y*>(p.y)[int64_t{entry} * p.channels + channel] = FromFloat<Y>(y);
    }
    if (!kAhead && entry + 1 < segment.end) next = load(entry + 1);
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int n = state_of(j);
    if (exists && n < p.states) state[int64_t{n} * p.channels] = h[j];
  }
}

template <typename Y>
auto KernelFor(int states) {
  return states <= 2 * kSlices    ? ScanKernel<2, true, Y>
         : states <= 4 * kSlices  ? ScanKernel<4, true, Y>
         : states <= 8 * kSlices  ? ScanKernel<8, true, Y>
         : states <= 16 * kSlices ? ScanKernel<16, true, Y>
                                  : ScanKernel<kMaxScanStates / kSlices, false, Y>;
}

// A warp for each head of an entry.
__global__ void __launch_bounds__(kThreads)
    DiscretizeKernel(const float* u, const float* dt, const float* dt_bias, const float* a,
                     float least, float most, int64_t rows, int heads, int dim, float* log_decay,
                     float* v) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= rows) return;
  const int head = static_cast<int>(row % heads), lane = threadIdx.x % kWarp;
  const float step = fminf(most, fmaxf(least, Softplus(dt[row] + dt_bias[head])));
  if (lane == 0) log_decay[row] = step * a[head];
  for (int i = lane; i < dim; i += kWarp) v[row * dim + i] = step * u[row * dim + i];
}

}  // namespace

void SelectiveScan(Device& device, const SelectiveScanArgs& args) {
  const int channels = static_cast<int>(args.u.shape[1]);
  const int states = static_cast<int>(args.a.shape[0]);
  CHECK(args.u.dtype == DType::kF32 && args.state.dtype == DType::kF32);
  CHECK(states >= 1 && states <= kMaxScanStates) << states << " states";
  if (args.segments.count == 0 || channels == 0 || args.u.shape[0] == 0) return;
  const ScanParams p = {.u = args.u.as<const float>(),
                        .dt = args.dt.as<const float>(),
                        .b = args.b.as<const float>(),
                        .c = args.c.as<const float>(),
                        .a = args.a.as<const float>(),
                        .dt_bias = args.dt_bias.as<const float>(),
                        .skip = args.skip.as<const float>(),
                        .gate = args.gate.as<const float>(),
                        .segments = ArraysOf(args.segments),
                        .state = args.state,
                        .y = args.y.data,
                        .channels = channels,
                        .states = states,
                        .tiles = (channels + kBlockChannels - 1) / kBlockChannels};
  CHECK(args.y.dtype == DType::kF32 || args.y.dtype == DType::kBF16) << Name(args.y.dtype);
  const auto kernel =
      args.y.dtype == DType::kBF16 ? KernelFor<__nv_bfloat16>(states) : KernelFor<float>(states);
  LaunchOverlapping(device, "SelectiveScan", kernel, args.segments.count * p.tiles, kThreads, 0, 1,
                    p);
}

void Discretize(Device& device, const DiscretizeArgs& args) {
  const int64_t rows = args.u.shape[0] * args.u.shape[1];
  if (rows == 0) return;
  CHECK(args.u.dtype == DType::kF32);
  constexpr int kWarps = kThreads / kWarp;
  LaunchOverlapping(
      device, "Discretize", DiscretizeKernel, static_cast<int>((rows + kWarps - 1) / kWarps),
      kThreads, 0, 1, args.u.as<const float>(), args.dt.as<const float>(),
      args.dt_bias.as<const float>(), args.a.as<const float>(), args.least_step, args.most_step,
      rows, static_cast<int>(args.u.shape[1]), static_cast<int>(args.u.shape[2]),
      args.log_decay.as<float>(), args.v.as<float>());
}

}  // namespace mneme::cuda::scan
