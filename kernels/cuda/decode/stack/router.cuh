// Norm, router and choice of decode/stack/stack.cu.
#pragma once

#include "kernels/cuda/decode/stack/ring.cuh"
#include "kernels/cuda/matrix_memory/row.cuh"
#include "kernels/cuda/routing/rank.cuh"

namespace mneme::cuda::decode::stack {

// Two features' weights of a memory in the router.
__device__ inline __nv_bfloat162 RouterPair(const Params& p, const Layer& layer, int memory,
                                            int feature) {
  return __ldg(reinterpret_cast<const __nv_bfloat162*>(
      static_cast<const __nv_bfloat16*>(layer.router) + int64_t{memory} * p.model_dim + feature));
}

// Asks for what LoadHidden() of a layer reads beside the words, so that it comes from L2.
__device__ inline void PrefetchNorm(const Params& p, const Layer& layer) {
  constexpr int kLine = 128;
  const int norm_lines = p.model_dim * 4 / kLine;
  const int lines = norm_lines + p.memories * p.model_dim * 2 / kLine;
#pragma unroll 1
  for (int i = Thread(); i < lines; i += kComputeThreads) {
    const auto* at = i < norm_lines
                         ? reinterpret_cast<const char*>(layer.norm) + i * kLine
                         : static_cast<const char*>(layer.router) + (i - norm_lines) * kLine;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

__device__ inline void AddPair(__nv_bfloat162 weights, float2 x, float& sum) {
  const float2 w = __bfloat1622float2(weights);
  sum = fmaf(w.x, x.x, fmaf(w.y, x.y, sum));
}

// The logits of memories that LoadHidden() has no sums for, from what each thread wrote to x.
template <int kRows>
__device__ inline void RouteMore(const Params& p, const Layer& layer, Shared<kRows>& shared,
                                 const float* x) {
  const int lane = Thread() % kWarp, warp = Thread() / kWarp;
#pragma unroll 1
  for (int r = 0; r < p.rows; ++r) {
#pragma unroll 1
    for (int m = kRouterSums; m < p.memories; ++m) {
      float sum = 0;
#pragma unroll 1
      for (int i = 2 * Thread(); i < p.model_dim; i += 2 * kComputeThreads) {
        const float2 y = *reinterpret_cast<const float2*>(x + r * p.widest + PlaceInX(i));
        AddPair(RouterPair(p, layer, m, i), y, sum);
      }
      sum = WarpSum(sum);
      if (lane == 0) shared.router_sums[r][warp][m] = sum;
    }
  }
}

// x = hidden * norm, less the factor 1 / |hidden|, which is the same for all: squares has its
// parts. kRoute: and the router's logits, less the same factor, in the same pass.
template <bool kRoute, int kRows>
__device__ inline void LoadHidden(const Params& p, const Layer& layer, Shared<kRows>& shared,
                                  const Word* words, uint32_t number, const float* norm, float* x) {
  const int lane = Thread() % kWarp, warp = Thread() / kWarp;
  float squares[kRows] = {}, sums[kRows][kRouterSums] = {};
#pragma unroll 1
  for (int i = 2 * Thread(); i < p.model_dim; i += 2 * kComputeThreads) {
    // What is far away is on its way before anything is waited for.
    const float2 weight = __ldg(reinterpret_cast<const float2*>(norm + i));
    __nv_bfloat162 routers[kRouterSums];
#pragma unroll
    for (int m = 0; m < kRouterSums; ++m) {
      if (kRoute && m < p.memories) routers[m] = RouterPair(p, layer, m, i);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= p.rows) continue;
      const int64_t at = int64_t{r} * p.model_dim + i;
      const float2 h = words == nullptr ? *reinterpret_cast<const float2*>(p.hidden + at)
                                        : Await2(words + at, number);
      const float2 y = {h.x * weight.x, h.y * weight.y};
      *reinterpret_cast<float2*>(x + r * p.widest + PlaceInX(i)) = y;
      squares[r] = fmaf(h.x, h.x, fmaf(h.y, h.y, squares[r]));
#pragma unroll
      for (int m = 0; m < kRouterSums; ++m) {
        if (kRoute && m < p.memories) AddPair(routers[m], y, sums[r][m]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float square = WarpSum(squares[r]);
    if (lane == 0) shared.squares[r][warp] = square;
    if (!kRoute) continue;
    const float sum = matrix_memory::SumRows(sums[r]);
    if (lane < kRouterSums) shared.router_sums[r][warp][lane] = sum;
  }
  if (kRoute && p.memories > kRouterSums) RouteMore(p, layer, shared, x);
  SyncCompute();
}

template <int kRows>
__device__ inline float NormScale(const Params& p, const Shared<kRows>& shared, int row,
                                  float eps) {
  const auto* const squares = reinterpret_cast<const float4*>(shared.squares[row]);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps / 4; ++i) {
    const float4 four = squares[i];
    sum += (four.x + four.y) + (four.z + four.w);
  }
  return rsqrtf(sum / static_cast<float>(p.model_dim) + eps);
}

// Which memories row `row` goes to, by one warp, from the parts of its logits.
template <int kRows>
__device__ inline void Choose(const Params& p, Shared<kRows>& shared, int row) {
  const int lane = Thread() % kWarp;
  const bool given = p.forced != nullptr && row < p.rows;
  // Half of the lanes add the even warps' parts, half the odd ones'.
  float logit = 0;
#pragma unroll
  for (int i = 0; i < kWarps / 2; ++i) {
    logit += shared.router_sums[row][2 * i + lane / kMaxMemories][lane % kMaxMemories];
  }
  logit += __shfl_xor_sync(kAllLanes, logit, kMaxMemories);
  uint64_t rank = 0;
  if (lane < p.memories) {
    logit *= NormScale(p, shared, row, p.norm_eps);
    if (p.round_logits) logit = __bfloat162float(__float2bfloat16_rn(logit));
    shared.logits[row][lane] = logit;
    rank = routing::RouteRank(logit, lane);
  }
  int place = 0;
#pragma unroll 1
  for (int m = 0; m < p.memories; ++m) {
    if (__shfl_sync(kAllLanes, rank, m) > rank) ++place;
  }
  if (lane < p.memories && place < p.top_k && !given) shared.memories[row][place] = lane;
  if (lane < p.top_k && given) shared.memories[row][lane] = p.forced[row * p.top_k + lane];
  __syncwarp();
  if (lane == 0) Arrive(&shared.routed);
}

// The weights of what a row reads, by one warp.
template <int kRows>
__device__ inline void WeighChoice(const Params& p, Shared<kRows>& shared, int row) {
  const int lane = Thread() % kWarp;
  const bool own = lane < p.top_k;
  const int memory = own ? shared.memories[row][lane] : 0;
  const float chosen = own ? shared.logits[row][memory] : -INFINITY;
  float largest = chosen;
#pragma unroll 1
  for (int mask = 1; mask < kWarp; mask *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, mask));
  }
  const float share = own ? expf(chosen - largest) : 0.0f;
  const float weight = share / WarpSum(share);
  if (!own) return;
  shared.weights[row][lane] = weight;
  if (blockIdx.x != 0 || row >= p.rows || p.indices == nullptr) return;
  p.indices[row * p.top_k + lane] = memory;
  p.weights[row * p.top_k + lane] = weight;
}

}  // namespace mneme::cuda::decode::stack
