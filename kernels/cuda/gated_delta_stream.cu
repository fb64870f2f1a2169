#include <algorithm>

#include "kernels/cuda/gated_delta_stream.cuh"

namespace mneme::cuda::delta {
namespace {

template <typename T, int kKeyDim, typename Shape>
void LaunchShape(Device& device, Problem& p) {
  p.tiles = (p.value_dim + Shape::kBlockRows - 1) / Shape::kBlockRows;
  if (!RangeCountFits(device, p)) return;
  const int64_t units = static_cast<int64_t>(p.segments) * p.value_heads * p.tiles;
  const int64_t blocks = std::min<int64_t>(units, Shape::kBlocks * device.multiprocessors());
  constexpr int kBytes = sizeof(StreamMemory<T, kKeyDim, Shape>);
  static_assert(Shape::kBlocks * (kBytes + 1024) <= 228 * 1024);
  LaunchOverlapping(device, "gated delta rule, many memories", StreamKernel<T, kKeyDim, Shape>,
                    static_cast<int>(blocks), Shape::kThreads, kBytes, /*cluster=*/1, p);
}

template <typename T, int kKeyDim>
void LaunchKeyDim(Device& device, Problem& p, bool wide) {
  // A chunk brings a reader some KB.
  constexpr int kRows = std::min<int>(8, 4096 / (sizeof(T) * kKeyDim));
  // Two small blocks of a multiprocessor cover for each other at the ends; a wide one, for a whole
  // head of 256, prepares less often.
  using Narrow = Stream<4, kRows, 4, kRows == 4 ? 4 : 3, 2>;
  using Wide = Stream<8, kRows, kWarp / kRows, 4, 1>;
  if (wide) {
    LaunchShape<T, kKeyDim, Wide>(device, p);
  } else {
    LaunchShape<T, kKeyDim, Narrow>(device, p);
  }
}

template <typename T>
void LaunchType(Device& device, Problem& p, bool wide) {
  switch (p.key_dim) {
    case 64:
      return LaunchKeyDim<T, 64>(device, p, wide);
    case 128:
      return LaunchKeyDim<T, 128>(device, p, wide);
    default:
      return LaunchKeyDim<T, 256>(device, p, wide);
  }
}

}  // namespace

// Bulk copies want addresses and sizes that are multiples of 16.
bool StreamFits(const Problem& p) {
  return p.value_dim % 4 == 0 && reinterpret_cast<uintptr_t>(p.v) % 16 == 0 &&
         (p.capacity == 0 || (reinterpret_cast<uintptr_t>(p.updates.base) | p.updates.slab_bytes |
                              p.updates.memory_bytes) %
                                     16 ==
                                 0);
}

void LaunchStream(Device& device, Problem problem, DType state_dtype, bool wide) {
  if (state_dtype == DType::kF16) {
    LaunchType<__half>(device, problem, wide);
  } else {
    LaunchType<float>(device, problem, wide);
  }
}

}  // namespace mneme::cuda::delta
