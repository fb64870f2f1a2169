// One token of memories that hold steps back (kernels/held_steps.h). W and S as they were written
// last are read, not written: what steps since then have added comes from their vectors. There are
// as many clusters as run at once, and each takes heads of segments one after the other; while one
// is at work, matrices and vectors of the next come to shared memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/resident/held_outputs.cuh"

namespace mneme::cuda::neural_memory::resident {
namespace {

constexpr char kName[] = "steps of a neural memory that are held back";

// Finds the heads of a cluster, which are those of segments of one token, by one warp. Returns how
// many there are.
__device__ inline int FindUnits(const HeldParams& h, HeldUnit* units) {
  const Params& p = h.memory;
  const int lane = threadIdx.x % kWarp;
  const int clusters = static_cast<int>(gridDim.x) / p.blocks;
  int found = 0;
  for (int first = static_cast<int>(blockIdx.x) / p.blocks; first < h.units;
       first += clusters * kWarp) {
    const int number = first + lane * clusters;
    HeldUnit unit;
    bool takes = false;
    if (number < h.units) {
      const Segment segment(p.segments, number / p.heads);
      takes = segment.slot >= 0 && segment.end - segment.first == 1;
      unit.entry = segment.first;
      unit.head = number % p.heads;
      unit.slot = segment.slot;
      unit.memory = segment.memory;
    }
    const unsigned taken = __ballot_sync(kAllLanes, takes);
    if (takes) {
      HeldUnit& to = units[found + __popc(taken & ((1u << lane) - 1))];
      to.entry = unit.entry;
      to.head = unit.head;
      to.slot = unit.slot;
      to.memory = unit.memory;
      to.fresh = p.positions[unit.entry] == p.first_position ? 1 : 0;
    }
    found += __popc(taken);
  }
  return found;
}

// Beside the warps that multiply matrices some multiply vectors, one asks for what comes next, and
// one finishes what came before.
constexpr int kAsks = kWarps + kDotWarps, kFinishes = kAsks + 1;
constexpr int kComputing = kThreads + kDotWarps * kWarp;
constexpr int kAllThreads = kComputing + 2 * kWarp;

// Barriers of some of a block's warps. kCompute: of those that multiply.
enum BarrierOf : int {
  kCompute = 1,
  kUsedFirst = 2,  // these tell the asking warp: W_1 and S_1 of a head are not needed any more
  kUsedAll = 3,    // all of a head
  kMadeLast = 4,   // these tell the finishing warp: all is there for a head's answer
  kMayMake = 5,    // which tells them: it has read what was there before
  kFinished = 6    // which tells the asking warp: nothing of a head is needed any more
};
template <BarrierOf kBarrier, int kCount>
__device__ inline void SyncWith() {
  asm volatile("bar.sync %0, %1;" ::"n"(static_cast<int>(kBarrier)), "n"(kCount) : "memory");
}
template <BarrierOf kBarrier, int kCount>
__device__ inline void Tell() {
  asm volatile("bar.arrive %0, %1;" ::"n"(static_cast<int>(kBarrier)), "n"(kCount) : "memory");
}
constexpr int kWithOne = kComputing + kWarp;

// The order in which a block's shared memory is used, of head u:
//   inputs, both in turns   copies of u + 2 follow kFinished of head u + 1, to which the warp that
//                           finishes comes behind kMadeLast of head u: all have read what u has
//   slots                   copies follow kUsedFirst or kUsedAll; an mbarrier tells of them
//   partial_of_q, its dots  made behind kMayMake, to which the warp that finishes comes when it has
//                           read those of the head before
//   outputs, both in turns  other blocks send those of u + 2 when they have all of u + 1 for k, of
//                           which this block sends its own when it has read those of u; those for q
//                           behind kMayMake of head u + 1, too. An mbarrier counts their bytes.

// A head at work, as the arrays of a block's shared memory have it.
struct HeldToken {
  Factors before, after;
  StepFactors by;
  StepVectors keys, errors, z, deltas;
  float *k, *error, *own_z, *delta;

  __device__ HeldToken(const HeldParams& h, const HeldUnit& unit, int turn, float* shared) {
    const HeldDivision& at = h.division;
    const float* const numbers = shared + at.numbers[turn];
    before = {.kept = unit.kept, .moved = unit.moved, .slowed = unit.slowed};
    after = {.kept = unit.gates.keep * before.kept,
             .moved = 0,
             .slowed = unit.gates.momentum * before.slowed};
    after.moved = unit.gates.keep * before.moved + after.slowed;
    by = {.g = numbers + 4,
          .s = numbers + 4 + h.Capacity(),
          .gates = unit.gates,
          .count = unit.count};
    k = shared + at.own[turn];
    error = k + h.memory.dim;
    own_z = error + h.memory.dim;
    delta = own_z + at.parts[0].columns;
    const auto vectors = [&](const float* own) {
      return StepVectors{.held = shared + at.vectors[turn] + (own - k),
                         .own = own,
                         .between = at.of_step,
                         .count = unit.count};
    };
    keys = vectors(k);
    errors = vectors(error);
    z = vectors(own_z);
    deltas = vectors(delta);
  }
};

// This block's part of the network's outputs, which Products() and Dots() left.
__device__ inline FourOutputs PartOfOutputs(const HeldParams& h, const HeldToken& token,
                                            const float* partial, const float* dots, int count) {
  const int four = 4 * static_cast<int>(threadIdx.x % kWarp);
  if (four >= h.memory.dim) return {};
  float4 y = SumOfPartial<float4>(partial, h.division.parts[1], four);
  AddScaled(y, 1.0f, SumOfSteps<float4>(dots, token.errors, count, four));
  return FourOutputs(y);
}

__device__ inline void MultiplyMatrices(const HeldParams& h, const HeldUnit* units, int count,
                                        int rank, float* shared) {
  const Params& p = h.memory;
  const HeldDivision& at = h.division;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  const HeldPart &part_1 = at.parts[0], &part_2 = at.parts[1];
  const int own = part_1.columns;
  const Share share_1(part_1), share_2(part_2);
  const auto activation = p.network.activation;
  float *const partial = shared + at.partial, *const z_of_q = shared + at.z_of_q;
  const float *const of_k = shared + at.dots[0], *const of_q = shared + at.dots[1];
  const float *const of_z = shared + at.dots[2], *const of_error = shared + at.dots[3];
  const HeldBarriers barriers(at, shared);
  MatrixReader matrices(h, shared);
#pragma unroll 1
  for (int u = 0; u < count; ++u) {
    const HeldUnit& unit = units[u];
    const int turn = u % 2, steps = unit.count;
    const HeldToken token(h, unit, turn, shared);
    const float *const q = shared + at.q[turn], *const k = token.k;

    // Layer 1 of k as it was, and of q as it will be, less what this token adds.
    BulkWait(barriers.Inputs(turn), u / 2 % 2);
    const Matrices first = matrices.Await(unit, 0);
    Products<2>({k, q}, {token.before, token.after}, first, part_1, share_1, partial);
    Tell<kUsedFirst, kThreads + kWarp>();
    SyncWith<kCompute, kComputing>();
    for (int i = thread; i < 2 * own; i += kThreads) {
      const bool is_q = i >= own;
      const int j = is_q ? i - own : i;
      const float a = SumOfPartial<float>(partial + (is_q ? part_1.sums * own : 0), part_1, j) +
                      SumOfSteps<float>(is_q ? of_q : of_k, token.deltas, steps, j);
      if (is_q) {
        shared[at.of_q + j] = a;
      } else {
        float slope;
        token.own_z[j] = Activate(activation, a, &slope);
        shared[at.slope + j] = slope;
      }
    }
    SyncWith<kCompute, kComputing>();

    const Matrices second = matrices.Await(unit, 1);
    Products<1>({token.own_z}, {token.before}, second, part_2, share_2, partial);
    SyncWith<kCompute, kComputing>();
    if (warp == 0) {
      const FourOutputs part = PartOfOutputs(h, token, partial, of_z, steps);
      const FourOutputs all =
          SumOfBlocks(h, part, rank, /*which=*/0, u, /*to_blocks=*/p.blocks, shared);
      FindError(h, unit, all, rank, turn, shared, token.error);
    }
    SyncWith<kCompute, kComputing>();

    ProductsOfRows(second, token.before, part_2, token.error, token.delta);
    SyncWith<kCompute, kComputing>();
    for (int i = thread; i < own; i += kThreads) {
      const float sum = token.delta[i] + SumOfSteps<float>(of_error, token.z, steps, i);
      const float of_unit = shared[at.slope + i] * sum;
      token.delta[i] = of_unit;
      float slope;
      z_of_q[i] = Activate(activation, fmaf(of_q[steps], of_unit, shared[at.of_q + i]), &slope);
    }
    SyncWith<kMayMake, kWithOne>();
    Products<1>({z_of_q}, {token.after}, second, part_2, share_2, shared + at.partial_of_q);
    Tell<kMadeLast, kWithOne>();
    if (h.Folds(unit)) {
      const TensorsOfHead<2> tensors(p, unit.slot, unit.memory, unit.head, rank);
      Fold(first, token.after, token.keys, token.deltas, token.by, part_1, share_1,
           tensors.InSlab(p.weights, 0), tensors.InSlab(p.momenta, 0));
      Fold(second, token.after, token.z, token.errors, token.by, part_2, share_2,
           tensors.InSlab(p.weights, 1), tensors.InSlab(p.momenta, 1));
    }
    SyncWith<kUsedAll, kThreads + kWarp>();
  }
}

// The same of vectors: those of steps with what they are to be multiplied by.
__device__ inline void MultiplyVectors(const HeldParams& h, const HeldUnit* units, int count,
                                       float* shared) {
  const HeldDivision& at = h.division;
  const int dim = h.memory.dim, own = at.parts[0].columns;
  const HeldBarriers barriers(at, shared);
#pragma unroll 1
  for (int u = 0; u < count; ++u) {
    const int turn = u % 2, steps = units[u].count;
    const HeldToken token(h, units[u], turn, shared);
    const auto before = [&](int, int i) { return token.by.Before(i); };
    const auto after = [&](int, int i) { return token.by.After(i); };
    BulkWait(barriers.Inputs(turn), u / 2 % 2);
    Dots<2>({token.k, shared + at.q[turn]}, token.keys, dim, steps + 1,
            [&](int n, int i) { return n == 0 ? token.by.Before(i) : token.by.After(i); },
            {shared + at.dots[0], shared + at.dots[1]});
    SyncWith<kCompute, kComputing>();
    SyncWith<kCompute, kComputing>();
    Dots<1>({token.own_z}, token.z, own, steps, before, {shared + at.dots[2]});
    SyncWith<kCompute, kComputing>();
    SyncWith<kCompute, kComputing>();
    Dots<1>({token.error}, token.errors, dim, steps, before, {shared + at.dots[3]});
    SyncWith<kCompute, kComputing>();
    SyncWith<kMayMake, kWithOne>();
    Dots<1>({shared + at.z_of_q}, token.z, own, steps + 1, after, {shared + at.dots[4]});
    Tell<kMadeLast, kWithOne>();
  }
}

// The first head's inputs are on their way.
__device__ inline void AskForNext(const HeldParams& h, const HeldUnit* units, int count, int rank,
                                  MatrixRing& ring, float* shared) {
#pragma unroll 1
  for (int u = 0; u < count; ++u) {
    const bool folds = h.Folds(units[u]);
    SyncWith<kUsedFirst, kThreads + kWarp>();
    if (!folds) ring.Fill(units, count, 4 * u + 2);
    SyncWith<kFinished, 2 * kWarp>();
    if (u + 1 < count) {
      FetchState(h, units[u + 1], rank, (u + 1) % 2, shared);
      FetchVectors(h, units[u + 1], (u + 1) % 2, shared);
    }
    SyncWith<kUsedAll, kThreads + kWarp>();
    ring.Fill(units, count, 4 * u + 4);
  }
}

__device__ inline void Finish(const HeldParams& h, const HeldUnit* units, int count, int rank,
                              float* shared) {
  const HeldDivision& at = h.division;
#pragma unroll 1
  for (int u = 0; u < count; ++u) {
    const HeldUnit& unit = units[u];
    const int turn = u % 2;
    const HeldToken token(h, unit, turn, shared);
    Tell<kMayMake, kWithOne>();
    SyncWith<kFinished, 2 * kWarp>();  // with the head before this one
    SyncWith<kMadeLast, kWithOne>();
    const FourOutputs part =
        PartOfOutputs(h, token, shared + at.partial_of_q, shared + at.dots[4], unit.count + 1);
    const FourOutputs all = SumOfBlocks(h, part, rank, /*which=*/1, u, /*to_blocks=*/1, shared);
    if (rank == 0) Answer(h, unit, all, turn, shared);
    KeepStep(h, unit, rank, token.after, token.by, token.k);
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kAllThreads, 1)
    HeldStepsKernel(const __grid_constant__ HeldParams h) {
  extern __shared__ float4 shared_fours[];
  __shared__ int found;
  const Params& p = h.memory;
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const Team team;
  float* const shared = reinterpret_cast<float*>(shared_fours);
  auto* const units = reinterpret_cast<HeldUnit*>(shared + h.division.units);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int rank = team.rank();
  if (thread == kWarp) HeldBarriers(h.division, shared).Init();
  if (warp == 0) {
    const int of_cluster = FindUnits(h, units);
    if (lane == 0) found = of_cluster;
  }
  __syncthreads();
  const int count = found;
  if (count == 0) return WaitForPreviousKernel();
  MatrixRing ring(h, rank, shared);
  if (warp == kAsks) ring.Fill(units, count, 0);
  for (int i = thread; i < count; i += kThreads) {
    HeldUnit& unit = units[i];
    const float4 numbers = LoadFour(h.Numbers(unit));
    unit.count = unit.fresh != 0 ? 0 : static_cast<int>(numbers.x);
    const bool none = unit.count == 0;
    unit.kept = none ? 1.0f : numbers.y;
    unit.moved = none ? 0.0f : numbers.z;
    unit.slowed = none ? 1.0f : numbers.w;
  }
  __syncthreads();
  // Counts are read, which the first block will write; and outputs may come.
  team.Enter();
  if (warp == kAsks) FetchState(h, units[0], rank, 0, shared);
  WaitForPreviousKernel();
  if (warp == kAsks) FetchVectors(h, units[0], 0, shared);
  for (int i = thread; i < count; i += kThreads) {
    HeldUnit& unit = units[i];
    const int64_t gate = int64_t{unit.entry} * p.heads + unit.head;
    const float scale = (p.step_scale == nullptr ? 1.0f : p.step_scale[0]) * p.rate_scale;
    unit.gates = {.momentum = p.momentum[gate], .keep = p.keep == nullptr ? 1.0f : p.keep[gate]};
    unit.rate = p.rate[gate] * scale;
  }
  team.AwaitAll();
  __syncthreads();
  if (warp == kAsks) {
    AskForNext(h, units, count, rank, ring, shared);
  } else if (warp == kFinishes) {
    Finish(h, units, count, rank, shared);
  } else if (warp >= kWarps) {
    MultiplyVectors(h, units, count, shared);
  } else {
    MultiplyMatrices(h, units, count, rank, shared);
  }
}

// How many clusters run at once, at least one.
int ClustersAtOnce(Device& device, int64_t shared_bytes, int blocks) {
  const auto bytes = static_cast<size_t>(shared_bytes);
  device.Check(cudaFuncSetAttribute(HeldStepsKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               kName);
  int count = 0;
  if (blocks == 1) {
    device.Check(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, HeldStepsKernel, kAllThreads, bytes),
        kName);
    count *= device.multiprocessors();
  } else {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kAllThreads);
    config.dynamicSmemBytes = bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    device.Check(cudaOccupancyMaxActiveClusters(&count, HeldStepsKernel, &config), kName);
  }
  return std::max(count, 1);
}

}  // namespace

void LaunchHeldSteps(Device& device, const HeldDivision& division, const Params& p) {
  HeldParams h = {.memory = p, .division = division, .units = p.segments.count * p.heads};
  h.memory.division.parts[0] = division.parts[0];
  h.memory.division.parts[1] = division.parts[1];
  const int64_t shared_bytes = int64_t{4} * division.floats;
  const int at_once = ClustersAtOnce(device, shared_bytes, division.blocks);
  constexpr int kMost = HeldDivision::kMostUnits;
  const int clusters = std::min(h.units, std::max(at_once, (h.units + kMost - 1) / kMost));
  LaunchOverlapping(device, kName, HeldStepsKernel, clusters * division.blocks, kAllThreads,
                    shared_bytes, division.blocks, h);
}

}  // namespace mneme::cuda::neural_memory::resident
