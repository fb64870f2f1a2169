// The kernels of the gated delta rule as gated_delta_rule.cu launches them.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/gated_delta_memory.cuh"

namespace mneme::cuda::delta {

// gated_delta_rule.cu: the arguments of an operation, less the task and the plan.
Problem MakeProblem(const GatedDeltaRuleArgs& args);

// gated_delta_general.cu: any task, any shape; a row at a time.
void LaunchGeneral(Device& device, Problem problem, DType state_dtype);

// Segments by number, of which only the device knows; none: all are meant.
struct ChosenSegments {
  const int* list = nullptr;   // [most]
  const int* count = nullptr;  // [1]
  int most = 0;
};
// gated_delta_tokens.cu: any task but kDecode, for shapes and layouts that HasTunedShape() says.
// Bit-equal to decoding with fold_all as long as nothing is pending.
void LaunchTokens(Device& device, Problem problem, DType state_dtype,
                  const ChosenSegments& chosen = {});

// gated_delta_decode.cu: kDecode, the same shapes.
enum class DecodeTile : uint8_t { kDirect2, kDirect4, kBulk4, kBulk8, kBulk, kStream };
constexpr int kDecodeTiles = 6;
struct DecodePlan {
  DecodeTile tile;  // how rows are dealt out to warps and blocks
  bool fold_all;    // every token is added to its matrix at once, what is pending with it
};
// For `head_states` matrices of a head.
DecodePlan PlanDecode(const Device& device, const Problem& problem, int head_states,
                      DType state_dtype);
void LaunchDecode(Device& device, Problem problem, DType state_dtype, DecodePlan plan);

// gated_delta_stream.cu: the tile kStream of LaunchDecode().
bool StreamFits(const Problem& p, DType state_dtype);
void LaunchStream(Device& device, Problem problem, DType state_dtype);

// False, and an error on record, for a memory of more blocks than its range counts in 16 bits.
inline bool RangeCountFits(Device& device, const Problem& p) {
  if (p.capacity == 0 || int64_t{p.value_heads} * p.tiles <= 1 << 16) return true;
  device.Check(cudaErrorInvalidValue, "gated delta rule, of so many value channels");
  return false;
}

// Pending writes that the tuned kernels can hold.
constexpr int kMaxPending = 16;

inline bool HasTunedShape(const Problem& p, DType state_dtype) {
  const auto aligned = [](const Field& field) {
    return (reinterpret_cast<uintptr_t>(field.base) | field.slab_bytes | field.memory_bytes) % 16 ==
           0;
  };
  return (p.key_dim == 64 || p.key_dim == 128 || p.key_dim == 256) && p.capacity <= kMaxPending &&
         aligned(p.state) && aligned(p.keys) &&
         (reinterpret_cast<uintptr_t>(p.q) | reinterpret_cast<uintptr_t>(p.k)) % 16 == 0 &&
         (state_dtype == DType::kF32 || state_dtype == DType::kF16 ||
          (state_dtype == DType::kI8 && p.value_dim % 4 == 0));
}

}  // namespace mneme::cuda::delta
