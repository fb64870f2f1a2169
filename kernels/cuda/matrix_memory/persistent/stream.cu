#include <algorithm>

#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/persistent/stream.cuh"
#include "kernels/cuda/matrix_memory/persistent/stream.h"

namespace mneme::cuda::matrix_memory::persistent {
namespace {

constexpr int kFewHeadStates = 512;

template <typename T, int kKeyDim, typename Shape>
void LaunchShape(Device& device, Problem& p) {
  p.tiles = (p.value_dim + Shape::kBlockRows - 1) / Shape::kBlockRows;
  if (!RangeCountFits(device, p)) return;
  const int64_t units = static_cast<int64_t>(p.segments.count) * p.value_heads * p.tiles;
  const int64_t blocks = std::min<int64_t>(units, Shape::kBlocks * device.multiprocessors());
  p.queue = device.counters() + Device::kQueueCounter;
  constexpr int kBytes = sizeof(StreamMemory<T, kKeyDim, Shape>);
  static_assert(Shape::kBlocks * (kBytes + 1024) <= 228 * 1024);
  LaunchOverlapping(device, "gated delta rule, many memories", StreamKernel<T, kKeyDim, Shape>,
                    static_cast<int>(blocks), Shape::kThreads, kBytes, /*cluster=*/1, p);
}

template <typename T, int kKeyDim>
void LaunchKeyDim(Device& device, Problem& p) {
  // A chunk brings a reader some KB.
  constexpr int kRows = std::min<int>(8, 4096 / (sizeof(T) * kKeyDim));
  constexpr int kRowBytes = RowPitch<T>(kKeyDim) * sizeof(T);
  // Two small blocks of a multiprocessor cover for each other. Where there is little work for each,
  // what counts is that it ends at the same time: one large block takes less at a time.
  constexpr int kRingBytes = 64 * 1024;
  constexpr int kDepth = std::min(8, kRingBytes / (4 * kRows * kRowBytes));
  constexpr int kLargeDepth = std::min(8, 2 * kRingBytes / (8 * kRows * kRowBytes));
  if (int64_t{p.segments.count} * p.value_heads <= kFewHeadStates) {
    return LaunchShape<T, kKeyDim, StreamShape<8, kRows, 2, kLargeDepth, 3, 1>>(device, p);
  }
  LaunchShape<T, kKeyDim, StreamShape<4, kRows, 4, kDepth, 2, 2>>(device, p);
}

}  // namespace

// Bulk copies want addresses and sizes that are multiples of 16, of v and of updates.
bool Supports(const Problem& p, DType state_dtype) {
  const bool halves = p.capacity > 0 && PendingDType(state_dtype) == DType::kF16;
  return p.segments.count <= kMaxSegments && p.value_dim % (halves ? 8 : 4) == 0 &&
         IsAligned(p.v) && (p.capacity == 0 || IsAligned(p.updates));
}

void Launch(Device& device, Problem problem, DType state_dtype) {
  ForState(state_dtype, problem.key_dim,
           [&]<typename T, int kKeyDim>() { LaunchKeyDim<T, kKeyDim>(device, problem); });
}

}  // namespace mneme::cuda::matrix_memory::persistent
