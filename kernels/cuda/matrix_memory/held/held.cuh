// A token of any rule that HoldsBack(), or none, on its way through rows of a matrix, with the
// writes that are pending beside it. Rows come to a warp's registers, as in rules/rows.cuh; keys,
// decays and updates of what is pending to shared memory, where the block gives each key its
// weight, so that what a row is multiplied by is made once for all of its rows.
#pragma once

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/held/places.cuh"
#include "kernels/cuda/matrix_memory/row.cuh"
#include "kernels/cuda/matrix_memory/rules/problem.cuh"
#include "kernels/cuda/scan/token.cuh"
#include "kernels/held_rules.h"

namespace mneme::cuda::matrix_memory::held {

struct HeldProblem {
  rules::Problem rule;  // of kDecode; of the others state and sizes
  Problem pending;      // which memories, and the writes that are pending for them
  bool key_decays;      // pending.decays are those of keys
  bool delta;
  // DiscretizeArgs, rule.v being its u: [entries, heads], [heads] and [heads]. No dt: none.
  const float *dt, *dt_bias, *rates;
  float least, most;
};

// The block's work. Reads past the cache of the multiprocessor, which may hold an earlier step's.
__device__ inline bool FindHeld(const HeldProblem& p, Item& item) {
  if (p.pending.task != Task::kDecode) return FindItem(p.pending, item);
  const SegmentArrays& segments = p.pending.segments;
  const int per_memory = p.pending.value_heads * p.pending.tiles;
  const int s = blockIdx.x / per_memory, rest = blockIdx.x - s * per_memory;
  item.head = rest / p.pending.tiles;
  item.tile = rest - item.head * p.pending.tiles;
  item.first = __ldcg(segments.offsets + s);
  item.length = __ldcg(segments.offsets + s + 1) - item.first;
  item.slot = __ldcg(segments.slots + s);
  item.memory = __ldcg(segments.memories + s);
  item.fresh = __ldcg(segments.fresh + s) != 0;
  return item.slot >= 0 && item.length == 1;
}

// Rows of a warp, at most.
constexpr int MostRows(int key_dim) { return key_dim == 64 ? 16 : 2048 / key_dim; }
// Writes that there is room for. Only blocks of most rows meet those of DeltaNet, which are more:
// what comes behind this kernel begins sooner beside smaller ones.
template <int kKeyDim, int kRows>
constexpr int kPlaces = kRows == MostRows(kKeyDim) ? kMaxPending : kHeldWrites;

template <int kKeyDim, int kWarps, int kRows>
struct HeldMemory {
  static constexpr int kMost = kPlaces<kKeyDim, kRows>;
  float keys[kMost][kKeyDim];    // of what is pending; then E_j k_j
  float decays[kMost][kKeyDim];  // log decays of keys, or of all of them in the first place
  float updates[kMost][kWarps * kRows];
  float k[kKeyDim], q[kKeyDim], decay[kKeyDim];  // the token's; then `decay` is E_0
  float2 recall_read[kMost];                     // E_j k_j times k and q
};

// Starts copies of what is pending for the block's rows.
template <int kKeyDim, int kWarps, int kRows>
__device__ inline void CopyPending(const HeldProblem& p, const Item& item, Range range,
                                   HeldMemory<kKeyDim, kWarps, kRows>& memory) {
  constexpr int kThreads = kWarps * kWarp, kBlockRows = kWarps * kRows;
  const Problem& held = p.pending;
  const int first_row = item.tile * kBlockRows;
  const int fours = min(kBlockRows, held.value_dim - first_row) / 4;
  const float* const keys = held.keys.At<const float>(item.slot, item.memory);
  const float* const decays = held.decays.At<const float>(item.slot, item.memory);
  const float* const updates = held.updates.At<const float>(item.slot, item.memory);
  for (int i = threadIdx.x; i < range.size() * (kKeyDim / 4); i += kThreads) {
    const int j = range.begin + i / (kKeyDim / 4), at = i % (kKeyDim / 4) * 4;
    CopyAsync16(&memory.keys[j][at], keys + KeyAt(held, j, item.head) * kKeyDim + at);
    if (p.key_decays) {
      CopyAsync16(&memory.decays[j][at], decays + HeadAt(held, j, item.head) * kKeyDim + at);
    }
  }
  for (int i = threadIdx.x; i < range.size() * fours; i += kThreads) {
    const int j = range.begin + i / fours, at = i % fours * 4;
    CopyAsync16(&memory.updates[j][at],
                updates + HeadAt(held, j, item.head) * held.value_dim + first_row + at);
  }
  if (!p.key_decays && range.Has(threadIdx.x)) {
    CopyAsync4(&memory.decays[threadIdx.x][0],
               decays + HeadAt(held, static_cast<int>(threadIdx.x), item.head));
  }
}

// Gives every pending key its weight, and finds what is left of the matrix.
template <int kKeyDim, int kWarps, int kRows>
__device__ inline void WeighKeys(const HeldProblem& p, Range range,
                                 HeldMemory<kKeyDim, kWarps, kRows>& memory) {
  for (int i = threadIdx.x; i < kKeyDim; i += kWarps * kWarp) {
    float since = memory.decay[i];
    for (int j = range.end - 1; j >= range.begin; --j) {
      memory.keys[j][i] *= expf(since);
      since += memory.decays[j][p.key_decays ? i : 0];
    }
    memory.decay[i] = expf(since);
  }
}

// Their products with the token's key and query: a warp takes one of them.
template <int kKeyDim, int kWarps, int kRows>
__device__ inline void MultiplyKeys(Range range, HeldMemory<kKeyDim, kWarps, kRows>& memory) {
  float k[Lane<kKeyDim>::kSize], q[Lane<kKeyDim>::kSize], key[Lane<kKeyDim>::kSize];
  LoadRow<kKeyDim>(memory.k, k);
  LoadRow<kKeyDim>(memory.q, q);
  for (int j = range.begin + threadIdx.x / kWarp; j < range.end; j += kWarps) {
    LoadRow<kKeyDim>(memory.keys[j], key);
    const float recall = SumLanes(DotLane(key, k)), read = SumLanes(DotLane(key, q));
    if (threadIdx.x % kWarp == 0) memory.recall_read[j] = {recall, read};
  }
}

// What the token's v is multiplied by, and the log decay that it brings, of all keys where they
// have none of their own.
struct HeadStep {
  float v = 1, log_decay = 0;

  __device__ HeadStep(const HeldProblem& p, const Item& item) {
    if (p.dt != nullptr) {
      const float dt = p.dt[HeadAt(p.pending, item.first, item.head)];
      v = fminf(p.most, fmaxf(p.least, scan::Softplus(dt + p.dt_bias[item.head])));
      log_decay = v * p.rates[item.head];
    } else if (p.rule.constant != nullptr) {
      log_decay = p.rule.constant[item.head];
    } else if (!p.key_decays && p.rule.decay.data != nullptr) {
      log_decay = *p.rule.decay.At(item.first, item.head, 1);
    }
  }
  __device__ HeadStep() = default;
};

// Keeps the token's key and decays beside the matrix, of heads that share a key the first one the
// key. By one warp; `decay` are those of keys, if they have any.
template <int kKeyDim>
__device__ inline void HoldKey(const HeldProblem& p, const Item& item, int place, float log_decay,
                               const float (&k)[Lane<kKeyDim>::kSize], const float* decay) {
  const Problem& held = p.pending;
  if (item.head % (held.value_heads / held.heads) == 0) {
    StoreRow<kKeyDim>(
        held.keys.At<float>(item.slot, item.memory) + KeyAt(held, place, item.head) * kKeyDim, k);
  }
  float* const decays = held.decays.At<float>(item.slot, item.memory);
  const int64_t at = HeadAt(held, place, item.head);
  if (!p.key_decays) {
    if (threadIdx.x % kWarp == 0) decays[at] = log_decay;
    return;
  }
  float all[Lane<kKeyDim>::kSize];
  LoadRow<kKeyDim>(decay, all);
  StoreRow<kKeyDim>(decays + at * kKeyDim, all);
}

template <int kKeyDim, int kWarps, int kRows, int kBlocks>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks)
    HeldKernel(const __grid_constant__ HeldProblem p) {
  constexpr int kSize = Lane<kKeyDim>::kSize, kThreads = kWarps * kWarp;
  using Memory = HeldMemory<kKeyDim, kWarps, kRows>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Memory& memory = *reinterpret_cast<Memory*>(shared_bytes);
  LetNextKernelStart();
  if (!p.rule.early) WaitForPreviousKernel();
  Item item;
  if (!FindHeld(p, item)) {
    WaitForPreviousKernel();
    return;
  }
  const Problem& held = p.pending;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_row = item.tile * kWarps * kRows + warp * kRows;
  const int count = min(kRows, held.value_dim - first_row);
  float* const state = held.state.At<float>(item.slot, item.memory) +
                       (int64_t{item.head} * held.value_dim + first_row) * kKeyDim;
  float s[kRows][kSize];
  const auto load_rows = [&] {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (float& x : s[r]) x = 0;
      if (r < count && !item.fresh) LoadRow<kKeyDim, Cache::kGlobal>(state + r * kKeyDim, s[r]);
    }
  };
  // A token needs its rows, whatever is pending.
  if (held.task == Task::kDecode) load_rows();
  const Range range = ReadRange(held, item);
  const bool token = item.length == 1, fold = Folds(held, item, range);
  if (!token && (item.fresh || range.size() == 0)) {
    // Settled, or to be written by others, who expect nothing pending.
    WaitForPreviousKernel();
    RangeChange change;
    if (threadIdx.x == 0 && item.fresh) change.Begin(held, item, range, fold);
    change.Finish();
    return;
  }
  if (held.task != Task::kDecode) load_rows();
  if (p.rule.early) {
    CopyPending(p, item, range, memory);
    WaitForPreviousKernel();
  }

  const int row = min(first_row + lane % kRows, held.value_dim - 1);  // that this lane finishes
  float v = 0, beta = 1;
  HeadStep step;
  if (token) {
    step = HeadStep(p, item);
    const float* const k = p.rule.k.At(item.first, item.head, kKeyDim);
    const float* const q = p.rule.q.At(item.first, item.head, kKeyDim);
    const float* const decay =
        p.key_decays ? p.rule.decay.At(item.first, item.head, kKeyDim) : nullptr;
    for (int i = 4 * threadIdx.x; i < kKeyDim; i += 4 * kThreads) {
      CopyAsync16(&memory.k[i], k + i);
      CopyAsync16(&memory.q[i], q + i);
      if (p.key_decays) CopyAsync16(&memory.decay[i], decay + i);
    }
    v = step.v * p.rule.v.At(item.first, item.head, held.value_dim)[row];
    if (p.delta) beta = *p.rule.beta.At(item.first, item.head, 1);
  }
  if (!p.rule.early) CopyPending(p, item, range, memory);
  if (!token || !p.key_decays) {
    for (int i = threadIdx.x; i < kKeyDim; i += kThreads) {
      memory.decay[i] = step.log_decay;
      if (!token) memory.k[i] = memory.q[i] = 0;
    }
  }
  AwaitCopies();
  __syncthreads();
  // All threads have read the range.
  RangeChange change;
  if (threadIdx.x == 0) change.Begin(held, item, range, fold);
  const bool pends = range.size() > 0;
  if (pends) {
    WeighKeys(p, range, memory);
    __syncthreads();
    if (token) MultiplyKeys(range, memory);
    __syncthreads();
  }

  float k[kSize], q[kSize], decay[kSize];
  LoadRow<kKeyDim>(memory.k, k);
  LoadRow<kKeyDim>(memory.q, q);
  LoadRow<kKeyDim>(memory.decay, decay);
  if (!pends) {
#pragma unroll
    for (float& d : decay) d = expf(d);
  }
  const float k_dot_q = SumLanes(DotLane(k, q));
  float recalls[kRows], reads[kRows];
  {
    float left_k[kSize], left_q[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      left_k[i] = decay[i] * k[i];
      left_q[i] = decay[i] * q[i];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (p.delta) recalls[r] = DotLane(s[r], left_k);
      reads[r] = DotLane(s[r], left_q);
    }
  }
  float read = SumRows(reads), recall = p.delta ? SumRows(recalls) : 0.0f;
  const int own = warp * kRows + lane % kRows;
  for (int j = range.begin; j < range.end; ++j) {
    const float update = memory.updates[j][own];
    recall = fmaf(memory.recall_read[j].x, update, recall);
    read = fmaf(memory.recall_read[j].y, update, read);
  }
  const float u = !token ? 0.0f : p.delta ? beta * (v - recall) : v;
  if (token && lane < count) {
    p.rule.out[HeadAt(held, item.first, item.head) * held.value_dim + row] =
        p.rule.scale * fmaf(u, k_dot_q, read);
  }
  if (!fold) {
    if (lane < count) {
      held.updates.At<float>(
          item.slot, item.memory)[HeadAt(held, range.end, item.head) * held.value_dim + row] = u;
    }
    if (item.tile == 0 && warp == 0) {
      HoldKey<kKeyDim>(p, item, range.end, step.log_decay, k,
                       p.key_decays ? p.rule.decay.At(item.first, item.head, kKeyDim) : nullptr);
    }
  } else {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float write = __shfl_sync(kAllLanes, u, r);
#pragma unroll
      for (int i = 0; i < kSize; ++i) s[r][i] = fmaf(write, k[i], decay[i] * s[r][i]);
    }
    for (int j = range.begin; j < range.end; ++j) {
      float key[kSize];
      LoadRow<kKeyDim>(memory.keys[j], key);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float update = memory.updates[j][warp * kRows + r];
#pragma unroll
        for (int i = 0; i < kSize; ++i) s[r][i] = fmaf(update, key[i], s[r][i]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < count) StoreRow<kKeyDim>(state + r * kKeyDim, s[r]);
    }
  }
  if (threadIdx.x == 0) change.Finish();
}

}  // namespace mneme::cuda::matrix_memory::held
