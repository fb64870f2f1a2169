// SettleNetwork: a block adds what one head holds back to its W and S, or to its G.
#include <cstdint>

#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/neural_memory/held.h"

namespace mneme::cuda::neural_memory {
namespace {

constexpr int kThreads = 256;

struct Settling {
  StateView weights[2], momenta[2];
  StateView gradients[2];  // of the matrix and its bias, which there may be none of
  StateView numbers, vectors;
  int capacity, heads, dim, hidden;
  SegmentArrays segments;  // or, without offsets, `slots`
  const int* slots;
  const int64_t* positions;
  int64_t first_position;
  int longer_than;
};

__global__ void __launch_bounds__(kThreads) SettleKernel(const __grid_constant__ Settling p) {
  extern __shared__ float shared[];  // numbers, then vectors
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int unit = static_cast<int>(blockIdx.x) / p.heads;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const int thread = static_cast<int>(threadIdx.x);
  int slot, memory = 0;
  bool fresh = false;
  if (p.segments.offsets != nullptr) {
    const Segment segment(p.segments, unit);
    if (segment.slot < 0 || segment.end - segment.first <= p.longer_than) return;
    slot = segment.slot;
    memory = segment.memory;
    fresh = p.positions[segment.first] == p.first_position;
  } else {
    slot = p.slots[unit];
    if (slot < 0) return;
  }
  const int pitch = static_cast<int>(HeldNumbers(p.capacity));
  const int of_step = static_cast<int>(HeldVectors(p.dim, p.hidden));
  float* const stored = MemoryAt<float>(p.numbers, slot, memory) + head * pitch;
  const int count = fresh ? 0 : static_cast<int>(stored[0]);
  __syncthreads();
  if (thread == 0) stored[0] = 0;
  if (count == 0) return;
  for (int i = thread + 1; i < pitch; i += kThreads) shared[i] = stored[i];
  float* const vectors = shared + pitch;
  const float* const from =
      MemoryAt<float>(p.vectors, slot, memory) + int64_t{head} * p.capacity * of_step;
  for (int i = thread; i < count * of_step; i += kThreads) vectors[i] = from[i];
  __syncthreads();
  if (p.gradients[0].base != nullptr) {
    float* const sums = MemoryAt<float>(p.gradients[0], slot, memory) + head * p.dim * p.dim;
    for (int at = thread; at < p.dim * p.dim; at += kThreads) {
      const int row = at / p.dim, column = at % p.dim;
      float sum = sums[at];
      for (int i = 0; i < count; ++i) {
        const float* const k = vectors + i * of_step;
        sum = fmaf(k[row], k[p.dim + column], sum);
      }
      sums[at] = sum;
    }
    if (p.gradients[1].base == nullptr) return;
    float* const of_bias = MemoryAt<float>(p.gradients[1], slot, memory) + head * p.dim;
    for (int column = thread; column < p.dim; column += kThreads) {
      for (int i = 0; i < count; ++i) of_bias[column] += vectors[i * of_step + p.dim + column];
    }
    return;
  }
  const float kept = shared[1], moved = shared[2], slowed = shared[3];
  const float *const g = shared + 4, *const s = g + p.capacity;
  // z_1, delta_2, z_2, delta_1
  const int offsets[2][2] = {{0, 2 * p.dim + p.hidden}, {2 * p.dim, p.dim}};
  for (int l = 0; l < 2; ++l) {
    const int64_t elements = int64_t{p.dim} * p.hidden;
    const int columns = l == 0 ? p.hidden : p.dim;
    float* const weights = MemoryAt<float>(p.weights[l], slot, memory) + head * elements;
    float* const momenta = MemoryAt<float>(p.momenta[l], slot, memory) + head * elements;
    const float* const z = vectors + offsets[l][0];
    const float* const delta = vectors + offsets[l][1];
    for (int at = thread; at < elements; at += kThreads) {
      const int row = at / columns, column = at % columns;
      const float w = weights[at], momentum = momenta[at];
      float weight = kept * w + moved * momentum, sum = slowed * momentum;
      for (int i = 0; i < count; ++i) {
        const float product = z[i * of_step + row] * delta[i * of_step + column];
        weight = fmaf(g[i], product, weight);
        sum = fmaf(s[i], product, sum);
      }
      weights[at] = weight;
      momenta[at] = sum;
    }
  }
}

void Launch(Device& device, Settling p, const MemoryCopy& weights, const MemoryCopy& momenta,
            const MemoryCopy& gradients, const HeldSteps& held, int64_t units) {
  for (int l = 0; l < 2; ++l) {
    p.weights[l] = weights.at[l];
    p.momenta[l] = momenta.at[l];
    p.gradients[l] = gradients.at[l];
  }
  p.numbers = held.numbers;
  p.vectors = held.vectors;
  p.capacity = held.capacity;
  const int64_t floats = HeldNumbers(held.capacity) + held.capacity * HeldVectors(p.dim, p.hidden);
  LaunchOverlapping(device, "SettleNetwork", SettleKernel, static_cast<int>(units * p.heads),
                    kThreads, 4 * floats, 1, p);
}

}  // namespace

void SettleNetwork(Device& device, const SettleNetworkArgs& args) {
  const int64_t count = args.slots.shape[0];
  if (args.held.capacity == 0 || count == 0) return;
  Settling p = {};
  p.heads = args.heads;
  p.dim = args.dim;
  p.hidden = args.hidden;
  p.slots = args.slots.as<const int>();
  Launch(device, p, args.weights, args.momenta, args.gradients, args.held, count);
}

void SettleSegments(Device& device, const HeldMemoryArgs& args, int longer_than) {
  const NeuralMemoryArgs& memory = args.memory;
  Settling p = {};
  p.heads = static_cast<int>(memory.q.shape[1]);
  p.dim = static_cast<int>(memory.q.shape[2]);
  p.hidden = memory.network.hidden;
  p.segments = ArraysOf(memory.segments);
  p.positions = memory.positions.as<const int64_t>();
  p.first_position = memory.first_position;
  p.longer_than = longer_than;
  Launch(device, p, memory.weights, memory.momenta, memory.gradients, args.held,
         memory.segments.count);
}

}  // namespace mneme::cuda::neural_memory
