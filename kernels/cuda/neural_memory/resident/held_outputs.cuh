// One warp's work on the outputs of a network that holds steps back: four of them in each
// lane, as far as they go.
#pragma once

#include <cstdint>

#include "kernels/cuda/neural_memory/resident/held_ring.cuh"

namespace mneme::cuda::neural_memory::resident {

struct FourOutputs {
  float at[4] = {};

  FourOutputs() = default;
  __device__ explicit FourOutputs(const float4& x) : at{x.x, x.y, x.z, x.w} {}
  // A lane's part of a vector, or zeros.
  __device__ FourOutputs(const float* vector, int dim) {
    const int first = 4 * static_cast<int>(threadIdx.x % kWarp);
    if (vector != nullptr && first < dim) *this = FourOutputs(LoadFour(vector + first));
  }
  __device__ void Save(float* vector, int dim) const {
    const int first = 4 * static_cast<int>(threadIdx.x % kWarp);
    if (first < dim) SaveFour(vector + first, {at[0], at[1], at[2], at[3]});
  }
};

// sum_i f(i), over all outputs.
template <typename F>
__device__ inline float SumOfOutputs(int dim, const F& f) {
  float sum = 0;
  if (4 * static_cast<int>(threadIdx.x % kWarp) < dim) sum = (f(0) + f(1)) + (f(2) + f(3));
  return WarpSum(sum);
}

// Takes outputs through the norm, without gain and shift. Returns what they were divided by.
__device__ inline float Norm(const MemoryNetwork& network, int dim, FourOutputs& n) {
  if (network.norm == MemoryNetwork::Norm::kNone) return 1.0f;
  const auto width = static_cast<float>(dim);
  const float mean = network.norm == MemoryNetwork::Norm::kLayer
                         ? SumOfOutputs(dim, [&](int i) { return n.at[i]; }) / width
                         : 0.0f;
  const float squares =
      SumOfOutputs(dim, [&](int i) { return (n.at[i] - mean) * (n.at[i] - mean); });
  const float spread = sqrtf(squares / width + network.eps);
#pragma unroll
  for (int i = 0; i < 4; ++i) n.at[i] = (n.at[i] - mean) / spread;
  return spread;
}

// The sum of all blocks' outputs, which each sends to the first `to_blocks` of them; by one warp.
// Only these have it afterwards.
__device__ inline FourOutputs SumOfBlocks(const HeldParams& h, FourOutputs own, int rank, int which,
                                          int u, int to_blocks, float* shared) {
  const int blocks = h.division.blocks, dim = h.memory.dim;
  if (blocks == 1) return own;
  const int lane = threadIdx.x % kWarp;
  float* const parts = shared + h.division.outputs[which][u % 2];
  uint64_t* const barrier = HeldBarriers(h.division, shared).Outputs(which, u % 2);
  if (lane == 0 && rank < to_blocks) {
    ArriveAndExpect(barrier, 4 * static_cast<uint32_t>(blocks * dim));
  }
  for (int to = 0; to < to_blocks && 4 * lane < dim; ++to) {
    SendFour({own.at[0], own.at[1], own.at[2], own.at[3]}, parts + rank * dim + 4 * lane, barrier,
             to);
  }
  __syncwarp();
  if (rank >= to_blocks) return own;
  WaitForSent(barrier, u / 2 % 2);
  FourOutputs sum;
  for (int block = 0; block < blocks; ++block) {
    const FourOutputs part(parts + block * dim, dim);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.at[i] += part.at[i];
  }
  return sum;
}

// The gradient of the last product's outputs, times the rate, from what they are for k; the gain's
// step, too.
__device__ inline void FindError(const HeldParams& h, const HeldUnit& unit, FourOutputs n, int rank,
                                 int turn, float* shared, float* error) {
  const Params& p = h.memory;
  const MemoryNetwork& network = p.network;
  const HeldDivision& at = h.division;
  const int dim = p.dim;
  const bool normed = h.HasNorm(), trains = network.trains_gain;
  const FourOutputs k(shared + at.own[turn], dim), v(shared + at.v[turn], dim);
  FourOutputs gain, shift;
  if (normed) {
    gain = FourOutputs(shared + at.gain[turn], dim);
    shift = FourOutputs(p.shift == nullptr ? nullptr : shared + at.shift[turn], dim);
  }
  const float offset = trains ? network.gain_offset : 0.0f;
  const float spread = Norm(network, dim, n);
  FourOutputs gradient, difference, of_gain;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float g = normed ? offset + gain.at[i] : 1.0f;
    const float out = normed ? k.at[i] + (n.at[i] * g + shift.at[i]) : n.at[i];
    difference.at[i] = out - v.at[i];
    const float scaled = unit.rate * difference.at[i];
    gradient.at[i] = normed ? scaled * g : scaled;
    of_gain.at[i] = scaled * n.at[i];
  }
  if (normed) {
    const auto width = static_cast<float>(dim);
    const float mean = network.norm == MemoryNetwork::Norm::kLayer
                           ? SumOfOutputs(dim, [&](int i) { return gradient.at[i]; }) / width
                           : 0.0f;
    const float along = SumOfOutputs(dim, [&](int i) { return gradient.at[i] * n.at[i]; }) / width;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      gradient.at[i] = (gradient.at[i] - mean - n.at[i] * along) / spread;
    }
  }
  gradient.Save(error, dim);
  if (trains) {
    FourOutputs s(
        HasZeroMomenta(h, unit, TensorsOfHead<2>::kGain) ? nullptr : shared + at.gain_momenta[turn],
        dim);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s.at[i] = fmaf(unit.gates.momentum, s.at[i], -of_gain.at[i]);
      gain.at[i] = fmaf(unit.gates.keep, gain.at[i], s.at[i]);
    }
    s.Save(shared + at.gain_momenta[turn], dim);
    gain.Save(shared + at.gain[turn], dim);
    FenceSharedWrites();
  }
  if (p.loss != nullptr) {
    const float loss =
        SumOfOutputs(dim, [&](int i) { return difference.at[i] * difference.at[i]; });
    if (rank == 0 && threadIdx.x % kWarp == 0) {
      p.loss[int64_t{unit.entry} * p.heads + unit.head] = loss;
    }
  }
}

// The answer to a head's q, from the network's outputs for it; trained gains go to the slab.
__device__ inline void Answer(const HeldParams& h, const HeldUnit& unit, FourOutputs n, int turn,
                              float* shared) {
  const Params& p = h.memory;
  const MemoryNetwork& network = p.network;
  const HeldDivision& at = h.division;
  const int dim = p.dim;
  Norm(network, dim, n);
  if (h.HasNorm()) {
    const FourOutputs q(shared + at.q[turn], dim), gain(shared + at.gain[turn], dim);
    const FourOutputs shift(p.shift == nullptr ? nullptr : shared + at.shift[turn], dim);
    const float offset = network.trains_gain ? network.gain_offset : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      n.at[i] = q.at[i] + (n.at[i] * (offset + gain.at[i]) + shift.at[i]);
    }
    if (network.trains_gain) {
      constexpr int kGain = TensorsOfHead<2>::kGain;
      const TensorsOfHead<2> tensors(p, unit.slot, unit.memory, unit.head, /*rank=*/0);
      gain.Save(tensors.InSlab(p.weights, kGain), dim);
      FourOutputs(shared + at.gain_momenta[turn], dim).Save(tensors.InSlab(p.momenta, kGain), dim);
    }
  }
  n.Save(p.out + (int64_t{unit.entry} * p.heads + unit.head) * dim, dim);
}

// Stores what a block tells the next token of this one, by one warp: its own vectors, and, the
// first block, those of all and the numbers.
__device__ inline void KeepStep(const HeldParams& h, const HeldUnit& unit, int rank,
                                const Factors& after, const StepFactors& by, const float* step) {
  const int dim = h.memory.dim, hidden = h.memory.divided, own = h.division.parts[0].columns;
  const int lane = threadIdx.x % kWarp;
  const bool folds = h.Folds(unit);
  float* const numbers = h.Numbers(unit);
  if (rank == 0 && lane == 0) {
    SaveFour(numbers, {folds ? 0.0f : static_cast<float>(unit.count + 1), after.kept, after.moved,
                       after.slowed});
  }
  if (folds) return;
  for (int i = lane; rank == 0 && i <= unit.count; i += kWarp) {
    numbers[4 + i] = by.After(i);
    numbers[4 + h.Capacity() + i] = by.MomentaAfter(i);
  }
  float* const to = h.Vectors(unit) + unit.count * HeldVectors(dim, hidden);
  for (int i = 4 * lane; i < h.division.of_step; i += 4 * kWarp) {
    const int of_units = i - 2 * dim;
    if (of_units < 0) {
      if (rank == 0) SaveFour(to + i, LoadFour(step + i));
      continue;
    }
    const int place = of_units < own ? of_units : hidden + of_units - own;
    SaveFour(to + 2 * dim + rank * own + place, LoadFour(step + i));
  }
}

}  // namespace mneme::cuda::neural_memory::resident
