// One token for each memory, where there are many: as many blocks as the GPU holds walk over all
// matrices, and a ring of bulk copies brings rows into shared memory across the seams between one
// piece of work and the next. One thread of a block finds work and keeps the ring full, some warps
// prepare in turn what the rows are multiplied by, and the others read rows. All that does not
// depend on the kernel before this one is asked for while that one still runs.
#pragma once

#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/persistent/prepare.cuh"

namespace mneme::cuda::matrix_memory::persistent {

// Work number `unit` of all, or slot < 0 if there are no more.
__device__ inline Item WorkAt(const Problem& p, const ActiveSegments& active, unsigned unit) {
  Item item = {};
  const auto units = static_cast<unsigned>(active.count() * p.value_heads * p.tiles);
  if (unit >= units || !FindUnit(p, active, static_cast<int>(unit), item)) item.slot = -1;
  return item;
}

// The thread that keeps the ring full, and finds the block's work: the first two pieces by the
// block's number, further ones as it comes to them, because blocks are not equally fast. All that
// it looks up is on its way while it waits for room.
template <typename T, int kKeyDim, typename Shape>
__device__ inline void FillRing(const Problem& p, StreamMemory<T, kKeyDim, Shape>& memory) {
  constexpr int kPitch = RowPitch<T>(kKeyDim);
  RingPlace<Shape::kDepth> place;
  RingPlace<Shape::kEntries> teller;
  const auto tell = [&](const Item& item) {
    BulkWait(&memory.heard[teller.at], teller.phase ^ 1);
    memory.told[teller.at] = item;
    Arrive(&memory.tellings[teller.at]);
    teller.Next();
  };
  Item item = WorkAt(p, memory.active, blockIdx.x);
  tell(item);
  unsigned ahead = blockIdx.x + gridDim.x;
  while (item.slot >= 0) {
    const int first_row = item.tile * Shape::kBlockRows;
    const int rows = item.fresh ? 0 : min(Shape::kBlockRows, p.value_dim - first_row);
    const T* state = p.state.At<const T>(item.slot, item.memory) +
                     (static_cast<int64_t>(item.head) * p.value_dim + first_row) * kPitch;
    const auto fill = [&](int row) {
      if (row >= rows) return;
      BulkWait(&memory.empty[place.at], place.phase ^ 1);
      BulkLoadStreaming(
          memory.ring[place.at], state + static_cast<int64_t>(row) * kPitch,
          static_cast<uint32_t>(min(Shape::kChunkRows, rows - row) * kPitch * sizeof(T)),
          &memory.full[place.at]);
      place.Next();
    };
    fill(0);
    const Item next = WorkAt(p, memory.active, ahead);
    ahead = 2 * gridDim.x + (next.slot >= 0 ? atomicAdd(p.queue, 1u) : 0);
    tell(next);
#pragma unroll 1
    for (int row = Shape::kChunkRows; row < rows; row += Shape::kChunkRows) fill(row);
    item = next;
  }
  for (int i = 1; i < Shape::kEntries; ++i) tell(item);  // there is no more for any of them
  // The last block to end leaves the queue as it was.
  __threadfence();
  if (atomicAdd(p.queue + 1, 1u) == gridDim.x - 1) {
    p.queue[0] = 0;
    p.queue[1] = 0;
  }
}

// Rows of a warp in a chunk, from `row` of the entry on, with the token and all that is pending.
template <typename T, int kKeyDim, typename Shape>
__device__ inline void FoldRows(const StreamEntry<Term<T>, kKeyDim, Shape>& entry, const T* stored,
                                int row, int rows, const float (&k)[Lane<kKeyDim>::kSize], float u,
                                int u_lane, T* state) {
  constexpr int kSize = Lane<kKeyDim>::kSize, kPitch = RowPitch<T>(kKeyDim);
  constexpr int kRows = Shape::kRows;
  const Range range = entry.range;
  constexpr int kAtOnce = 4;
  static_assert(kRows % kAtOnce == 0);
#pragma unroll
  for (int first = 0; first < kRows; first += kAtOnce) {
    float x[kAtOnce][kSize];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const float write = __shfl_sync(kAllLanes, u, u_lane + first + r);
      if (entry.item.fresh) {
#pragma unroll
        for (int i = 0; i < kSize; ++i) x[r][i] = __fmaf_rn(write, k[i], 0.0f);
        continue;
      }
      const T* from = stored + (first + r) * kPitch;
      LoadElements<kKeyDim>(from, x[r]);
      const float decay = entry.fold_decay * RowScale(from, kKeyDim);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        x[r][i] = __fmaf_rn(write, k[i], __fmul_rn(decay, x[r][i]));
      }
    }
#pragma unroll 2
    for (int j = range.begin; j < range.end; ++j) {
      float key[kSize];
      LoadRow<kKeyDim>(entry.keys[j], key);
      const float weight = entry.fold_weights[j];
      const float4 updates = LoadFour(&entry.updates[j][row + first]);
      const float pending[kAtOnce] = {weight * updates.x, weight * updates.y, weight * updates.z,
                                      weight * updates.w};
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
#pragma unroll
        for (int i = 0; i < kSize; ++i) x[r][i] = __fmaf_rn(pending[r], key[i], x[r][i]);
      }
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (row + first + r < rows) {
        StoreRow<kKeyDim>(state + static_cast<int64_t>(row + first + r) * kPitch, x[r]);
      }
    }
  }
}

template <typename T, int kKeyDim, typename Shape>
__device__ inline void ReadRows(const Problem& p, StreamMemory<T, kKeyDim, Shape>& memory) {
  constexpr int kRows = Shape::kRows, kWarpRows = Shape::kWarpRows;
  constexpr int kSize = Lane<kKeyDim>::kSize, kPitch = RowPitch<T>(kKeyDim);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  RingPlace<Shape::kEntries> place;
  RingPlace<Shape::kDepth> ring;
  while (true) {
    BulkWait(&memory.ready[place.at], place.phase);
    const auto& entry = memory.entries[place.at];
    const Item item = entry.item;
    if (item.slot < 0) break;
    const Range range = entry.range;
    const bool fold = entry.fold;
    const int first_row = item.tile * Shape::kBlockRows;
    const int rows = min(Shape::kBlockRows, p.value_dim - first_row);
    float k[kSize], q[kSize];
    LoadRow<kKeyDim>(entry.k, k);
    LoadRow<kKeyDim>(entry.q, q);

    // The row that this lane finishes, in chunk `chunk`.
    const int chunk = lane / kRows % Shape::kChunks;
    const int row = chunk * Shape::kChunkRows + warp * kRows + lane % kRows;
    const bool mine = lane < kWarpRows && row < rows;
    float v = 0;
    float2 more = {0, 0};
    const auto take_pending = [&] {
      BulkWait(&memory.copied[place.at], place.phase);
      BulkWait(&memory.weighed[place.at], place.phase);
      if (mine) v = entry.v[row];
      if (range.size() == 0) return;
#pragma unroll 4
      for (int j = range.begin + lane / kWarpRows; j < range.end; j += kWarp / kWarpRows) {
        const float u = static_cast<float>(entry.updates[j][row]);
        const float2 weights = entry.recall_read[j];
        more.x = fmaf(weights.x, u, more.x);
        more.y = fmaf(weights.y, u, more.y);
      }
#pragma unroll
      for (int mask = kWarpRows; mask < kWarp; mask *= 2) {
        more.x += __shfl_xor_sync(kAllLanes, more.x, mask);
        more.y += __shfl_xor_sync(kAllLanes, more.y, mask);
      }
    };
    const auto finish = [&](float recall, float read) {
      if (range.size() > 0) {
        recall = fmaf(entry.stored_decay, recall, more.x);
        read = fmaf(entry.stored_decay, read, more.y);
      }
      return OneToken(recall, read, entry.k_dot_q, v, entry.token_decay, entry.beta);
    };

    // Rows can be read before anything pending has come; only folding cannot wait.
    if (fold) take_pending();
    float recall = 0, read = 0;  // of the lane's row
#pragma unroll 1
    for (int c = 0; c < Shape::kChunks; ++c) {
      if (c * Shape::kChunkRows >= rows) break;
      const T* stored = memory.ring[ring.at] + warp * kRows * kPitch;
      float chunk_recall = 0, chunk_read = 0;
      if (!item.fresh) {
        BulkWait(&memory.full[ring.at], ring.phase);
        float recalls[kRows], reads[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float s[kSize];
          LoadElements<kKeyDim>(stored + r * kPitch, s);
          recalls[r] = DotLane(s, k);
          reads[r] = DotLane(s, q);
        }
        const float scale = RowScale(stored + lane % kRows * kPitch, kKeyDim);
        chunk_recall = scale * SumRows(recalls);
        chunk_read = scale * SumRows(reads);
      }
      if (chunk == c) {
        recall = chunk_recall;
        read = chunk_read;
      }
      if (fold) {
        T* state = p.state.At<T>(item.slot, item.memory) +
                   (static_cast<int64_t>(item.head) * p.value_dim + first_row) * kPitch;
        FoldRows<T, kKeyDim, Shape>(entry, stored, c * Shape::kChunkRows + warp * kRows, rows, k,
                                    finish(recall, read).u, c * kRows, state);
      }
      if (!item.fresh) {
        Arrive(&memory.empty[ring.at]);
        ring.Next();
      }
    }
    if (!fold) take_pending();
    const Write write = finish(recall, read);
    if (mine) {
      const int64_t at_row = static_cast<int64_t>(item.head) * p.value_dim + first_row + row;
      const int64_t token_rows = static_cast<int64_t>(p.value_heads) * p.value_dim;
      p.out[item.first * token_rows + at_row] = p.scale * write.out;
      if (!fold) {
        StoreState(p.updates.At<Term<T>>(item.slot, item.memory) + range.end * token_rows + at_row,
                   write.u);
      }
    }
    Arrive(&memory.done[place.at]);
    place.Next();
  }
}

template <typename T, int kKeyDim, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    StreamKernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& memory = *reinterpret_cast<StreamMemory<T, kKeyDim, Shape>*>(shared_bytes);
  LetNextKernelStart();
  // Where a warp hands something on, all of its lanes arrive: each for what it has read or written.
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kDepth; ++i) {
      InitBarrier(&memory.full[i], 1);
      InitBarrier(&memory.empty[i], Shape::kReaders * kWarp);
    }
    for (int i = 0; i < Shape::kEntries; ++i) {
      InitBarrier(&memory.tellings[i], 1);
      InitBarrier(&memory.heard[i], kWarp);
      InitBarrier(&memory.copied[i], 1);
      InitBarrier(&memory.ready[i], kWarp);
      InitBarrier(&memory.weighed[i], kWarp);
      InitBarrier(&memory.done[i], Shape::kReaders * kWarp);
    }
    FenceBulkBarriers();
  }
  __syncthreads();
  if (p.folding == nullptr) WaitForPreviousKernel();
  memory.active.Find<Shape::kThreads / kWarp>(p);
  const int role = static_cast<int>(threadIdx.x) / kWarp - Shape::kReaders;
  if (role < 0) {
    WaitForPreviousKernel();  // before this one writes
    ReadRows<T, kKeyDim, Shape>(p, memory);
  } else if (role < Shape::kEntries) {
    PrepareEntries<T, kKeyDim, Shape>(p, role, memory);
  } else if (threadIdx.x % kWarp == 0) {
    FillRing<T, kKeyDim, Shape>(p, memory);
  }
}

}  // namespace mneme::cuda::matrix_memory::persistent
