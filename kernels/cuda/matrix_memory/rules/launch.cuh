// Launches the tuned kernels of one rule; each rule has a file of its own, as they take a while to
// compile.
#pragma once

#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/rules/rows.cuh"
#include "kernels/cuda/matrix_memory/rules/rules.h"

namespace mneme::cuda::matrix_memory::rules {

// Launches kernels whose warps take kRows rows.
template <int kRows>
int PlanRows(Problem& p) {
  p.tiles = (p.value_dim + kRowWarps * kRows - 1) / (kRowWarps * kRows);
  return static_cast<int>(int64_t{p.segments.count} * p.heads * p.tiles);
}
template <int kRows>
void LaunchRows(Device& device, void (*kernel)(Problem), Problem p) {
  const int blocks = PlanRows<kRows>(p);
  LaunchOverlapping(device, "matrix memory, rows", kernel, blocks, kRowThreads, 0, 1, p);
}
// The same with nearly all of a multiprocessor's memory as its cache, through which rows come. What
// runs beside other kernels shares their division, as common/overlap.cuh says, and changing it
// takes some microseconds: for what takes hundreds.
template <int kRows>
void LaunchRowsCached(Device& device, void (*kernel)(Problem), Problem p) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(PlanRows<kRows>(p)));
  config.blockDim = dim3(kRowThreads);
  config.stream = device.stream();
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  constexpr unsigned kSharedPercent = 10;
  attributes[config.numAttrs].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[config.numAttrs++].val.sharedMemCarveout = kSharedPercent;
  if (HasHopperCode(device)) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  device.Check(cudaLaunchKernelEx(&config, kernel, p), "matrix memory, rows");
}

template <typename Rule>
void LaunchTunedRule(Device& device, const Problem& p, DType state_dtype, Tile tile) {
  ForStateType(state_dtype, [&]<typename T>() {
    ForRuleKeyDim(p.key_dim, [&]<int kKeyDim>() {
      if constexpr (kKeyDim <= Rule::kMostKeyDim) {
        constexpr int kMany = kWarpElements / kKeyDim;
        constexpr int kFew = kMany / 2, kFewest = kMany > 4 ? kMany / 4 : 1;
        switch (tile) {
          case Tile::kFewestRows:
            return LaunchRows<kFewest>(device, RowsKernel<Rule, T, kKeyDim, kFewest>, p);
          case Tile::kFewRows:
            return LaunchRows<kFew>(device, RowsKernel<Rule, T, kKeyDim, kFew>, p);
          case Tile::kRows:
            return LaunchRows<kMany>(device, RowsKernel<Rule, T, kKeyDim, kMany>, p);
          case Tile::kFewRowsCached:
            return LaunchRowsCached<kFew>(device, RowsKernel<Rule, T, kKeyDim, kFew>, p);
          case Tile::kRowsCached:
            return LaunchRowsCached<kMany>(device, RowsKernel<Rule, T, kKeyDim, kMany>, p);
          case Tile::kTokens:
            return LaunchRows<kMany>(device, TokensKernel<Rule, T, kKeyDim, kMany>, p);
        }
      }
    });
  });
}

}  // namespace mneme::cuda::matrix_memory::rules
