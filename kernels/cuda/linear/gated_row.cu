// The way of one row into a gated feed-forward part, as one kernel: a warp has an output's gate and
// up, whose weights are on their way before the row is there, and finds the row's norm by itself.
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/linear/gated_row.h"
#include "kernels/cuda/linear/pieces.cuh"

namespace mneme::cuda::linear {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kPiece = 8, kStride = kWarp * kPiece;
using Weights = Piece<__nv_bfloat16, kPiece>;

// Blocks of a multiprocessor: as many as have the weights of 1,024 features and 2,816 outputs on
// their way at once.
template <int kPieces>
constexpr int kBlocks = kPieces <= 4   ? 6
                        : kPieces <= 6 ? 4
                                       : 3;

template <int kPieces>
__global__ void __launch_bounds__(kThreads, kBlocks<kPieces>)
    GatedRowKernel(const __grid_constant__ GatedRow p) {
  __shared__ float4 norm[kPieces * kStride / 4];
  LetNextKernelStart();
  const int lane = threadIdx.x % kWarp;
  const int output = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const bool has = output < p.gate.out_features;
  const int features = p.gate.in_features;
  const int64_t first = int64_t{has ? output : 0} * features + lane * kPiece;
  Weights gate[kPieces], up[kPieces];
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (lane * kPiece + j * kStride >= features) continue;
    const int64_t at = first + j * kStride;
    gate[j] =
        LoadWeights<__nv_bfloat16, kPiece>(static_cast<const __nv_bfloat16*>(p.gate.data) + at);
    up[j] = LoadWeights<__nv_bfloat16, kPiece>(static_cast<const __nv_bfloat16*>(p.up.data) + at);
  }
  for (int i = threadIdx.x; i < features / 4; i += kThreads) {
    norm[i] = reinterpret_cast<const float4*>(p.norm)[i];
  }
  WaitForPreviousKernel();
  float row[kPieces][kPiece] = {};
  float sums[3] = {};  // of squares, gate, up
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (lane * kPiece + j * kStride >= features) continue;
    LoadActivations<kPiece>(p.hidden + lane * kPiece + j * kStride, row[j]);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (lane * kPiece + j * kStride >= features) continue;
    float of_gate[kPiece], of_up[kPiece], scale[kPiece];
    LoadActivations<kPiece>(reinterpret_cast<const float*>(norm) + lane * kPiece + j * kStride,
                            scale);
    Unpack(gate[j], of_gate);
    Unpack(up[j], of_up);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      const float x = row[j][i] * scale[i];
      sums[0] = fmaf(row[j][i], row[j][i], sums[0]);
      sums[1] = fmaf(of_gate[i], x, sums[1]);
      sums[2] = fmaf(of_up[i], x, sums[2]);
    }
  }
  const float factor = 1.0f / sqrtf(WarpSum(sums[0]) / static_cast<float>(features) + p.eps);
  const float of_gate = factor * WarpSum(sums[1]), of_up = factor * WarpSum(sums[2]);
  if (has && lane == 0) p.y[output] = Silu(of_gate) * of_up;
}

}  // namespace

bool LaunchGatedRow(Device& device, const GatedRow& args) {
  const int pieces = (args.gate.in_features + kStride - 1) / kStride;
  if (pieces > 8 || args.gate.in_features % kPiece != 0) return false;
  const auto kernel = pieces <= 3   ? GatedRowKernel<3>
                      : pieces <= 4 ? GatedRowKernel<4>
                      : pieces <= 6 ? GatedRowKernel<6>
                                    : GatedRowKernel<8>;
  LaunchOverlapping(device, "GatedRow", kernel, (args.gate.out_features + kWarps - 1) / kWarps,
                    kThreads, 0, 1, args);
  return true;
}

}  // namespace mneme::cuda::linear
