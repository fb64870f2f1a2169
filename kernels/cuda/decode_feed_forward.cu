// The gated MLP of a decode step, for a few rows: norm, both projections and their product in one
// kernel, each block taking the norm for itself.
#include <cstdint>

#include "kernels/cuda/decode_many.h"
#include "kernels/cuda/decode_step.h"
#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/overlap.cuh"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

struct Params {
  const float* hidden;
  const float* norm;
  float norm_eps;
  int rows, model_dim, mlp_dim;
  const void *gate, *up;
  float* y;  // [rows, mlp_dim]
};

template <typename T, int kPiece, int kRows>
__global__ void __launch_bounds__(kThreads) GateUpKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) float x[];  // [kRows, model_dim], times the norm's weight
  __shared__ float squares[kWarps][kRows];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int feature = blockIdx.x * kWarps + warp;
  const int64_t offset = int64_t{min(feature, p.mlp_dim - 1)} * p.model_dim;
  const T* const rows[2] = {static_cast<const T*>(p.gate) + offset,
                            static_cast<const T*>(p.up) + offset};
  WeightRound<T, kPiece, 2> round;
  StartRows(rows, p.model_dim, lane, round);
  if (blockIdx.x == 0 && warp == 0) PrefetchRow(p.norm, p.model_dim, lane);
  LetNextKernelStart();
  WaitForPreviousKernel();

  float sums_of_squares[kRows] = {};
  for (int i = threadIdx.x; i < p.model_dim; i += kThreads) {
    const float weight = p.norm[i];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float h = r < p.rows ? p.hidden[int64_t{r} * p.model_dim + i] : 0.0f;
      sums_of_squares[r] = fmaf(h, h, sums_of_squares[r]);
      x[r * p.model_dim + PlaceOf<kPiece>(i, p.model_dim)] = h * weight;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = WarpSum(sums_of_squares[r]);
    if (lane == 0) squares[warp][r] = sum;
  }
  __syncthreads();
  if (feature >= p.mlp_dim) return;
  const float* entries[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) entries[r] = x + r * p.model_dim;
  float sums[2 * kRows] = {};
  AddProducts(rows, round, entries, p.model_dim, lane, sums);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += squares[w][r];
    const float scale = rsqrtf(sum / static_cast<float>(p.model_dim) + p.norm_eps);
    const float gate = WarpSum(sums[r]) * scale, up = WarpSum(sums[kRows + r]) * scale;
    if (lane == 0 && r < p.rows) p.y[int64_t{r} * p.mlp_dim + feature] = Silu(gate) * up;
  }
}

template <typename T, int kPiece, int kRows>
void Launch(Device& device, const Params& p) {
  LaunchOverlapping(device, "gate and up of a decode step", GateUpKernel<T, kPiece, kRows>,
                    (p.mlp_dim + kWarps - 1) / kWarps, kThreads,
                    static_cast<int64_t>(sizeof(float)) * kRows * p.model_dim, 1, p);
}

template <typename T, int kPiece>
void LaunchRows(Device& device, const Params& p) {
  if (p.rows == 1) return Launch<T, kPiece, 1>(device, p);
  Launch<T, kPiece, kMaxFewRows>(device, p);
}

}  // namespace

bool FeedForwardStep(Device& device, const FeedForwardStepArgs& args) {
  const int64_t rows = args.hidden.shape[0], model_dim = args.hidden.shape[1];
  if (rows > kMaxFewRows) return FeedForwardStepOfMany(device, args);
  const int mlp_dim = args.gate.out_features;
  const int64_t shared_bytes = kMaxFewRows * model_dim * static_cast<int64_t>(sizeof(float));
  if (rows == 0 || args.gate.dtype != args.up.dtype ||
      shared_bytes + 4096 > static_cast<int64_t>(device.properties().sharedMemPerBlockOptin)) {
    return false;
  }
  auto* const y =
      static_cast<float*>(device.StepMemory(rows * mlp_dim * static_cast<int64_t>(sizeof(float))));
  if (y == nullptr) return true;  // the error is on record
  const Params p = {.hidden = args.hidden.as<const float>(),
                    .norm = args.norm.as<const float>(),
                    .norm_eps = args.norm_eps,
                    .rows = static_cast<int>(rows),
                    .model_dim = static_cast<int>(model_dim),
                    .mlp_dim = mlp_dim,
                    .gate = args.gate.data,
                    .up = args.up.data,
                    .y = y};
  const bool aligned = model_dim % 8 == 0;
  switch (args.gate.dtype) {
    case DType::kBF16:
      aligned ? LaunchRows<__nv_bfloat16, 8>(device, p) : LaunchRows<__nv_bfloat16, 1>(device, p);
      break;
    case DType::kF16:
      aligned ? LaunchRows<__half, 8>(device, p) : LaunchRows<__half, 1>(device, p);
      break;
    default:
      aligned ? LaunchRows<float, 4>(device, p) : LaunchRows<float, 1>(device, p);
  }
  const LinearArgs down[] = {{.x = {y, DType::kF32, {rows, mlp_dim}},
                              .weights = {&args.down, 1},
                              .y = args.hidden,
                              .accumulate = true}};
  Linear(device, down);
  return true;
}

}  // namespace mneme::cuda
