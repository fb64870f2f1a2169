// How heads that hold steps back (kernels/held_steps.h) are divided among the blocks of a cluster.
#pragma once

#include "kernels/cuda/common/shared_layout.h"
#include "kernels/cuda/neural_memory/resident/head.cuh"

namespace mneme::cuda::neural_memory::resident {

// A part whose groups take rows by fours. Products of it leave `sums` rows of columns: where the
// groups of a warp have the same columns, in_warps, a row of each warp, else one of each group.
struct HeldPart : Part {
  int sums = 0;
  bool in_warps = false;

  HeldPart() = default;
  HeldPart(int rows, int columns, int pitch, int between) : Part(rows, columns, pitch, between) {
    held = (held + 3) / 4 * 4;
    groups = (rows + held - 1) / held;
    const int fours = columns / 4;
    in_warps = fours < kWarp && kWarp % fours == 0;
    sums = in_warps ? (groups * fours + kWarp - 1) / kWarp : groups;
  }
};

// A head of a segment of one token.
struct HeldUnit {
  int entry, head, slot, memory;
  int fresh;                  // whether it begins with this token
  int count;                  // of steps held back
  float kept, moved, slowed;  // W's and S's factors since they were written
  float rate;
  StepGates gates;
};

// A cluster takes one head after the other. Of each, a block has some of the hidden units: parts of
// W_1, S_1, W_2 and S_2, which go through `slots` of its shared memory in turns. Where arrays begin
// there, in floats; those of two take turns from head to head.
struct HeldDivision {
  static constexpr int kMostUnits = 96;  // of a cluster
  // A head's matrices and one of the next, so that memory never waits.
  static constexpr int kLeastSlots = 5, kMostSlots = 8;
  static constexpr int kMostDim = 4 * kWarp;  // outputs of the network, by one warp

  HeldPart parts[2];
  int blocks = 0;   // of a cluster; 0: such heads find no room
  int of_slot = 0;  // floats
  int slots = 0;
  int of_step = 0;   // floats of a step's vectors: z_1, delta_2 of all, z_2, delta_1 of these units
  int units = 0;     // HeldUnit of each
  int barriers = 0;  // HeldBarriers
  int first_slot = 0;
  int vectors[2] = {};                // of steps held back: [capacity, of_step]
  int own[2] = {};                    // the token's
  int numbers[2] = {};                // HeldNumbers()
  int dots[5] = {};                   // [capacity + 1]: of k, q, z, error and q's z with steps
  int partial = 0, partial_of_q = 0;  // sums of products: of two vectors, and the last one
  int outputs[2][2] = {};             // for k and for q, of several blocks: [blocks, dim]
  int q[2] = {}, v[2] = {};           // [dim]
  int gain[2] = {}, gain_momenta[2] = {}, shift[2] = {};  // [dim], of norms
  int slope = 0, of_q = 0, z_of_q = 0;                    // of hidden units
  int floats = 0;

  HeldDivision() = default;
  // With as many slots as `room` has space for, in floats.
  HeldDivision(int dim, int hidden, bool normed, int blocks, int capacity, int room) {
    const auto take = [this](int n) { return TakeFloats(n, floats); };
    const int part = hidden / blocks;
    parts[0] = HeldPart(dim, part, hidden, part);
    parts[1] = HeldPart(part, dim, dim, part * dim);
    of_slot = dim * part;
    of_step = 2 * (dim + part);
    units = take(kMostUnits * static_cast<int>(sizeof(HeldUnit) / sizeof(float)));
    barriers = take(2 * (kMostSlots / 2 + 7));
    for (int& numbers_of : dots) numbers_of = take(capacity + 1);
    const int of_outputs = parts[1].sums * dim;
    partial = take(std::max(2 * parts[0].sums * parts[0].columns, of_outputs));
    partial_of_q = take(of_outputs);
    for (int turn = 0; turn < 2; ++turn) {
      vectors[turn] = take(capacity * of_step);
      own[turn] = take(of_step);
      numbers[turn] = take(static_cast<int>(HeldNumbers(capacity)));
      for (auto& of_vector : outputs) of_vector[turn] = blocks > 1 ? take(blocks * dim) : 0;
      for (auto* const vector : {&q, &v}) (*vector)[turn] = take(dim);
      for (auto* const vector : {&gain, &gain_momenta, &shift}) {
        (*vector)[turn] = normed ? take(dim) : 0;
      }
    }
    for (int* const vector : {&slope, &of_q, &z_of_q}) *vector = take(part);
    slots = std::min((room - floats) / of_slot, kMostSlots);
    if (slots < kLeastSlots || dim > kMostDim) return;
    first_slot = take(slots * of_slot);
    this->blocks = blocks;
  }
};

struct HeldParams {
  Params memory;
  HeldDivision division;
  int units;  // heads of all segments

  __device__ int Capacity() const { return memory.held.capacity; }
  __device__ float* Numbers(const HeldUnit& unit) const {
    return NumbersOfHead(memory, unit.slot, unit.memory, unit.head);
  }
  __device__ float* Vectors(const HeldUnit& unit) const {
    return VectorsOfHead(memory, unit.slot, unit.memory, unit.head);
  }
  __device__ bool Folds(const HeldUnit& unit) const {
    return unit.fresh != 0 || unit.count == Capacity();
  }
  __device__ bool HasNorm() const { return memory.network.norm != MemoryNetwork::Norm::kNone; }
};

// resident/held.cu: segments of one token, of heads that such a division has room for.
void LaunchHeldSteps(Device& device, const HeldDivision& division, const Params& p);

}  // namespace mneme::cuda::neural_memory::resident
