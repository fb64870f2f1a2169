#include <algorithm>

#include "base/log.h"
#include "kernels/cuda/delta_chunk_planning.cuh"
#include "kernels/cuda/gated_delta_chunk.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/overlap.cuh"

namespace mneme::cuda {
namespace {

constexpr int kPlanThreads = 1024;

__global__ __launch_bounds__(kPlanThreads) void PlanKernel(ChunkPlanning planning) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  PlanChunks<kPlanThreads>(planning);
}

// Hands out pieces of one block; with no block, only counts.
class Carver {
 public:
  explicit Carver(void* block) : block_(static_cast<char*>(block)) {}
  template <typename T>
  T* Take(int64_t n) {
    T* piece = block_ == nullptr ? nullptr : reinterpret_cast<T*>(block_ + used_);
    used_ += (n * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  char* block_;
  int64_t used_ = 0;
};

DeltaChunkPlan CarvePlan(Carver& carver, DeltaChunkPlan bounds, const DeltaChunkSizes& sizes) {
  DeltaChunkPlan plan = bounds;
  plan.chains = carver.Take<int>(1);
  plan.taken = carver.Take<int>(1);
  plan.segment = carver.Take<int>(plan.max_chains);
  plan.first_chunk = carver.Take<int>(plan.max_chains + 1);
  plan.first_row = carver.Take<int>(plan.max_chains + 1);
  plan.gates = carver.Take<float>(int64_t{plan.max_chunks} * sizes.value_heads * kGateFloats);
  plan.keys_queries = carver.Take<__half>(int64_t{plan.max_rows} * sizes.heads * 2 * sizes.key_dim);
  plan.products = carver.Take<__half>(int64_t{plan.max_rows} * sizes.value_heads * 2 * kChunk);
  return plan;
}

DeltaChunkSizes SizesOf(const GatedDeltaRuleArgs& args) {
  return {static_cast<int>(args.k.shape[1]), static_cast<int>(args.k.shape[2]),
          static_cast<int>(args.v.shape[1]), static_cast<int>(args.v.shape[2])};
}

bool Aligned16(const TensorView& x) { return reinterpret_cast<uintptr_t>(x.data) % 16 == 0; }

}  // namespace

bool GatedDeltaChunksSupported(const Device& device, const GatedDeltaRuleArgs& args) {
  const DeltaChunkSizes sizes = SizesOf(args);
  const cudaDeviceProp& properties = device.properties();
  return properties.major >= 8 &&
         (sizes.key_dim == 64 || sizes.key_dim == 128 || sizes.key_dim == 256) &&
         sizes.value_dim > 0 && sizes.value_dim % 16 == 0 && sizes.heads > 0 &&
         sizes.value_heads % sizes.heads == 0 &&
         properties.sharedMemPerBlockOptin >=
             static_cast<size_t>(DeltaChunkSharedBytes(sizes.key_dim)) &&
         (args.state.dtype == DType::kF32 || args.state.dtype == DType::kF16 ||
          args.state.dtype == DType::kI8) &&
         args.state.memory_bytes % 8 == 0 && Aligned16(args.q) && Aligned16(args.k) &&
         Aligned16(args.v) && Aligned16(args.out);
}

bool TakeDeltaChunkPlan(Device& device, const GatedDeltaRuleArgs& args, DeltaChunkPlan* plan) {
  const int entries = static_cast<int>(args.q.shape[0]);
  const DeltaChunkSizes sizes = SizesOf(args);
  // Each chain has two entries or more, and at most one chunk that is not full.
  DeltaChunkPlan bounds = {};
  const int longer = args.segments.longer > 0 ? args.segments.longer : args.segments.count;
  bounds.max_chains = std::min({args.segments.count, longer, entries / 2});
  bounds.max_chunks = entries / kChunk + bounds.max_chains;
  bounds.max_rows = entries + (kRowGroup - 1) * bounds.max_chains;
  Carver counter(nullptr);
  CarvePlan(counter, bounds, sizes);
  void* scratch = device.Scratch(counter.used());
  if (scratch == nullptr) return false;
  Carver carver(scratch);
  *plan = CarvePlan(carver, bounds, sizes);
  return true;
}

void RunDeltaChunks(Device& device, const GatedDeltaRuleArgs& args, const DeltaChunkPlan& plan,
                    bool half_keys) {
  const DeltaChunkSizes sizes = SizesOf(args);
  const bool hopper = device.properties().major == 9 && DeltaChunksBuiltForHopper();
  PrepareDeltaChunks(device, plan, args, sizes, hopper, half_keys);
  RunDeltaChains(device, plan, args, sizes, hopper);
}

void GatedDeltaChunks(Device& device, const GatedDeltaRuleArgs& args) {
  const Segments& segments = args.segments;
  const int entries = static_cast<int>(args.q.shape[0]);
  if (segments.count == 0 || entries < 2 || segments.longest == 1) return;
  CHECK(GatedDeltaChunksSupported(device, args)) << "sizes without a chunked form";
  DeltaChunkPlan plan;
  if (!TakeDeltaChunkPlan(device, args, &plan)) return;
  const ChunkPlanning planning = {plan, segments.offsets.as<const int>(),
                                  segments.slots.as<const int>(), segments.count};
  LaunchOverlapping(device, "plan of delta chunks", PlanKernel, 1, kPlanThreads, 0, 1, planning);
  RunDeltaChunks(device, args, plan, /*half_keys=*/false);
}

}  // namespace mneme::cuda
