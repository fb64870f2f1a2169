// What the kernels of resident memories share: their parameters, a block's shared memory, where a
// head's tensors are, and what one warp does with the network's outputs.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/common/team.cuh"
#include "kernels/cuda/neural_memory/resident/matrix.cuh"

namespace mneme::cuda::neural_memory {

// A copy of the memory, of at most W_1, W_2 and g.
struct ResidentCopy {
  static constexpr int kTensors = 3;
  StateView views[kTensors];
  const float* initial[kTensors];  // null: zeros
};

struct ResidentParams {
  MemoryNetwork network;
  const float *q, *k, *v, *rate, *momentum, *keep, *step_scale, *gain, *shift;
  const int64_t* positions;
  SegmentArrays segments;
  float* out;
  int64_t first_position, anchor_period;
  float rate_scale;
  int heads, dim, inner;
  bool has_anchors;     // A is not W
  bool writes_anchors;  // and in the slab
  ResidentCopy weights, momenta, anchors;
};

// Where the arrays of a block's shared memory begin, in floats, a multiple of four each.
struct ResidentLayout {
  int weights[2], anchors[2];
  int partial;                     // [groups, columns], of any share
  int of_k, of_q;                  // the network's outputs: parts of their sums, by block
  int vectors;                     // q, k and v of two entries
  int z, slope, z_of_q, delta_1;   // [inner]
  int n, error, n_of_q;            // [dim]
  int gain, gain_momenta, anchor_gain, shift;  // [dim]
  int floats;

  __host__ __device__ ResidentLayout(int depth, int dim, int inner, int blocks, bool has_anchors)
      : floats(0) {
    const auto take = [this](int n) {
      const int taken = floats;
      floats += n;
      return taken;
    };
    for (int l = 0; l < 2; ++l) {
      const int matrix = l < depth ? dim * inner : 0;
      weights[l] = take(matrix);
      anchors[l] = has_anchors ? take(matrix) : weights[l];
    }
    partial = take(4 * kThreads);
    const int outputs = depth > 1 ? blocks * dim : dim;
    of_k = take(outputs);
    of_q = take(outputs);
    vectors = take(2 * 3 * dim);
    z = take(inner);
    slope = take(inner);
    z_of_q = take(inner);
    delta_1 = take(inner);
    n = take(dim);
    error = take(dim);
    n_of_q = take(dim);
    gain = take(dim);
    gain_momenta = take(dim);
    anchor_gain = has_anchors ? take(dim) : gain;
    shift = take(dim);
  }
};

// Finds a block's parts of one head's tensors.
template <int kDepth>
class ResidentHead {
 public:
  __device__ ResidentHead(const ResidentParams& p, const Segment& segment, int head,
                          const Team& team)
      : segment_(segment), head_(head), dim_(p.dim), whole_(p.dim * p.inner * team.size()) {
    parts_[0] = {p.dim, p.inner, p.inner * team.size(), team.rank() * p.inner};
    parts_[1] = {kDepth > 1 ? p.inner : 0, p.dim, p.dim, team.rank() * p.inner * p.dim};
  }
  static constexpr int kGain = kDepth;  // the tensor behind the products

  __device__ const Part& part(int l) const { return parts_[l]; }
  __device__ float* InSlab(const ResidentCopy& copy, int tensor) const {
    return MemoryAt<float>(copy.views[tensor], segment_.slot, segment_.memory) + Offset(tensor);
  }
  // Of the slab, or of a memory's initial value, which may be zeros: null.
  __device__ const float* Start(const ResidentCopy& copy, int tensor, bool initial) const {
    if (!initial) return InSlab(copy, tensor);
    const float* const values = copy.initial[tensor];
    return values == nullptr ? nullptr : values + Offset(tensor);
  }

 private:
  __device__ int64_t Offset(int tensor) const {
    if (tensor == kGain) return int64_t{head_} * dim_;
    return int64_t{head_} * whole_ + parts_[tensor].offset;
  }

  const Segment& segment_;
  const int head_, dim_, whole_;
  Part parts_[2];
};

// By one warp: the network's outputs, sums of `count` parts, through its norm, without gain and
// shift. A lane has elements of its own. Returns what they were divided by.
__device__ inline float NormOfWarp(const MemoryNetwork& network, int dim, const float* parts,
                                   int count, float* n) {
  const int lane = threadIdx.x % kWarp;
  const auto width = static_cast<float>(dim);
  float mean = 0, squares = 0;
  for (int i = lane; i < dim; i += kWarp) {
    float y = parts[i];
    for (int part = 1; part < count; ++part) y += parts[part * dim + i];
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

}  // namespace mneme::cuda::neural_memory
