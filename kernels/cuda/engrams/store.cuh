// A session's engrams, and the crossings of a step, for devices.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/field.cuh"
#include "kernels/ops/engrams.h"

namespace mneme::cuda::engrams {

// Slots are kept in 16 bits beside births.
constexpr int kMostEngrams = 1 << 16;

struct CrossingArrays {
  int32_t *slots, *segments;

  explicit CrossingArrays(const Crossings& crossings)
      : slots(crossings.slots.as<int32_t>()), segments(crossings.segments.as<int32_t>()) {}
};

// EngramReports for devices.
struct Reports {
  int32_t* words;  // null: nobody wants any
  const int32_t* range;
  int most, size;

  explicit Reports(const EngramReports& reports)
      : words(reports.words.empty() ? nullptr : reports.words.as<int32_t>()),
        range(words == nullptr ? nullptr : reports.range.as<const int32_t>()),
        most(words == nullptr ? 0 : static_cast<int>(reports.words.shape[0])),
        size(words == nullptr ? 0 : static_cast<int>(reports.words.shape[1])) {}

  // The words of a crossing, or null.
  __device__ int32_t* Of(int crossing) const {
    if (words == nullptr) return nullptr;
    const int place = range[0] + crossing;
    return place < most ? words + int64_t{place} * size : nullptr;
  }
};

// EngramStore for devices.
struct Store {
  int capacity, dim, steps;
  Field type_field, vector_field, lifespan_field, gain_field, birth_field, count_field, fired_field,
      recalled_field, fact_field;

  explicit Store(const EngramStore& store)
      : capacity(store.capacity),
        dim(store.dim),
        steps(store.steps),
        type_field(store.types),
        vector_field(store.vectors),
        lifespan_field(store.lifespans),
        gain_field(store.gains),
        birth_field(store.births),
        count_field(store.counts),
        fired_field(store.fired),
        recalled_field(store.recalled),
        fact_field(store.facts) {}

  __device__ EngramType* types(int slot) const { return type_field.At<EngramType>(slot, 0); }
  __device__ float* vector(int slot, int i) const { return vector_field.At<float>(slot, i); }
  __device__ float* lifespans(int slot) const { return lifespan_field.At<float>(slot, 0); }
  __device__ float* gains(int slot) const { return gain_field.At<float>(slot, 0); }
  __device__ uint32_t* births(int slot) const { return birth_field.At<uint32_t>(slot, 0); }
  __device__ uint16_t* counts(int slot, int i) const { return count_field.At<uint16_t>(slot, i); }
  __device__ uint32_t* fired(int slot, int i) const { return fired_field.At<uint32_t>(slot, i); }
  __device__ int32_t* recalled(int slot) const { return recalled_field.At<int32_t>(slot, 0); }
  __device__ int32_t* facts(int slot) const { return fact_field.At<int32_t>(slot, 0); }
};

// The birth of the oldest working engram in a segment.
__device__ inline uint32_t FirstBirth(int segment, int working) {
  return static_cast<uint32_t>(segment - 1) * static_cast<uint32_t>(working);
}

}  // namespace mneme::cuda::engrams
