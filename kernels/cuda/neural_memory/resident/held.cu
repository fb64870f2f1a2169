// One token of memories that hold steps back (kernels/held_steps.h). W and S as they were written
// last are read, not written: what steps since then have added comes from their vectors. There are
// as many clusters as run at once, and each takes heads of segments one after the other; while one
// is at work, matrices and vectors of the next come to shared memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/resident/held_ring.cuh"

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

__global__ void __launch_bounds__(kThreads, 1)
    HeldStepsKernel(const __grid_constant__ HeldParams h) {
  extern __shared__ float4 shared_fours[];
  __shared__ int found;
  const Params& p = h.memory;
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const Team team;
  const MemoryNetwork& network = p.network;
  const HeldDivision& at = h.division;
  float* const shared = reinterpret_cast<float*>(shared_fours);
  auto* const units = reinterpret_cast<HeldUnit*>(shared + at.units);
  auto* const barriers = reinterpret_cast<uint64_t*>(shared + at.barriers);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int dim = p.dim, rank = team.rank();
  const HeldPart &part_1 = at.parts[0], &part_2 = at.parts[1];
  const int own = part_1.columns;
  const Share share_1(part_1), share_2(part_2);
  float* const partial = shared + at.partial;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;

  if (thread == kWarp) {
    for (int i = 0; i < at.slots + 6; ++i) InitBulkBarrier(barriers + i);
    FenceBulkBarriers();
  }
  if (warp == 0) {
    const int of_cluster = FindUnits(h, units);
    if (lane == 0) found = of_cluster;
  }
  __syncthreads();
  const int count = found;
  if (count == 0) return WaitForPreviousKernel();
  MatrixRing ring(h, rank, shared);
  ring.Fill(units, count, 0);
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
  uint64_t* const steps_come = barriers + at.slots;        // by turn
  uint64_t* const outputs_come = barriers + at.slots + 2;  // for k by turn, for q by turn
  const auto fetch_steps = [&](int u) {
    if (warp == kWarps - 2) {
      FetchSteps(h, units[u], rank, shared + at.vectors[u % 2], steps_come + u % 2);
    }
  };
  // Blocks tell each other, or the first one, their parts of the network's outputs, four each. For
  // one block a barrier follows.
  const auto send = [&](int u, int which, int to_blocks, auto output) {
    const int fours = dim / 4;
    uint64_t* const come = outputs_come + 2 * which + u % 2;
    if (p.blocks > 1 && thread == kThreads - 1 && rank < to_blocks) {
      ArriveAndExpect(come, 4 * static_cast<uint32_t>(p.blocks * dim));
    }
    for (int i = thread; i < to_blocks * fours; i += kThreads) {
      const int four = i % fours * 4;
      float* const to = shared + at.outputs[which][u % 2] + rank * dim + four;
      const float4 y = output(four);
      if (p.blocks > 1) {
        SendFour(y, to, come, i / fours);
      } else {
        SaveFour(to, y);
      }
    }
  };
  const auto await_outputs = [&](int u, int which) {
    if (p.blocks > 1) WaitForSent(outputs_come + 2 * which + u % 2, u / 2 % 2);
  };
  fetch_steps(0);
  HeldInputs inputs;
  inputs.LoadState(h, units[0]);
  WaitForPreviousKernel();
  inputs.LoadVectors(h, units[0]);
  for (int i = thread; i < count; i += kThreads) {
    HeldUnit& unit = units[i];
    const int64_t gate = int64_t{unit.entry} * p.heads + unit.head;
    const float scale = (p.step_scale == nullptr ? 1.0f : p.step_scale[0]) * p.rate_scale;
    unit.gates = {.momentum = p.momentum[gate], .keep = p.keep == nullptr ? 1.0f : p.keep[gate]};
    unit.rate = p.rate[gate] * scale;
  }
  __syncthreads();
  inputs.Save(h, units[0], 0, shared);
  __syncthreads();

  // The answer to a head's q, by a warp of the first block.
  const auto answer = [&](int u) {
    const HeldUnit& unit = units[u];
    const int turn = u % 2;
    await_outputs(u, 1);
    float* const n = shared + at.outputs[1][turn];
    const float *const q = shared + at.q[turn], *const shift = shared + at.shift[turn];
    const float *const gain = shared + at.gain[turn], *const s = shared + at.gain_momenta[turn];
    float* const out = p.out + (int64_t{unit.entry} * p.heads + unit.head) * dim;
    const float offset = network.trains_gain ? network.gain_offset : 0.0f;
    const TensorsOfHead<2> tensors(p, unit.slot, unit.memory, unit.head, rank);
    NormOfWarp(network, dim, n, p.blocks, dim, n);
    for (int i = lane; i < dim; i += kWarp) {
      out[i] = normed ? q[i] + (n[i] * (offset + gain[i]) + shift[i]) : n[i];
      if (network.trains_gain) {
        constexpr int kGain = TensorsOfHead<2>::kGain;
        tensors.InSlab(p.weights, kGain)[i] = gain[i];
        tensors.InSlab(p.momenta, kGain)[i] = s[i];
      }
    }
  };

  for (int u = 0; u < count; ++u) {
    const HeldUnit unit = units[u];
    const int turn = u % 2, steps = unit.count;
    const bool last = u + 1 == count;
    const bool folds = h.folds_all || unit.fresh != 0 || steps == h.capacity;
    const Factors before = {.kept = unit.kept, .moved = unit.moved, .slowed = unit.slowed};
    Factors after = {.kept = unit.gates.keep * before.kept,
                     .moved = 0,
                     .slowed = unit.gates.momentum * before.slowed};
    after.moved = unit.gates.keep * before.moved + after.slowed;
    if (!last) {
      fetch_steps(u + 1);
      inputs.LoadState(h, units[u + 1]);
      inputs.LoadVectors(h, units[u + 1]);
    }
    float* const k = shared + at.own[turn];
    float *const error = k + dim, *const z = error + dim, *const delta = z + own;
    const auto vectors = [&](const float* of_token) {
      return StepVectors{.held = shared + at.vectors[turn] + (of_token - k),
                         .own = of_token,
                         .between = at.of_step,
                         .count = steps};
    };
    const StepVectors keys = vectors(k), errors = vectors(error), zs = vectors(z);
    const StepVectors deltas = vectors(delta);
    const float *const q = shared + at.q[turn], *const z_of_q = shared + at.z_of_q;
    const float *const g = shared + at.g[turn], *const next_g = shared + at.next_g[turn];
    float *const of_k = shared + at.dots[0], *const of_q = shared + at.dots[1];
    float *const of_z = shared + at.dots[2], *const of_error = shared + at.dots[3];
    float* const of_z_of_q = shared + at.dots[4];

    // Layer 1 of k as it was, and of q as it will be, less what this token adds.
    BulkWait(steps_come + turn, u / 2 % 2);
    Dots<2>({k, q}, keys, dim, steps + 1, {g, next_g}, {of_k, of_q});
    const Matrices first = ring.Await(unit, 0);
    Products<2>({k, q}, {before, after}, first, part_1, share_1, partial);
    __syncthreads();
    if (!folds) ring.Fill(units, count, 4 * u + 2);
    for (int i = thread; i < 2 * own; i += kThreads) {
      const bool is_q = i >= own;
      const int j = is_q ? i - own : i;
      const float a = SumOfPartial<float>(partial + (is_q ? part_1.sums * own : 0), part_1, j) +
                      SumOfSteps<float>(is_q ? of_q : of_k, deltas, steps, j);
      if (is_q) {
        shared[at.of_q + j] = a;
      } else {
        float slope;
        z[j] = Activate(network.activation, a, &slope);
        shared[at.slope + j] = slope;
      }
    }
    __syncthreads();

    Dots<1>({z}, zs, own, steps, {g}, {of_z});
    const Matrices second = ring.Await(unit, 1);
    Products<1>({z}, {before}, second, part_2, share_2, partial);
    if (u == 0) team.AwaitAll();
    __syncthreads();
    // This block's part of the network's outputs.
    const auto output = [&](const float* of_steps, int n) {
      return [=, &part_2](int four) {
        float4 y = SumOfPartial<float4>(partial, part_2, four);
        AddScaled(y, 1.0f, SumOfSteps<float4>(of_steps, errors, n, four));
        return y;
      };
    };
    send(u, 0, p.blocks, output(of_z, steps));
    if (p.blocks == 1) __syncthreads();

    if (warp == 0) {
      await_outputs(u, 0);
      float* const v = shared + at.v[turn];
      float *const gain = shared + at.gain[turn], *const s = shared + at.gain_momenta[turn];
      const float loss = ErrorOfWarp(p, shared + at.outputs[0][turn], p.blocks, dim, k, v, gain,
                                     shared + at.shift[turn], unit.rate, error);
      for (int i = lane; network.trains_gain && i < dim; i += kWarp) {
        s[i] = fmaf(unit.gates.momentum, s[i], -v[i]);
        gain[i] = fmaf(unit.gates.keep, gain[i], s[i]);
      }
      if (p.loss != nullptr && rank == 0 && lane == 0) {
        p.loss[int64_t{unit.entry} * p.heads + unit.head] = loss;
      }
    } else if (warp == 1 && rank == 0 && u > 0) {
      answer(u - 1);
    }
    __syncthreads();

    Dots<1>({error}, errors, dim, steps, {g}, {of_error});
    ProductsOfRows(second, before, part_2, error, delta);
    __syncthreads();
    for (int i = thread; i < own; i += kThreads) {
      const float sum = delta[i] + SumOfSteps<float>(of_error, zs, steps, i);
      const float of_unit = shared[at.slope + i] * sum;
      delta[i] = of_unit;
      float slope;
      shared[at.z_of_q + i] =
          Activate(network.activation, fmaf(of_q[steps], of_unit, shared[at.of_q + i]), &slope);
    }
    __syncthreads();
    Dots<1>({z_of_q}, zs, own, steps + 1, {next_g}, {of_z_of_q});
    Products<1>({z_of_q}, {after}, second, part_2, share_2, partial);
    __syncthreads();

    if (!folds) ring.Fill(units, count, 4 * u + 4);
    send(u, 1, /*to_blocks=*/1, output(of_z_of_q, steps + 1));
    float* const numbers = h.Numbers(unit);
    if (rank == 0 && thread == kThreads - 1) {
      SaveFour(numbers, {folds ? 0.0f : static_cast<float>(steps + 1), after.kept, after.moved,
                         after.slowed});
    }
    if (!last) {
      inputs.Save(h, units[u + 1], 1 - turn, shared);
    } else {
      if (p.blocks == 1) __syncthreads();
      if (rank == 0 && warp == 0) answer(u);
    }
    if (folds) {
      const TensorsOfHead<2> tensors(p, unit.slot, unit.memory, unit.head, rank);
      const float* const next_s = shared + at.next_s[turn];
      Fold(first, after, keys, deltas, next_g, next_s, part_1, share_1,
           tensors.InSlab(p.weights, 0), tensors.InSlab(p.momenta, 0));
      Fold(second, after, zs, errors, next_g, next_s, part_2, share_2, tensors.InSlab(p.weights, 1),
           tensors.InSlab(p.momenta, 1));
    } else {
      KeepStep(h, unit, rank, k);
      if (rank == 0 && thread <= steps) {
        numbers[4 + thread] = next_g[thread];
        numbers[4 + h.capacity + thread] = shared[at.next_s[turn] + thread];
      }
    }
    __syncthreads();
    if (folds) ring.Fill(units, count, 4 * u + 4);
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
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, HeldStepsKernel, kThreads, bytes),
        kName);
    count *= device.multiprocessors();
  } else {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    device.Check(cudaOccupancyMaxActiveClusters(&count, HeldStepsKernel, &config), kName);
  }
  return std::max(count, 1);
}

}  // namespace

void LaunchHeldSteps(Device& device, const HeldDivision& division, const Params& p,
                     const HeldMemoryArgs& args) {
  HeldParams h = {.memory = p,
                  .division = division,
                  .numbers = args.held.numbers,
                  .vectors = args.held.vectors,
                  .capacity = args.held.capacity,
                  .units = p.segments.count * p.heads,
                  .folds_all = false};
  // Heads that are few gain nothing by what is held back.
  h.folds_all = !args.always_holds && h.units * kMaxTeam <= device.multiprocessors();
  h.memory.division.parts[0] = division.parts[0];
  h.memory.division.parts[1] = division.parts[1];
  const int64_t shared_bytes = int64_t{4} * division.floats;
  const int at_once = ClustersAtOnce(device, shared_bytes, division.blocks);
  constexpr int kMost = HeldDivision::kMostUnits;
  const int clusters = std::min(h.units, std::max(at_once, (h.units + kMost - 1) / kMost));
  LaunchOverlapping(device, kName, HeldStepsKernel, clusters * division.blocks, kThreads,
                    shared_bytes, division.blocks, h);
}

}  // namespace mneme::cuda::neural_memory::resident
