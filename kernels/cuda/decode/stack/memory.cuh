// The delta rule of decode/stack/stack.cu: a block works on rows of one head of one memory at a
// time, a warp on one or two of them.
#pragma once

#include "kernels/cuda/decode/stack/mixer.cuh"

namespace mneme::cuda::decode::stack {

// Adds writes that were held back to the stored rows that this warp takes later on, as
// PendingWrites says. It is rare.
template <typename S, int kKeyDim, int kRows>
__device__ inline void AddHeldBack(const Params& p, const Layer& layer, Shared<kRows>& shared,
                                   const Written (*written)[kMaxMemories]) {
  constexpr int kSize = matrix_memory::Lane<kKeyDim>::kSize;
#pragma unroll 1
  for (int index = 0; index < shared.plan.item_count; ++index) {
    const MatrixItem& item = shared.plan.items[index];
    const int slot = shared.slots[item.row], memory = shared.memories[item.row][item.column];
    if (slot < 0 || written[item.row][memory] != Written::kHeldBack) continue;
    S* const state = layer.state.At<S>(slot, memory) + int64_t{item.head} * p.value_dim * kKeyDim;
    const int2 range = *layer.range.At<const int2>(slot, memory);
    const float* const decays = layer.decays.At<const float>(slot, memory) + item.head;
    const auto* const updates =
        layer.updates.At<const matrix_memory::Term<S>>(slot, memory) + item.head * p.value_dim;
    const auto* const keys =
        layer.keys.At<const matrix_memory::Term<S>>(slot, memory) + item.key_head * kKeyDim;
    float stored = 0;
#pragma unroll 1
    for (int j = range.x; j < range.y; ++j) stored += decays[j * p.value_heads];
    stored = expf(stored);
#pragma unroll 1
    for (int row = item.begin + Thread() / kWarp; row < item.end; row += kWarps) {
      float s[kSize], since = 0;
      matrix_memory::LoadRow<kKeyDim>(state + int64_t{row} * kKeyDim, s);
#pragma unroll
      for (float& x : s) x *= stored;
#pragma unroll 1
      for (int j = range.y - 1; j >= range.x; --j) {
        const float u = expf(since) *
                        static_cast<float>(updates[int64_t{j} * p.value_heads * p.value_dim + row]);
        since += decays[j * p.value_heads];
        float key[kSize];
        matrix_memory::LoadRow<kKeyDim>(keys + int64_t{j} * p.heads * kKeyDim, key);
#pragma unroll
        for (int n = 0; n < kSize; ++n) s[n] = fmaf(u, key[n], s[n]);
      }
      matrix_memory::StoreRow<kKeyDim>(state + int64_t{row} * kKeyDim, s);
    }
  }
}

// The token of an item's entry, in all lanes.
struct Token {
  float v[2];  // of the warp's rows
  float decay, beta;
};

// Waits for k and q of the item, to shared memory, and in the same breath for the warp's own words.
template <int kKeyDim, int kRows>
__device__ inline Token AwaitToken(const Params& p, Shared<kRows>& shared, const MatrixItem& item,
                                   const int (&rows)[2], uint32_t number) {
  static_assert(static_cast<int>(kKeyDim) <= static_cast<int>(kComputeThreads));
  const int lane = Thread() % kWarp, i = 2 * Thread();
  const int at_key = (item.entry * p.heads + item.key_head) * kKeyDim;
  const int at_head = item.entry * p.value_heads + item.head;
  const bool has_key = i < 2 * kKeyDim;
  const Word* const key = i < kKeyDim ? p.k + at_key + i : p.q + at_key + i - kKeyDim;
  const Word* const own =
      lane < 2    ? p.v + at_head * p.value_dim + min(lane == 0 ? rows[0] : rows[1], item.end - 1)
      : lane == 2 ? p.decay + at_head
                  : p.beta + at_head;
  uint64_t first = 0, second = 0, own_bits = 0;
  bool there;
  do {
    if (has_key) Peek2(key, first, second);
    if (lane < 4) own_bits = Peek(own);
    there = (!has_key || (Is(first, number) && Is(second, number))) &&
            (lane >= 4 || Is(own_bits, number));
  } while (!there);
  if (has_key) {
    *reinterpret_cast<float2*>(i < kKeyDim ? shared.k + i : shared.q + i - kKeyDim) = {
        ValueOf(first), ValueOf(second)};
  }
  __syncwarp();
  const float value = ValueOf(own_bits);
  return {{__shfl_sync(kAllLanes, value, 0), __shfl_sync(kAllLanes, value, 1)},
          __shfl_sync(kAllLanes, value, 2),
          __shfl_sync(kAllLanes, value, 3)};
}

// The warp's next rows of the item from the ring, where 16 of them are a stage.
template <typename S, int kKeyDim, int kRows>
__device__ inline void TakeRows(Shared<kRows>& shared, const unsigned char* ring,
                                const int (&rows)[2], int first, int end, ComputePlace<kRows>& at,
                                float (&s)[2][matrix_memory::Lane<kKeyDim>::kSize]) {
  static_assert(static_cast<int>(kWarps * kKeyDim * sizeof(S)) <= static_cast<int>(kStageBytes));
  const int lane = Thread() % kWarp, warp = Thread() / kWarp;
  const int stages = first + kWarps < end ? 2 : 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i < stages) {
      BulkWait(shared.full + at.at, at.phase);
      if (rows[i] < end) {
        matrix_memory::LoadRow<kKeyDim>(
            reinterpret_cast<const S*>(ring + at.at * kStageBytes) + warp * kKeyDim, s[i]);
      }
      __syncwarp();
      if (lane == 0) Arrive(shared.empty + at.at);
      at.Next();
    }
  }
}

// The layer's tokens through this block's part of their memories.
template <typename S, int kKeyDim, int kRows>
__device__ inline void RunMemories(const Params& p, const Layer& layer, Shared<kRows>& shared,
                                   const unsigned char* ring,
                                   const Written (*written)[kMaxMemories], ComputePlace<kRows>& at,
                                   uint32_t number) {
  constexpr int kSize = matrix_memory::Lane<kKeyDim>::kSize;
  const int lane = Thread() % kWarp, warp = Thread() / kWarp;
#pragma unroll 1
  for (int index = 0; index < shared.plan.item_count; ++index) {
    const MatrixItem& item = shared.plan.items[index];
    const int slot = shared.slots[item.row], memory = shared.memories[item.row][item.column];
    if (slot < 0) continue;
    const Written before = written[item.row][memory];
    const int at_head = item.entry * p.value_heads + item.head;
    S* const state = layer.state.At<S>(slot, memory) + int64_t{item.head} * p.value_dim * kKeyDim;
#pragma unroll 1
    for (int first = item.begin; first < item.end; first += 2 * kWarps) {
      const int rows[2] = {first + warp, first + warp + kWarps};
      float s[2][kSize] = {};
      if (before == Written::kAll) {
        TakeRows<S, kKeyDim>(shared, ring, rows, first, item.end, at, s);
      } else if (before == Written::kHeldBack) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (rows[i] < item.end) {
            matrix_memory::LoadRow<kKeyDim>(state + int64_t{rows[i]} * kKeyDim, s[i]);
          }
        }
      }
      const Token token = AwaitToken<kKeyDim>(p, shared, item, rows, number);
      SyncCompute();
      float k[kSize], q[kSize];
      matrix_memory::LoadRow<kKeyDim>(shared.k, k);
      matrix_memory::LoadRow<kKeyDim>(shared.q, q);
      float dots[8] = {matrix_memory::DotLane(k, k),    matrix_memory::DotLane(q, q),
                       matrix_memory::DotLane(k, q),    0,
                       matrix_memory::DotLane(s[0], k), matrix_memory::DotLane(s[0], q),
                       matrix_memory::DotLane(s[1], k), matrix_memory::DotLane(s[1], q)};
      const float sum = matrix_memory::SumRows(dots);
      const auto dot = [&](int i) { return __shfl_sync(kAllLanes, sum, i); };
      const float k_scale = p.norms.k.scale * rsqrtf(dot(0) + p.norms.k.eps);
      const float q_scale = p.norms.q.scale * rsqrtf(dot(1) + p.norms.q.eps);
      const float k_dot_q = dot(2) * k_scale * q_scale;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const matrix_memory::Write write =
            matrix_memory::OneToken(dot(4 + 2 * i) * k_scale, dot(5 + 2 * i) * q_scale, k_dot_q,
                                    token.v[i], token.decay, token.beta);
        if (rows[i] < item.end) {
          if (lane == 0) Put(p.read + at_head * p.value_dim + rows[i], write.out, number);
          const float u = write.u * k_scale;
#pragma unroll
          for (int n = 0; n < kSize; ++n) s[i][n] = fmaf(u, k[n], token.decay * s[i][n]);
          matrix_memory::StoreRow<kKeyDim>(state + int64_t{rows[i]} * kKeyDim, s[i]);
        }
      }
      // k and q may be those of another item next.
      if (first + 2 * kWarps < item.end || index + 1 < shared.plan.item_count) SyncCompute();
    }
  }
}

}  // namespace mneme::cuda::decode::stack
