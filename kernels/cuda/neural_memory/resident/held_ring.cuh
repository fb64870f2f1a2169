// How what heads that hold steps back read comes to shared memory, while those ahead are at work.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/neural_memory/resident/held_rows.cuh"

namespace mneme::cuda::neural_memory::resident {

// The matrices of a block's heads, W_1, S_1, W_2 and S_2 of each, in slots that take turns. All
// threads do the same with it.
class MatrixRing {
 public:
  __device__ MatrixRing(const HeldParams& h, int rank, float* shared)
      : h_(h), rank_(rank), shared_(shared) {}

  // Starts copies of what finds room once the first `done` of all matrices of `units` are not
  // needed any more; behind a barrier of the block.
  __device__ void Fill(const HeldUnit* units, int count, int done) {
    const int slots = h_.division.slots, end = min(4 * count, done + slots);
    for (; asked_ < end; ++asked_) {
      Ask(units[asked_ / 4], asked_ % 4);
      asked_at_ = asked_at_ + 1 == slots ? 0 : asked_at_ + 1;
    }
  }

  // The next two, W_l and S_l of a head, when they are there.
  __device__ Matrices Await(const HeldUnit& unit, int l) {
    const float* const weights = AwaitOne();
    const float* const momenta = AwaitOne();
    const bool zeros = unit.fresh != 0 && h_.memory.momenta.initial[l] == nullptr;
    return {weights, zeros ? nullptr : momenta};
  }

 private:
  __device__ uint64_t* Barriers() const {
    return reinterpret_cast<uint64_t*>(shared_ + h_.division.barriers);
  }
  __device__ float* Slot(int slot) const {
    return shared_ + h_.division.first_slot + slot * h_.division.of_slot;
  }
  __device__ const float* AwaitOne() {
    BulkWait(Barriers() + at_, phase_);
    const float* const slot = Slot(at_);
    if (++at_ == h_.division.slots) {
      at_ = 0;
      phase_ ^= 1;
    }
    return slot;
  }
  // One of four matrices, by the last warp; by all of them if its rows are apart.
  __device__ void Ask(const HeldUnit& unit, int matrix) const {
    constexpr int kRowsOfWarp = 8;
    const Params& p = h_.memory;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, l = matrix / 2;
    const bool announces = thread == kThreads - kWarp, in_rows = l == 0 && p.blocks > 1;
    if (in_rows ? lane >= kRowsOfWarp : !announces) return;
    const TensorsOfHead<2> tensors(p, unit.slot, unit.memory, unit.head, rank_);
    const float* const from =
        tensors.Start(matrix % 2 == 0 ? p.weights : p.momenta, l, unit.fresh != 0);
    uint64_t* const barrier = Barriers() + asked_at_;
    const uint32_t bytes = 4 * static_cast<uint32_t>(h_.division.of_slot);
    if (announces) ArriveAndExpect(barrier, from == nullptr ? 0 : bytes);
    if (from == nullptr) return;
    float* const to = Slot(asked_at_);
    if (!in_rows) return BulkLoadOnce(to, from, bytes, barrier);
    const Part& part = h_.division.parts[0];
    for (int row = thread / kWarp * kRowsOfWarp + lane; row < part.rows;
         row += kWarps * kRowsOfWarp) {
      BulkLoadOnce(to + row * part.columns, from + int64_t{row} * part.pitch,
                   4 * static_cast<uint32_t>(part.columns), barrier);
    }
  }

  const HeldParams& h_;
  const int rank_;
  float* const shared_;
  int asked_ = 0, asked_at_ = 0, at_ = 0;
  uint32_t phase_ = 0;
};

// Starts copies of the vectors of a head's steps, by one warp; its barrier hears of them in any
// case.
__device__ inline void FetchSteps(const HeldParams& h, const HeldUnit& unit, int rank, float* to,
                                  uint64_t* barrier) {
  const HeldDivision& at = h.division;
  const int dim = h.memory.dim, hidden = h.memory.divided, own = at.parts[0].columns;
  const int lane = threadIdx.x % kWarp;
  const float* const from = h.Vectors(unit);
  if (lane == 0) {
    ArriveAndExpect(barrier, 4 * static_cast<uint32_t>(unit.count * at.of_step));
  }
  if (at.blocks == 1) {
    const auto bytes = 4 * static_cast<uint32_t>(unit.count * at.of_step);
    if (lane == 0 && bytes > 0) BulkLoadOnce(to, from, bytes, barrier);
    return;
  }
  const int64_t between = HeldVectors(dim, hidden);
  for (int item = lane; item < 3 * unit.count; item += kWarp) {
    const int step = item / 3, which = item % 3;
    const int first = which == 0 ? 0 : 2 * dim + (which - 1) * hidden + rank * own;
    const int place = which == 0 ? 0 : 2 * dim + (which - 1) * own;
    BulkLoadOnce(to + step * at.of_step + place, from + step * between + first,
                 4 * static_cast<uint32_t>(which == 0 ? 2 * dim : own), barrier);
  }
}
// Stores those of a step that is held back, a block's own and, by the first one, those of all.
__device__ inline void KeepStep(const HeldParams& h, const HeldUnit& unit, int rank,
                                const float* step) {
  const int dim = h.memory.dim, hidden = h.memory.divided, own = h.division.parts[0].columns;
  float* const to = h.Vectors(unit) + unit.count * HeldVectors(dim, hidden);
  for (int i = 4 * static_cast<int>(threadIdx.x); i < h.division.of_step; i += 4 * kThreads) {
    const int of_units = i - 2 * dim;
    if (of_units < 0) {
      if (rank == 0) SaveFour(to + i, LoadFour(step + i));
      continue;
    }
    const int place = of_units < own ? of_units : hidden + of_units - own;
    SaveFour(to + 2 * dim + rank * own + place, LoadFour(step + i));
  }
}

// What a head reads beside its matrices and steps, on its way to shared memory in a thread's
// registers.
class HeldInputs {
 public:
  // Of state.
  __device__ void LoadState(const HeldParams& h, const HeldUnit& unit) {
    const Params& p = h.memory;
    const int thread = static_cast<int>(threadIdx.x);
    const float* const numbers = h.Numbers(unit) + 4;
    g_ = thread < unit.count ? numbers[thread] : 0.0f;
    s_ = thread < unit.count ? numbers[h.capacity + thread] : 0.0f;
    gain_ = gain_momentum_ = shift_ = 0;
    if (p.network.norm == MemoryNetwork::Norm::kNone || thread >= p.dim) return;
    if (p.shift != nullptr) shift_ = p.shift[unit.head * p.dim + thread];
    if (!p.network.trains_gain) {
      gain_ = p.gain[unit.head * p.dim + thread];
      return;
    }
    constexpr int kGain = TensorsOfHead<2>::kGain;
    const TensorsOfHead<2> tensors(p, unit.slot, unit.memory, unit.head, /*rank=*/0);
    const float* const momenta = tensors.Start(p.momenta, kGain, unit.fresh != 0);
    gain_ = tensors.Start(p.weights, kGain, unit.fresh != 0)[thread];
    if (momenta != nullptr) gain_momentum_ = momenta[thread];
  }
  // Of the kernel ahead: q, k and v.
  __device__ void LoadVectors(const HeldParams& h, const HeldUnit& unit) {
    const Params& p = h.memory;
    const int thread = static_cast<int>(threadIdx.x), fours = p.dim / 4;
    if (thread >= 3 * fours) return;
    const float* const from = thread < fours ? p.q : thread < 2 * fours ? p.k : p.v;
    vector_ =
        LoadFour(from + (int64_t{unit.entry} * p.heads + unit.head) * p.dim + thread % fours * 4);
  }

  // As those of the head at hand, or of the next one: `turn`.
  __device__ void Save(const HeldParams& h, const HeldUnit& unit, int turn, float* shared) const {
    const HeldDivision& at = h.division;
    const int dim = h.memory.dim, thread = static_cast<int>(threadIdx.x), fours = dim / 4;
    if (thread < 3 * fours) {
      float* const to = shared + (thread < fours       ? at.q[turn]
                                  : thread < 2 * fours ? at.own[turn]
                                                       : at.v[turn]);
      SaveFour(to + thread % fours * 4, vector_);
    }
    if (thread <= unit.count) {
      const bool own = thread == unit.count;
      const float s = own ? -1.0f : unit.gates.momentum * s_;
      shared[at.g[turn] + thread] = g_;
      shared[at.next_s[turn] + thread] = s;
      shared[at.next_g[turn] + thread] = own ? -1.0f : fmaf(unit.gates.keep, g_, s);
    }
    if (thread < dim) {
      shared[at.gain[turn] + thread] = gain_;
      shared[at.gain_momenta[turn] + thread] = gain_momentum_;
      shared[at.shift[turn] + thread] = shift_;
    }
  }

 private:
  float4 vector_ = {};
  float g_ = 0, s_ = 0, gain_ = 0, gain_momentum_ = 0, shift_ = 0;
};

}  // namespace mneme::cuda::neural_memory::resident
