#include <algorithm>

#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/decode/decode.cuh"
#include "kernels/cuda/matrix_memory/decode/decode.h"
#include "kernels/cuda/matrix_memory/persistent/stream.h"

namespace mneme::cuda::matrix_memory::decode {
namespace {

// DecodeTile's tiles. Rows of fewer bytes go more to a chunk.
template <typename T, int kKeyDim>
struct Tiles {
  static constexpr int kRows = sizeof(T) * kKeyDim >= 1024 ? 8 : 16;
  using Direct2 = Tile<2, 4, 1, 0, 4>;
  using Direct4 = Tile<4, 4, 1, 0, 4>;
  using Bulk4 = Tile<4, 8, 1, 1, 3>;
  using Bulk8 = Tile<8, 4, 1, 1, 5>;
  using Bulk = Tile<kRows, 8, 1, 1, kRows == 8 ? 3 : 2>;
};

template <typename T, int kKeyDim, typename Shape>
void LaunchTile(Device& device, Problem& p) {
  p.tiles = (p.value_dim + Shape::kBlockRows - 1) / Shape::kBlockRows;
  if (!RangeCountFits(device, p)) return;
  const int64_t blocks = static_cast<int64_t>(p.segments.count) * p.value_heads * p.tiles;
  const auto kernel = DecodeKernel<T, kKeyDim, Shape>;
  static const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SharedStateBytes<T, kKeyDim, Shape>());
  device.Check(allowed, "shared memory of the gated delta rule");
  LaunchOverlapping(device, "gated delta rule, decoding", kernel, static_cast<int>(blocks),
                    Shape::kThreads, SharedStateBytes<T, kKeyDim, Shape>(), /*cluster=*/1, p);
}

template <typename T, int kKeyDim>
void LaunchShape(Device& device, Problem& p, DecodeTile tile) {
  using Shapes = Tiles<T, kKeyDim>;
  if constexpr (sizeof(T) == 1) {
    LaunchTile<T, kKeyDim, typename Shapes::Direct4>(device, p);
  } else {
    switch (tile) {
      case DecodeTile::kDirect2:
        return LaunchTile<T, kKeyDim, typename Shapes::Direct2>(device, p);
      case DecodeTile::kDirect4:
        return LaunchTile<T, kKeyDim, typename Shapes::Direct4>(device, p);
      case DecodeTile::kBulk4:
        return LaunchTile<T, kKeyDim, typename Shapes::Bulk4>(device, p);
      case DecodeTile::kBulk8:
        return LaunchTile<T, kKeyDim, typename Shapes::Bulk8>(device, p);
      case DecodeTile::kBulk:
        return LaunchTile<T, kKeyDim, typename Shapes::Bulk>(device, p);
      case DecodeTile::kStream:
        return;  // persistent::Launch's
    }
  }
}

}  // namespace

// Chooses by the bytes of all matrices for each multiprocessor, from sweeps of head size 256 on an
// H200 (cuda_delta_rule_bench --sweep; later changes moved single figures by some percent), us for
// 12, 24, 48, 96, 192 head states of f32 with each token written, and for 96, 192, 384, 1536, 3072
// and 6144 with writes held back:
//   direct 2     4.05  6.12  9.56  16.4  30.1  |  19.6  35.3  68.0     -     -     -
//   direct 4     4.58  5.79  9.00  15.4  27.7  |  15.7  27.2  50.9     -     -     -
//   bulk 4       5.31  6.09  8.86  16.1  29.4  |  15.7  26.1  46.4     -     -     -
//   bulk 8       6.22  7.37  10.8  15.9  28.6  |  15.1  24.7  41.4   145   277   543
//   bulk         7.85  8.75  9.85  14.9  28.8  |  19.6  29.2  45.5   145   273   529
//   stream          -     -  10.5  17.2  30.9  |  14.9  21.7  34.6   118   225   438
// In f16, bulk 8 takes 19.0 us at 192 writing each token, stream 26.0 holding back; at 384, 1536,
// 3072 and 6144 stream takes 33.4, 78.0, 137 and 252 us, bulk 34.2, 98.1, 177 and 338. Within a
// decode step, stream takes less: it starts before the kernel ahead of it has ended.
DecodePlan PlanDecode(const Device& device, const Problem& p, int head_states, DType state_dtype) {
  const bool half = state_dtype == DType::kF16, ints = state_dtype == DType::kI8;
  // The direct tiles gain nothing from holding back: their time is latency. But integers lose
  // something with each rounding.
  const bool fold_few = p.capacity == 0 || !ints;
  if (!HasHopperCode(device)) return {DecodeTile::kDirect4, fold_few};
  const int64_t kilobytes = static_cast<int64_t>(head_states) * p.value_dim * p.key_dim *
                            SizeOf(state_dtype) / device.multiprocessors() / 1024;
  const int fold_kilobytes = half ? 256 : 128;
  DecodePlan plan;
  if (ints)
    return {kilobytes <= 48 || !persistent::Supports(p, state_dtype) ? DecodeTile::kDirect4
                                                                     : DecodeTile::kStream,
            fold_few};
  if (kilobytes <= (half ? 16 : 32)) {
    plan.tile = DecodeTile::kDirect2;
  } else if (kilobytes <= 64 && !half) {
    plan.tile = DecodeTile::kDirect4;
  } else if (kilobytes <= 128) {
    plan.tile = DecodeTile::kBulk4;
  } else if (kilobytes <= fold_kilobytes || !persistent::Supports(p, state_dtype)) {
    plan.tile = half && kilobytes <= 768 ? DecodeTile::kBulk8 : DecodeTile::kBulk;
  } else {
    plan.tile = DecodeTile::kStream;
  }
  plan.fold_all = p.capacity == 0 || kilobytes <= fold_kilobytes;
  return plan;
}

void LaunchDecode(Device& device, Problem problem, DType state_dtype, DecodePlan plan) {
  problem.fold_all = plan.fold_all;
  if (plan.tile == DecodeTile::kStream) return persistent::Launch(device, problem, state_dtype);
  ForState(state_dtype, problem.key_dim,
           [&]<typename T, int kKeyDim>() { LaunchShape<T, kKeyDim>(device, problem, plan.tile); });
}

}  // namespace mneme::cuda::matrix_memory::decode
