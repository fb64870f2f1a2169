// Scans along segments with all states in registers, for more of them than scan/chunks.cu takes. A
// warp has eight channels, a sector of the state's rows, and each channel has four lanes, between
// which its states are dealt out.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/scan/launch.h"
#include "kernels/cuda/scan/token.cuh"

namespace mneme::cuda::scan {
namespace {

constexpr int kWarpChannels = kWarp / kSlices;
constexpr int kBlockChannels = kThreads / kWarp * kWarpChannels;

// The inputs of one token, as a lane holds them.
template <int kHeld>
struct Inputs {
  float u, dt, gate;
  float b[kHeld], c[kHeld];
};

// kHeld: states of a lane. kAhead: the next token's inputs are loaded while one is worked on.
template <int kHeld, bool kAhead, typename Y>
__global__ void __launch_bounds__(kThreads) TokensKernel(const __grid_constant__ ScanParams p) {
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
  float h[kHeld], rates[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int n = state_of(j);
    const bool has = n < p.states;
    rates[j] = has ? Rate(p.a[int64_t{n} * p.channels + channel]) : 0.0f;
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
      h[j] = NextState(h[j], rates[j], step, input, in.b[j]);
      sum = fmaf(in.c[j], h[j], sum);
    }
#pragma unroll
    for (int offset = kWarpChannels; offset < kWarp; offset *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, offset);
    }
    if (slice == 0 && exists) {
      static_cast<Y*>(p.y)[int64_t{entry} * p.channels + channel] =
          Output<Y>(sum, skip, in.u, in.gate);
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
  return states <= 8 * kSlices    ? TokensKernel<8, true, Y>
         : states <= 16 * kSlices ? TokensKernel<16, true, Y>
                                  : TokensKernel<kMaxScanStates / kSlices, false, Y>;
}

}  // namespace

void LaunchTokens(Device& device, ScanParams p, DType output) {
  p.tiles = (p.channels + kBlockChannels - 1) / kBlockChannels;
  const auto kernel =
      output == DType::kBF16 ? KernelFor<__nv_bfloat16>(p.states) : KernelFor<float>(p.states);
  LaunchOverlapping(device, "selective scan", kernel, p.segments.count * p.tiles, kThreads, 0, 1,
                    p);
}

}  // namespace mneme::cuda::scan
