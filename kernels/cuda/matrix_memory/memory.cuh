// What the kernels of the gated delta rule share: which block works on what, the range of a
// memory's pending writes, and the arithmetic of one row of a matrix.
//
// A block owns a tile of rows of one head of one memory. Rows do not mix, and a warp holds a whole
// row, its lanes the elements. Sums over a row go through one tree, whatever the kernel, so that
// kernels agree bit for bit.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/field.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/common/state_row.cuh"
#include "kernels/kernels.h"

namespace mneme::cuda::matrix_memory {

// What keys and updates of pending writes are kept in beside memories of T: PendingDType.
template <typename T>
using Term = std::conditional_t<std::is_same_v<T, float>, float, __half>;

// What a launch does with which memories.
enum class Task : uint8_t {
  kDecode,          // segments of one entry
  kTokens,          // segments of more than one entry
  kAnyEntries,      // segments of one entry or more
  kSettleSegments,  // memories of segments of more than one entry
  kSettleSlots,     // all memories of the slots that were ever written
};

struct Problem {
  const float *q, *k, *v, *log_decay, *beta;  // no log_decay: nothing decays
  float* out;
  float scale;  // of out
  // Where a_log is set, q and k are not normalised yet, and log_decay and beta are the raw a and b
  // of DeltaGates: a decode step's, of entry e in row gate_rows[e], or e.
  QueryKeyNorms norms;
  const float *a_log, *dt_bias;
  const int* gate_rows;
  float beta_scale;
  SegmentArrays segments;  // kSettleSlots: slots alone, and as many as slots times memories
  int memory_count;        // kSettleSlots
  int heads, key_dim, value_heads, value_dim;
  int tiles;      // of a head
  int capacity;   // of the pending writes, 0: none
  bool fold_all;  // every token is added to its matrix at once
  Task task;
  // Says of each segment whether it folds. If given, then the segments and all of their memories
  // are known as soon as the previous kernel lets this one start; only q, k, v and the gates are
  // its results.
  const int* folding;
  unsigned* queue;  // [2], matrix_memory/persistent/stream.cu's
  Field written, state, phase, range, keys, updates, decays;
};

// The work of a block: rows of a head of a memory, and the entries to take it through.
struct Item {
  int slot, memory, head, tile;
  int first, length;  // entries; length 0: settle
  bool fresh;
};

// Finds the tile `rest` of segment s, or of memory s of the slots. False if there is nothing to do.
__device__ inline bool FindItem(const Problem& p, int s, int rest, Item& item) {
  item.head = rest / p.tiles;
  item.tile = rest - item.head * p.tiles;
  if (p.task == Task::kSettleSlots) {
    item.slot = p.segments.slots[s / p.memory_count];
    item.memory = s % p.memory_count;
    item.first = item.length = 0;
    item.fresh = false;
    return item.slot >= 0 && p.capacity > 0 &&
           (p.written.base == nullptr || *p.written.At<const uint8_t>(item.slot, item.memory) != 0);
  }
  // Loads before tests: they share one latency.
  item.first = p.segments.offsets[s];
  item.length = p.segments.offsets[s + 1] - item.first;
  item.slot = p.segments.slots[s];
  item.memory = p.segments.memories[s];
  item.fresh = p.segments.fresh[s] != 0;
  if (item.slot < 0) return false;
  switch (p.task) {
    case Task::kDecode:
      return item.length == 1;
    case Task::kAnyEntries:
      return item.length > 0;
    case Task::kSettleSegments:
      if (item.length <= 1) return false;
      item.length = 0;
      return true;
    default:
      return item.length > 1;
  }
}

// False if the block has nothing to do.
__device__ inline bool FindItem(const Problem& p, Item& item) {
  const int per_memory = p.value_heads * p.tiles;
  const int s = blockIdx.x / per_memory;
  return FindItem(p, s, blockIdx.x - s * per_memory, item);
}

// The range of a memory's pending writes, as kernels use it.
//
// Several blocks read it, and one changes it, when all have read it: each adds one to a count in
// the upper half of `end`, after its last read, and the one that finds all others counted stores
// the new range, count zero. Where the range stays as it is there is no counting, and a range that
// is not read (of a fresh memory) is written by one block alone.
struct Range {
  int begin, end;
  __device__ int size() const { return end - begin; }
  __device__ bool Has(int place) const { return begin <= place && place < end; }
};

constexpr int kCountShift = 48;  // of the 8 bytes: 16 bits of `end`

__device__ inline uint64_t Pack(Range range) {
  return static_cast<uint32_t>(range.begin) | static_cast<uint64_t>(range.end) << 32;
}

__device__ inline Range ReadRange(const Problem& p, const Item& item) {
  if (p.capacity == 0 || item.fresh) return {0, 0};
  const uint64_t bits = *p.range.At<const volatile unsigned long long>(item.slot, item.memory);
  return {static_cast<int>(bits & 0xffffffffu), static_cast<int>(bits >> 32 & 0xffff)};
}

// Where a memory's next writes begin, once none are pending, of a session of this phase
// (PendingWrites::phase). Memories begin at different places, so that they do not all fold in the
// same step.
__device__ inline Range EmptyRange(int phase, int memory, int capacity) {
  const int begin = static_cast<int>((phase + 5u * memory) % (capacity + 1u));
  return {begin, begin};
}

// Whether the block's rows are to be stored, all that is pending added up.
__device__ inline bool Folds(const Problem& p, const Item& item, Range range) {
  return p.fold_all || item.fresh || item.length != 1 || range.end == p.capacity;
}

// The change of a range, begun and then finished by one thread of the block: the counting takes a
// while and has to be waited for only at the end.
class RangeChange {
 public:
  // After all reads of the block (a barrier between).
  __device__ void Begin(const Problem& p, const Item& item, Range range, bool fold) {
    if (p.capacity == 0) return;
    if (!item.fresh && !fold) {
      next_ = {range.begin, range.end + 1};
    } else if (!item.fresh && !p.fold_all && item.length == 1) {
      next_ = {0, 0};  // it was full: from here on it takes turns as it does now
    } else if (!item.fresh && range.size() == 0) {
      return;
    } else {
      next_ = EmptyRange(*p.phase.At<const int>(item.slot, 0), item.memory, p.capacity);
    }
    stored_ = p.range.At<unsigned long long>(item.slot, item.memory);
    if (item.fresh) {
      counted_ = item.head == 0 && item.tile == 0 ? 0 : 1;
    } else {
      last_ = p.value_heads * p.tiles - 1;
      counted_ = static_cast<unsigned>(atomicAdd(stored_, 1ull << kCountShift) >> kCountShift);
    }
  }
  __device__ void Finish() const {
    if (stored_ != nullptr && counted_ == last_) atomicExch(stored_, Pack(next_));
  }

 private:
  unsigned long long* stored_ = nullptr;
  Range next_ = {0, 0};
  unsigned counted_ = 0, last_ = 0;  // blocks before this one
};

// Stores round to nearest and saturate: an infinity would spoil a memory for good.
__device__ inline void StoreState(float* p, float x) { *p = x; }
__device__ inline void StoreState(__half* p, float x) {
  constexpr float kLargest = 65504.0f;
  *p = __float2half_rn(x > kLargest ? kLargest : x < -kLargest ? -kLargest : x);
}

// Sum over the warp, in every lane, through the tree that SumRows() uses.
__device__ inline float SumLanes(float x) {
#pragma unroll
  for (int mask = 1; mask < kWarp; mask *= 2) x += __shfl_xor_sync(kAllLanes, x, mask);
  return x;
}

// kRows sums over the warp at once: lane l gets the sum of x[l % kRows]. In every step a lane gives
// away half of its values and takes the other lane's part of those it keeps, so that kRows sums
// cost about kRows + 4 exchanges.
template <int kRows, int kMask = 1>
__device__ inline float SumRows(const float (&x)[kRows]) {
  if constexpr (kRows == 1) {
    float sum = x[0];
#pragma unroll
    for (int mask = kMask; mask < kWarp; mask *= 2) sum += __shfl_xor_sync(kAllLanes, sum, mask);
    return sum;
  } else {
    const bool odd = (threadIdx.x & kMask) != 0;
    float half[kRows / 2];
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const float keep = odd ? x[2 * i + 1] : x[2 * i];
      const float give = odd ? x[2 * i] : x[2 * i + 1];
      half[i] = keep + __shfl_xor_sync(kAllLanes, give, kMask);
    }
    return SumRows<kRows / 2, 2 * kMask>(half);
  }
}

// The log decay at `at`.
__device__ inline float LogDecayAt(const float* log_decay, int64_t at) {
  return log_decay == nullptr ? 0.0f : log_decay[at];
}

// What one token does to one row, from the sums over the row: recall is S k, read is S q, of the
// matrix as it was before the token.
struct Write {
  float u, out;
};
__device__ inline Write OneToken(float recall, float read, float k_dot_q, float v, float decay,
                                 float beta) {
  Write write;
  write.u = __fmul_rn(beta, __fmaf_rn(-decay, recall, v));
  write.out = __fmaf_rn(write.u, k_dot_q, __fmul_rn(decay, read));
  return write;
}

}  // namespace mneme::cuda::matrix_memory
