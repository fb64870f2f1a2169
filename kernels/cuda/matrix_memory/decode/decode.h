// One token for each memory: how a device goes about it.
#pragma once

#include <cstdint>

#include "kernels/cuda/matrix_memory/launch.h"

namespace mneme::cuda::matrix_memory::decode {

// Ways to deal out rows to warps and blocks: kStream is that of persistent/stream.h.
enum class DecodeTile : uint8_t { kDirect2, kDirect4, kBulk4, kBulk8, kBulk, kStream };
constexpr int kDecodeTiles = 6;
struct DecodePlan {
  DecodeTile tile;
  bool fold_all;  // every token is added to its matrix at once, what is pending with it
};
// For `head_states` matrices of a head.
DecodePlan PlanDecode(const Device& device, const Problem& problem, int head_states,
                      DType state_dtype);
// Task kDecode, for shapes and layouts that the tuned kernels take.
void LaunchDecode(Device& device, Problem problem, DType state_dtype, DecodePlan plan);

}  // namespace mneme::cuda::matrix_memory::decode
