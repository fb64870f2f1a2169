// What follows from the rows of a step alone.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/routing/routing.h"

namespace mneme::cuda::routing {
namespace {

constexpr int kThreads = 256;

// A thread for each token and one for each row.
__global__ void __launch_bounds__(kThreads)
    IndexRowsKernel(const int32_t* offsets, const int64_t* positions, int64_t prefix, int rows,
                    int tokens, int64_t* token_positions, int32_t* memories, int32_t* fresh) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < rows) {
    memories[i] = 0;
    fresh[i] = prefix + positions[i] == 0 && offsets[i] < offsets[i + 1] ? 1 : 0;
  }
  if (i >= tokens || rows == 0) return;
  int row = 0, end = rows;  // offsets[row] <= i < offsets[end]
  while (end - row > 1) {
    const int middle = (row + end) / 2;
    (offsets[middle] <= i ? row : end) = middle;
  }
  token_positions[i] = max(prefix + positions[row], int64_t{0}) + i - offsets[row];
}

}  // namespace

void IndexRows(Device& device, const IndexRowsArgs& args) {
  const int rows = static_cast<int>(args.slots.shape[0]);
  const int tokens = static_cast<int>(args.token_positions.shape[0]);
  const int threads = std::max(rows, tokens);
  if (threads == 0) return;
  LaunchOverlapping(device, "IndexRows", IndexRowsKernel, (threads + kThreads - 1) / kThreads,
                    kThreads, 0, 1, args.row_offsets.as<const int32_t>(),
                    args.positions.as<const int64_t>(), args.prefix, rows, tokens,
                    args.token_positions.as<int64_t>(), args.segments.memories.as<int32_t>(),
                    args.segments.fresh.as<int32_t>());
}

}  // namespace mneme::cuda::routing
