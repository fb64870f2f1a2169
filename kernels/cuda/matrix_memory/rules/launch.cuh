// Launches the tuned kernels of one rule; each rule has a file of its own, as they take a while to
// compile.
#pragma once

#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/rules/rows.cuh"
#include "kernels/cuda/matrix_memory/rules/rules.h"

namespace mneme::cuda::matrix_memory::rules {

// By kernels of kRows rows of a warp.
template <int kRows, int kWarps>
void LaunchRows(Device& device, void (*kernel)(Problem), Problem p) {
  p.tiles = (p.value_dim + kWarps * kRows - 1) / (kWarps * kRows);
  const int64_t blocks = int64_t{p.segments.count} * p.heads * p.tiles;
  LaunchOverlapping(device, "matrix memory, rows", kernel, static_cast<int>(blocks), kWarps * kWarp,
                    0, 1, p);
}
template <int kRows, int kWarps>
void LaunchRowsCached(Device& device, void (*kernel)(Problem), Problem p) {
  p.tiles = (p.value_dim + kWarps * kRows - 1) / (kWarps * kRows);
  const int64_t blocks = int64_t{p.segments.count} * p.heads * p.tiles;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kWarps * kWarp);
  config.stream = device.stream();
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  attributes[config.numAttrs].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[config.numAttrs++].val.sharedMemCarveout = 10;
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
      constexpr int kMany = kWarpElements / kKeyDim;
      constexpr int kFew = kMany / 2, kFewest = kMany > 4 ? kMany / 4 : 1;
      constexpr int kWide = sizeof(T) == 4 ? kFew : kMany;
      switch (tile) {
        case Tile::kFewestRows:
          return LaunchRows<kFewest, 4>(device, RowsKernel<Rule, T, kKeyDim, kFewest, 4>, p);
        case Tile::kFewRows:
          return LaunchRows<kFew, 4>(device, RowsKernel<Rule, T, kKeyDim, kFew, 4>, p);
        case Tile::kRows:
          return LaunchRows<kMany, 4>(device, RowsKernel<Rule, T, kKeyDim, kMany, 4>, p);
        case Tile::kWide:
          return LaunchRows<kWide, 8>(device, RowsKernel<Rule, T, kKeyDim, kWide, 8>, p);
        case Tile::kWideCached:
          return LaunchRowsCached<kWide, 8>(device, RowsKernel<Rule, T, kKeyDim, kWide, 8>, p);
        case Tile::kTokens:
          return LaunchRows<kMany, 4>(device, TokensKernel<Rule, T, kKeyDim, kMany, 4>, p);
      }
    });
  });
}

}  // namespace mneme::cuda::matrix_memory::rules
