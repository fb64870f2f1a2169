// Norm, router and choice, a block to a row; of a decode step of many rows also its entries and its
// gates for the memory that all rows go to.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/decode/batch/batch.h"
#include "kernels/cuda/decode/decode.h"
#include "kernels/cuda/routing/rank.cuh"

namespace mneme::cuda::decode::batch {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

__device__ inline float4 ToFloats(uint2 bits) {
  const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.x));
  const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.y));
  return {low.x, low.y, high.x, high.y};
}

// What the delta rule will do to a memory: nothing, or store all of it, for the first time or not.
enum Store : int { kNotStored, kStored, kFirstStored };
__device__ inline Store StoreOf(const ManyRoutesArgs& p, int slot, int memory) {
  const bool written = *MemoryAt<const volatile uint8_t>(p.written, slot, memory) != 0;
  const bool full =
      p.capacity > 0 && MemoryAt<const volatile int>(p.range, slot, memory)[1] == p.capacity;
  return !written ? kFirstStored : full ? kStored : kNotStored;
}

// The choice and what follows from it, by one warp; lane m has the logit of memory m, and what
// happens to it if it is chosen.
__device__ inline void WriteChoice(const ManyRoutesArgs& p, int row, int slot, float logit,
                                   Store store) {
  const int lane = threadIdx.x % kWarp;
  if (p.round_logits) logit = __bfloat162float(__float2bfloat16_rn(logit));
  int chosen = p.memories;  // of choice `lane`; the shared memory's follows the routed ones
  uint64_t rank = lane < p.memories ? routing::RouteRank(logit, lane) : 0;
  for (int j = 0; j < p.top_k; ++j) {
    int memory;
    if (p.forced != nullptr) {
      memory = p.forced[row * p.top_k + j];
    } else {
      uint64_t best = rank;
#pragma unroll
      for (int offset = kMaxManyMemories / 2 + 1; offset > 0; offset /= 2) {
        const uint64_t other = __shfl_xor_sync(kAllLanes, best, offset);
        best = other > best ? other : best;
      }
      memory = routing::MemoryOfRank(__shfl_sync(kAllLanes, best, 0));
      if (lane == memory) rank = 0;
    }
    if (lane == j) chosen = memory;
  }
  const float own = __shfl_sync(kAllLanes, logit, chosen % kWarp);
  float largest = -INFINITY, total = 0;
  for (int j = 0; j < p.top_k; ++j) largest = fmaxf(largest, __shfl_sync(kAllLanes, own, j));
  for (int j = 0; j < p.top_k; ++j) total += expf(__shfl_sync(kAllLanes, own, j) - largest);
  const int chosen_store = __shfl_sync(kAllLanes, static_cast<int>(store), chosen % kWarp);
  if (lane < p.top_k) {
    p.indices[row * p.top_k + lane] = chosen;
    p.weights[row * p.top_k + lane] = expf(own - largest) / total;
  }
  if (p.table.slots == nullptr) return;
  if (lane < p.columns) {
    const int e = row * p.columns + lane;
    p.table.offsets[e] = e;
    p.table.slots[e] = slot;
    p.table.memories[e] = chosen;
    p.table.fresh[e] = chosen_store == kFirstStored ? 1 : 0;
    p.table.rows[e] = row;
    p.table.folding[e] = chosen_store == kNotStored ? 0 : 1;
    if (slot >= 0) *MemoryAt<uint8_t>(p.written, slot, chosen) = 1;
  }
  if (row == 0 && lane == 0) p.table.offsets[p.rows * p.columns] = p.rows * p.columns;
}

// A row of the router's matrix or, behind it, of those of the two gates.
__device__ inline const uint2* WeightsOf(const ManyRoutesArgs& p, int output) {
  const __nv_bfloat16* matrix = p.router;
  if (output >= p.memories) {
    output -= p.memories;
    matrix = p.gate_a;
    if (output >= p.gates) {
      output -= p.gates;
      matrix = p.gate_b;
    }
  }
  return reinterpret_cast<const uint2*>(matrix + int64_t{output} * p.model_dim);
}

// Rows of at most kEach fours for a thread, of which kAtOnce of weights are held in registers: the
// first ones are there before the wait.
template <int kEach, int kAtOnce>
__global__ void __launch_bounds__(kThreads) ManyRoutes(const __grid_constant__ ManyRoutesArgs p) {
  __shared__ float sums[1 + kMaxManyMemories + kMaxRowGates][kWarps];  // squares, outputs
  LetNextKernelStart();
  // Weights, and what the host and earlier steps have written.
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int row = blockIdx.x, fours = p.model_dim / 4;
  const bool has_table = p.table.slots != nullptr, routes = has_table || p.indices != nullptr;
  const int outputs = p.memories + 2 * p.gates;
  float4 norm[kEach];
  uint2 weights[kAtOnce][kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = threadIdx.x + n * kThreads;
    norm[n] = i < fours ? reinterpret_cast<const float4*>(p.norm)[i] : float4{};
#pragma unroll
    for (int m = 0; m < kAtOnce; ++m) {
      weights[m][n] = m < outputs && i < fours ? WeightsOf(p, m)[i] : uint2{};
    }
  }
  int slot = -1;
  Store store = kFirstStored;
  if (has_table && warp == 0) {
    slot = p.slots[row];
    const int memories = p.memories + (p.columns > p.top_k ? 1 : 0);
    if (slot >= 0 && lane < memories) store = StoreOf(p, slot, lane);
  }
  WaitForPreviousKernel();

  const float4* hidden = reinterpret_cast<const float4*>(p.hidden + int64_t{row} * p.model_dim);
  float4 x[kEach];
  float squares = 0;
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = threadIdx.x + n * kThreads;
    x[n] = i < fours ? hidden[i] : float4{};
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    squares = fmaf(x[n].x, x[n].x, fmaf(x[n].y, x[n].y, squares));
    squares = fmaf(x[n].z, x[n].z, fmaf(x[n].w, x[n].w, squares));
    x[n] = {x[n].x * norm[n].x, x[n].y * norm[n].y, x[n].z * norm[n].z, x[n].w * norm[n].w};
  }
  squares = WarpSum(squares);
  if (lane == 0) sums[0][warp] = squares;
  for (int first = 0; first < outputs; first += kAtOnce) {
    float dots[kAtOnce] = {};
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
#pragma unroll
      for (int m = 0; m < kAtOnce; ++m) {
        const float4 w = ToFloats(weights[m][n]);
        dots[m] = fmaf(x[n].x, w.x, fmaf(x[n].y, w.y, dots[m]));
        dots[m] = fmaf(x[n].z, w.z, fmaf(x[n].w, w.w, dots[m]));
        const int i = threadIdx.x + n * kThreads, next = first + kAtOnce + m;
        if (next < outputs && i < fours) weights[m][n] = WeightsOf(p, next)[i];
      }
    }
    const float dot = WarpSums(dots, lane);
    constexpr int kLanesPerSum = kWarp / kAtOnce;
    const int m = first + lane / kLanesPerSum;
    if (lane % kLanesPerSum == 0 && m < outputs) sums[1 + m][warp] = dot;
  }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += sums[0][w];
  const float scale = rsqrtf(sum / static_cast<float>(p.model_dim) + p.norm_eps);
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = threadIdx.x + n * kThreads;
    if (i >= fours) continue;
    const __nv_bfloat162 low = __floats2bfloat162_rn(x[n].x * scale, x[n].y * scale);
    const __nv_bfloat162 high = __floats2bfloat162_rn(x[n].z * scale, x[n].w * scale);
    reinterpret_cast<uint2*>(p.x + int64_t{row} * p.model_dim)[i] = {
        reinterpret_cast<const unsigned&>(low), reinterpret_cast<const unsigned&>(high)};
  }
  if (!routes || warp > 1) return;
  const auto output_of = [&](int output) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[1 + output][w];
    return sum * scale;
  };
  if (warp == 0) {
    WriteChoice(p, row, slot, lane < p.memories ? output_of(lane) : 0, store);
  } else if (lane < 2 * p.gates) {
    float* const first = lane < p.gates ? p.first_a : p.first_b;
    first[row * p.gate_stride + lane % p.gates] = output_of(p.memories + lane);
  }
}

}  // namespace

bool NormAndRoute(Device& device, const RmsNormArgs& norm, const PackedMatrix& router,
                  const RouteTopKArgs& route) {
  const int64_t rows = norm.x.shape[0], model_dim = norm.x.shape[1];
  const auto memories = static_cast<int>(router.out_features);
  const auto top_k = static_cast<int>(route.indices.shape[1]);
  CHECK(top_k >= 1 && top_k <= memories) << "top_k " << top_k << " of " << memories;
  if (rows == 0 || !HasHopperCode(device) || norm.y.dtype != DType::kBF16 ||
      router.dtype != DType::kBF16 || memories > kMaxManyMemories || model_dim % 64 != 0 ||
      model_dim > kMaxManyModelDim || !AreAligned(norm.x, norm.y, norm.weight, router)) {
    return false;
  }
  LaunchManyRoutes(device, {.hidden = norm.x.as<const float>(),
                            .norm = norm.weight.as<const float>(),
                            .norm_eps = norm.eps,
                            .rows = static_cast<int>(rows),
                            .model_dim = static_cast<int>(model_dim),
                            .x = norm.y.as<__nv_bfloat16>(),
                            .memories = memories,
                            .top_k = top_k,
                            .router = static_cast<const __nv_bfloat16*>(router.data),
                            .round_logits = route.round_logits == DType::kBF16,
                            .forced = route.forced.as<const int32_t>(),
                            .indices = route.indices.as<int32_t>(),
                            .weights = route.weights.as<float>()});
  return true;
}

void LaunchManyRoutes(Device& device, const ManyRoutesArgs& args) {
  const auto launch = [&](auto kernel) {
    LaunchOverlapping(device, "norm and routes", kernel, args.rows, kThreads, 0, 1, args);
  };
  const int each = (args.model_dim / 4 + kThreads - 1) / kThreads;
  if (each <= 1 && args.gates > 0) return launch(ManyRoutes<1, 8>);
  if (each <= 1) return launch(ManyRoutes<1, 4>);
  if (each <= 2 && args.gates > 0) return launch(ManyRoutes<2, 8>);
  if (each <= 2) return launch(ManyRoutes<2, 4>);
  if (each <= 4) return launch(ManyRoutes<4, 4>);
  launch(ManyRoutes<8, 4>);
}

}  // namespace mneme::cuda::decode::batch
