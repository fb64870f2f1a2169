// What the readers of gated_delta_stream.cuh share with the warps that work for them, and the warps
// that prepare what rows are multiplied by.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/gated_delta_active.cuh"
#include "kernels/cuda/gated_delta_row.cuh"

namespace mneme::cuda::delta {

constexpr int kEntries = 2;  // prepared ahead, each by a warp of its own

// A block takes kChunks times kRows rows for each of kReaders warps at a time, and has kDepth
// chunks, of all readers, on their way.
template <int kReaders_, int kRows_, int kChunks_, int kDepth_, int kBlocks_>
struct Stream {
  static constexpr int kReaders = kReaders_, kRows = kRows_, kChunks = kChunks_, kDepth = kDepth_;
  static constexpr int kBlocks = kBlocks_;  // of a multiprocessor
  static constexpr int kThreads = (kReaders + kEntries + 1) * kWarp;
  static constexpr int kChunkRows = kReaders * kRows, kBlockRows = kChunkRows * kChunks;
  static constexpr int kWarpRows = kRows * kChunks;
  static_assert(kWarpRows <= kWarp);
};

// What readers need for one piece of work.
template <int kKeyDim, typename Shape>
struct alignas(128) StreamEntry {
  float keys[kMaxPending][kKeyDim];
  float updates[kMaxPending][Shape::kBlockRows];
  float v[Shape::kBlockRows];
  float k[kKeyDim], q[kKeyDim];
  float2 recall_read[kMaxPending];  // products of pending keys with k and q,
                                    // weighted
  float fold_weights[kMaxPending];
  float k_dot_q, token_decay, stored_decay, fold_decay, beta;
  Range range;
  Item item;  // slot < 0: there is no more work
  bool fold;
};

template <typename T, int kKeyDim, typename Shape>
struct StreamMemory {
  alignas(128) T ring[Shape::kDepth][Shape::kChunkRows * RowPitch<T>(kKeyDim)];
  StreamEntry<kKeyDim, Shape> entries[kEntries];
  ActiveSegments active;
  uint64_t full[Shape::kDepth], empty[Shape::kDepth];
  // Of an entry: what is pending and v are there, k and q are, the products of pending keys are;
  // and readers are through.
  uint64_t copied[kEntries], ready[kEntries], weighed[kEntries], done[kEntries];
};

// A place in a ring of kSize, and how often it came round.
template <int kSize>
struct RingPlace {
  int at = 0;
  uint32_t phase = 0;
  __device__ void Next() {
    if (++at == kSize) {
      at = 0;
      phase ^= 1;
    }
  }
};

__device__ inline Item ItemOfLane(const Item& item, int lane) {
  return {__shfl_sync(kAllLanes, item.slot, lane),
          __shfl_sync(kAllLanes, item.memory, lane),
          __shfl_sync(kAllLanes, item.head, lane),
          __shfl_sync(kAllLanes, item.tile, lane),
          __shfl_sync(kAllLanes, item.first, lane),
          __shfl_sync(kAllLanes, item.length, lane),
          __shfl_sync(kAllLanes, static_cast<int>(item.fresh), lane) != 0};
}

// Products of the pending keys with k and q, times the weight that lane j has for place j.
template <int kKeyDim, typename Shape>
__device__ inline void MultiplyKeys(Range range, float weight,
                                    const float (&k)[Lane<kKeyDim>::kSize],
                                    const float (&q)[Lane<kKeyDim>::kSize],
                                    StreamEntry<kKeyDim, Shape>& entry) {
  constexpr int kAtOnce = 4;
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int first = range.begin; first < range.end; first += kAtOnce) {
    float dots[2 * kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float key[Lane<kKeyDim>::kSize];
      LoadRow<kKeyDim>(entry.keys[min(first + i, range.end - 1)], key);
      dots[i] = DotLane(key, k);
      dots[kAtOnce + i] = DotLane(key, q);
    }
    const float dot = SumRows(dots);
    const float read = __shfl_down_sync(kAllLanes, dot, kAtOnce);
    const int j = first + lane;
    const float scale = __shfl_sync(kAllLanes, weight, j % kWarp);
    if (lane < kAtOnce && j < range.end) entry.recall_read[j] = {scale * dot, scale * read};
  }
}

// StoreRow() to shared memory.
template <int kKeyDim>
__device__ inline void ShareRow(const float (&x)[Lane<kKeyDim>::kSize], float* shared) {
  constexpr int kWidth = Lane<kKeyDim>::kWidth;
#pragma unroll
  for (int i = 0; i < Lane<kKeyDim>::kSize; ++i) {
    shared[(i / kWidth * kWarp + threadIdx.x % kWarp) * kWidth + i % kWidth] = x[i];
  }
}

// Starts the copies of what is pending for an item, and of its v.
template <int kKeyDim, typename Shape>
__device__ inline void CopyEntry(const Problem& p, const Item& item, Range range, int key_head,
                                 StreamEntry<kKeyDim, Shape>& entry, uint64_t* copied) {
  const int lane = threadIdx.x % kWarp;
  const int first_row = item.tile * Shape::kBlockRows;
  const auto row_bytes =
      static_cast<uint32_t>(min(Shape::kBlockRows, p.value_dim - first_row) * sizeof(float));
  constexpr uint32_t kKeyBytes = kKeyDim * sizeof(float);
  if (lane == 0) ArriveAndExpect(copied, range.size() * (kKeyBytes + row_bytes) + row_bytes);
  __syncwarp();
  if (range.Has(lane)) {
    BulkLoad(entry.keys[lane],
             p.keys.At<const float>(item.slot, item.memory) +
                 (static_cast<int64_t>(lane) * p.heads + key_head) * kKeyDim,
             kKeyBytes, copied);
    BulkLoad(entry.updates[lane],
             p.updates.At<const float>(item.slot, item.memory) +
                 (static_cast<int64_t>(lane) * p.value_heads + item.head) * p.value_dim + first_row,
             row_bytes, copied);
  } else if (lane == kMaxPending) {
    BulkLoad(entry.v,
             p.v + (static_cast<int64_t>(item.first) * p.value_heads + item.head) * p.value_dim +
                 first_row,
             row_bytes, copied);
  }
}

// The warp that prepares every kEntries-th entry, from number `own` on, and keeps record of what is
// pending.
template <typename T, int kKeyDim, typename Shape>
__device__ inline void PrepareEntries(const Problem& p, int own,
                                      StreamMemory<T, kKeyDim, Shape>& memory) {
  const int lane = threadIdx.x % kWarp;
  const int group = p.value_heads / p.heads;
  RingPlace<kEntries> place;
  const int units = memory.active.count * p.value_heads * p.tiles;
  for (int base = blockIdx.x; base < units; base += kWarp * gridDim.x) {
    const int unit = base + lane * static_cast<int>(gridDim.x);
    Item of_lane = {};
    Range range_of_lane = {0, 0};
    float decay_of_lane = 0, beta_of_lane = 0, a_log_of_lane = 0, dt_bias_of_lane = 0;
    const bool has = FindUnit(p, memory.active, unit, of_lane);
    if (has) {
      range_of_lane = ReadRange(p, of_lane);
      const int64_t from = p.gate_rows == nullptr ? of_lane.first : p.gate_rows[of_lane.first];
      decay_of_lane = p.log_decay[from * p.value_heads + of_lane.head];
      beta_of_lane = p.beta[from * p.value_heads + of_lane.head];
      if (p.a_log != nullptr) {
        a_log_of_lane = p.a_log[of_lane.head];
        dt_bias_of_lane = p.dt_bias[of_lane.head];
      }
    }
    for (unsigned left = __ballot_sync(kAllLanes, has); left != 0; left &= left - 1, place.Next()) {
      if (place.at != own) continue;
      const int from = __ffs(static_cast<int>(left)) - 1;
      const Item item = ItemOfLane(of_lane, from);
      const Range range = {__shfl_sync(kAllLanes, range_of_lane.begin, from),
                           __shfl_sync(kAllLanes, range_of_lane.end, from)};
      const int key_head = item.head / group;
      const bool fold = Folds(p, item, range);

      const int64_t at_key = (static_cast<int64_t>(item.first) * p.heads + key_head) * kKeyDim;
      float k[Lane<kKeyDim>::kSize], q[Lane<kKeyDim>::kSize];
      LoadRow<kKeyDim>(p.k + at_key, k);
      LoadRow<kKeyDim>(p.q + at_key, q);
      const float pending_decay = range.size() > 0 ? LoadDecay(p, item, range) : 0.0f;
      RangeChange change;
      if (lane == 0) change.Begin(p, item, range, fold);

      StreamEntry<kKeyDim, Shape>& entry = memory.entries[place.at];
      BulkWait(&memory.done[place.at], place.phase ^ 1);
      CopyEntry<kKeyDim, Shape>(p, item, range, key_head, entry, &memory.copied[place.at]);
      float log_decay = __shfl_sync(kAllLanes, decay_of_lane, from);
      float beta = __shfl_sync(kAllLanes, beta_of_lane, from);
      if (p.a_log != nullptr) {
        log_decay = LogDecay(log_decay, __shfl_sync(kAllLanes, a_log_of_lane, from),
                             __shfl_sync(kAllLanes, dt_bias_of_lane, from));
        beta = p.beta_scale * Sigmoid(beta);
        SetLength(1.0f, k);
        SetLength(rsqrtf(static_cast<float>(kKeyDim)), q);
      }
      ShareRow<kKeyDim>(k, entry.k);
      ShareRow<kKeyDim>(q, entry.q);
      const float k_dot_q = SumLanes(DotLane(k, q));
      if (lane == 0) {
        entry.k_dot_q = k_dot_q;
        entry.token_decay = expf(log_decay);
        entry.beta = beta;
        entry.range = range;
        entry.item = item;
        entry.fold = fold;
      }
      __syncwarp();
      if (lane == 0) Arrive(&memory.ready[place.at]);

      const PendingDecay decay = SumPendingDecay(pending_decay);
      if (lane < kMaxPending) entry.fold_weights[lane] = expf(decay.since + log_decay);
      if (lane == 0) {
        entry.stored_decay = expf(decay.all);
        entry.fold_decay = expf(decay.all + log_decay);
      }
      BulkWait(&memory.copied[place.at], place.phase);
      MultiplyKeys<kKeyDim, Shape>(range, expf(decay.since), k, q, entry);
      __syncwarp();
      if (lane == 0) Arrive(&memory.weighed[place.at]);

      if (!fold && item.tile == 0) {
        if (item.head % group == 0) {
          StoreRow<kKeyDim>(p.keys.At<float>(item.slot, item.memory) +
                                (static_cast<int64_t>(range.end) * p.heads + key_head) * kKeyDim,
                            k);
        }
        if (lane == 0) {
          p.decays.At<float>(item.slot, item.memory)[range.end * p.value_heads + item.head] =
              log_decay;
        }
      }
      if (lane == 0) change.Finish();
    }
  }
  if (place.at != own) return;
  BulkWait(&memory.done[place.at], place.phase ^ 1);
  if (lane == 0) {
    memory.entries[place.at].item.slot = -1;
    Arrive(&memory.ready[place.at]);
  }
}

}  // namespace mneme::cuda::delta
