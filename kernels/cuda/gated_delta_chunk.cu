#include <algorithm>

#include "base/log.h"
#include "kernels/cuda/delta_chunk_plan.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/cuda/gated_delta_chunk.h"
#include "kernels/cuda/operations.h"

namespace mneme::cuda {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kBuckets = 64;  // two for each power of two of chunks

struct PlanParams {
  DeltaChunkPlan plan;
  const int *offsets, *slots;
  int segments;
};

__device__ int EntriesOf(const PlanParams& p, int segment) {
  return p.slots[segment] < 0 ? 0 : p.offsets[segment + 1] - p.offsets[segment];
}

__device__ int ChunksOf(int entries) { return (entries + kChunk - 1) / kChunk; }

// Longest chains first.
__device__ int Bucket(int entries) {
  const int chunks = ChunksOf(entries), log = 31 - __clz(chunks);
  const int next_bit = log > 0 ? chunks >> (log - 1) & 1 : 0;
  return kBuckets - 1 - (2 * log + next_bit);
}

// One block: finds the chains and says where their chunks and rows begin. The order of chains of
// about one length is left to chance, which changes where things lie but no result.
__global__ __launch_bounds__(kPlanThreads) void PlanKernel(PlanParams p) {
  __shared__ int begin[kBuckets];
  __shared__ int2 warp_sums[kPlanThreads / kWarp];
  __shared__ int chains;
  const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp;
  if (thread < kBuckets) begin[thread] = 0;
  __syncthreads();
  for (int s = thread; s < p.segments; s += kPlanThreads) {
    const int entries = EntriesOf(p, s);
    if (entries > 1) atomicAdd(&begin[Bucket(entries)], 1);
  }
  __syncthreads();
  if (thread == 0) {
    int sum = 0;
    for (int i = 0; i < kBuckets; ++i) {
      const int n = begin[i];
      begin[i] = sum;
      sum += n;
    }
    chains = sum;
    *p.plan.chains = sum;
    *p.plan.taken = 0;
  }
  __syncthreads();
  for (int s = thread; s < p.segments; s += kPlanThreads) {
    const int entries = EntriesOf(p, s);
    if (entries > 1) p.plan.segment[atomicAdd(&begin[Bucket(entries)], 1)] = s;
  }
  __syncthreads();
  int2 total = {0, 0};  // of chunks and rows before this round
  for (int first = 0; first < chains; first += kPlanThreads) {
    const int i = first + thread;
    int2 own = {0, 0};
    if (i < chains) {
      const int entries = EntriesOf(p, p.plan.segment[i]);
      own = {ChunksOf(entries), TileRows(entries)};
    }
    int2 sum = own;  // up to this one, first of the warp, then of the block
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int x = __shfl_up_sync(kAllLanes, sum.x, offset);
      const int y = __shfl_up_sync(kAllLanes, sum.y, offset);
      if (lane >= offset) sum.x += x, sum.y += y;
    }
    if (lane == kWarp - 1) warp_sums[warp] = sum;
    __syncthreads();
    int2 all = {0, 0};
    for (int w = 0; w < kPlanThreads / kWarp; ++w) {
      if (w == warp) sum.x += all.x, sum.y += all.y;
      all.x += warp_sums[w].x, all.y += warp_sums[w].y;
    }
    if (i < chains) {
      p.plan.first_chunk[i] = total.x + sum.x - own.x;
      p.plan.first_row[i] = total.y + sum.y - own.y;
    }
    total.x += all.x, total.y += all.y;
    __syncthreads();
  }
  if (thread == 0) {
    p.plan.first_chunk[chains] = total.x;
    p.plan.first_row[chains] = total.y;
  }
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

void GatedDeltaChunks(Device& device, const GatedDeltaRuleArgs& args) {
  const Segments& segments = args.segments;
  const int entries = static_cast<int>(args.q.shape[0]);
  if (segments.count == 0 || entries < 2 || segments.longest == 1) return;
  CHECK(GatedDeltaChunksSupported(device, args)) << "sizes without a chunked form";
  const DeltaChunkSizes sizes = SizesOf(args);

  // Each chain has two entries or more, and at most one chunk that is not full.
  DeltaChunkPlan bounds = {};
  bounds.max_chains = std::min(segments.count, entries / 2);
  bounds.max_chunks = entries / kChunk + bounds.max_chains;
  bounds.max_rows = entries + (kRowGroup - 1) * bounds.max_chains;
  Carver counter(nullptr);
  CarvePlan(counter, bounds, sizes);
  void* scratch = device.Scratch(counter.used());
  if (scratch == nullptr) return;
  Carver carver(scratch);
  const DeltaChunkPlan plan = CarvePlan(carver, bounds, sizes);

  const PlanParams params = {plan, segments.offsets.as<const int>(), segments.slots.as<const int>(),
                             segments.count};
  PlanKernel<<<1, kPlanThreads, 0, device.stream()>>>(params);
  device.Check(cudaGetLastError(), "plan of delta chunks");
  const bool hopper = device.properties().major == 9 && DeltaChunksBuiltForHopper();
  const int multiprocessors = device.multiprocessors();
  device.Check(PrepareDeltaChunks(plan, args, sizes, multiprocessors, hopper, device.stream()),
               "preparation of delta chunks");
  device.Check(RunDeltaChains(plan, args, sizes, multiprocessors, hopper, device.stream()),
               "delta chains");
}

}  // namespace mneme::cuda
