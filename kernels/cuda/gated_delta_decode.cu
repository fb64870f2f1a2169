#include <algorithm>

#include "kernels/cuda/gated_delta_decode.cuh"

namespace mneme::cuda::delta {
namespace {

template <typename T, int kKeyDim, typename Shape>
void LaunchTile(Device& device, Problem& p) {
  p.tiles = (p.value_dim + Shape::kBlockRows - 1) / Shape::kBlockRows;
  const int64_t blocks = static_cast<int64_t>(p.segments) * p.value_heads * p.tiles;
  constexpr size_t kShared = SharedStateBytes<T, kKeyDim, Shape>();
  const auto kernel = DecodeKernel<T, kKeyDim, Shape>;
  if (kShared > 40 * 1024) {
    static const cudaError_t allowed = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
    device.Check(allowed, "shared memory of the gated delta rule");
  }
  kernel<<<static_cast<unsigned>(blocks), Shape::kThreads, kShared, device.stream()>>>(p);
  device.Check(cudaGetLastError(), "gated delta rule, decoding");
}

template <typename T, int kKeyDim>
void LaunchShape(Device& device, Problem& p, DecodeTile tile) {
  switch (tile) {
    case DecodeTile::kDirect2x4:
      return LaunchTile<T, kKeyDim, Tile<2, 4, false, 4>>(device, p);
    case DecodeTile::kDirect4x4:
      return LaunchTile<T, kKeyDim, Tile<4, 4, false, 4>>(device, p);
    case DecodeTile::kBulk4x8:
      return LaunchTile<T, kKeyDim, Tile<4, 8, true, 4>>(device, p);
    case DecodeTile::kBulk8x8:
      return LaunchTile<T, kKeyDim, Tile<8, 8, true, 3>>(device, p);
    case DecodeTile::kBulk16x8:
      return LaunchTile<T, kKeyDim, Tile<16, 8, true, sizeof(T) * kKeyDim == 1024 ? 1 : 2>>(device,
                                                                                            p);
  }
}

template <typename T>
void LaunchKeyDim(Device& device, Problem& p, DecodeTile tile) {
  switch (p.key_dim) {
    case 64:
      return LaunchShape<T, 64>(device, p, tile);
    case 128:
      return LaunchShape<T, 128>(device, p, tile);
    default:
      return LaunchShape<T, 256>(device, p, tile);
  }
}

}  // namespace

DecodePlan PlanDecode(const Device& device, const Problem& p, int head_states, DType state_dtype) {
  const int64_t bytes =
      static_cast<int64_t>(head_states) * p.value_dim * p.key_dim * SizeOf(state_dtype);
  const int64_t each = bytes / device.multiprocessors();  // of a multiprocessor
  DecodePlan plan;
  plan.fold_all = p.capacity == 0 || head_states <= 48;
  if (device.properties().major < 9) {
    plan.tile = DecodeTile::kDirect4x4;
  } else if (each <= 24 * 1024) {
    plan.tile = DecodeTile::kDirect2x4;
  } else if (each <= 64 * 1024) {
    plan.tile = DecodeTile::kDirect4x4;
  } else if (each <= 256 * 1024) {
    plan.tile = DecodeTile::kBulk4x8;
  } else {
    plan.tile = state_dtype == DType::kF32 && p.key_dim == 256 ? DecodeTile::kBulk8x8
                                                               : DecodeTile::kBulk16x8;
  }
  return plan;
}

void LaunchDecode(Device& device, Problem problem, DType state_dtype, DecodePlan plan) {
  problem.fold_all = plan.fold_all;
  if (state_dtype == DType::kF16) {
    LaunchKeyDim<__half>(device, problem, plan.tile);
  } else {
    LaunchKeyDim<float>(device, problem, plan.tile);
  }
}

}  // namespace mneme::cuda::delta
