// The kernel of decode/stack/stack.cu.
#pragma once

#include "kernels/cuda/decode/stack/memory.cuh"

namespace mneme::cuda::decode::stack {

enum class Phase : int { kKnown, kChosen, kEmit, kWiden, kNarrow };
enum : int { kPhases = 5 };

// To be awaited by AwaitCopies() before a barrier.
template <int kRows>
__device__ inline void CopyLayer(const Params& p, Shared<kRows>& shared, int index) {
  const auto* from = reinterpret_cast<const uint4*>(p.layers + index);
  auto* const to = reinterpret_cast<uint4*>(shared.layers + index % 2);
  const int i = Thread();
  static_assert(sizeof(Layer) / 16 <= kComputeThreads);
  if (i < static_cast<int>(sizeof(Layer) / 16)) CopyAsync16(to + i, from + i);
}

// How a memory of a row was written, in a layer whose pointers are there already. What a thread
// read it keeps by KeepWritten(): it is far away.
template <int kRows>
__device__ inline Written LoadWritten(const Params& p, const Shared<kRows>& shared, int index) {
  const int row = Thread() / kMaxMemories, memory = Thread() % kMaxMemories;
  if (row >= kRows || memory >= p.memories + (p.shared ? 1 : 0) || shared.slots[row] < 0) {
    return Written::kNever;
  }
  const Layer& layer = shared.layers[index % 2];
  const int slot = shared.slots[row];
  int2 range = {0, 0};
  if (p.capacity > 0) range = *layer.range.template At<const int2>(slot, memory);
  if (*layer.written.template At<const uint8_t>(slot, memory) == 0) return Written::kNever;
  return range.x == range.y ? Written::kAll : Written::kHeldBack;
}
template <int kRows>
__device__ inline void KeepWritten(Shared<kRows>& shared, int index, Written written) {
  const int row = Thread() / kMaxMemories, memory = Thread() % kMaxMemories;
  if (row < kRows) shared.written[index % 2][row][memory] = written;
}

template <int kRows>
__device__ inline void LoadInputs(const Params& p, const Word* from, int features, uint32_t number,
                                  float* x) {
  constexpr int kAtOnce = 2, kStep = 2 * kComputeThreads;
#pragma unroll 1
  for (int r = 0; r < p.rows; ++r) {
#pragma unroll 1
    for (int i = 2 * Thread(); i < features; i += kAtOnce * kStep) {
      float2 values[kAtOnce];
      AwaitPairs<kAtOnce>(from + int64_t{r} * features, i, kStep, features, number, values);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int k = i + n * kStep;
        if (k < features) *reinterpret_cast<float2*>(x + r * p.widest + PlaceInX(k)) = values[n];
      }
    }
  }
  SyncCompute();
}

// This block's part of the hidden state += what was multiplied, for all to see; `last`: and to
// stay.
template <int kRows>
__device__ inline void AddToHidden(const Params& p, Shared<kRows>& shared, int units, int features,
                                   Word* words, uint32_t number, bool last) {
#pragma unroll 1
  for (int t = Thread(); t < units * kUnitRows * kRows; t += kComputeThreads) {
    const int row = t % kRows, output = t / kRows % kUnitRows, unit = t / kRows / kUnitRows;
    const int channel = OwnUnit(unit) * kUnitRows + output;
    if (row >= p.rows || channel >= p.model_dim) continue;
    float& residual = shared.residual[unit][t % (kUnitRows * kRows)];
    residual += UnitSum(shared, unit, features, output, row);
    const int64_t at = int64_t{row} * p.model_dim + channel;
    Put(words + at, residual, number);
    if (last) p.hidden[at] = residual;
  }
}

// silu(gate) * up of this block's pairs of units.
template <int kRows>
__device__ inline void Activate(const Params& p, Shared<kRows>& shared, int pairs,
                                uint32_t number) {
#pragma unroll 1
  for (int t = Thread(); t < pairs * kUnitRows * kRows; t += kComputeThreads) {
    const int row = t % kRows, output = t / kRows % kUnitRows, pair = t / kRows / kUnitRows;
    const int channel = OwnUnit(pair) * kUnitRows + output;
    if (row >= p.rows || channel >= p.mlp_dim) continue;
    const float scale = NormScale(p, shared, row, p.mlp_norm_eps);
    const float gate = UnitSum(shared, 2 * pair, p.model_dim, output, row) * scale;
    const float up = UnitSum(shared, 2 * pair + 1, p.model_dim, output, row) * scale;
    Put(p.act + int64_t{row} * p.mlp_dim + channel, Silu(gate) * up, number);
  }
}

// The logits of this block's part of the vocabulary.
template <int kRows>
__device__ inline void WriteLogits(const Params& p, Shared<kRows>& shared,
                                   const unsigned char* ring, const float* x,
                                   ComputePlace<kRows>& at) {
  const int all = shared.plan.head_units, stages = StagesOf(p.model_dim);
  const int at_once = kHeadStages / stages;
  int first = 0;  // in turns, so that one barrier will do
#pragma unroll 1
  for (int unit = 0; unit < all; unit += at_once, first = at_once - first) {
    const int units = min(at_once, all - unit);
    Multiply(p, shared, ring, x, /*heads=*/false, first * stages, units * stages, p.model_dim, at);
    SyncCompute();
#pragma unroll 1
    for (int t = Thread(); t < units * kUnitRows * kRows; t += kComputeThreads) {
      const int row = t % kRows, output = t / kRows % kUnitRows, nth = t / kRows / kUnitRows;
      const int token = OwnUnit(unit + nth) * kUnitRows + output;
      if (row >= p.rows || token >= p.vocab) continue;
      const float logit = UnitSum(shared, first + nth, p.model_dim, output, row) *
                          NormScale(p, shared, row, p.head_norm_eps);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i < p.drawn && shared.tokens[i] == row) p.logits[int64_t{i} * p.vocab + token] = logit;
      }
    }
  }
}

// Once, by one thread.
template <int kRows>
__device__ inline void MakePlan(const Params& p, int key_dim, Plan& plan) {
  plan.keys = p.heads * key_dim;
  plan.values = p.value_heads * p.value_dim;
  plan.hidden_units = OwnUnits(UnitsOf(p.model_dim));
  plan.pairs = OwnUnits(UnitsOf(p.mlp_dim));
  plan.head_units = p.head != nullptr ? OwnUnits(UnitsOf(p.vocab)) : 0;
  PlanOutputs(p, plan, kRows);
  PlanMatrices(p, plan);
}

// The block's part of the hidden state.
template <int kRows>
__device__ inline void LoadResidual(const Params& p, Shared<kRows>& shared) {
  constexpr int kSums = kUnitRows * kRows;
#pragma unroll 1
  for (int t = Thread(); t < shared.plan.hidden_units * kSums; t += kComputeThreads) {
    const int row = t % kRows, channel = OwnUnit(t / kSums) * kUnitRows + t / kRows % kUnitRows;
    if (row >= p.rows || channel >= p.model_dim) continue;
    shared.residual[t / kSums][t % kSums] = p.hidden[int64_t{row} * p.model_dim + channel];
  }
}

template <typename S, int kRows, int kKeyDim>
__device__ inline void Compute(const Params& p, Shared<kRows>& shared, const unsigned char* ring,
                               float* x) {
  const Plan& plan = shared.plan;
  const int warp = Thread() / kWarp, tid = Thread();
  const uint32_t before = *static_cast<const volatile unsigned*>(p.counters);
  LoadResidual(p, shared);
  CopyLayer(p, shared, 0);
  AwaitCopies();
  SyncCompute();
  KeepWritten(shared, 0, LoadWritten(p, shared, 0));
  const OutputTask own_task = MakeOutputTask<kRows>(p, plan, tid);
  ComputePlace<kRows> at;
#pragma unroll 1
  for (int l = 0; l < p.count; ++l) {
    const Layer& layer = shared.layers[l % 2];
    const auto* const written = shared.written[l % 2];
    const uint32_t number = before + l + 1;
    const bool last = l + 1 == p.count;
#pragma unroll 1
    for (int i = 0; i < kPhases; ++i) {
      const auto phase = static_cast<Phase>(i);
      int features = p.model_dim, units = plan.hidden_units, first = 0;
      int column = -1;  // of the thread's output
      if (phase == Phase::kKnown) {
        LoadHidden<true>(p, layer, shared, l > 0 ? p.after : nullptr, number - 1, layer.norm, x);
        // What is known is multiplied while memories are chosen.
        if (p.memories > 0) {
          if (warp < kRows) Choose(p, shared, warp);
        } else if (tid < kRows) {
          Arrive(&shared.routed);
        }
        units = plan.known_units;
      } else if (phase == Phase::kChosen) {
        const OutputTask task = own_task.Anew();
        BulkWait(&shared.routed, l & 1);
        AddHeldBack<S, kKeyDim>(p, layer, shared, written);
        const unsigned chosen = ChosenMemories(p, shared);
        units = __popc(chosen) * plan.memory_units;
        if (tid < OutputTasks<kRows>(plan, plan.known_units + units)) {
          column = ColumnOf(p, shared, chosen, task);
        }
        FetchPast(p, layer, shared, written, task, column);
        // The warps that did not choose do this; it is seen by all behind the products.
        const int row = kWarps - 1 - warp;
        if (p.top_k > 0 && row < kRows) WeighChoice(p, shared, row);
        first = plan.known_units * StagesOf(features);
      } else if (phase == Phase::kEmit) {
        if (units == 0) continue;
        features = plan.values;
        Mix(p, layer, shared, plan.values, x, number);
      } else if (phase == Phase::kWiden) {
        if (!last) CopyLayer(p, shared, l + 1);
        LoadHidden<false>(p, layer, shared, p.middle, number, layer.mlp_norm, x);
        units = 2 * plan.pairs;
      } else {
        Written next = Written::kNever;
        if (!last) {
          PrefetchNorm(p, shared.layers[(l + 1) % 2]);
          next = LoadWritten(p, shared, l + 1);
        }
        features = p.mlp_dim;
        if (units > 0) LoadInputs<kRows>(p, p.act, p.mlp_dim, number, x);
        if (!last) KeepWritten(shared, l + 1, next);
        if (units == 0) continue;
      }
      Multiply(p, shared, ring, x, phase == Phase::kEmit, first, units * StagesOf(features),
               features, at);
      if (phase == Phase::kKnown) continue;
      if (phase == Phase::kWiden) AwaitCopies();
      SyncCompute();
      if (phase == Phase::kChosen) {
        if (column >= 0) FinishOutput(p, layer, shared, own_task.Anew(), column, number);
        RunMemories<S, kKeyDim>(p, layer, shared, ring, written, at, number);
      } else if (phase == Phase::kWiden) {
        Activate(p, shared, plan.pairs, number);
      } else {
        const bool emit = phase == Phase::kEmit;
        AddToHidden(p, shared, units, features, emit ? p.middle : p.after, number, last && !emit);
        // All blocks are through with the memories: their words were there.
        if (phase == Phase::kEmit && blockIdx.x == 0) MarkWritten(p, layer, shared, written);
      }
    }
  }
  if (p.head != nullptr) {
    // Layer: none is read.
    LoadHidden<false>(p, shared.layers[0], shared, p.after, before + p.count, p.head_norm, x);
    WriteLogits(p, shared, ring, x, at);
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
      InitBarrier(shared.empty + i, kWarps);
    }
    InitBarrier(&shared.routed, kRows);
    FenceBulkBarriers();
  }
  if (threadIdx.x < kRows) {
    const int row = threadIdx.x;
    shared.slots[row] = row < p.rows ? p.slots[row] : -1;
    if (row < p.drawn) shared.tokens[row] = p.tokens[row];
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

}  // namespace mneme::cuda::decode::stack
