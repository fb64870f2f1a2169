// Rotary position embedding.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/rope.cuh"
#include "kernels/cuda/dense/dense.h"

namespace mneme::cuda::dense {
namespace {

constexpr int kThreads = 128;
constexpr int kHeads = 4;  // of a thread, which share an angle

// A thread takes a pair of some heads; y may be x.
__global__ void __launch_bounds__(kThreads)
    RopeKernel(const float* x, const int64_t* positions, const float* frequencies, bool in_two,
               int64_t period, int64_t items, int heads, int groups, int half, bool interleaved,
               float* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= items) return;
  const int64_t row = item / half;  // a token's group of heads
  const int j = static_cast<int>(item - row * half);
  const int64_t token = row / groups;
  const int first = static_cast<int>(row - token * groups) * kHeads;
  const int64_t position = period > 0 ? positions[token] % period : positions[token];
  const double frequency =
      in_two ? double{frequencies[j]} + frequencies[half + j] : double{frequencies[j]};
  float sin, cos;
  SinCosOfAngle(position, frequency, &sin, &cos);
  const int place = interleaved ? 2 * j : j, apart = interleaved ? 1 : half;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (first + i >= heads) break;
    const int64_t at = (token * heads + first + i) * 2 * half + place;
    const float a = x[at], b = x[at + apart];
    y[at] = a * cos - b * sin;
    y[at + apart] = b * cos + a * sin;
  }
}

}  // namespace

void Rope(Device& device, const RopeArgs& args) {
  CHECK(args.x.dtype == DType::kF32);
  const int64_t tokens = args.x.shape[0], heads = args.x.shape[1], half = args.x.shape[2] / 2;
  const int64_t groups = (heads + kHeads - 1) / kHeads, items = tokens * groups * half;
  if (items == 0) return;
  LaunchOverlapping(device, "Rope", RopeKernel, BlocksFor(items, kThreads), kThreads, 0, 1,
                    args.x.as<const float>(), args.positions.as<const int64_t>(),
                    args.frequencies.as<const float>(), args.frequencies.shape.rank == 2,
                    args.period, items, static_cast<int>(heads), static_cast<int>(groups),
                    static_cast<int>(half), args.interleaved, args.y.as<float>());
}

}  // namespace mneme::cuda::dense
