// The kernel of decode_layers.cu.
#pragma once

#include "kernels/cuda/decode_layers_memory.cuh"

namespace mneme::cuda::layers {

enum class Phase : int { kProject, kEmit, kWiden, kNarrow };
enum : int { kPhases = 4 };

template <int kRows>
__device__ inline void CopyLayer(const Params& p, Shared<kRows>& shared, int index) {
  const auto* from = reinterpret_cast<const uint4*>(p.layers + index);
  auto* const to = reinterpret_cast<uint4*>(shared.layers + index % 2);
  const int i = threadIdx.x;
  static_assert(sizeof(Layer) / 16 <= kComputeThreads);
  if (i < static_cast<int>(sizeof(Layer) / 16)) to[i] = __ldg(from + i);
}

// Which memories of the rows were never written, in a layer whose pointers are there already.
template <int kRows>
__device__ inline void LoadFresh(const Params& p, Shared<kRows>& shared, int index) {
  const int row = threadIdx.x / kMaxMemories, memory = threadIdx.x % kMaxMemories;
  if (row >= kRows || memory >= p.memories + (p.shared ? 1 : 0) || shared.slots[row] < 0) return;
  shared.fresh[index % 2][row][memory] =
      *shared.layers[index % 2].written.template At<const uint8_t>(shared.slots[row], memory) == 0;
}

template <int kRows>
__device__ inline void LoadInputs(const Params& p, const Word* from, int features, uint32_t number,
                                  float* x) {
  constexpr int kAtOnce = 2, kStep = 2 * kComputeThreads;
#pragma unroll 1
  for (int r = 0; r < p.rows; ++r) {
#pragma unroll 1
    for (int i = 2 * threadIdx.x; i < features; i += kAtOnce * kStep) {
      const Word* const at = from + int64_t{r} * features;
      uint64_t words[kAtOnce][2];
      bool there;
      do {
        there = true;
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          const int k = i + n * kStep;
          Peek2(at + (k < features ? k : i), words[n][0], words[n][1]);
        }
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          there = there && Is(words[n][0], number) && Is(words[n][1], number);
        }
      } while (!there);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int k = i + n * kStep;
        if (k < features) {
          *reinterpret_cast<float2*>(x + r * p.widest + PlaceInX(k)) = {ValueOf(words[n][0]),
                                                                        ValueOf(words[n][1])};
        }
      }
    }
  }
  SyncCompute();
}

// This block's part of the hidden state += what was multiplied, for all to see.
template <int kRows>
__device__ inline void AddToHidden(const Params& p, Shared<kRows>& shared, int units, int features,
                                   Word* words, uint32_t number) {
#pragma unroll 1
  for (int t = threadIdx.x; t < units * kUnitRows * kRows; t += kComputeThreads) {
    const int row = t % kRows, output = t / kRows % kUnitRows, unit = t / kRows / kUnitRows;
    const int channel = OwnUnit(unit) * kUnitRows + output;
    if (row >= p.rows || channel >= p.model_dim) continue;
    float& residual = shared.residual[unit][t % (kUnitRows * kRows)];
    residual += UnitSum(shared, unit, features, output, row);
    const int64_t at = int64_t{row} * p.model_dim + channel;
    if (words != nullptr) {
      Put(words + at, residual, number);
    } else {
      p.hidden[at] = residual;
    }
  }
}

// silu(gate) * up of this block's pairs of units.
template <int kRows>
__device__ inline void Activate(const Params& p, Shared<kRows>& shared, int pairs,
                                uint32_t number) {
#pragma unroll 1
  for (int t = threadIdx.x; t < pairs * kUnitRows * kRows; t += kComputeThreads) {
    const int row = t % kRows, output = t / kRows % kUnitRows, pair = t / kRows / kUnitRows;
    const int channel = OwnUnit(pair) * kUnitRows + output;
    if (row >= p.rows || channel >= p.mlp_dim) continue;
    const float scale = NormScale(p, shared.squares, row, p.mlp_norm_eps);
    const float gate = UnitSum(shared, 2 * pair, p.model_dim, output, row) * scale;
    const float up = UnitSum(shared, 2 * pair + 1, p.model_dim, output, row) * scale;
    Put(p.act + int64_t{row} * p.mlp_dim + channel, Silu(gate) * up, number);
  }
}

// Once, by one thread.
template <int kRows>
__device__ inline void MakePlan(const Params& p, int key_dim, Plan& plan) {
  plan.keys = p.heads * key_dim;
  plan.values = p.value_heads * p.value_dim;
  plan.hidden_units = OwnUnits(UnitsOf(p.model_dim));
  plan.pairs = OwnUnits(UnitsOf(p.mlp_dim));
  PlanOutputs(p, plan, kRows);
  PlanMatrices(p, plan);
}

// The block's part of the hidden state.
template <int kRows>
__device__ inline void LoadResidual(const Params& p, Shared<kRows>& shared) {
  constexpr int kSums = kUnitRows * kRows;
#pragma unroll 1
  for (int t = threadIdx.x; t < shared.plan.hidden_units * kSums; t += kComputeThreads) {
    const int row = t % kRows, channel = OwnUnit(t / kSums) * kUnitRows + t / kRows % kUnitRows;
    if (row >= p.rows || channel >= p.model_dim) continue;
    shared.residual[t / kSums][t % kSums] = p.hidden[int64_t{row} * p.model_dim + channel];
  }
}

template <typename S, int kRows, int kKeyDim>
__device__ inline void Compute(const Params& p, Shared<kRows>& shared, const unsigned char* ring,
                               float* x) {
  const Plan& plan = shared.plan;
  const int warp = threadIdx.x / kWarp, tid = threadIdx.x;
  const uint32_t before = *static_cast<const volatile unsigned*>(p.counters);
  LoadResidual(p, shared);
  CopyLayer(p, shared, 0);
  SyncCompute();
  LoadFresh(p, shared, 0);
  uint4 router = LoadRouterPart(p, shared.layers[0], warp);
  const OutputTask task = MakeOutputTask<kRows>(p, plan, tid);
  unsigned used = 0;
#pragma unroll 1
  for (int l = 0; l < p.count; ++l) {
    const Layer& layer = shared.layers[l % 2];
    const auto* const fresh = shared.fresh[l % 2];
    const uint32_t number = before + l + 1;
    const bool last = l + 1 == p.count;
    unsigned chosen = 0;
    int column = -1;  // of the thread's output
#pragma unroll 1
    for (int i = 0; i < kPhases; ++i) {
      const auto phase = static_cast<Phase>(i);
      int features = p.model_dim, units = plan.hidden_units;
      if (phase == Phase::kProject || phase == Phase::kWiden) {
        const bool project = phase == Phase::kProject;
        if (!project && !last) CopyLayer(p, shared, l + 1);
        LoadHidden(p,
                   !project ? p.middle
                   : l > 0  ? p.after
                            : nullptr,
                   project ? number - 1 : number, project ? layer.norm : layer.mlp_norm, x,
                   shared.squares);
        units = 2 * plan.pairs;
        if (project) {
          if (p.memories > 0) {
            Route(p, layer, shared, x, router);
          } else if (tid < kRows) {
            Arrive(&shared.routed);
          }
          chosen = ChosenMemories(p, shared);
          units = plan.known_units + plan.chosen_units[__popc(chosen)];
          column = -1;
          if (tid < OutputTasks<kRows>(plan, units)) column = ColumnOf(p, shared, chosen, task);
          FetchPast(p, layer, shared, fresh, task, column);
          // By warps that did not choose; seen by all behind the products.
          const int row = kWarps - 1 - warp;
          if (p.top_k > 0 && row < kRows) WeighChoice(p, shared, row);
        }
      } else if (phase == Phase::kEmit) {
        if (units == 0) continue;
        features = plan.values;
        Mix(p, layer, shared, plan.values, x, number);
        if (blockIdx.x == 0) MarkWritten(p, layer, shared, fresh);
      } else {
        if (!last) {
          router = LoadRouterPart(p, shared.layers[(l + 1) % 2], warp);
          LoadFresh(p, shared, l + 1);
        }
        if (units == 0) continue;
        features = p.mlp_dim;
        LoadInputs<kRows>(p, p.act, p.mlp_dim, number, x);
      }
      Multiply(p, shared, ring, x, units * StagesOf(features), features, used);
      SyncCompute();
      if (phase == Phase::kProject) {
        FinishOutput(p, layer, shared, task, column, number);
        RunMemories<S, kKeyDim>(p, layer, shared, ring, fresh, used, number);
      } else if (phase == Phase::kWiden) {
        Activate(p, shared, plan.pairs, number);
      } else {
        Word* const to = phase == Phase::kEmit ? p.middle : last ? nullptr : p.after;
        AddToHidden(p, shared, units, features, to, number);
      }
    }
  }
  // The last block counts the layers.
  if (tid == 0 && atomicAdd(p.counters + 1, 1u) == gridDim.x - 1) {
    p.counters[0] = before + p.count;
    p.counters[1] = 0;
  }
}

template <typename S, int kRows, int kKeyDim>
__global__ void __launch_bounds__(kThreads, 1) LayersKernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* const ring = memory;
  auto* const x = reinterpret_cast<float*>(memory + RingSlots(kRows) * kStageBytes);
  auto& shared = *reinterpret_cast<Shared<kRows>*>(x + p.widest * kRows);
  if (threadIdx.x == 0) {
    MakePlan<kRows>(p, kKeyDim, shared.plan);
    for (int i = 0; i < RingSlots(kRows); ++i) {
      InitBarrier(shared.full + i, 1);
      InitBarrier(shared.empty + i, kParts);
    }
    InitBarrier(&shared.routed, kRows);
    FenceBulkBarriers();
  }
  if (threadIdx.x < kRows) {
    const int row = threadIdx.x;
    shared.slots[row] = row < p.rows ? p.slots[row] : -1;
    for (int j = 0; j < p.columns; ++j) {
      shared.memories[row][j] = j < p.top_k ? 0 : p.memories;
      shared.weights[row][j] = 1.0f;
    }
  }
  // Padding rows are multiplied as zeros.
  for (int i = threadIdx.x; i < p.widest * kRows; i += kThreads) x[i] = 0;
  __syncthreads();
  // What the loader has too many registers, the others have too few; four warps pass on theirs, of
  // which one loads.
  if (threadIdx.x < kComputeThreads) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
    Compute<S, kRows, kKeyDim>(p, shared, ring, x);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    if (threadIdx.x >= kComputeThreads + kWarp) return;
    Loader<kRows>(p, shared, ring, kKeyDim * static_cast<int>(sizeof(S))).Run();
  }
#endif
}

template <typename S, int kRows, int kKeyDim>
void Launch(Device& device, const Params& p) {
  const auto kernel = LayersKernel<S, kRows, kKeyDim>;
  const auto bytes = static_cast<int>(SharedBytes<kRows>(p.widest));
  device.Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "layers of a decode step");
  Params params = p;
  void* arguments[] = {&params};
  device.Check(
      cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(Blocks(device, p)),
                                  dim3(kThreads), arguments, bytes, device.stream()),
      "layers of a decode step");
}

template <typename S, int kKeyDim>
void LaunchRows(Device& device, const Params& p) {
  if (p.rows == 1) return Launch<S, 1, kKeyDim>(device, p);
  Launch<S, kMaxRows, kKeyDim>(device, p);
}

template <typename S>
bool LaunchKeys(Device& device, const Params& p, int key_dim) {
  if (key_dim == 128) {
    LaunchRows<S, 128>(device, p);
  } else if (key_dim == 256) {
    LaunchRows<S, 256>(device, p);
  } else {
    return false;
  }
  return true;
}

}  // namespace mneme::cuda::layers
