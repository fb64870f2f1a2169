// Chooses the kernels of a selective scan; Mamba-2's step sizes.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/scan/launch.h"
#include "kernels/cuda/scan/scan.h"
#include "kernels/cuda/scan/token.cuh"

namespace mneme::cuda::scan {
namespace {

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
                        .tiles = 0};
  const DType output = args.y.dtype;
  CHECK(output == DType::kF32 || output == DType::kBF16) << Name(output);
  if (states > kFewStates) return LaunchTokens(device, p, output);
  const int entries = static_cast<int>(args.u.shape[0]);
  if (args.segments.longest != 1 && entries > 1) return LaunchChunks(device, p, output, entries);
  const bool in_fours =
      channels % 4 == 0 && AreAligned(args.u, args.dt, args.a, args.dt_bias, args.state);
  LaunchStep(device, p, output, in_fours);
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
