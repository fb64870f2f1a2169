// One token for each memory: a warp reads its rows of the matrix once, for S k and S q together,
// adds what is pending, and either appends the token to the pending writes or folds all of them.
#pragma once

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/row.cuh"

namespace mneme::cuda::matrix_memory::decode {

// How rows are dealt out: a warp takes kChunks times kRows of them, a block has kWarps.
//
// kDepth > 0: a ring of bulk copies brings kDepth chunks of a warp into shared memory ahead of it.
// No register waits for memory, and what is pending is read and multiplied while they travel.
// kDepth 0: one chunk, loaded into registers; the shorter way for few rows, and for any GPU.
template <int kRows_, int kWarps_, int kChunks_, int kDepth_, int kBlocks_>
struct Tile {
  static constexpr int kRows = kRows_, kWarps = kWarps_, kChunks = kChunks_, kDepth = kDepth_;
  static constexpr int kBlocks = kBlocks_;  // at least, of a multiprocessor
  static constexpr int kThreads = kWarps * kWarp;
  // Keys that a fold loads at a time: as many as registers allow.
  static constexpr int kKeys = kThreads * kBlocks > 640 ? 1 : kDepth > 1 ? 2 : 4;
  static constexpr int kWarpRows = kRows * kChunks;
  static constexpr int kBlockRows = kWarpRows * kWarps;
  static_assert(kDepth > 0 ? kDepth <= kChunks : kChunks == 1);
};

template <typename T, int kKeyDim, typename Shape>
constexpr int SharedStateBytes() {
  return static_cast<int>(sizeof(T)) * Shape::kWarps * Shape::kDepth * Shape::kRows *
         RowPitch<T>(kKeyDim);
}

// The chunks of a warp's rows, one after the other.
template <typename T, int kKeyDim, typename Shape>
class RowStream {
 public:
  static constexpr int kSize = Lane<kKeyDim>::kSize, kPitch = RowPitch<T>(kKeyDim);

  // `rows` from `state` on, at most kWarpRows.
  __device__ void Begin(const T* state, int rows, T* ring, uint64_t* barriers) {
    state_ = state;
    rows_ = rows;
    if constexpr (Shape::kDepth > 0) {
      ring_ = ring;
      barriers_ = barriers;
      if (threadIdx.x % kWarp == 0) {
        for (int i = 0; i < Shape::kDepth; ++i) InitBulkBarrier(barriers + i);
        FenceBulkBarriers();
        for (int i = 0; i < Shape::kDepth; ++i) Load(i, i);
      }
      __syncwarp();
    } else {
#pragma unroll
      for (int r = 0; r < Shape::kRows; ++r) {
        if (r < rows) LoadRow<kKeyDim, Cache::kStream>(state + r * kPitch, held_[r]);
      }
    }
  }
  // Waits for the next chunk.
  __device__ void Await() const {
    if constexpr (Shape::kDepth > 0) BulkWait(barriers_ + stage_, phase_);
  }
  // Row r of the chunk; r is known at compile time.
  __device__ void Row(int r, float (&x)[kSize]) const {
    if constexpr (Shape::kDepth > 0) {
      LoadRow<kKeyDim>(ring_ + (stage_ * Shape::kRows + r) * kPitch, x);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) x[i] = held_[r][i];
    }
  }
  // Gives up chunk c.
  __device__ void Release(int c) {
    if constexpr (Shape::kDepth > 0) {
      __syncwarp();
      if (threadIdx.x % kWarp == 0) Load(c + Shape::kDepth, stage_);
      if (++stage_ == Shape::kDepth) {
        stage_ = 0;
        phase_ ^= 1;
      }
    }
  }

 private:
  __device__ void Load(int chunk, int stage) const {
    const int rows = min(Shape::kRows, rows_ - chunk * Shape::kRows);
    if (rows <= 0) return;
    BulkLoadStreaming(ring_ + stage * Shape::kRows * kPitch, state_ + chunk * Shape::kRows * kPitch,
                      static_cast<uint32_t>(rows * kPitch * sizeof(T)), barriers_ + stage);
  }

  const T* state_;
  int rows_;
  T* ring_;
  uint64_t* barriers_;
  int stage_ = 0;
  uint32_t phase_ = 0;
  float held_[Shape::kDepth > 0 ? 1 : Shape::kRows][kSize];
};

// Products of the pending keys with the token's k and q, times the weight that lane j has for place
// j. Each warp computes some of them.
template <int kKeyDim, int kWarps, typename TermType>
__device__ inline void MultiplyPending(const Problem& p, const TermType* keys, Range range,
                                       float weight, const float (&k)[Lane<kKeyDim>::kSize],
                                       const float (&q)[Lane<kKeyDim>::kSize],
                                       float2* recall_read) {
  constexpr int kAtOnce = 2;
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int first = range.begin + threadIdx.x / kWarp; first < range.end;
       first += kAtOnce * kWarps) {
    float key[kAtOnce][Lane<kKeyDim>::kSize];
    float dots[2 * kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      LoadRow<kKeyDim>(keys + min(first + i * kWarps, range.end - 1) * p.heads * kKeyDim, key[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      dots[i] = DotLane(key[i], k);
      dots[kAtOnce + i] = DotLane(key[i], q);
    }
    const float dot = SumRows(dots);
    const float read = __shfl_down_sync(kAllLanes, dot, kAtOnce);
    const int j = first + lane * kWarps;
    const float scale = __shfl_sync(kAllLanes, weight, j % kWarp);
    if (lane < kAtOnce && j < range.end) recall_read[j] = {scale * dot, scale * read};
  }
}

template <typename T, int kKeyDim, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    DecodeKernel(const __grid_constant__ Problem p) {
  constexpr int kRows = Shape::kRows;
  constexpr int kSize = Lane<kKeyDim>::kSize;
  constexpr int kPitch = RowPitch<T>(kKeyDim);
  constexpr int kRing = Shape::kDepth * kRows * kPitch;  // elements, of a warp

  extern __shared__ __align__(128) unsigned char shared_rings[];
  __shared__ uint64_t barriers[Shape::kWarps][Shape::kDepth + 1];
  __shared__ float2 recall_read[kMaxPending];
  __shared__ float shared_updates[Shape::kWarps][kMaxPending][kRows];

  LetNextKernelStart();
  WaitForPreviousKernel();
  Item item;
  if (!FindItem(p, item)) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first_row = item.tile * Shape::kBlockRows + warp * Shape::kWarpRows;
  const int rows = min(Shape::kWarpRows, p.value_dim - first_row);  // of this warp, if positive
  T* state = p.state.At<T>(item.slot, item.memory) +
             (static_cast<int64_t>(item.head) * p.value_dim + first_row) * kPitch;
  RowStream<T, kKeyDim, Shape> stream;
  stream.Begin(state, item.fresh ? 0 : rows, reinterpret_cast<T*>(shared_rings) + warp * kRing,
               barriers[warp]);

  // While the first rows come: the token, and what is pending.
  const Range range = ReadRange(p, item);
  const int pending = range.size();
  const int group = p.value_heads / p.heads, key_head = item.head / group;
  const int64_t at_head = static_cast<int64_t>(item.first) * p.value_heads + item.head;
  const int64_t at_key = (static_cast<int64_t>(item.first) * p.heads + key_head) * kKeyDim;
  float k[kSize], q[kSize];
  LoadRow<kKeyDim>(p.k + at_key, k);
  LoadRow<kKeyDim>(p.q + at_key, q);
  float log_decay, beta;
  if (p.a_log == nullptr) {
    log_decay = LogDecayAt(p.log_decay, at_head);
    beta = p.beta[at_head];
  } else {
    const int64_t from = p.gate_rows == nullptr ? item.first : p.gate_rows[item.first];
    log_decay = LogDecay(p.log_decay[from * p.value_heads + item.head], p.a_log[item.head],
                         p.dt_bias[item.head]);
    beta = p.beta_scale * Sigmoid(p.beta[from * p.value_heads + item.head]);
    Normalise(p.norms.k, k);
    Normalise(p.norms.q, q);
  }
  const float* values = p.v + at_head * p.value_dim;
  int row = first_row + lane % kRows;  // that this lane finishes
  float v = row < p.value_dim ? values[row] : 0.0f;
  const float k_dot_q = SumLanes(DotLane(k, q));

  Term<T>* keys = nullptr;
  PendingDecay decay = {0, 0};
  PendingUpdates<kRows> updates;
  if (p.capacity > 0) keys = p.keys.At<Term<T>>(item.slot, item.memory) + key_head * kKeyDim;
  if (pending > 0) {
    updates.template Load<Term<T>>(p, item, range, first_row);
    decay = LoadPendingDecay(p, item, range);
    MultiplyPending<kKeyDim, Shape::kWarps>(p, keys, range, expf(decay.since), k, q, recall_read);
  }
  const bool fold = Folds(p, item, range);
  const float token_decay = expf(log_decay);
  const float stored_decay = expf(decay.all);  // of the matrix, before the token
  const float fold_decay = expf(decay.all + log_decay);
  __syncthreads();
  RangeChange change;
  if (threadIdx.x == 0) change.Begin(p, item, range, fold);

#pragma unroll 1  // code that is run once is fetched slowly
  for (int c = 0; c < Shape::kChunks; ++c) {
    const int left = rows - c * kRows;  // this chunk and those behind it
    if (left <= 0) break;
    // For the next chunk.
    PendingUpdates<kRows> next_updates;
    float next_v = 0;
    if (left > kRows) {
      if (pending > 0) {
        next_updates.template Load<Term<T>>(p, item, range, first_row + (c + 1) * kRows);
      }
      if (row + kRows < p.value_dim) next_v = values[row + kRows];
    }

    float recall = 0, read = 0;  // of row `row`, as the matrix with its pending writes has them
    if (!item.fresh) {
      float recalls[kRows], reads[kRows];
      stream.Await();
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float s[kSize];
        stream.Row(r, s);
        recalls[r] = DotLane(s, k);
        reads[r] = DotLane(s, q);
      }
      recall = SumRows(recalls);
      read = SumRows(reads);
    }
    if (pending > 0) {
      float2 more = {0, 0};
#pragma unroll
      for (int i = 0; i < PendingUpdates<kRows>::kEach; ++i) {
        const int j = PendingUpdates<kRows>::Place(i);
        if (!range.Has(j)) continue;
        const float2 weights = recall_read[j];
        more.x = fmaf(weights.x, updates.u[i], more.x);
        more.y = fmaf(weights.y, updates.u[i], more.y);
      }
#pragma unroll
      for (int mask = kRows; mask < kWarp; mask *= 2) {
        more.x += __shfl_xor_sync(kAllLanes, more.x, mask);
        more.y += __shfl_xor_sync(kAllLanes, more.y, mask);
      }
      recall = fmaf(stored_decay, recall, more.x);
      read = fmaf(stored_decay, read, more.y);
    }
    const Write write = OneToken(recall, read, k_dot_q, v, token_decay, beta);
    const bool mine = lane < kRows && row < p.value_dim;
    if (mine) p.out[at_head * p.value_dim + row] = p.scale * write.out;

    if (!fold) {
      if (mine) {
        StoreState(p.updates.At<Term<T>>(item.slot, item.memory) +
                       (range.end * p.value_heads + item.head) * p.value_dim + row,
                   write.u);
      }
    } else {
      if (pending > 0) updates.Share(expf(decay.since + log_decay), shared_updates[warp]);
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
          stream.Row(first + r, x[r]);
#pragma unroll
          for (int i = 0; i < kSize; ++i) {
            x[r][i] = __fmaf_rn(u, k[i], __fmul_rn(fold_decay, x[r][i]));
          }
        }
        if (pending > 0) {
          AddPending<kKeyDim, Shape::kKeys>(p, keys, range, first, shared_updates[warp], x);
        }
#pragma unroll
        for (int r = 0; r < kFoldRows; ++r) {
          if (first + r < left) StoreRow<kKeyDim>(state + (c * kRows + first + r) * kPitch, x[r]);
        }
      }
    }
    stream.Release(c);
    updates = next_updates;
    v = next_v;
    row += kRows;
  }

  if (!fold && first_row == 0) {
    if (item.head % group == 0) StoreRow<kKeyDim>(keys + range.end * p.heads * kKeyDim, k);
    if (lane == 0) {
      p.decays.At<float>(item.slot, item.memory)[range.end * p.value_heads + item.head] = log_decay;
    }
  }
  if (threadIdx.x == 0) change.Finish();
}

}  // namespace mneme::cuda::matrix_memory::decode
