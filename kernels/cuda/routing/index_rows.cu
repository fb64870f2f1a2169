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

// One block. Its first thread counts, then all fill.
__global__ void __launch_bounds__(kThreads)
    CutRowsKernel(const int32_t* offsets, const int32_t* slots, const int64_t* positions, int rows,
                  int tokens, int64_t segment, int round, int room, int32_t* part_offsets,
                  int32_t* part_slots, int64_t* part_positions, int32_t* part_tokens,
                  int32_t* places) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const auto begin_of = [&](int row) {  // of the row's part, as a position
    const int64_t first = positions[row], end = first + offsets[row + 1] - offsets[row];
    return min(max((first / segment + round) * segment, first), end);
  };
  for (int t = threadIdx.x; t < tokens; t += kThreads) places[t] = room;
  for (int row = threadIdx.x; row < rows; row += kThreads) {
    part_slots[row] = slots[row];
    part_positions[row] = begin_of(row);
  }
  if (threadIdx.x == 0) {
    int count = 0;
    for (int row = 0; row < rows; ++row) {
      part_offsets[row] = count;
      if (slots[row] < 0) continue;
      const int64_t first = positions[row], end = first + offsets[row + 1] - offsets[row];
      const int64_t stop = min(max((first / segment + round + 1) * segment, first), end);
      count += static_cast<int>(stop - begin_of(row));
    }
    part_offsets[rows] = count;
    part_offsets[rows + 1] = room;
    part_slots[rows] = -1;
    part_positions[rows] = 0;
  }
  __syncthreads();
  for (int row = 0; row < rows; ++row) {
    if (slots[row] < 0) continue;
    const int first_token = offsets[row] + static_cast<int>(begin_of(row) - positions[row]);
    const int count = part_offsets[row + 1] - part_offsets[row];
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const int place = part_offsets[row] + i;
      part_tokens[place] = first_token + i;
      places[first_token + i] = place;
    }
  }
  for (int i = part_offsets[rows] + threadIdx.x; i < room; i += kThreads) part_tokens[i] = 0;
}

}  // namespace

void CutRows(Device& device, const CutRowsArgs& args) {
  LaunchOverlapping(device, "CutRows", CutRowsKernel, 1, kThreads, 0, 1,
                    args.row_offsets.as<const int32_t>(), args.slots.as<const int32_t>(),
                    args.positions.as<const int64_t>(), static_cast<int>(args.slots.shape[0]),
                    static_cast<int>(args.places.shape[0]), args.segment, args.round,
                    static_cast<int>(args.part_tokens.shape[0]), args.part_offsets.as<int32_t>(),
                    args.part_slots.as<int32_t>(), args.part_positions.as<int64_t>(),
                    args.part_tokens.as<int32_t>(), args.places.as<int32_t>());
}

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
