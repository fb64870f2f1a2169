// Histories (EngramStore::fired): a matrix of counts made of one for those who choose by it, and a
// step more in it.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/engrams/store.cuh"

namespace mneme::cuda::engrams {

constexpr int kStepsOfWord = 32;

// The crossings whose matrices are made at once, which bounds their memory.
int CountedTogether(int capacity);

// [count, capacity, capacity] for crossings [first, first + count): Count_ij by slots, where i is
// a short-term or long-term engram and j a long-term one. Others are unspecified. In Scratch; null
// after an error.
const uint16_t* CountFirings(Device& device, const Store& store, const CrossingArrays& crossings,
                             int first, int count);

// Those in the slots active [0, fires) fire at the start of `segment`, and no others. A block.
template <int kThreads>
__device__ inline void WriteFirings(const Store& store, int slot, int segment,
                                    const uint16_t* active, int fires) {
  const int step = segment % store.steps, word = step / kStepsOfWord;
  const uint32_t bit = 1u << (step % kStepsOfWord);
  const EngramType* const types = store.types(slot);
  for (int i = threadIdx.x; i < store.capacity; i += kThreads) {
    if (types[i] != EngramType::kFree) store.fired(slot, i)[word] &= ~bit;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < fires; i += kThreads) store.fired(slot, active[i])[word] |= bit;
}

}  // namespace mneme::cuda::engrams
