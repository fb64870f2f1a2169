// What the kernels of resident memories share: their parameters, a block's shared memory, where a
// head's tensors are, and what one warp does with the network's outputs.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/read_output.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/common/team.cuh"
#include "kernels/cuda/neural_memory/resident/matrix.cuh"
#include "kernels/held_steps.h"

namespace mneme::cuda::neural_memory::resident {

// A copy of the memory: W_1 and W_2, then g, or b_1 and b_2.
struct Copy {
  static constexpr int kTensors = 4;
  StateView views[kTensors];
  const float* initial[kTensors];  // null: zeros
};

// Where the arrays of a block's shared memory begin, in floats, a multiple of four each. T tokens
// go through the network at once.
struct Layout {
  int weights[2], anchors[2];
  int partial;             // [groups, columns], of any share; twice for Outputs::kToAll of T > 1
  int outputs[2];          // of the network: by block, what to add, [T or owned, dim]
  int vectors;             // q, k and v: [3, T, dim], twice where T is 1
  int rates;               // and a step's gates, [3, T]
  int z, z_of_q, delta_1;  // of hidden units, [T, units]; of kToAll one is in place of the other
  int error;               // [T, dim]; of kToAll in place of v, where that is not needed any more
  int n, n_of_q;           // of one token
  int gain, gain_momenta, anchor_gain, shift;  // [dim]
  int biases[2], bias_sums[2];                 // of a part's columns
};

// Which blocks of a cluster see a token's outputs: all, or its owner, block token % blocks.
enum class Outputs : uint8_t { kToAll, kToOwner };

// How the blocks of a cluster divide a head: W_1 by its columns and W_2 by its rows.
struct Division {
  Part parts[2];
  Layout at;
  int tokens;  // T
  int owned;   // tokens of T whose outputs a block sees, at most
  int walked;  // tokens for which `partial` and the outputs behind it have room, at most T
  int floats;  // of a block's shared memory

  Division() = default;
  Division(const MemoryNetwork& network, int dim, int blocks, bool has_anchors, int tokens,
           Outputs outputs);
  // Rows of a thread, at most.
  int held() const { return parts[0].held > parts[1].held ? parts[0].held : parts[1].held; }
};

struct Params {
  MemoryNetwork network;
  const float *q, *k, *v, *rate, *momentum, *keep, *step_scale, *gain, *shift;
  const int64_t* positions;
  SegmentArrays segments;
  float *out, *loss;
  int64_t first_position, anchor_period;
  float rate_scale;
  int heads, dim, blocks, step;
  int divided;  // hidden units, or outputs, of all blocks
  Division division;
  bool early;           // as NeuralMemory() has it
  bool has_anchors;     // A is not W
  bool writes_anchors;  // and in the slab
  // Whether rate, momentum and keep are logits: the first two of a sigmoid, the last one of what a
  // sigmoid leaves of 1.
  bool logits;
  // The logit of each head's gate, and what the answer times that becomes; or none.
  const float* answer_gate;
  ReadOutput gated;
  int others;        // segments of so many tokens or fewer are left to others
  bool only_single;  // segments of several tokens are left to others
  HeldSteps held;    // what steps of one token find held back, and add to W and S first; or nothing
  Copy weights, momenta, anchors;
  StateView pending_k, pending_v, pending_rate;
  const float *initial_k, *initial_v, *initial_rate;  // null: zeros
};

// Where p.held has a head's numbers and vectors.
__device__ inline float* NumbersOfHead(const Params& p, int slot, int memory, int head) {
  return MemoryAt<float>(p.held.numbers, slot, memory) + head * HeldNumbers(p.held.capacity);
}
__device__ inline float* VectorsOfHead(const Params& p, int slot, int memory, int head) {
  return MemoryAt<float>(p.held.vectors, slot, memory) +
         int64_t{head} * p.held.capacity * HeldVectors(p.dim, p.divided);
}
// The `count` steps that a head holds back, of a block's parts of W_1 and of W_2.
struct StepsOfHead {
  StepsOfSlab of_parts[2];

  __device__ StepsOfHead(const Params& p, const Segment& segment, int head, int rank,
                         const float* numbers, int count) {
    const float* const vectors = VectorsOfHead(p, segment.slot, segment.memory, head);
    const int of_units = 2 * p.dim + rank * p.division.parts[0].columns;
    of_parts[0] = {.z = vectors,
                   .delta = vectors + of_units + p.divided,
                   .numbers = numbers,
                   .between = static_cast<int>(HeldVectors(p.dim, p.divided)),
                   .count = count,
                   .capacity = p.held.capacity};
    of_parts[1] = of_parts[0];
    of_parts[1].z = vectors + of_units;
    of_parts[1].delta = vectors + p.dim;
  }
};

// A gate of a token as it counts.
__device__ inline float GateOf(const Params& p, const float* gates, int entry, int head) {
  const float x = gates[int64_t{entry} * p.heads + head];
  return p.logits ? Sigmoid(x) : x;
}
__device__ inline float KeepOf(const Params& p, int entry, int head) {
  if (p.keep == nullptr) return 1.0f;
  const float x = p.keep[int64_t{entry} * p.heads + head];
  return p.logits ? Sigmoid(-x) : x;
}
__device__ inline float AnswerGateOf(const Params& p, int entry, int head) {
  return p.answer_gate == nullptr ? 1.0f : Sigmoid(p.answer_gate[int64_t{entry} * p.heads + head]);
}
// An element of an answer, and what its gate leaves of it.
__device__ inline void SaveAnswer(const Params& p, int64_t at, float x, float gate) {
  p.out[at] = x;
  if (p.answer_gate != nullptr) p.gated.Save(at, gate * x);
}

// Whether a segment, whose first position is `begin`, ends no step of a session that has begun.
__device__ inline bool OnlyReads(const Params& p, const Segment& segment, int64_t begin) {
  return begin != p.first_position && begin % p.step + (segment.end - segment.first) < p.step;
}

// Threads hold at most as many rows of a matrix as a kernel is made for.
constexpr int kFewHeld = 4, kMostHeld = 8;

// How a head of a segment is divided among the blocks of a cluster.
struct Plan {
  int blocks = 0;            // of a cluster; 0: not at all
  int held = 0;              // rows of a matrix that a thread has, at most
  int tokens = 0;            // that go through the network at once
  int64_t shared_bytes = 0;  // of a block
};

// Most tokens at once of the kernels of several: of steps of one token, and of several.
constexpr int kMostTokens = 16, kMostTokensOfSteps = 64;

// resident/one_token.cu: steps of one token, the memory read after it.
void LaunchOneTokenSteps(Device& device, const Plan& plan, const Params& p);
// resident/anchored.cu: the same with gradients at an anchor that is not W. Longer segments of most
// of these are those of resident/anchored_windows.cu.
void LaunchAnchoredSteps(Device& device, const Plan& plan, const Params& p);
// resident/several_tokens.cu: steps of several tokens, likewise.
void LaunchSeveralTokenSteps(Device& device, const Plan& plan, const Params& p);
// resident/few_tokens.cu: of those, segments of a few tokens, the longest segment having `longest`
// or, if 0, any number. Returns how many a segment may have; 0: not these, and nothing was done.
int LaunchFewTokens(Device& device, const Params& p, int64_t longest);
// resident/ahead.cu: steps read ahead; `momenta` are their gradients.
void LaunchReadAhead(Device& device, const Plan& plan, const Params& p);

// Finds a block's parts of one head's tensors: kDepth products and the gain.
template <int kDepth>
class TensorsOfHead {
 public:
  static constexpr int kGain = kDepth;

  __device__ TensorsOfHead(const Params& p, const Segment& segment, int head, int rank)
      : TensorsOfHead(p, segment.slot, segment.memory, head, rank) {}
  __device__ TensorsOfHead(const Params& p, int slot, int memory, int head, int rank)
      : p_(p), slot_(slot), memory_(memory), head_(head), rank_(rank) {}

  __device__ float* InSlab(const Copy& copy, int tensor) const {
    return MemoryAt<float>(copy.views[tensor], slot_, memory_) + Offset(tensor);
  }
  // The start of a tensor: of the slab, or of a memory's initial value, which may be zeros: null.
  __device__ const float* Start(const Copy& copy, int tensor, bool initial) const {
    if (!initial) return InSlab(copy, tensor);
    const float* const values = copy.initial[tensor];
    return values == nullptr ? nullptr : values + Offset(tensor);
  }

 private:
  __device__ int64_t Offset(int tensor) const {
    const Part& part = p_.division.parts[tensor % kDepth];
    if (tensor < kDepth) return int64_t{head_} * p_.dim * p_.divided + rank_ * part.between;
    // A block has the biases of its columns; it has all outputs of two products.
    if (p_.network.biases && tensor == kDepth) {
      return int64_t{head_} * p_.divided + rank_ * part.columns;
    }
    return int64_t{head_} * p_.dim;
  }

  const Params& p_;
  const int slot_, memory_, head_, rank_;
};

// One warp takes the network's outputs, sums of `count` parts, `between` apart, through its norm,
// without gain and shift; n may be the first of them. A lane has elements of its own. Returns what
// they were divided by.
__device__ inline float NormOfWarp(const MemoryNetwork& network, int dim, const float* parts,
                                   int count, int between, float* n) {
  const int lane = threadIdx.x % kWarp;
  const auto width = static_cast<float>(dim);
  float mean = 0, squares = 0;
  for (int i = lane; i < dim; i += kWarp) {
    float y = parts[i];
    for (int part = 1; part < count; ++part) y += parts[part * between + i];
    n[i] = y;
    mean += y;
  }
  if (network.norm == MemoryNetwork::Norm::kNone) return 1.0f;
  mean = network.norm == MemoryNetwork::Norm::kLayer ? WarpSum(mean) / width : 0.0f;
  for (int i = lane; i < dim; i += kWarp) squares += (n[i] - mean) * (n[i] - mean);
  const float spread = sqrtf(WarpSum(squares) / width + network.eps);
  for (int i = lane; i < dim; i += kWarp) n[i] = (n[i] - mean) / spread;
  return spread;
}
// What follows from it: the gradient of a norm's inputs, in place of that of n.
__device__ inline void NormGradientOfWarp(const MemoryNetwork& network, int dim, const float* n,
                                          float spread, float* gradient) {
  const int lane = threadIdx.x % kWarp;
  const auto width = static_cast<float>(dim);
  float mean = 0, along = 0;
  for (int i = lane; i < dim; i += kWarp) {
    mean += gradient[i];
    along += gradient[i] * n[i];
  }
  mean = network.norm == MemoryNetwork::Norm::kLayer ? WarpSum(mean) / width : 0.0f;
  along = WarpSum(along) / width;
  for (int i = lane; i < dim; i += kWarp) {
    gradient[i] = (gradient[i] - mean - n[i] * along) / spread;
  }
}

// One warp finds, from a token's outputs, as for NormOfWarp(), the gradient of the last product's,
// times `rate`. That of a gain takes the place of v. Returns |A(k) - v|^2 where it is wanted.
__device__ inline float ErrorOfWarp(const Params& p, float* outputs, int count, int between,
                                    const float* k, float* v, const float* gain, const float* shift,
                                    float rate, float* error) {
  const MemoryNetwork& network = p.network;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  const float offset = network.trains_gain ? network.gain_offset : 0.0f;
  const float spread = NormOfWarp(network, p.dim, outputs, count, between, outputs);
  float loss = 0;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < p.dim; i += kWarp) {
    const float n = outputs[i], g = normed ? offset + gain[i] : 1.0f;
    const float out = normed ? k[i] + (n * g + shift[i]) : n;
    const float difference = out - v[i], scaled = rate * difference;
    loss = fmaf(difference, difference, loss);
    error[i] = normed ? scaled * g : scaled;
    if (network.trains_gain) v[i] = scaled * n;
  }
  if (normed) NormGradientOfWarp(network, p.dim, outputs, spread, error);
  return p.loss == nullptr ? 0.0f : WarpSum(loss);
}

}  // namespace mneme::cuda::neural_memory::resident
