// What the readers of matrix_memory/persistent/stream.cuh share with the warps that work for them,
// and the warps that prepare what rows are multiplied by.
#pragma once

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/persistent/active_segments.cuh"
#include "kernels/cuda/matrix_memory/row.cuh"

namespace mneme::cuda::matrix_memory::persistent {

// A block takes kChunks times kRows rows for each of kReaders warps at a time, and has kDepth
// chunks, of all readers, on their way; kEntries such pieces of work are prepared ahead, each by a
// warp of its own.
template <int kReaders_, int kRows_, int kChunks_, int kDepth_, int kEntries_, int kBlocks_>
struct StreamShape {
  static constexpr int kReaders = kReaders_, kRows = kRows_, kChunks = kChunks_, kDepth = kDepth_;
  static constexpr int kEntries = kEntries_;
  static constexpr int kBlocks = kBlocks_;  // of a multiprocessor
  static constexpr int kThreads = (kReaders + kEntries + 1) * kWarp;
  static constexpr int kChunkRows = kReaders * kRows, kBlockRows = kChunkRows * kChunks;
  static constexpr int kWarpRows = kRows * kChunks;
  static_assert(kWarpRows <= kWarp);
};

// What readers need for one piece of work.
template <typename TermType, int kKeyDim, typename Shape>
struct alignas(128) StreamEntry {
  TermType keys[kMaxPending][kKeyDim];
  TermType updates[kMaxPending][Shape::kBlockRows];
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
  StreamEntry<Term<T>, kKeyDim, Shape> entries[Shape::kEntries];
  ActiveSegments active;
  Item told[Shape::kEntries];  // what to prepare next; slot < 0: there is no more work
  uint64_t full[Shape::kDepth], empty[Shape::kDepth];
  uint64_t tellings[Shape::kEntries], heard[Shape::kEntries];
  // Barriers of an entry: what is pending and v are there, k and q are, the products of pending
  // keys are; and readers are through.
  uint64_t copied[Shape::kEntries], ready[Shape::kEntries];
  uint64_t weighed[Shape::kEntries], done[Shape::kEntries];
};

// Products of the pending keys with k and q, times the weight that lane j has for place j.
template <int kKeyDim, typename Shape, typename TermType>
__device__ inline void MultiplyKeys(Range range, float weight,
                                    const float (&k)[Lane<kKeyDim>::kSize],
                                    const float (&q)[Lane<kKeyDim>::kSize],
                                    StreamEntry<TermType, kKeyDim, Shape>& entry) {
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

// The bytes of a T for each of the rows of an item.
template <typename T, typename Shape>
__device__ inline uint32_t RowBytes(const Problem& p, const Item& item) {
  return min(Shape::kBlockRows, p.value_dim - item.tile * Shape::kBlockRows) * sizeof(T);
}

// Starts the copies of what is pending for an item; those of its v are announced, too.
template <int kKeyDim, typename Shape, typename TermType>
__device__ inline void CopyPending(const Problem& p, const Item& item, Range range, int key_head,
                                   StreamEntry<TermType, kKeyDim, Shape>& entry, uint64_t* copied) {
  const int lane = threadIdx.x % kWarp;
  const int first_row = item.tile * Shape::kBlockRows;
  const uint32_t row_bytes = RowBytes<TermType, Shape>(p, item);
  constexpr uint32_t kKeyBytes = kKeyDim * sizeof(TermType);
  if (lane == 0) {
    ArriveAndExpect(copied,
                    range.size() * (kKeyBytes + row_bytes) + RowBytes<float, Shape>(p, item));
  }
  __syncwarp();
  if (range.Has(lane)) {
    BulkLoad(entry.keys[lane],
             p.keys.At<const TermType>(item.slot, item.memory) +
                 (static_cast<int64_t>(lane) * p.heads + key_head) * kKeyDim,
             kKeyBytes, copied);
    BulkLoad(entry.updates[lane],
             p.updates.At<const TermType>(item.slot, item.memory) +
                 (static_cast<int64_t>(lane) * p.value_heads + item.head) * p.value_dim + first_row,
             row_bytes, copied);
  }
}
template <int kKeyDim, typename Shape, typename TermType>
__device__ inline void CopyValues(const Problem& p, const Item& item,
                                  StreamEntry<TermType, kKeyDim, Shape>& entry, uint64_t* copied) {
  if (threadIdx.x % kWarp != 0) return;
  BulkLoad(entry.v,
           p.v + (static_cast<int64_t>(item.first) * p.value_heads + item.head) * p.value_dim +
               item.tile * Shape::kBlockRows,
           RowBytes<float, Shape>(p, item), copied);
}

// The warp that prepares every kEntries-th entry, from number `own` on, and keeps record of what is
// pending.
template <typename T, int kKeyDim, typename Shape>
__device__ inline void PrepareEntries(const Problem& p, int own,
                                      StreamMemory<T, kKeyDim, Shape>& memory) {
  const int lane = threadIdx.x % kWarp;
  const int group = p.value_heads / p.heads;
  auto& entry = memory.entries[own];
  uint64_t* const copied = &memory.copied[own];
  for (uint32_t phase = 0;; phase ^= 1) {
    BulkWait(&memory.tellings[own], phase);
    const Item item = memory.told[own];
    Arrive(&memory.heard[own]);
    if (item.slot < 0) {
      BulkWait(&memory.done[own], phase ^ 1);
      if (lane == 0) entry.item.slot = -1;
      Arrive(&memory.ready[own]);
      return;
    }
    const Range range = ReadRange(p, item);
    const int key_head = item.head / group;
    const bool fold = Folds(p, item, range);
    const float pending_decay = range.size() > 0 ? LoadDecay(p, item, range) : 0.0f;
    BulkWait(&memory.done[own], phase ^ 1);
    CopyPending<kKeyDim, Shape>(p, item, range, key_head, entry, copied);

    WaitForPreviousKernel();
    const int64_t at_key = (static_cast<int64_t>(item.first) * p.heads + key_head) * kKeyDim;
    float k[Lane<kKeyDim>::kSize], q[Lane<kKeyDim>::kSize];
    LoadRow<kKeyDim>(p.k + at_key, k);
    LoadRow<kKeyDim>(p.q + at_key, q);
    CopyValues<kKeyDim, Shape>(p, item, entry, copied);
    const int64_t from = p.gate_rows == nullptr ? item.first : p.gate_rows[item.first];
    float log_decay = LogDecayAt(p.log_decay, from * p.value_heads + item.head);
    float beta = p.beta[from * p.value_heads + item.head];
    RangeChange change;
    if (lane == 0) change.Begin(p, item, range, fold);
    if (p.a_log != nullptr) {
      log_decay = LogDecay(log_decay, p.a_log[item.head], p.dt_bias[item.head]);
      beta = p.beta_scale * Sigmoid(beta);
      Normalise(p.norms.k, k);
      Normalise(p.norms.q, q);
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
    Arrive(&memory.ready[own]);

    const PendingDecay decay = SumPendingDecay(pending_decay);
    if (lane < kMaxPending) entry.fold_weights[lane] = expf(decay.since + log_decay);
    if (lane == 0) {
      entry.stored_decay = expf(decay.all);
      entry.fold_decay = expf(decay.all + log_decay);
    }
    BulkWait(copied, phase);
    MultiplyKeys<kKeyDim, Shape>(range, expf(decay.since), k, q, entry);
    Arrive(&memory.weighed[own]);

    if (!fold && item.tile == 0) {
      if (item.head % group == 0) {
        StoreRow<kKeyDim>(p.keys.At<Term<T>>(item.slot, item.memory) +
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

}  // namespace mneme::cuda::matrix_memory::persistent
