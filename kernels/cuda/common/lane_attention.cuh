// Attention of one query whose keys and values, of bf16, nobody else reads: by a warp, or by the
// warps of a block. A few lanes share a key, each with eight of its columns, and the value beside
// it; groups of lanes take keys by themselves, several at a time, with a running maximum each
// (online softmax), and put together at the end what they have found. Scores are powers of two.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/read_output.cuh"

namespace mneme::cuda {

constexpr int kMostQueryWarps = 16;  // of a block that share a query

__device__ inline void UnpackEight(const uint4& raw, float (&values)[kLaneColumns]) {
  const uint32_t pairs[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(pairs[i] << 16);
    values[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
  }
}

// What the warps of a block have found.
template <int kLanes>
struct alignas(16) QueryParts {
  float out[kMostQueryWarps][kLanes * kLaneColumns];
  float largest[kMostQueryWarps], total[kMostQueryWarps];
};

template <int kLanes>
struct LaneAttention {
  static constexpr int kGroups = kWarp / kLanes;
  static constexpr int kAhead = 4;                // keys of a group that are read at once
  static constexpr int kKeys = kGroups * kAhead;  // of a warp at a time

  float query[kLaneColumns];  // times scale and log2(e)
  float out[kLaneColumns] = {};
  float largest = -INFINITY, total = 0;

  // Its columns of the query, which starts at `from`; zeros where it has none.
  __device__ void LoadQuery(const float* from, bool has_columns, float scale) {
    float4 low = {}, high = {};
    if (has_columns) low = LoadFour(from), high = LoadFour(from + 4);
    const float values[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) query[i] = scale * values[i];
  }

  // Keys of the group: `seen` of them, the others and their values zeros. Whole warps.
  __device__ void Take(const uint4 (&keys)[kAhead], const uint4 (&values)[kAhead], int seen,
                       float (&scores)[kAhead]) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      float key[kLaneColumns];
      UnpackEight(keys[a], key);
      scores[a] = 0;
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) scores[a] = fmaf(query[i], key[i], scores[a]);
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        scores[a] += __shfl_xor_sync(kAllLanes, scores[a], offset);
      }
    }
    float now = largest;
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (a < seen) now = fmaxf(now, scores[a]);
    }
    const float base = now == -INFINITY ? 0.0f : now, factor = exp2f(largest - base);
    largest = now;
    total *= factor;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) out[i] *= factor;
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const float weight = a < seen ? exp2f(scores[a] - base) : 0.0f;
      total += weight;
      float value[kLaneColumns];
      UnpackEight(values[a], value);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) out[i] = fmaf(weight, value[i], out[i]);
    }
  }

  // What all groups of the warp have found, in every lane. Whole warps.
  __device__ void Merge() {
    float now = largest;
#pragma unroll
    for (int offset = kLanes; offset < kWarp; offset *= 2) {
      now = fmaxf(now, __shfl_xor_sync(kAllLanes, now, offset));
    }
    const float factor = exp2f(largest - (now == -INFINITY ? 0.0f : now));
    largest = now;
    total *= factor;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) out[i] *= factor;
#pragma unroll
    for (int offset = kLanes; offset < kWarp; offset *= 2) {
      total += __shfl_xor_sync(kAllLanes, total, offset);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) out[i] += __shfl_xor_sync(kAllLanes, out[i], offset);
    }
  }

  // The end of a query that the warp has for itself: `dim` columns of the output from `at` on,
  // zeros if there were no keys. Then weights are exp2f(score - largest) / total.
  __device__ void Finish(const ReadOutput& to, int64_t at, int dim) {
    Merge();
    const int lane = threadIdx.x % kWarp, own = lane % kLanes * kLaneColumns;
    const float by = total > 0 ? 1.0f / total : 0.0f;
    float values[kLaneColumns];
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) values[i] = by * out[i];
    if (lane < kLanes && own < dim) to.SaveEight(at + own, values);
  }

  // The end of a query that all warps of the block share.
  __device__ void FinishBlock(QueryParts<kLanes>* parts, const ReadOutput& to, int64_t at,
                              int dim) {
    Merge();
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    if (lane < kLanes) {
      float* const own = parts->out[warp] + lane * kLaneColumns;
      SaveFour(own, {out[0], out[1], out[2], out[3]});
      SaveFour(own + 4, {out[4], out[5], out[6], out[7]});
    }
    if (lane == 0) parts->largest[warp] = largest, parts->total[warp] = total;
    __syncthreads();
    // A lane for each warp.
    const float of_warp = lane < warps ? parts->largest[lane] : -INFINITY;
    largest = of_warp;
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
    const float factor = exp2f(of_warp - (largest == -INFINITY ? 0.0f : largest));
    total = WarpSum(lane < warps ? factor * parts->total[lane] : 0.0f);
    const float by = total > 0 ? 1.0f / total : 0.0f;
    for (int first = warp * kWarp; first < dim; first += warps * kWarp) {
      const int i = min(first + lane, dim - 1);
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kMostQueryWarps; ++w) {
        const float factor_of = __shfl_sync(kAllLanes, factor, w);
        if (w < warps) sum = fmaf(factor_of, parts->out[w][i], sum);
      }
      if (first + lane < dim) to.Save(at + i, by * sum);
    }
  }
};

}  // namespace mneme::cuda
