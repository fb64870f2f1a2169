// What follows the memories in a mixer's decode step.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/decode_step.h"
#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/overlap.cuh"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

struct Params {
  const float* read;     // [entries, values]
  const float* weights;  // [rows, top_k]
  const float* gate;     // [rows, values], or null
  const float* norm;     // [value_dim]
  float norm_eps;
  int rows, columns, top_k, value_heads, value_dim, model_dim;
  const int32_t *slots, *memories;  // of entries
  StateView written;
  const void* out;  // [model_dim, values]
  float* hidden;    // [rows, model_dim]
};

// One head of one row, by one warp:
//   y = sum_j weight_j read_j (+ the shared memory's);  y <- y / sqrt(mean(y^2) + eps) norm
//   silu(gate)
// All that is read is on its way before the first use. `put(i, value)` takes the results.
// value_dim <= kWarp * kEach.
template <int kEach, typename Put>
__device__ inline void MixHeadOf(const Params& p, int row, int head, int lane, Put put) {
  const int values = p.value_heads * p.value_dim;
  const float* read = p.read + head * p.value_dim;
  float sum[kEach] = {}, factor[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = lane + n * kWarp;
    factor[n] = i < p.value_dim ? p.norm[i] : 0.0f;
  }
  if (p.gate != nullptr) {
    const float* gate = p.gate + int64_t{row} * values + head * p.value_dim;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = lane + n * kWarp;
      if (i < p.value_dim) factor[n] *= Silu(gate[i]);
    }
  }
  for (int j = 0; j < p.columns; ++j) {
    const int at = row * p.columns + j;
    const float weight = j < p.top_k ? p.weights[row * p.top_k + j] : 1.0f;
    const float* from = read + int64_t{at} * values;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = lane + n * kWarp;
      if (i < p.value_dim) sum[n] = fmaf(weight, from[i], sum[n]);
    }
  }
  float squares = 0;
#pragma unroll
  for (int n = 0; n < kEach; ++n) squares = fmaf(sum[n], sum[n], squares);
  const float scale = rsqrtf(WarpSum(squares) / static_cast<float>(p.value_dim) + p.norm_eps);
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = lane + n * kWarp;
    if (i < p.value_dim) put(i, sum[n] * scale * factor[n]);
  }
}

// Any value_dim, mixed twice.
template <typename Put>
__device__ inline void MixLargeHead(const Params& p, int row, int head, int lane, Put put) {
  const int values = p.value_heads * p.value_dim;
  const float* read = p.read + head * p.value_dim;
  const auto mixed = [&](int i) {
    float sum = 0;
    for (int j = 0; j < p.columns; ++j) {
      const int at = row * p.columns + j;
      const float weight = j < p.top_k ? p.weights[row * p.top_k + j] : 1.0f;
      sum = fmaf(weight, read[int64_t{at} * values + i], sum);
    }
    return sum;
  };
  float squares = 0;
  for (int i = lane; i < p.value_dim; i += kWarp) {
    const float value = mixed(i);
    squares = fmaf(value, value, squares);
  }
  const float scale = rsqrtf(WarpSum(squares) / static_cast<float>(p.value_dim) + p.norm_eps);
  for (int i = lane; i < p.value_dim; i += kWarp) {
    float value = mixed(i) * scale * p.norm[i];
    if (p.gate != nullptr) value *= Silu(p.gate[int64_t{row} * values + head * p.value_dim + i]);
    put(i, value);
  }
}

template <typename Put>
__device__ inline void MixHead(const Params& p, int row, int head, int lane, Put put) {
  if (p.value_dim <= 2 * kWarp) return MixHeadOf<2>(p, row, head, lane, put);
  if (p.value_dim <= 4 * kWarp) return MixHeadOf<4>(p, row, head, lane, put);
  if (p.value_dim <= 8 * kWarp) return MixHeadOf<8>(p, row, head, lane, put);
  MixLargeHead(p, row, head, lane, put);
}

// The flags are set when all kernels that read them have ended.
__device__ inline void MarkWritten(const Params& p) {
  for (int e = threadIdx.x; e < p.rows * p.columns; e += kThreads) {
    if (p.slots[e] >= 0) *MemoryAt<uint8_t>(p.written, p.slots[e], p.memories[e]) = 1;
  }
}

template <typename T, int kPiece, int kRows, int kOutputs>
__global__ void __launch_bounds__(kThreads) OutputKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) float y[];  // [kRows, values]
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int values = p.value_heads * p.value_dim;
  const int first = (blockIdx.x * kWarps + warp) * kOutputs;
  const T* rows[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    rows[o] = static_cast<const T*>(p.out) + int64_t{min(first + o, p.model_dim - 1)} * values;
  }
  WeightRound<T, kPiece, kOutputs> round;
  StartRows(rows, values, lane, round);
  if (blockIdx.x == 0 && warp == 0) PrefetchRow(p.norm, p.value_dim, lane);
  LetNextKernelStart();
  WaitForPreviousKernel();

  if (blockIdx.x == 0) MarkWritten(p);
  for (int i = warp; i < p.rows * p.value_heads; i += kWarps) {
    const int row = i / p.value_heads, head = i % p.value_heads;
    MixHead(p, row, head, lane, [&](int i, float value) {
      y[row * values + PlaceOf<kPiece>(head * p.value_dim + i, values)] = value;
    });
  }
  __syncthreads();
  if (first >= p.model_dim) return;
  const float* entries[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) entries[r] = y + min(r, p.rows - 1) * values;
  float sums[kOutputs * kRows] = {};
  AddProducts(rows, round, entries, values, lane, sums);
  const float sum = WarpSums(sums, lane);
  constexpr int kLanesPerSum = kWarp / (kOutputs * kRows);
  const int output = first + lane / kLanesPerSum / kRows, r = lane / kLanesPerSum % kRows;
  if (lane % kLanesPerSum == 0 && output < p.model_dim && r < p.rows) {
    p.hidden[int64_t{r} * p.model_dim + output] += sum;
  }
}

template <typename T, int kPiece, int kRows, int kOutputs>
void Launch(Device& device, const Params& p) {
  const int blocks = (p.model_dim + kWarps * kOutputs - 1) / (kWarps * kOutputs);
  LaunchOverlapping(
      device, "output of a decode step", OutputKernel<T, kPiece, kRows, kOutputs>, blocks, kThreads,
      static_cast<int64_t>(sizeof(float)) * kRows * p.value_heads * p.value_dim, 1, p);
}

template <typename T, int kPiece>
void LaunchRows(Device& device, const Params& p) {
  if (p.rows == 1) return Launch<T, kPiece, 1, 1>(device, p);
  Launch<T, kPiece, kMaxFewRows, 1>(device, p);
}

Params MakeParams(const DeltaMixerStepArgs& args, const StepBuffers& buffers) {
  Params p = {};
  p.read = buffers.read;
  p.weights = args.weights.as<const float>();
  p.gate = args.g_proj.data != nullptr ? buffers.gate : nullptr;
  p.norm = args.out_norm.as<const float>();
  p.norm_eps = args.out_norm_eps;
  p.rows = buffers.rows;
  p.columns = buffers.columns;
  p.top_k = args.memories == 0 ? 0 : args.top_k;
  p.value_heads = args.value_heads;
  p.value_dim = args.value_dim;
  p.model_dim = static_cast<int>(args.hidden.shape[1]);
  p.slots = buffers.slots;
  p.memories = buffers.memories;
  p.written = args.written;
  p.out = args.out_proj.data;
  p.hidden = args.hidden.as<float>();
  return p;
}

}  // namespace

void LaunchStepOutput(Device& device, const DeltaMixerStepArgs& args, const StepBuffers& buffers) {
  const Params p = MakeParams(args, buffers);
  const bool aligned = p.value_heads * p.value_dim % 8 == 0;
  switch (args.out_proj.dtype) {
    case DType::kBF16:
      return aligned ? LaunchRows<__nv_bfloat16, 8>(device, p)
                     : LaunchRows<__nv_bfloat16, 1>(device, p);
    case DType::kF16:
      return aligned ? LaunchRows<__half, 8>(device, p) : LaunchRows<__half, 1>(device, p);
    default:
      return aligned ? LaunchRows<float, 4>(device, p) : LaunchRows<float, 1>(device, p);
  }
}

}  // namespace mneme::cuda
