// Products of a few output features, as routers and gates have: a tile is sixteen entries, whose
// activations are read once. A second product of the same entries may go with the first.
//
// Which feature a place of a tensor-core operand stands for does not matter as long as both
// operands agree, so a lane has the same sixteen bytes of activations and of weights. The warps of
// a block have a part of the features each, and add their sums up in order.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/linear/entries.cuh"

namespace mneme::cuda::linear {
namespace {

constexpr int kEntries = 16;
constexpr int kWarps = 4;
constexpr int kStep = 32;     // features that the four lanes of a row have at a time
constexpr int kTogether = 8;  // steps whose operands are on their way together
// Outputs of a tile: up to eight of one product, or up to four of each of two.
constexpr int kOutputs = 8, kOutputsOfTwo = kOutputs / 2;

struct Place {
  int product, output;
};
__device__ inline Place PlaceOf(const LinearBatch& batch, int column) {
  const int product = batch.count == 2 && column >= kOutputsOfTwo ? 1 : 0;
  return {product, column - product * kOutputsOfTwo};
}

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp) Narrow(const __grid_constant__ LinearBatch batch) {
  __shared__ float4 parts[kWarps][kWarp];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const LinearProduct& p = batch.products[0];
  EntryTile tile;
  if (!FindEntryTile(p, blockIdx.x, kEntries, &tile)) return;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;

  const Place place = PlaceOf(batch, lane / 4);
  const LinearProduct& own = batch.products[place.product];
  const T* const w = static_cast<const T*>(batch.weights[own.first_weight + tile.group]) +
                     int64_t{min(place.output, own.out_features - 1)} * p.in_features +
                     lane % 4 * 8;
  const T* x[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int e = min(tile.begin + lane / 4 + 8 * half, tile.end - 1);
    x[half] = static_cast<const T*>(p.x) + RowOfEntry(p, e) * p.in_features + lane % 4 * 8;
  }
  const int steps = p.in_features / kStep, steps_of_warp = (steps + kWarps - 1) / kWarps;
  const int begin = warp * steps_of_warp, end = min(steps, begin + steps_of_warp);
  float sums[4] = {};
  for (int first = begin; first < end; first += kTogether) {
    uint4 operands[kTogether][3];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int k = (first + i) * kStep;
      const bool valid = first + i < end;
      const auto load = [&](const T* from) {
        return valid ? *reinterpret_cast<const uint4*>(from + k) : uint4{0, 0, 0, 0};
      };
      operands[i][0] = load(x[0]);
      operands[i][1] = load(x[1]);
      operands[i][2] = load(w);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const auto& [low, high, weights] = operands[i];
      MultiplyAdd(sums, {low.x, high.x, low.y, high.y}, weights.x, weights.y, T());
      MultiplyAdd(sums, {low.z, high.z, low.w, high.w}, weights.z, weights.w, T());
    }
  }
  parts[warp][lane] = {sums[0], sums[1], sums[2], sums[3]};
  __syncthreads();
  if (warp > 0) return;
  float4 all = parts[0][lane];
  for (int i = 1; i < kWarps; ++i) AddTo(all, parts[i][lane]);
  const float values[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int entry = tile.begin + lane / 4 + i / 2 * 8;
    const Place to = PlaceOf(batch, lane % 4 * 2 + i % 2);
    const LinearProduct& product = batch.products[to.product];
    if (entry >= tile.end || to.output >= product.out_features) continue;
    float* const y = product.y + int64_t{entry} * product.out_features + to.output;
    *y = product.accumulate ? *y + values[i] : values[i];
  }
}

bool GoTogether(const LinearArgs& a, const LinearArgs& b) {
  return a.weights[0].out_features <= kOutputsOfTwo && b.weights[0].out_features <= kOutputsOfTwo &&
         a.x.data == b.x.data && a.x.shape == b.x.shape && a.entry_rows.data == b.entry_rows.data &&
         a.group_offsets.data == b.group_offsets.data && a.weights.size() == b.weights.size() &&
         a.y.shape[0] == b.y.shape[0] && 2 * a.weights.size() <= size_t{kMaxLinearWeights};
}

}  // namespace

bool IsNarrow(const PackedMatrix& weights) {
  return weights.out_features <= kOutputs && weights.in_features % kStep == 0;
}

void LinearNarrow(Device& device, LinearProducts products, DType dtype,
                  std::span<const void* const> rounded) {
  while (!products.empty()) {
    const bool two = products.size() > 1 && GoTogether(*products[0], *products[1]);
    LinearProducts taken = products.first(two ? 2 : 1);
    int blocks_of_all = 0;
    LinearBatch batch = TakeBatch(&taken, &blocks_of_all, [](const LinearArgs&) { return 0; });
    for (int i = 0; i < batch.count; ++i) batch.products[i].x = rounded[i];
    const auto blocks = static_cast<int>(EntryTileBound(*products[0], kEntries));
    const auto kernel = dtype == DType::kBF16 ? Narrow<__nv_bfloat16> : Narrow<__half>;
    LaunchOverlapping(device, "Narrow", kernel, blocks, kWarps * kWarp, 0, 1, batch);
    products = products.subspan(batch.count);
    rounded = rounded.subspan(batch.count);
  }
}

}  // namespace mneme::cuda::linear
