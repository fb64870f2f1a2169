// Kernels for any MatrixRule, as matrix_memory/matrix_memory.cu launches them.
#pragma once

#include "base/log.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/matrix_memory/rules/problem.cuh"

namespace mneme::cuda::matrix_memory::rules {

// The arguments of an operation, for segments of any length.
Problem MakeProblem(const MatrixMemoryArgs& args);

// matrix_memory/rules/any_shape.cu: any rule, any shape; a row at a time.
void LaunchAnyShape(Device& device, Problem problem, DType state_dtype);

// Ways to deal out rows to warps, each of which ends with them. All but kTokens are for segments of
// one entry.
enum class Tile : uint8_t { kFewestRows, kFewRows, kRows, kFewRowsCached, kRowsCached, kTokens };

// Whether tuned kernels take a problem. They agree bit for bit while the state is f32.
bool Supports(const Problem& problem, DType state_dtype);
// That for one token each, of `head_states` matrices.
Tile PlanDecode(const Device& device, const Problem& problem, int64_t head_states,
                DType state_dtype);
void LaunchTuned(Device& device, const Problem& problem, DType state_dtype, Tile tile);

// Each rule has its file, matrix_memory/rules/{additive,additive_key_decay,delta,delta_key_decay,
// general_key_decay,bonus_key_decay}.cu.
void LaunchAdditive(Device& device, const Problem& problem, DType state_dtype, Tile tile);
void LaunchAdditiveKeyDecay(Device& device, const Problem& problem, DType state_dtype, Tile tile);
void LaunchDelta(Device& device, const Problem& problem, DType state_dtype, Tile tile);
void LaunchDeltaKeyDecay(Device& device, const Problem& problem, DType state_dtype, Tile tile);
void LaunchGeneralKeyDecay(Device& device, const Problem& problem, DType state_dtype, Tile tile);
void LaunchBonusKeyDecay(Device& device, const Problem& problem, DType state_dtype, Tile tile);

constexpr bool HasTunedRule(int key_dim) {
  return key_dim == 64 || key_dim == 128 || key_dim == 256 || key_dim == 512;
}
// Calls launch.operator()<kKeyDim>() with a size that these kernels are tuned for.
template <typename Launch>
void ForRuleKeyDim(int key_dim, const Launch& launch) {
  switch (key_dim) {
    case 64:
      return launch.template operator()<64>();
    case 128:
      return launch.template operator()<128>();
    case 256:
      return launch.template operator()<256>();
    case 512:
      return launch.template operator()<512>();
    default:
      CHECK(false) << "keys of " << key_dim << ", for which there is no tuned kernel";
  }
}

}  // namespace mneme::cuda::matrix_memory::rules
