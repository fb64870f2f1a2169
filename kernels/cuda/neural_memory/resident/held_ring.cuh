// Copies to shared memory of what heads that hold steps back read: one warp of each block starts
// them, while the others are at work.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/neural_memory/resident/held_rows.cuh"

namespace mneme::cuda::neural_memory::resident {

// Where a thread has written to shared memory, copies that another one starts behind a barrier may
// come next.
__device__ inline void FenceSharedWrites() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Whether the momenta of a head's tensor are not there, but zeros.
__device__ inline bool HasZeroMomenta(const HeldParams& h, const HeldUnit& unit, int tensor) {
  return unit.fresh != 0 && h.memory.momenta.initial[tensor] == nullptr;
}

// The barriers of a block's copies.
class HeldBarriers {
 public:
  // Pairs of W_l and S_l that are on their way or in use, at most.
  static constexpr int kPairs = HeldDivision::kMostSlots / 2 + 1;

  __device__ HeldBarriers(const HeldDivision& at, float* shared)
      : first_(reinterpret_cast<uint64_t*>(shared + at.barriers)) {}

  __device__ void Init() const {
    for (int i = 0; i < kPairs + 6; ++i) InitBulkBarrier(first_ + i);
    FenceBulkBarriers();
  }
  __device__ uint64_t* Pair(int pair) const { return first_ + pair; }
  // Vectors and numbers that a head reads beside its matrices.
  __device__ uint64_t* Inputs(int turn) const { return first_ + kPairs + turn; }
  // Parts of the network's outputs for k, 0, and q, 1.
  __device__ uint64_t* Outputs(int which, int turn) const {
    return first_ + kPairs + 2 + 2 * which + turn;
  }

 private:
  uint64_t* const first_;
};

// The matrices of a block's heads, W_1, S_1, W_2 and S_2 of each, in slots that take turns: for the
// warp that asks for them.
class MatrixRing {
 public:
  __device__ MatrixRing(const HeldParams& h, int rank, float* shared)
      : h_(h), barriers_(h.division, shared), rank_(rank), shared_(shared) {}

  // Starts copies of what finds room once the first `done` of all matrices of `units` are not
  // needed any more.
  __device__ void Fill(const HeldUnit* units, int count, int done) {
    const int slots = h_.division.slots, end = min(4 * count, done + slots);
    for (; asked_ < end; ++asked_) {
      Ask(units[asked_ / 4], asked_ % 4);
      at_ = at_ + 1 == slots ? 0 : at_ + 1;
      if (asked_ % 2 == 1) pair_.Next();
    }
  }

 private:
  __device__ void Ask(const HeldUnit& unit, int matrix) const {
    const Params& p = h_.memory;
    const int lane = threadIdx.x % kWarp, l = matrix / 2;
    const TensorsOfHead<2> tensors(p, unit.slot, unit.memory, unit.head, rank_);
    const bool momenta = matrix % 2 == 1;
    if (momenta && HasZeroMomenta(h_, unit, l)) return;
    const float* const from = tensors.Start(momenta ? p.momenta : p.weights, l, unit.fresh != 0);
    uint64_t* const barrier = barriers_.Pair(pair_.at);
    float* const to = shared_ + h_.division.first_slot + at_ * h_.division.of_slot;
    const uint32_t bytes = 4 * static_cast<uint32_t>(h_.division.of_slot);
    if (!momenta && lane == 0) {
      ArriveAndExpect(barrier, HasZeroMomenta(h_, unit, l) ? bytes : 2 * bytes);
    }
    if (l == 1 || p.blocks == 1) {
      if (lane == 0) BulkLoadOnce(to, from, bytes, barrier);
      return;
    }
    const Part& part = h_.division.parts[0];
    for (int row = lane; row < part.rows; row += kWarp) {
      BulkLoadOnce(to + row * part.columns, from + int64_t{row} * part.pitch,
                   4 * static_cast<uint32_t>(part.columns), barrier);
    }
  }

  const HeldParams& h_;
  const HeldBarriers barriers_;
  const int rank_;
  float* const shared_;
  int asked_ = 0, at_ = 0;
  RingPlace<HeldBarriers::kPairs> pair_;
};

// The same for those who use them.
class MatrixReader {
 public:
  __device__ MatrixReader(const HeldParams& h, float* shared)
      : h_(h), barriers_(h.division, shared), shared_(shared) {}

  // The next two, W_l and S_l of a head, when they are there.
  __device__ Matrices Await(const HeldUnit& unit, int l) {
    BulkWait(barriers_.Pair(pair_.at), pair_.phase);
    pair_.Next();
    const float* const weights = NextSlot();
    const float* const momenta = NextSlot();
    const bool zeros = HasZeroMomenta(h_, unit, l);
    return {weights, zeros ? weights : momenta, zeros};
  }

 private:
  __device__ const float* NextSlot() {
    const float* const slot = shared_ + h_.division.first_slot + at_ * h_.division.of_slot;
    at_ = at_ + 1 == h_.division.slots ? 0 : at_ + 1;
    return slot;
  }

  const HeldParams& h_;
  const HeldBarriers barriers_;
  float* const shared_;
  int at_ = 0;
  RingPlace<HeldBarriers::kPairs> pair_;
};

// Starts copies of what a head reads of its state, but for matrices: steps held back with their
// numbers, and gains; by one warp. The barrier expects what FetchVectors() brings, too.
__device__ inline void FetchState(const HeldParams& h, const HeldUnit& unit, int rank, int turn,
                                  float* shared) {
  const Params& p = h.memory;
  const HeldDivision& at = h.division;
  const int dim = p.dim, hidden = p.divided, own = at.parts[0].columns;
  const int lane = threadIdx.x % kWarp;
  uint64_t* const barrier = HeldBarriers(at, shared).Inputs(turn);
  const auto bytes = [](int64_t floats) { return 4 * static_cast<uint32_t>(floats); };
  const bool trains = p.network.trains_gain, gains = h.HasNorm();
  const bool momenta = trains && !HasZeroMomenta(h, unit, TensorsOfHead<2>::kGain),
             shifts = gains && p.shift != nullptr;
  if (lane == 0) {
    const int vectors = 3 + (gains ? 1 : 0) + (momenta ? 1 : 0) + (shifts ? 1 : 0);
    ArriveAndExpect(barrier,
                    bytes(unit.count * at.of_step + HeldNumbers(h.Capacity()) + vectors * dim));
    BulkLoad(shared + at.numbers[turn], h.Numbers(unit), bytes(HeldNumbers(h.Capacity())), barrier);
    const TensorsOfHead<2> tensors(p, unit.slot, unit.memory, unit.head, rank);
    constexpr int kGain = TensorsOfHead<2>::kGain;
    if (gains) {
      BulkLoad(shared + at.gain[turn],
               trains ? tensors.Start(p.weights, kGain, unit.fresh != 0) : p.gain + unit.head * dim,
               bytes(dim), barrier);
    }
    if (momenta) {
      BulkLoad(shared + at.gain_momenta[turn], tensors.Start(p.momenta, kGain, unit.fresh != 0),
               bytes(dim), barrier);
    }
    if (shifts) BulkLoad(shared + at.shift[turn], p.shift + unit.head * dim, bytes(dim), barrier);
  }
  float* const to = shared + at.vectors[turn];
  const float* const from = h.Vectors(unit);
  if (at.blocks == 1) {
    if (lane == 0 && unit.count > 0) {
      BulkLoadOnce(to, from, bytes(unit.count * at.of_step), barrier);
    }
    return;
  }
  for (int item = lane; item < 3 * unit.count; item += kWarp) {
    const int step = item / 3, which = item % 3;
    const int first = which == 0 ? 0 : 2 * dim + (which - 1) * hidden + rank * own;
    const int place = which == 0 ? 0 : 2 * dim + (which - 1) * own;
    BulkLoadOnce(to + step * at.of_step + place, from + step * HeldVectors(dim, hidden) + first,
                 bytes(which == 0 ? 2 * dim : own), barrier);
  }
}
// The same of q, k and v.
__device__ inline void FetchVectors(const HeldParams& h, const HeldUnit& unit, int turn,
                                    float* shared) {
  const Params& p = h.memory;
  const HeldDivision& at = h.division;
  if (threadIdx.x % kWarp != 0) return;
  uint64_t* const barrier = HeldBarriers(at, shared).Inputs(turn);
  const int64_t first = (int64_t{unit.entry} * p.heads + unit.head) * p.dim;
  const uint32_t bytes = 4 * static_cast<uint32_t>(p.dim);
  BulkLoad(shared + at.own[turn], p.k + first, bytes, barrier);
  BulkLoad(shared + at.q[turn], p.q + first, bytes, barrier);
  BulkLoad(shared + at.v[turn], p.v + first, bytes, barrier);
}

}  // namespace mneme::cuda::neural_memory::resident
