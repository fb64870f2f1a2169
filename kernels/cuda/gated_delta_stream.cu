#include <algorithm>

#include "kernels/cuda/gated_delta_stream.cuh"

namespace mneme::cuda::delta {
namespace {

constexpr int kFewHeadStates = 512;

template <typename T, int kKeyDim, typename Shape>
void LaunchShape(Device& device, Problem& p) {
  p.tiles = (p.value_dim + Shape::kBlockRows - 1) / Shape::kBlockRows;
  if (!RangeCountFits(device, p)) return;
  const int64_t units = static_cast<int64_t>(p.segments) * p.value_heads * p.tiles;
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
  if (int64_t{p.segments} * p.value_heads <= kFewHeadStates) {
    return LaunchShape<T, kKeyDim, Stream<8, kRows, 2, kLargeDepth, 3, 1>>(device, p);
  }
  LaunchShape<T, kKeyDim, Stream<4, kRows, 4, kDepth, 2, 2>>(device, p);
}

template <typename T>
void LaunchType(Device& device, Problem& p) {
  switch (p.key_dim) {
    case 64:
      return LaunchKeyDim<T, 64>(device, p);
    case 128:
      return LaunchKeyDim<T, 128>(device, p);
    default:
      return LaunchKeyDim<T, 256>(device, p);
  }
}

}  // namespace

// Bulk copies want addresses and sizes that are multiples of 16, of v and of updates.
bool StreamFits(const Problem& p, DType state_dtype) {
  const bool halves = p.capacity > 0 && PendingDType(state_dtype) == DType::kF16;
  return p.segments <= kMaxSegments && p.value_dim % (halves ? 8 : 4) == 0 &&
         reinterpret_cast<uintptr_t>(p.v) % 16 == 0 &&
         (p.capacity == 0 || (reinterpret_cast<uintptr_t>(p.updates.base) | p.updates.slab_bytes |
                              p.updates.memory_bytes) %
                                     16 ==
                                 0);
}

void LaunchStream(Device& device, Problem problem, DType state_dtype) {
  if (state_dtype == DType::kF16) {
    LaunchType<__half>(device, problem);
  } else if (state_dtype == DType::kI8) {
    LaunchType<int8_t>(device, problem);
  } else {
    LaunchType<float>(device, problem);
  }
}

}  // namespace mneme::cuda::delta
