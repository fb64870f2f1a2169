// Launches the tuned kernels of one rule; each rule has a file of its own, as they take a while to
// compile.
#pragma once

#include <algorithm>

#include "base/log.h"
#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/rules/rows.cuh"
#include "kernels/cuda/matrix_memory/rules/rules.h"
#include "kernels/cuda/matrix_memory/rules/stream.cuh"

namespace mneme::cuda::matrix_memory::rules {

template <typename Rule, typename T, int kKeyDim, int kRows, bool kMany>
void LaunchRowsOf(Device& device, Problem p) {
  p.tiles = (p.value_dim + kRowWarps * kRows - 1) / (kRowWarps * kRows);
  const int64_t blocks = int64_t{p.segments.count} * p.heads * p.tiles;
  LaunchOverlapping(device, "matrix memory, rows", RowsKernel<Rule, T, kKeyDim, kRows, kMany>,
                    static_cast<int>(blocks), kRowThreads, 0, 1, p);
}

template <typename Rule, typename T, int kKeyDim>
void LaunchStreamOf(Device& device, Problem p) {
  using Shape = StreamShape<T, kKeyDim>;
  p.tiles = (p.value_dim + Shape::kPieceRows - 1) / Shape::kPieceRows;
  const int64_t units = int64_t{p.segments.count} * p.heads * p.tiles;
  const int64_t blocks = std::min<int64_t>(units, Shape::kBlocks * device.multiprocessors());
  LaunchOverlapping(device, "matrix memory, streams", StreamKernel<Rule, T, kKeyDim>,
                    static_cast<int>(blocks), Shape::kThreads, Shape::kBytes, 1, p, units);
}

template <typename Rule>
void LaunchTunedRule(Device& device, const Problem& p, DType state_dtype, Tile tile) {
  ForStateType(state_dtype, [&]<typename T>() {
    ForRuleKeyDim(p.key_dim, [&]<int kKeyDim>() {
      constexpr int kRows = kWarpElements / kKeyDim, kFewRows = kFewWarpElements / kKeyDim;
      switch (tile) {
        case Tile::kFewRows:
          return LaunchRowsOf<Rule, T, kKeyDim, kFewRows, false>(device, p);
        case Tile::kRows:
          return LaunchRowsOf<Rule, T, kKeyDim, kRows, false>(device, p);
        case Tile::kStream:
          if constexpr (sizeof(T) > 1) return LaunchStreamOf<Rule, T, kKeyDim>(device, p);
          CHECK(false) << "streams of integers";
        case Tile::kTokens:
          return LaunchRowsOf<Rule, T, kKeyDim, kRows, true>(device, p);
      }
    });
  });
}

}  // namespace mneme::cuda::matrix_memory::rules
