#include <algorithm>

#include "base/log.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/scratch_layout.h"
#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/chunked/chunked.h"
#include "kernels/cuda/matrix_memory/chunked/planning.cuh"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

constexpr int kPlanThreads = 1024;

__global__ __launch_bounds__(kPlanThreads) void PlanKernel(ChunkPlanning planning) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  PlanChunks<kPlanThreads>(planning);
}

DeltaChunkPlan LayOut(ScratchLayout& layout, DeltaChunkPlan bounds, const DeltaChunkSizes& sizes) {
  DeltaChunkPlan plan = bounds;
  plan.chains = layout.Take<int>(1);
  plan.taken = layout.Take<int>(1);
  plan.segment = layout.Take<int>(plan.max_chains);
  plan.first_chunk = layout.Take<int>(plan.max_chains + 1);
  plan.first_row = layout.Take<int>(plan.max_chains + 1);
  plan.gates = layout.Take<float>(int64_t{plan.max_chunks} * sizes.value_heads * kGateFloats);
  plan.keys_queries = layout.Take<__half>(int64_t{plan.max_rows} * sizes.heads * 2 * sizes.key_dim);
  plan.products = layout.Take<__half>(int64_t{plan.max_rows} * sizes.value_heads * 2 * kChunk);
  return plan;
}

DeltaChunkSizes SizesOf(const MatrixMemoryArgs& args) {
  return {static_cast<int>(args.k.shape[1]), static_cast<int>(args.k.shape[2]),
          static_cast<int>(args.v.shape[1]), static_cast<int>(args.v.shape[2])};
}

}  // namespace

bool Supports(const Device& device, const MatrixMemoryArgs& args) {
  const DeltaChunkSizes sizes = SizesOf(args);
  const cudaDeviceProp& properties = device.properties();
  return !args.long_keys && properties.major >= 8 && HasTunedKernels(sizes.key_dim) &&
         sizes.value_dim > 0 && sizes.value_dim % 16 == 0 && sizes.heads > 0 &&
         sizes.value_heads % sizes.heads == 0 &&
         properties.sharedMemPerBlockOptin >=
             static_cast<size_t>(DeltaChunkSharedBytes(sizes.key_dim)) &&
         (args.state.dtype == DType::kF32 || args.state.dtype == DType::kF16 ||
          args.state.dtype == DType::kI8) &&
         args.state.memory_bytes % 8 == 0 && AreAligned(args.q, args.k, args.v, args.out);
}

bool TakeDeltaChunkPlan(Device& device, const MatrixMemoryArgs& args, DeltaChunkPlan* plan) {
  const int entries = static_cast<int>(args.q.shape[0]);
  const DeltaChunkSizes sizes = SizesOf(args);
  // Each chain has two entries or more, and at most one chunk that is not full.
  DeltaChunkPlan bounds = {};
  const int longer = args.segments.longer > 0 ? args.segments.longer : args.segments.count;
  bounds.max_chains = std::min({args.segments.count, longer, entries / 2});
  bounds.max_chunks = entries / kChunk + bounds.max_chains;
  bounds.max_rows = entries + (kRowGroup - 1) * bounds.max_chains;
  ScratchLayout counted(nullptr);
  LayOut(counted, bounds, sizes);
  auto* const scratch = static_cast<std::byte*>(device.Scratch(counted.bytes()));
  if (scratch == nullptr) return false;
  ScratchLayout layout(scratch);
  *plan = LayOut(layout, bounds, sizes);
  return true;
}

void RunDeltaChunks(Device& device, const MatrixMemoryArgs& args, const DeltaChunkPlan& plan,
                    bool half_keys) {
  const DeltaChunkSizes sizes = SizesOf(args);
  const bool hopper = device.properties().major == 9 && DeltaChunksBuiltForHopper();
  PrepareDeltaChunks(device, plan, args, sizes, hopper, half_keys);
  RunDeltaChains(device, plan, args, sizes, hopper);
}

void GatedDeltaChunks(Device& device, const MatrixMemoryArgs& args) {
  const Segments& segments = args.segments;
  const int entries = static_cast<int>(args.q.shape[0]);
  if (segments.count == 0 || entries < 2 || segments.longest == 1) return;
  CHECK(Supports(device, args)) << "sizes without a chunked form";
  DeltaChunkPlan plan;
  if (!TakeDeltaChunkPlan(device, args, &plan)) return;
  const ChunkPlanning planning = {plan, ArraysOf(segments)};
  LaunchOverlapping(device, "plan of delta chunks", PlanKernel, 1, kPlanThreads, 0, 1, planning);
  RunDeltaChunks(device, args, plan, /*half_keys=*/false);
}

}  // namespace mneme::cuda::matrix_memory::chunked
