// A crossing's working and recalled engrams on their way to every layer, and what a layer makes of
// them on its way to the slab.
#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/engrams/engrams.h"
#include "kernels/cuda/engrams/store.cuh"

namespace mneme::cuda::engrams {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRowsOfBlock = 2 * kWarps;  // who looks for working engrams does so for some of them

struct GatherProblem {
  EngramRules rules;
  Store store;
  CrossingArrays crossings;
  void* x;     // of T
  int blocks;  // of a crossing
};

template <typename T, bool kFours>
__global__ void __launch_bounds__(kThreads) GatherKernel(const __grid_constant__ GatherProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  __shared__ int engrams[kRowsOfBlock];  // < 0: zeros
  const int crossing = blockIdx.x / p.blocks, first = blockIdx.x % p.blocks * kRowsOfBlock;
  const int slot = p.crossings.slots[crossing];
  if (slot < 0) return;
  const int working = p.rules.working, attended = p.rules.attended(), dim = p.store.dim;
  if (threadIdx.x < kRowsOfBlock) {
    const int i = first + static_cast<int>(threadIdx.x) - working;
    const bool is_recalled = i >= 0 && i < p.store.facts(slot)[kEngramsRecalled];
    engrams[threadIdx.x] = is_recalled ? p.store.recalled(slot)[i] : -1;
  }
  __syncthreads();
  if (first < working) {
    const EngramType* const types = p.store.types(slot);
    const uint32_t* const births = p.store.births(slot);
    const uint32_t first_birth =
        FirstBirth(p.crossings.segments[crossing], working) + static_cast<uint32_t>(first);
    const auto rows = static_cast<uint32_t>(min(kRowsOfBlock, working - first));
    for (int i = threadIdx.x; i < p.store.capacity; i += kThreads) {
      const uint32_t row = births[i] - first_birth;
      if (types[i] == EngramType::kWorking && row < rows) engrams[row] = i;
    }
    __syncthreads();
  }
  constexpr int kStep = kFours ? 4 : 1;
  for (int row = threadIdx.x / kWarp; row < kRowsOfBlock && first + row < attended; row += kWarps) {
    const int engram = engrams[row];
    const float* const from = engram < 0 ? nullptr : p.store.vector(slot, engram);
    T* const to = static_cast<T*>(p.x) + (int64_t{crossing} * attended + first + row) * dim;
    for (int i = threadIdx.x % kWarp * kStep; i < dim; i += kWarp * kStep) {
      if constexpr (kFours) {
        SaveFour(to + i, from == nullptr ? float4{} : LoadFour(from + i));
      } else {
        to[i] = FromFloat<T>(from == nullptr ? 0.0f : from[i]);
      }
    }
  }
}

constexpr int kOfThread = 4;

// A crossing is `pieces` pieces of kThreads * kOfThread numbers. Blocks take one after the other:
// mostly, few sessions cross of those that there is room for.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    StoreKernel(CrossingArrays crossings, const float* k, const float* v, int64_t numbers,
                int pieces, int all, Field keys, Field values) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  for (int piece = blockIdx.x; piece < all; piece += static_cast<int>(gridDim.x)) {
    const int crossing = piece / pieces, slot = crossings.slots[crossing];
    if (slot < 0) continue;
    T* const to_keys = keys.At<T>(slot, 0);
    T* const to_values = values.At<T>(slot, 0);
    const int64_t begin = int64_t{piece} % pieces * kThreads * kOfThread;
#pragma unroll
    for (int n = 0; n < kOfThread; ++n) {
      const int64_t i = begin + n * kThreads + threadIdx.x;
      if (i >= numbers) break;
      to_keys[i] = FromFloat<T>(k[crossing * numbers + i]);
      to_values[i] = FromFloat<T>(v[crossing * numbers + i]);
    }
  }
}

}  // namespace

void GatherEngrams(Device& device, const GatherEngramsArgs& args) {
  const GatherProblem problem = {
      .rules = args.rules,
      .store = Store(args.store),
      .crossings = CrossingArrays(args.crossings),
      .x = args.x.data,
      .blocks = (args.rules.attended() + kRowsOfBlock - 1) / kRowsOfBlock};
  CHECK(args.store.vectors.dtype == DType::kF32) << "GatherEngrams";
  const bool fours = InFours(problem.store.dim, args.x, args.store.vectors);
  const bool rounds = args.x.dtype == DType::kBF16;
  CHECK(rounds || args.x.dtype == DType::kF32) << "GatherEngrams";
  const auto kernel =
      rounds ? (fours ? GatherKernel<__nv_bfloat16, true> : GatherKernel<__nv_bfloat16, false>)
             : (fours ? GatherKernel<float, true> : GatherKernel<float, false>);
  LaunchOverlapping(device, "GatherEngrams", kernel,
                    static_cast<int>(args.crossings.most()) * problem.blocks, kThreads, 0, 1,
                    problem);
}

void StoreEngramContext(Device& device, const StoreEngramContextArgs& args) {
  const int64_t most = args.crossings.most(), numbers = args.k.shape.elements() / most;
  const auto pieces =
      static_cast<int>((numbers + kThreads * kOfThread - 1) / (kThreads * kOfThread));
  CHECK(args.keys.dtype == args.values.dtype);
  CHECK(args.keys.dtype == DType::kBF16 || args.keys.dtype == DType::kF32);
  const auto kernel =
      args.keys.dtype == DType::kBF16 ? StoreKernel<__nv_bfloat16> : StoreKernel<float>;
  const int all = static_cast<int>(most) * pieces;
  constexpr int kBlocksAtOnce = 8;  // of a multiprocessor
  LaunchOverlapping(
      device, "StoreEngramContext", kernel, std::min(all, kBlocksAtOnce * device.multiprocessors()),
      kThreads, 0, 1, CrossingArrays(args.crossings), args.k.as<const float>(),
      args.v.as<const float>(), numbers, pieces, all, Field(args.keys), Field(args.values));
}

}  // namespace mneme::cuda::engrams
