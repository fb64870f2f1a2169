// The delta rule of decode_layers.cu: a block works on rows of one head of one memory at a time, a
// warp on one or two of them.
#pragma once

#include "kernels/cuda/decode_layers_mixer.cuh"

namespace mneme::cuda::layers {

// Adds writes that were held back to two rows, as PendingWrites says.
template <int kKeyDim>
__device__ inline void AddHeldBack(const Params& p, const Layer& layer, int slot, int memory,
                                   const MatrixItem& item, const int (&rows)[2], int2 range,
                                   float (&s)[2][delta::Lane<kKeyDim>::kSize]) {
  const float* decays = layer.decays.At<const float>(slot, memory) + item.head;
  const float* updates = layer.updates.At<const float>(slot, memory) + item.head * p.value_dim;
  const float* keys = layer.keys.At<const float>(slot, memory) + item.key_head * kKeyDim;
  float sum = 0;
#pragma unroll 1
  for (int j = range.x; j < range.y; ++j) sum += decays[j * p.value_heads];
  const float stored = expf(sum);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    for (float& x : s[i]) x *= stored;
  }
  sum = 0;
#pragma unroll 1
  for (int j = range.y - 1; j >= range.x; --j) {
    const float weight = expf(sum);
    sum += decays[j * p.value_heads];
    float key[delta::Lane<kKeyDim>::kSize];
    delta::LoadRow<kKeyDim>(keys + int64_t{j} * p.heads * kKeyDim, key);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t at = int64_t{j} * p.value_heads * p.value_dim + min(rows[i], item.end - 1);
      const float u = weight * updates[at];
#pragma unroll
      for (int n = 0; n < delta::Lane<kKeyDim>::kSize; ++n) s[i][n] = fmaf(u, key[n], s[i][n]);
    }
  }
}

// The token of an item's entry, in all lanes.
struct Token {
  float v[2];  // of the warp's rows
  float a, b;
};

// Waits for k and q of the item, to shared memory, and in the same breath for the warp's own words.
template <int kKeyDim, int kRows>
__device__ inline Token AwaitToken(const Params& p, Shared<kRows>& shared, const MatrixItem& item,
                                   const int (&rows)[2], uint32_t number) {
  static_assert(static_cast<int>(kKeyDim) <= static_cast<int>(kComputeThreads));
  const int lane = threadIdx.x % kWarp, i = 2 * static_cast<int>(threadIdx.x) % (2 * kKeyDim);
  const int at_key = (item.entry * p.heads + item.key_head) * kKeyDim;
  const int at_head = item.entry * p.value_heads + item.head;
  const Word* const key = i < kKeyDim ? p.k + at_key + i : p.q + at_key + i - kKeyDim;
  const Word* const own =
      lane < 2    ? p.v + at_head * p.value_dim + min(lane == 0 ? rows[0] : rows[1], item.end - 1)
      : lane == 2 ? p.a + at_head
                  : p.b + at_head;
  uint64_t first, second, own_bits;
  do {
    Peek2(key, first, second);
    own_bits = Peek(own);
  } while (!Is(first, number) || !Is(second, number) || !Is(own_bits, number));
  float* const to = i < kKeyDim ? shared.k + i : shared.q + i - kKeyDim;
  to[0] = ValueOf(first);
  to[1] = ValueOf(second);
  const float value = ValueOf(own_bits);
  return {{__shfl_sync(kAllLanes, value, 0), __shfl_sync(kAllLanes, value, 1)},
          __shfl_sync(kAllLanes, value, 2),
          __shfl_sync(kAllLanes, value, 3)};
}

// The next rows of the item from the ring, a stage each: all warps take theirs, then the stages are
// free.
template <typename S, int kKeyDim, int kRows>
__device__ inline void TakeRows(Shared<kRows>& shared, const unsigned char* ring,
                                const int (&rows)[2], int first, int end, unsigned& used,
                                float (&s)[2][delta::Lane<kKeyDim>::kSize]) {
  static_assert(static_cast<int>(kWarps * kKeyDim * sizeof(S)) <= static_cast<int>(kStageBytes));
  constexpr unsigned kSlots = RingSlots(kRows);
  const int warp = threadIdx.x / kWarp, stages = first + kWarps < end ? 2 : 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i < stages) {
      const unsigned slot = (used + i) % kSlots;
      BulkWait(shared.full + slot, (used + i) / kSlots & 1);
      if (rows[i] < end) {
        delta::LoadRow<kKeyDim>(
            reinterpret_cast<const S*>(ring + slot * kStageBytes) + warp * kKeyDim, s[i]);
      }
    }
  }
  SyncCompute();
  if (warp < kParts && threadIdx.x % kWarp == 0) {
#pragma unroll 1
    for (int i = 0; i < stages; ++i) Arrive(shared.empty + (used + i) % kSlots);
  }
  used += stages;
}

// The layer's tokens through this block's part of their memories.
template <typename S, int kKeyDim, int kRows>
__device__ inline void RunMemories(const Params& p, const Layer& layer, Shared<kRows>& shared,
                                   const unsigned char* ring,
                                   const bool (*fresh_memories)[kMaxMemories], unsigned& used,
                                   uint32_t number) {
  constexpr int kSize = delta::Lane<kKeyDim>::kSize;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll 1
  for (int index = 0; index < shared.plan.item_count; ++index) {
    const MatrixItem& item = shared.plan.items[index];
    const int slot = shared.slots[item.row], memory = shared.memories[item.row][item.column];
    if (slot < 0) continue;
    const bool fresh = fresh_memories[item.row][memory];
    const int at_head = item.entry * p.value_heads + item.head;
    S* const state = layer.state.At<S>(slot, memory) + int64_t{item.head} * p.value_dim * kKeyDim;
    const float a_log = __ldg(layer.a_log + item.head), dt_bias = __ldg(layer.dt_bias + item.head);
    int2 range = {0, 0};
    if (p.capacity > 0 && !fresh) range = *layer.range.At<const int2>(slot, memory);
#pragma unroll 1
    for (int first = item.begin; first < item.end; first += 2 * kWarps) {
      const int rows[2] = {first + warp, first + warp + kWarps};
      const Token token = AwaitToken<kKeyDim>(p, shared, item, rows, number);
      float s[2][kSize] = {};
      if (fresh) {
        SyncCompute();
      } else {
        TakeRows<S, kKeyDim>(shared, ring, rows, first, item.end, used, s);
      }
      const float decay = expf(LogDecay(token.a, a_log, dt_bias));
      const float beta = p.beta_scale * Sigmoid(token.b);
      float k[kSize], q[kSize];
      delta::LoadRow<kKeyDim>(shared.k, k);
      delta::LoadRow<kKeyDim>(shared.q, q);
      if (range.x != range.y) {
        AddHeldBack<kKeyDim>(p, layer, slot, memory, item, rows, range, s);
      }
      float dots[8] = {delta::DotLane(k, k),    delta::DotLane(q, q),
                       delta::DotLane(k, q),    0,
                       delta::DotLane(s[0], k), delta::DotLane(s[0], q),
                       delta::DotLane(s[1], k), delta::DotLane(s[1], q)};
      const float sum = delta::SumRows(dots);
      const auto dot = [&](int i) { return __shfl_sync(kAllLanes, sum, i); };
      const float k_scale = rsqrtf(dot(0) + 1e-6f);
      const float q_scale = rsqrtf(static_cast<float>(kKeyDim)) * rsqrtf(dot(1) + 1e-6f);
      const float k_dot_q = dot(2) * k_scale * q_scale;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const delta::Write write = delta::OneToken(
            dot(4 + 2 * i) * k_scale, dot(5 + 2 * i) * q_scale, k_dot_q, token.v[i], decay, beta);
        if (rows[i] < item.end) {
          if (lane == 0) Put(p.read + at_head * p.value_dim + rows[i], write.out, number);
          const float u = write.u * k_scale;
#pragma unroll
          for (int n = 0; n < kSize; ++n) s[i][n] = fmaf(u, k[n], decay * s[i][n]);
          delta::StoreRow<kKeyDim>(state + int64_t{rows[i]} * kKeyDim, s[i]);
        }
      }
      // k and q may be those of another item next.
      if (first + 2 * kWarps < item.end || index + 1 < shared.plan.item_count) SyncCompute();
    }
  }
}

}  // namespace mneme::cuda::layers
