// One token for each memory: a warp reads its rows of the matrix once, for S k and S q together,
// adds what is pending, and either appends the token to the pending writes or folds all of them.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/gated_delta_row.cuh"

namespace mneme::cuda::delta {

// How rows are dealt out: kRows to a warp, kWarps to a block. Bulk copies bring a warp's rows into
// shared memory without holding registers, which keeps most bytes in flight; loads into registers
// have the shorter latency, and work on every GPU.
template <int kRows_, int kWarps_, bool kBulk_, int kBlocks_>
struct Tile {
  static constexpr int kRows = kRows_, kWarps = kWarps_;
  static constexpr bool kBulk = kBulk_;
  static constexpr int kBlocks = kBlocks_;  // at least, of a multiprocessor
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kBlockRows = kRows * kWarps;
};

template <typename T, int kKeyDim, typename Shape>
constexpr size_t SharedStateBytes() {
  return Shape::kBulk ? sizeof(T) * Shape::kBlockRows * kKeyDim : 0;
}

template <typename T, int kKeyDim, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    DecodeKernel(const __grid_constant__ Problem p) {
  constexpr int kRows = Shape::kRows, kWarps = Shape::kWarps;
  constexpr int kSize = Lane<kKeyDim>::kSize;
  constexpr bool kBulk = Shape::kBulk;
  constexpr int kKeysAtOnce = 2;

  extern __shared__ __align__(128) unsigned char shared_state[];
  __shared__ uint64_t arrived[kWarps];
  __shared__ float recall_weights[kMaxPending], read_weights[kMaxPending];
  __shared__ float shared_updates[kWarps][kMaxPending][kRows];

  Item item;
  if (!FindItem(p, item)) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first_row = item.tile * Shape::kBlockRows + warp * kRows;
  const int rows = max(0, min(kRows, p.value_dim - first_row));
  T* state = p.state.At<T>(item.slot, item.memory) +
             (static_cast<int64_t>(item.head) * p.value_dim + first_row) * kKeyDim;
  const T* staged = reinterpret_cast<const T*>(shared_state) + warp * kRows * kKeyDim;
  float s[kBulk ? 1 : kRows][kSize];
  if constexpr (kBulk) {
    if (lane == 0 && rows > 0 && !item.fresh) {
      BulkLoadStreaming(const_cast<T*>(staged), state, rows * kKeyDim * sizeof(T), &arrived[warp]);
    }
  } else if (!item.fresh) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) LoadRow<kKeyDim, Cache::kStream>(state + r * kKeyDim, s[r]);
    }
  }

  // While the matrix comes: the token, and what is pending.
  const Range range = ReadRange(p, item);
  const int pending = range.size();
  const int group = p.value_heads / p.heads, key_head = item.head / group;
  const int64_t at_head = static_cast<int64_t>(item.first) * p.value_heads + item.head;
  const int64_t at_key = (static_cast<int64_t>(item.first) * p.heads + key_head) * kKeyDim;
  const int row = first_row + lane % kRows;  // that this lane finishes
  float k[kSize], q[kSize];
  LoadRow<kKeyDim>(p.k + at_key, k);
  LoadRow<kKeyDim>(p.q + at_key, q);
  const float log_decay = p.log_decay[at_head], beta = p.beta[at_head];
  const float v = row < p.value_dim ? p.v[at_head * p.value_dim + row] : 0.0f;
  const float k_dot_q = SumLanes(DotLane(k, q));

  float* keys = nullptr;
  PendingDecay decay = {0, 0};
  PendingUpdates<kRows> updates;
  if (p.capacity > 0) keys = p.keys.At<float>(item.slot, item.memory) + key_head * kKeyDim;
  if (pending > 0) {
    updates.Load(p, item, range, first_row);
    decay = LoadPendingDecay(p, item, range);
    const float weight = expf(decay.since);
    for (int j = warp; j < pending; j += kKeysAtOnce * kWarps) {
      float dots[2 * kKeysAtOnce];
      float key[kKeysAtOnce][kSize];
#pragma unroll
      for (int i = 0; i < kKeysAtOnce; ++i) {
        const int at = min(j + i * kWarps, pending - 1);
        LoadRow<kKeyDim>(keys + (range.begin + at) * p.heads * kKeyDim, key[i]);
      }
#pragma unroll
      for (int i = 0; i < kKeysAtOnce; ++i) {
        dots[2 * i] = DotLane(key[i], k);
        dots[2 * i + 1] = DotLane(key[i], q);
      }
      const float dot = SumRows(dots);
      const int at = j + (lane / 2) * kWarps;
      const float scaled = dot * __shfl_sync(kAllLanes, weight, at % kWarp);
      if (lane < 2 * kKeysAtOnce && at < pending) {
        (lane % 2 == 0 ? recall_weights : read_weights)[at] = scaled;
      }
    }
  }
  const bool fold = Folds(p, item, range);
  __syncthreads();
  RangeChange change;
  if (threadIdx.x == 0) change.Begin(p, item, range, fold);
  if (rows == 0) return;  // the first warp has rows

  float recall = 0, read = 0;  // of row `row`, as the matrix with its pending writes has them
  if (!item.fresh) {
    float recalls[kRows], reads[kRows];
    if constexpr (kBulk) BulkWait(&arrived[warp]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kBulk) {
        LoadRow<kKeyDim>(staged + r * kKeyDim, s[0]);
        recalls[r] = DotLane(s[0], k);
        reads[r] = DotLane(s[0], q);
      } else {
        recalls[r] = DotLane(s[r], k);
        reads[r] = DotLane(s[r], q);
      }
    }
    recall = SumRows(recalls);
    read = SumRows(reads);
  }
  if (pending > 0) {
    float more_recall = 0, more_read = 0;
#pragma unroll
    for (int i = 0; i < PendingUpdates<kRows>::kEach; ++i) {
      const int j = PendingUpdates<kRows>::Index(i);
      if (j >= pending) continue;
      more_recall = fmaf(recall_weights[j], updates.u[i], more_recall);
      more_read = fmaf(read_weights[j], updates.u[i], more_read);
    }
#pragma unroll
    for (int mask = kRows; mask < kWarp; mask *= 2) {
      more_recall += __shfl_xor_sync(kAllLanes, more_recall, mask);
      more_read += __shfl_xor_sync(kAllLanes, more_read, mask);
    }
    const float all = expf(decay.all);
    recall = fmaf(all, recall, more_recall);
    read = fmaf(all, read, more_read);
  }
  const Write write = OneToken(recall, read, k_dot_q, v, expf(log_decay), beta);
  if (lane < rows) p.out[at_head * p.value_dim + row] = write.out;

  if (!fold) {
    if (lane < rows) {
      p.updates.At<float>(
          item.slot, item.memory)[(range.end * p.value_heads + item.head) * p.value_dim + row] =
          write.u;
    }
    if (first_row == 0) {
      if (item.head % group == 0) {
        StoreRow<kKeyDim>(keys + range.end * p.heads * kKeyDim, k);
      }
      if (lane == 0) {
        p.decays.At<float>(item.slot, item.memory)[range.end * p.value_heads + item.head] =
            log_decay;
      }
    }
  } else {
    if (pending > 0) updates.Share(decay, log_decay, shared_updates[warp]);
    const float all = expf(pending > 0 ? decay.all + log_decay : log_decay);
    constexpr int kFoldRows = kRows < 4 ? kRows : 4;  // at once
#pragma unroll
    for (int first = 0; first < kRows; first += kFoldRows) {
      float x[kFoldRows][kSize];
#pragma unroll
      for (int r = 0; r < kFoldRows; ++r) {
        const float u = __shfl_sync(kAllLanes, write.u, first + r);
        if (item.fresh) {
#pragma unroll
          for (int i = 0; i < kSize; ++i) x[r][i] = __fmaf_rn(u, k[i], 0.0f);
          continue;
        }
        if constexpr (kBulk) LoadRow<kKeyDim>(staged + (first + r) * kKeyDim, s[0]);
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          x[r][i] = __fmaf_rn(u, k[i], __fmul_rn(all, s[kBulk ? 0 : first + r][i]));
        }
      }
      if (pending > 0) {
        AddPending<kKeyDim>(p, keys + range.begin * p.heads * kKeyDim, pending, first,
                            shared_updates[warp], x);
      }
#pragma unroll
      for (int r = 0; r < kFoldRows; ++r) {
        if (first + r < rows) StoreRow<kKeyDim>(state + (first + r) * kKeyDim, x[r]);
      }
    }
  }
  if (threadIdx.x == 0) change.Finish();
}

}  // namespace mneme::cuda::delta
