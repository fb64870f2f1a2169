// What follows from the rows of a step alone.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
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

// Sums of a block's threads before this one; `sums` has a number for each warp, and may be used
// again behind a barrier. Adds the sum of all to `total`.
__device__ inline int SumBefore(int x, int* sums, int* total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int sum = x;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  const int begin = *total;
  int before = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += sums[w];
    *total += sums[w];
  }
  return begin + before + sum - x;
}

// One block. A thread has a row at a time, then a token.
__global__ void __launch_bounds__(kThreads)
    ExpandRowsKernel(const int32_t* offsets, const int32_t* slots, const int64_t* positions,
                     int rows, int64_t tokens, InsertedPositions inserted, const int32_t* picks,
                     int pick_count, int room, int32_t* wide_offsets, int32_t* wide_slots,
                     int64_t* wide_positions, int32_t* sources, int32_t* wide_picks,
                     int32_t* places) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  // Tokens of the row's session before it; of padding, into which nothing is inserted, none.
  const auto first_of = [&](int row) { return slots[row] < 0 ? int64_t{0} : positions[row]; };
  const auto inserted_of = [&](int row, int64_t first, int64_t end) {
    return slots[row] < 0 ? int64_t{0} : inserted.Between(first, end);
  };
  for (int row = threadIdx.x; row < rows; row += kThreads) {
    wide_slots[row] = slots[row];
    wide_positions[row] = inserted.Of(first_of(row));
  }
  __shared__ int sums[kThreads / kWarp];
  int count = 0;
  for (int base = 0; base < rows; base += kThreads) {
    const int row = base + static_cast<int>(threadIdx.x);
    int wide = 0;
    if (row < rows) {
      const int64_t first = first_of(row);
      const int length = offsets[row + 1] - offsets[row];
      wide = length + static_cast<int>(inserted_of(row, first, first + length));
    }
    const int before = SumBefore(wide, sums, &count);
    if (row < rows) wide_offsets[row] = before;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    wide_offsets[rows] = count;
    wide_offsets[rows + 1] = room;
    wide_slots[rows] = -1;
    wide_positions[rows] = 0;
  }
  __syncthreads();
  // Where a token of a row is.
  const auto place_of = [&](int row, int token) {
    const int64_t first = first_of(row);
    const int before = token - offsets[row];
    return wide_offsets[row] + before +
           static_cast<int>(inserted_of(row, first, first + before + 1));
  };
  const auto row_of = [&](int token) {
    int row = 0, end = rows;  // offsets[row] <= token < offsets[end]
    while (end - row > 1) {
      const int middle = (row + end) / 2;
      (offsets[middle] <= token ? row : end) = middle;
    }
    return row;
  };
  for (int token = threadIdx.x; token < offsets[rows]; token += kThreads) {
    const int row = row_of(token), place = place_of(row, token);
    const int64_t n = first_of(row) + token - offsets[row];
    const int inserted_here = static_cast<int>(inserted_of(row, n, n + 1));
    for (int j = 0; j < inserted_here; ++j) {
      sources[place - inserted_here + j] = static_cast<int32_t>(tokens + j);
    }
    sources[place] = token;
    if (places != nullptr) places[token] = place;
  }
  for (int i = wide_offsets[rows] + threadIdx.x; i < room; i += kThreads) sources[i] = 0;
  for (int i = threadIdx.x; i < pick_count; i += kThreads) {
    const int token = picks[i];
    wide_picks[i] = place_of(row_of(token), token);
  }
}

}  // namespace

void ExpandRows(Device& device, const ExpandRowsArgs& args) {
  LaunchOverlapping(device, "ExpandRows", ExpandRowsKernel, 1, kThreads, 0, 1,
                    args.row_offsets.as<const int32_t>(), args.slots.as<const int32_t>(),
                    args.positions.as<const int64_t>(), static_cast<int>(args.slots.shape[0]),
                    args.tokens, args.inserted, args.picks.as<const int32_t>(),
                    static_cast<int>(args.picks.shape[0]), static_cast<int>(args.sources.shape[0]),
                    args.wide_offsets.as<int32_t>(), args.wide_slots.as<int32_t>(),
                    args.wide_positions.as<int64_t>(), args.sources.as<int32_t>(),
                    args.wide_picks.as<int32_t>(), args.places.as<int32_t>());
}

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
