// Chooses the kernels of a selective scan; Mamba-2's step sizes.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/scan/launch.h"
#include "kernels/cuda/scan/scan.h"
#include "kernels/cuda/scan/token.cuh"

namespace mneme::cuda::scan {
namespace {

// A thread has kWidth adjacent values of a head.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    DiscretizeKernel(const float* u, const float* dt, const float* dt_bias, const float* a,
                     float least, float most, int64_t count, int heads, int dim, float* log_decay,
                     float* v) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  if (i >= count) return;
  const int64_t row = i / dim;
  const int head = static_cast<int>(row % heads);
  const float step = fminf(most, fmaxf(least, Softplus(dt[row] + dt_bias[head])));
  if (i == row * dim) log_decay[row] = step * a[head];
  if constexpr (kWidth == 4) {
    const float4 x = LoadFour(u + i);
    SaveFour(v + i, {step * x.x, step * x.y, step * x.z, step * x.w});
  } else {
    v[i] = step * u[i];
  }
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
                        .tiles = 0};
  const DType output = args.y.dtype;
  CHECK(output == DType::kF32 || output == DType::kBF16) << Name(output);
  if (states > kFewStates) return LaunchTokens(device, p, output);
  const int entries = static_cast<int>(args.u.shape[0]);
  if (args.segments.longest != 1 && entries > 1) return LaunchChunks(device, p, output, entries);
  const bool in_fours =
      channels % 4 == 0 && AreAligned(args.u, args.dt, args.gate, args.a, args.dt_bias, args.state);
  LaunchStep(device, p, output, in_fours);
}

void Discretize(Device& device, const DiscretizeArgs& args) {
  const int64_t count = args.u.shape.elements();
  if (count == 0) return;
  CHECK(args.u.dtype == DType::kF32);
  const bool fours = InFours(args.u.shape[2], args.u, args.v);
  const int64_t threads = count / (fours ? 4 : 1);
  LaunchOverlapping(device, "Discretize", fours ? DiscretizeKernel<4> : DiscretizeKernel<1>,
                    BlocksFor(threads, kThreads), kThreads, 0, 1, args.u.as<const float>(),
                    args.dt.as<const float>(), args.dt_bias.as<const float>(),
                    args.a.as<const float>(), args.least_step, args.most_step, count,
                    static_cast<int>(args.u.shape[1]), static_cast<int>(args.u.shape[2]),
                    args.log_decay.as<float>(), args.v.as<float>());
}

}  // namespace mneme::cuda::scan
