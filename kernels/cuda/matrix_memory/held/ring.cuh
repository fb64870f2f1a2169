// Tokens of memories that hold writes back, as held.cuh has them, for more matrices than registers
// take at once: blocks stay, and what their next matrices need is on its way by bulk copies while
// one is worked on. One warp of a block starts copies, the others have the rows of a matrix in
// registers. Rows and what belongs to a token have rings of their own, as a place of rows is free
// again once they are in registers.
//
//   block: items blockIdx, blockIdx + blocks, ..; an item is a tile of rows of a head of a segment
#pragma once

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/matrix_memory/held/held.cuh"

namespace mneme::cuda::matrix_memory::held {

constexpr int kRingWarps = 8, kRingThreads = (kRingWarps + 1) * kWarp;
// Blocks of a multiprocessor, by their places of rows.
constexpr int RingBlocks(int row_places) { return row_places == 1 ? 3 : 2; }
template <int kKeyDim>
constexpr int kRingRows = 1024 / kKeyDim;  // of a warp

// An item as the warps of a block tell each other of it.
struct RingItem {
  Item item;
  Range range;
};

// A token's vectors that come beside its rows, its own and the pending ones.
template <int kKeyDim, bool kKeyDecays>
struct RingToken {
  static constexpr int kBlockRows = kRingWarps * kRingRows<kKeyDim>;
  float keys[kHeldWrites][kKeyDim];
  float updates[kHeldWrites][kBlockRows];
  float decays[kHeldWrites][kKeyDecays ? kKeyDim : 1];
  float k[kKeyDim], q[kKeyDim], decay[kKeyDecays ? kKeyDim : 4];
  float v[kBlockRows];
  float first, bias, rate, beta;  // `first`: the decay of all keys, or dt
};

template <int kKeyDim, bool kKeyDecays, int kPlaces>
struct RingMemory {
  using Token = RingToken<kKeyDim, kKeyDecays>;
  static constexpr int kBlockRows = Token::kBlockRows;
  static constexpr int kRowPlaces = kPlaces;
  static constexpr int kTokenPlaces = kKeyDecays && kKeyDim == 256 ? 2 : 3;
  // Items begun before the kernel ahead has ended: one of them is in registers.
  static constexpr int kAhead = kTokenPlaces < kRowPlaces + 1 ? kTokenPlaces : kRowPlaces + 1;
  alignas(128) float rows[kRowPlaces][kBlockRows][kKeyDim];
  alignas(16) Token tokens[kTokenPlaces];
  RingItem items[kTokenPlaces];        // with those; slot < 0: there are no more
  float2 recall_read[2][kHeldWrites];  // E_j k_j times k and q, of an item and the next
  uint64_t rows_full[kRowPlaces], rows_empty[kRowPlaces];
  uint64_t token_full[kTokenPlaces], token_empty[kTokenPlaces];
};

// The warp that starts copies.
template <int kKeyDim, bool kKeyDecays, int kPlaces>
class RingLoader {
 public:
  using Memory = RingMemory<kKeyDim, kKeyDecays, kPlaces>;
  __device__ RingLoader(const HeldProblem& p, Memory& memory)
      : p_(p), memory_(memory), lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  __device__ void Run() {
    const Problem& held = p_.pending;
    const int per_segment = held.value_heads * held.tiles;
    const int total = held.segments.count * per_segment, blocks = static_cast<int>(gridDim.x);
    bool waited = !p_.rule.early;
    if (waited) WaitForPreviousKernel();
    int started = 0;
    const auto wait = [&] {
      waited = true;
      WaitForPreviousKernel();
      for (int n = 0; n < started; ++n) StartToken(n);
    };
    for (int base = static_cast<int>(blockIdx.x); base < total; base += kWarp * blocks) {
      const int number = base + lane_ * blocks;
      RingItem own = {};
      bool found = false;
      if (number < total) found = Find(number / per_segment, number % per_segment, own);
      for (unsigned left = __ballot_sync(kAllLanes, found); left != 0; left &= left - 1) {
        StartRows(FromLane(own, __ffs(static_cast<int>(left)) - 1));
        if (waited) StartToken(token_.at);
        rows_.Next();
        token_.Next();
        if (!waited && ++started == Memory::kAhead) wait();
      }
      if (!waited) wait();
      // Nobody else of this block reads the range.
      RangeChange change;
      if (found) change.Begin(held, own.item, own.range, Folds(held, own.item, own.range));
      change.Finish();
    }
    if (!waited) wait();
    BulkWait(&memory_.token_empty[token_.at], token_.phase ^ 1);
    BulkWait(&memory_.rows_empty[rows_.at], rows_.phase ^ 1);
    if (lane_ == 0) {
      memory_.items[token_.at].item.slot = -1;
      Arrive(&memory_.rows_full[rows_.at]);
    }
  }

 private:
  // As FindHeld() and ReadRange() have it.
  __device__ bool Find(int s, int rest, RingItem& found) const {
    const SegmentArrays& segments = p_.pending.segments;
    Item& item = found.item;
    item.head = rest / p_.pending.tiles;
    item.tile = rest - item.head * p_.pending.tiles;
    item.first = __ldcg(segments.offsets + s);
    item.length = __ldcg(segments.offsets + s + 1) - item.first;
    item.slot = __ldcg(segments.slots + s);
    item.memory = __ldcg(segments.memories + s);
    item.fresh = __ldcg(segments.fresh + s) != 0;
    if (item.slot < 0 || item.length != 1) return false;
    found.range = ReadRange(p_.pending, item);
    return true;
  }
  __device__ static RingItem FromLane(RingItem x, int lane) {
    for (int* part : {&x.item.slot, &x.item.memory, &x.item.head, &x.item.tile, &x.item.first,
                      &x.item.length, &x.range.begin, &x.range.end}) {
      *part = __shfl_sync(kAllLanes, *part, lane);
    }
    x.item.fresh = __shfl_sync(kAllLanes, static_cast<int>(x.item.fresh), lane) != 0;
    return x;
  }

  __device__ int RowCount(const Item& item) const {
    return min(Memory::kBlockRows, p_.pending.value_dim - item.tile * Memory::kBlockRows);
  }

  // Rows and what is pending for them: of earlier steps.
  __device__ void StartRows(const RingItem& x) {
    const Problem& held = p_.pending;
    const Item& item = x.item;
    const int rows = RowCount(item), first_row = item.tile * Memory::kBlockRows;
    BulkWait(&memory_.token_empty[token_.at], token_.phase ^ 1);
    BulkWait(&memory_.rows_empty[rows_.at], rows_.phase ^ 1);
    auto& token = memory_.tokens[token_.at];
    uint64_t* const full = &memory_.token_full[token_.at];
    const uint32_t row_bytes = kKeyDim * sizeof(float);
    const uint32_t update_bytes = rows * sizeof(float);
    if (lane_ == 0) {
      memory_.items[token_.at] = x;
      ArriveAndExpect(&memory_.rows_full[rows_.at], item.fresh ? 0 : rows * row_bytes);
      ArriveAndExpect(full, x.range.size() * (row_bytes * (kKeyDecays ? 2 : 1) + update_bytes));
    }
    __syncwarp();
    if (lane_ == 0 && !item.fresh) {
      const float* const from = held.state.At<const float>(item.slot, item.memory) +
                                (int64_t{item.head} * held.value_dim + first_row) * kKeyDim;
      BulkLoadOnce(&memory_.rows[rows_.at][0][0], from, rows * row_bytes,
                   &memory_.rows_full[rows_.at]);
    }
    const int j = x.range.begin + lane_;
    if (j >= x.range.end) return;
    const int64_t at = HeadAt(held, j, item.head);
    const float* const decays = held.decays.At<const float>(item.slot, item.memory);
    BulkLoad(
        token.keys[j],
        held.keys.At<const float>(item.slot, item.memory) + KeyAt(held, j, item.head) * kKeyDim,
        row_bytes, full);
    BulkLoad(token.updates[j],
             held.updates.At<const float>(item.slot, item.memory) + at * held.value_dim + first_row,
             update_bytes, full);
    if constexpr (kKeyDecays) {
      BulkLoad(token.decays[j], decays + at * kKeyDim, row_bytes, full);
    } else {
      CopyAsync4(token.decays[j], decays + at);
    }
  }

  // Brings the vectors that the kernel ahead makes, for the item at a place.
  __device__ void StartToken(int place) {
    const HeldProblem& p = p_;
    auto& token = memory_.tokens[place];
    uint64_t* const full = &memory_.token_full[place];
    const Item& item = memory_.items[place].item;
    const int rows = RowCount(item), head = item.head;
    const uint32_t row_bytes = kKeyDim * sizeof(float), value_bytes = rows * sizeof(float);
    const int64_t at = HeadAt(p.pending, item.first, head);
    if (lane_ == 0) ArriveAndExpect(full, row_bytes * (kKeyDecays ? 3 : 2) + value_bytes);
    __syncwarp();
    if (lane_ == 0) {
      BulkLoad(token.k, p.rule.k.At(item.first, head, kKeyDim), row_bytes, full);
    } else if (lane_ == 1) {
      BulkLoad(token.q, p.rule.q.At(item.first, head, kKeyDim), row_bytes, full);
    } else if (lane_ == 2) {
      BulkLoad(token.v,
               p.rule.v.At(item.first, head, p.pending.value_dim) + item.tile * Memory::kBlockRows,
               value_bytes, full);
    } else if (lane_ == 3) {
      if (kKeyDecays) {
        BulkLoad(token.decay, p.rule.decay.At(item.first, head, kKeyDim), row_bytes, full);
      }
    } else if (lane_ == 4) {
      if (p.dt != nullptr) {
        CopyAsync4(&token.first, p.dt + at);
      } else if (p.rule.constant != nullptr) {
        CopyAsync4(&token.first, p.rule.constant + head);
      } else if (!kKeyDecays && p.rule.decay.data != nullptr) {
        CopyAsync4(&token.first, p.rule.decay.At(item.first, head, 1));
      }
    } else if (lane_ == 5) {
      if (p.dt != nullptr) CopyAsync4(&token.bias, p.dt_bias + head);
    } else if (lane_ == 6) {
      if (p.dt != nullptr) CopyAsync4(&token.rate, p.rates + head);
    } else if (lane_ == 7) {
      if (p.delta) CopyAsync4(&token.beta, p.rule.beta.At(item.first, head, 1));
    }
    ArriveAfterCopies(full);
  }

  const HeldProblem& p_;
  Memory& memory_;
  const int lane_;
  RingPlace<Memory::kRowPlaces> rows_;
  RingPlace<Memory::kTokenPlaces> token_;
};

template <typename Token>
__device__ inline HeadStep RingStep(const HeldProblem& p, const Token& token, bool key_decays) {
  HeadStep step;
  if (p.dt != nullptr) {
    step.v = fminf(p.most, fmaxf(p.least, scan::Softplus(token.first + token.bias)));
    step.log_decay = step.v * token.rate;
  } else if (p.rule.constant != nullptr || (!key_decays && p.rule.decay.data != nullptr)) {
    step.log_decay = token.first;
  }
  return step;
}

// All warps but the loader's.
__device__ inline void SyncRing() {
  asm volatile("barrier.sync 1, %0;" ::"n"(kRingWarps * kWarp) : "memory");
}

template <int kKeyDim, bool kKeyDecays, int kPlaces>
__global__ void __launch_bounds__(kRingThreads, RingBlocks(kPlaces))
    RingKernel(const __grid_constant__ HeldProblem p) {
  using Memory = RingMemory<kKeyDim, kKeyDecays, kPlaces>;
  constexpr int kSize = Lane<kKeyDim>::kSize, kRows = kRingRows<kKeyDim>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  Memory& memory = *reinterpret_cast<Memory*>(shared_bytes);
  LetNextKernelStart();
  if (threadIdx.x == 0) {
    for (int n = 0; n < Memory::kRowPlaces; ++n) {
      InitBarrier(&memory.rows_full[n], 1);
      InitBarrier(&memory.rows_empty[n], kRingWarps);
    }
    for (int n = 0; n < Memory::kTokenPlaces; ++n) {
      InitBarrier(&memory.token_full[n], 2 + kWarp);  // what is pending, the token; lanes' copies
      InitBarrier(&memory.token_empty[n], kRingWarps);
    }
    FenceBulkBarriers();
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (warp == kRingWarps) {
    RingLoader<kKeyDim, kKeyDecays, kPlaces>(p, memory).Run();
    return;
  }

  const Problem& held = p.pending;
  RingPlace<Memory::kRowPlaces> rows_place;
  RingPlace<Memory::kTokenPlaces> place;
  bool waited = false;
  for (int number = 0;; number ^= 1) {
    BulkWait(&memory.rows_full[rows_place.at], rows_place.phase);
    const Item item = memory.items[place.at].item;
    const Range range = memory.items[place.at].range;
    if (item.slot < 0) break;
    const int first_row = item.tile * Memory::kBlockRows + warp * kRows;
    const int count = min(kRows, held.value_dim - first_row);
    float s[kRows][kSize];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (float& x : s[r]) x = 0;
      if (r < count && !item.fresh) {
        LoadRow<kKeyDim>(memory.rows[rows_place.at][warp * kRows + r], s[r]);
      }
    }
    __syncwarp();
    if (lane == 0) Arrive(&memory.rows_empty[rows_place.at]);
    rows_place.Next();
    if (!waited) WaitForPreviousKernel();
    waited = true;

    BulkWait(&memory.token_full[place.at], place.phase);
    const auto& token = memory.tokens[place.at];
    const bool fold = Folds(held, item, range);
    const HeadStep step = RingStep(p, token, kKeyDecays);
    float k[kSize], q[kSize], since[kSize];
    LoadRow<kKeyDim>(token.k, k);
    LoadRow<kKeyDim>(token.q, q);
    const auto begin_since = [&] {
      if constexpr (kKeyDecays) {
        LoadRow<kKeyDim>(token.decay, since);
      } else {
#pragma unroll
        for (float& x : since) x = step.log_decay;
      }
    };
    const auto add_decay = [&](int j) {
      if constexpr (kKeyDecays) {
        float decay[kSize];
        LoadRow<kKeyDim>(token.decays[j], decay);
#pragma unroll
        for (int i = 0; i < kSize; ++i) since[i] += decay[i];
      } else {
        const float decay = token.decays[j][0];
#pragma unroll
        for (float& x : since) x += decay;
      }
    };
    // exp(since), of one number where all are one.
    const auto weigh = [&](float(&x)[kSize]) {
      const float first = expf(since[0]);
#pragma unroll
      for (int i = 0; i < kSize; ++i) x[i] *= kKeyDecays && i > 0 ? expf(since[i]) : first;
    };
    begin_since();
    // A warp has one of the pending keys.
    static_assert(kHeldWrites <= kRingWarps);
    float key[kSize];
    const int own_place = range.begin + warp;
    LoadRow<kKeyDim>(token.keys[min(own_place, kHeldWrites - 1)], key);
#pragma unroll
    for (int n = 1; n <= kHeldWrites; ++n) {
      const int j = range.end - n;
      if (j < range.begin) break;
      if (j == own_place) weigh(key);
      add_decay(j);
    }
    if (own_place < range.end) {
      const float of_k = p.delta ? SumLanes(DotLane(key, k)) : 0.0f;
      const float of_q = SumLanes(DotLane(key, q));
      if (lane == 0) memory.recall_read[number][own_place] = {of_k, of_q};
    }
    const float k_dot_q = SumLanes(DotLane(k, q));
    float left[kSize];
#pragma unroll
    for (float& x : left) x = 1;
    weigh(left);
    float recalls[kRows], reads[kRows];
    {
      float left_k[kSize], left_q[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        left_k[i] = left[i] * k[i];
        left_q[i] = left[i] * q[i];
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (p.delta) recalls[r] = DotLane(s[r], left_k);
        reads[r] = DotLane(s[r], left_q);
      }
    }
    float read = SumRows(reads), recall = p.delta ? SumRows(recalls) : 0.0f;
    const int own = warp * kRows + lane % kRows;
    SyncRing();  // recall_read; two of them, so that nobody waits for those who still read
#pragma unroll
    for (int n = 0; n < kHeldWrites; ++n) {
      const int j = range.begin + n;
      if (j >= range.end) break;
      const float update = token.updates[j][own];
      const float2 weights = memory.recall_read[number][j];
      recall = fmaf(weights.x, update, recall);
      read = fmaf(weights.y, update, read);
    }
    const float v = step.v * token.v[own];
    const float u = p.delta ? token.beta * (v - recall) : v;
    const int row = first_row + lane;
    if (lane < count) {
      p.rule.out[HeadAt(held, item.first, item.head) * held.value_dim + row] =
          p.rule.scale * fmaf(u, k_dot_q, read);
    }
    if (!fold) {
      if (lane < count) {
        held.updates.At<float>(
            item.slot, item.memory)[HeadAt(held, range.end, item.head) * held.value_dim + row] = u;
      }
      if (item.tile == 0 && warp == 0) {
        HoldKey<kKeyDim>(p, item, range.end, step.log_decay, k, token.decay);
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float write = __shfl_sync(kAllLanes, u, r);
#pragma unroll
        for (int i = 0; i < kSize; ++i) s[r][i] = fmaf(write, k[i], left[i] * s[r][i]);
      }
      begin_since();
      for (int j = range.end - 1; j >= range.begin; --j) {
        LoadRow<kKeyDim>(token.keys[j], key);
        weigh(key);
        add_decay(j);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float update = token.updates[j][warp * kRows + r];
#pragma unroll
          for (int i = 0; i < kSize; ++i) s[r][i] = fmaf(update, key[i], s[r][i]);
        }
      }
      float* const state = held.state.At<float>(item.slot, item.memory) +
                           (int64_t{item.head} * held.value_dim + first_row) * kKeyDim;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < count) StoreRow<kKeyDim>(state + r * kKeyDim, s[r]);
      }
    }
    __syncwarp();
    if (lane == 0) Arrive(&memory.token_empty[place.at]);
    place.Next();
  }
  if (!waited) WaitForPreviousKernel();
}

}  // namespace mneme::cuda::matrix_memory::held
