// Token shift: a block has one entry and a tile of channels, of which it makes all mixes. The
// thread with a channel of a segment's first entry is the only one that reads what the memory holds
// of it, and replaces it, too.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/lanes.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/rwkv/rwkv.h"

namespace mneme::cuda::rwkv {
namespace {

constexpr int kThreads = 128;

struct Problem {
  const float *x, *mix, *token_mix;
  SegmentArrays segments;
  StateView last;
  int64_t entries;
  int dim, mixes, tiles;
  bool advance;
};

// y may be token_mix: a thread reads before it writes.
template <typename Y, int kStep>
__global__ void __launch_bounds__(kThreads)
    TokenShiftKernel(const __grid_constant__ Problem p, Y* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int entry = static_cast<int>(blockIdx.x) / p.tiles;
  const int tile = static_cast<int>(blockIdx.x) % p.tiles;
  if (entry >= p.segments.offsets[p.segments.count]) return;
  const Segment segment(p.segments, SegmentOf(p.segments, entry));
  const int channel = (tile * kThreads + static_cast<int>(threadIdx.x)) * kStep;
  if ((segment.slot < 0) | (channel >= p.dim)) return;
  const float* x = p.x + int64_t{entry} * p.dim + channel;
  const Lanes<kStep> own = LoadLanes<kStep>(x);
  Lanes<kStep> step = {};
  if (entry > segment.first) {
    step = LoadLanes<kStep>(x - p.dim);
  } else {
    float* last = MemoryAt<float>(p.last, segment.slot, segment.memory) + channel;
    if (segment.fresh == 0) step = LoadLanes<kStep>(last);
    if (p.advance) {
      SaveLanes(last, LoadLanes<kStep>(p.x + (int64_t{segment.end} - 1) * p.dim + channel));
    }
  }
#pragma unroll
  for (int i = 0; i < kStep; ++i) step.x[i] -= own.x[i];
  for (int m = 0; m < p.mixes; ++m) {
    const int64_t at = (m * p.entries + entry) * p.dim + channel;
    Lanes<kStep> share = LoadLanes<kStep>(p.mix + int64_t{m} * p.dim + channel);
    if (p.token_mix != nullptr) {
      const Lanes<kStep> more = LoadLanes<kStep>(p.token_mix + at);
#pragma unroll
      for (int i = 0; i < kStep; ++i) share.x[i] += more.x[i];
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) share.x[i] = fmaf(share.x[i], step.x[i], own.x[i]);
    SaveLanes(y + at, share);
  }
}

template <typename Y, int kStep>
void Launch(Device& device, const TokenShiftArgs& args) {
  Problem problem = {.x = args.x.as<const float>(),
                     .mix = args.mix.as<const float>(),
                     .token_mix = args.token_mix.as<const float>(),
                     .segments = ArraysOf(args.segments),
                     .last = args.last,
                     .entries = args.x.shape[0],
                     .dim = static_cast<int>(args.x.shape[1]),
                     .mixes = static_cast<int>(args.mix.shape[0]),
                     .tiles = 0,
                     .advance = args.advance};
  problem.tiles = (problem.dim + kThreads * kStep - 1) / (kThreads * kStep);
  const int64_t blocks = problem.entries * problem.tiles;
  if (blocks == 0 || problem.segments.count == 0) return;
  LaunchOverlapping(device, "TokenShift", TokenShiftKernel<Y, kStep>, static_cast<int>(blocks),
                    kThreads, 0, 1, problem, args.y.as<Y>());
}

}  // namespace

void TokenShift(Device& device, const TokenShiftArgs& args) {
  CHECK(args.x.dtype == DType::kF32 && args.last.dtype == DType::kF32) << "TokenShift";
  const bool fours = InFours(args.x.shape[1], args.x, args.mix, args.token_mix, args.last, args.y);
  if (args.y.dtype == DType::kBF16) {
    return fours ? Launch<__nv_bfloat16, 4>(device, args) : Launch<__nv_bfloat16, 1>(device, args);
  }
  CHECK(args.y.dtype == DType::kF32) << "TokenShift";
  fours ? Launch<float, 4>(device, args) : Launch<float, 1>(device, args);
}

}  // namespace mneme::cuda::rwkv
