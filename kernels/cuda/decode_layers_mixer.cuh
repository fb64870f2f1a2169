// What decode_layers.cu does around a mixer's products: norm, router, convolutions, the delta rule,
// and the way out.
#pragma once

#include "kernels/cuda/decode_layers_ring.cuh"
#include "kernels/cuda/decode_layers_words.cuh"
#include "kernels/cuda/gated_delta_row.cuh"
#include "kernels/cuda/route_rank.cuh"

namespace mneme::cuda::layers {

// -------------------------------------------------------------------------------- norm and router

// x = hidden * norm, less the factor 1 / |hidden|, which is the same for all: squares has its
// parts.
template <int kRows>
__device__ inline void LoadHidden(const Params& p, const Word* words, uint32_t number,
                                  const float* norm, float* x, float (*squares)[kRows]) {
  float sums[kRows] = {};
#pragma unroll 1
  for (int i = 2 * threadIdx.x; i < p.model_dim; i += 2 * kComputeThreads) {
    const float2 weight = __ldg(reinterpret_cast<const float2*>(norm + i));
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= p.rows) continue;
      const int64_t at = int64_t{r} * p.model_dim + i;
      const float2 h = words == nullptr ? *reinterpret_cast<const float2*>(p.hidden + at)
                                        : Await2(words + at, number);
      sums[r] = fmaf(h.x, h.x, fmaf(h.y, h.y, sums[r]));
      *reinterpret_cast<float2*>(x + r * p.widest + PlaceInX(i)) = {h.x * weight.x, h.y * weight.y};
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = WarpSum(sums[r]);
    if (threadIdx.x % kWarp == 0) squares[threadIdx.x / kWarp][r] = sum;
  }
  SyncCompute();
}

template <int kRows>
__device__ inline float NormScale(const Params& p, const float (*squares)[kRows], int row,
                                  float eps) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += squares[warp][row];
  return rsqrtf(sum / static_cast<float>(p.model_dim) + eps);
}

// A warp's first part of the router's weights, asked for ahead.
__device__ inline uint4 LoadRouterPart(const Params& p, const Layer& layer, int part) {
  const int lane = threadIdx.x % kWarp;
  if (part >= p.memories * (p.model_dim / kPartFeatures)) return {};
  return __ldg(static_cast<const uint4*>(layer.router) + part * kWarp + lane);
}

// Which memories row `row` goes to, by one warp, from the parts of its logits.
template <int kRows>
__device__ inline void Choose(const Params& p, Shared<kRows>& shared, int row) {
  const int lane = threadIdx.x % kWarp, parts = p.model_dim / kPartFeatures;
  const bool given = p.forced != nullptr && row < p.rows;
  uint64_t rank = 0;
  if (lane < p.memories) {
    float logit = 0;
#pragma unroll 1
    for (int i = 0; i < parts; ++i) logit += shared.router_parts[row][lane * parts + i];
    logit *= NormScale(p, shared.squares, row, p.norm_eps);
    if (p.round_logits) logit = __bfloat162float(__float2bfloat16_rn(logit));
    shared.logits[row][lane] = logit;
    rank = RouteRank(logit, lane);
  }
  int place = 0;
#pragma unroll 4
  for (int m = 0; m < p.memories; ++m) {
    if (__shfl_sync(kAllLanes, rank, m) > rank) ++place;
  }
  if (lane < p.memories && place < p.top_k && !given) shared.memories[row][place] = lane;
  if (lane < p.top_k && given) shared.memories[row][lane] = p.forced[row * p.top_k + lane];
  __syncwarp();
  if (lane == 0) Arrive(&shared.routed);
}

// The weights of what a row reads, by one warp.
template <int kRows>
__device__ inline void WeighChoice(const Params& p, Shared<kRows>& shared, int row) {
  const int lane = threadIdx.x % kWarp;
  const bool own = lane < p.top_k;
  const int memory = own ? shared.memories[row][lane] : 0;
  const float chosen = own ? shared.logits[row][memory] : -INFINITY;
  float largest = chosen;
#pragma unroll 1
  for (int mask = 1; mask < kWarp; mask *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, mask));
  }
  const float share = own ? expf(chosen - largest) : 0.0f;
  const float weight = share / WarpSum(share);
  if (!own) return;
  shared.weights[row][lane] = weight;
  if (blockIdx.x != 0 || row >= p.rows || p.indices == nullptr) return;
  p.indices[row * p.top_k + lane] = memory;
  p.weights[row * p.top_k + lane] = weight;
}

template <int kRows>
__device__ inline void Route(const Params& p, const Layer& layer, Shared<kRows>& shared,
                             const float* x, uint4 first) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int per_memory = p.model_dim / kPartFeatures, parts = p.memories * per_memory;
#pragma unroll 1
  for (int i = warp; i < parts; i += kWarps) {
    const uint4 weights = i == warp ? first : LoadRouterPart(p, layer, i);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float values[8], sum = 0;
      LoadX(x + r * p.widest, i % per_memory, lane, values);
      AddDot(weights, values, sum);
      sum = WarpSum(sum);
      if (lane == 0) shared.router_parts[r][i] = sum;
    }
  }
  SyncCompute();
  if (warp < kRows) Choose(p, shared, warp);
  SyncCompute();
}

// ------------------------------------------------------------------- what follows the projections

// One output for one row. Units come as the loader brings them; what q and a projection for all
// memories give is for every column, the rest for one. Small, because it is kept in registers.
struct OutputTask {
  unsigned exists : 1, stream : 3, unit : 8, output : 3, row : 3;
  unsigned of_column : 1, column : 5;  // else that of its memory
  unsigned of_choice : 1, nth : 5;     // the nth of the chosen memories, else the shared one
  int channel;
};

__device__ inline void PlanOutputs(const Params& p, Plan& plan, int rows) {
  plan.known_units = OwnUnits(KnownUnits(p, plan.keys, plan.values));
#pragma unroll 1
  for (int n = 0; n <= kMaxMemories; ++n) {
    plan.chosen_units[n] = OwnUnits(n * MemoryUnits(p, plan.keys, plan.values));
  }
  plan.all_units = p.per_memory ? OwnUnits(UnitsOf(plan.keys)) : plan.known_units;
  plan.all_tasks = plan.all_units * kUnitRows * rows * p.columns;
}
template <int kRows>
__device__ inline int OutputTasks(const Plan& plan, int units) {
  return plan.all_tasks + (units - plan.all_units) * kUnitRows * kRows;
}
template <int kRows>
__device__ inline OutputTask MakeOutputTask(const Params& p, const Plan& plan, int task) {
  OutputTask out = {};
  if (task < plan.all_tasks) {
    out.of_column = 1;
    out.column = task % p.columns;
    task /= p.columns;
  } else {
    task += plan.all_units * kUnitRows * kRows - plan.all_tasks;
  }
  const int row = task % kRows, output = task / kRows % kUnitRows, at = task / kRows / kUnitRows;
  Unit unit;
  if (at < plan.known_units) {
    unit = KnownUnit(p, plan.keys, plan.values, OwnUnit(at));
  } else {
    const int index = OwnUnit(at - plan.known_units);
    const int units = MemoryUnits(p, plan.keys, plan.values);
    out.of_choice = 1;
    out.nth = index / units;
    unit = MemoryUnit(p, plan.keys, plan.values, 0, index % units);
  }
  out.stream = static_cast<unsigned>(unit.stream);
  out.unit = at;
  out.output = output;
  out.row = row;
  out.channel = unit.first + output;
  out.exists = output < unit.count && row < p.rows;
  if (unit.stream == Stream::kGate) {
    if (out.of_column && out.column > 0) out.exists = 0;
    out.of_column = 1;
    out.column = 0;
  }
  return out;
}

template <int kRows>
__device__ inline int ColumnOf(const Params& p, const Shared<kRows>& shared, unsigned chosen,
                               OutputTask task) {
  if (!task.exists || shared.slots[task.row] < 0) return -1;
  if (task.of_column) return static_cast<int>(task.column);
  int memory = p.memories;
  if (task.of_choice) {
#pragma unroll 1
    for (int n = task.nth; n > 0; --n) chosen &= chosen - 1;
    memory = __ffs(static_cast<int>(chosen)) - 1;
  }
  int column = p.columns - 1;
#pragma unroll 1
  while (column >= 0 && shared.memories[task.row][column] != memory) --column;
  return column;
}

template <int kRows>
__device__ inline float* WindowOf(const Layer& layer, const Shared<kRows>& shared, OutputTask task,
                                  int column) {
  const auto stream = static_cast<Stream>(task.stream);
  const delta::Field& field = stream == Stream::kQ   ? layer.q_window
                              : stream == Stream::kK ? layer.k_window
                                                     : layer.v_window;
  return field.At<float>(shared.slots[task.row], shared.memories[task.row][column]) + task.channel;
}
__device__ inline bool HasWindow(OutputTask task) {
  const auto stream = static_cast<Stream>(task.stream);
  return stream == Stream::kQ || stream == Stream::kK || stream == Stream::kV;
}

__device__ inline void CopyFloatAsync(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}

// What the convolution of a thread's output has to know, to shared memory: asked for ahead of the
// products, because it is far away.
template <int kRows>
__device__ inline void FetchPast(const Params& p, const Layer& layer, Shared<kRows>& shared,
                                 const bool (*fresh)[kMaxMemories], OutputTask task, int column) {
  if (column < 0 || !HasWindow(task)) return;
  const auto stream = static_cast<Stream>(task.stream);
  const int channels = stream == Stream::kV ? shared.plan.values : shared.plan.keys;
  const float* window = WindowOf(layer, shared, task, column);
  const float* filter = (stream == Stream::kQ   ? layer.q_conv
                         : stream == Stream::kK ? layer.k_conv
                                                : layer.v_conv) +
                        task.channel * p.conv_width;
  const bool is_fresh = fresh[task.row][shared.memories[task.row][column]];
  float* const past = shared.past[threadIdx.x];
#pragma unroll 1
  for (int i = 0; i < p.conv_width; ++i) {
    CopyFloatAsync(past + kMaxHistory + i, filter + i);
    if (i == p.conv_width - 1) break;
    if (is_fresh) {
      past[i] = 0;
    } else {
      CopyFloatAsync(past + i, window + i * channels);
    }
  }
}

template <int kRows>
__device__ inline void FinishOutput(const Params& p, const Layer& layer, Shared<kRows>& shared,
                                    OutputTask task, int column, uint32_t number) {
  if (column < 0) return;
  const int keys = shared.plan.keys, values = shared.plan.values, row = task.row;
  const auto stream = static_cast<Stream>(task.stream);
  const float newest = UnitSum(shared, task.unit, p.model_dim, task.output, row) *
                       NormScale(p, shared.squares, row, p.norm_eps);
  const int entry = row * p.columns + column;
  float result = newest;
  Word* to = stream == Stream::kGate ? p.gate + row * values
             : stream == Stream::kA  ? p.a + entry * p.value_heads
                                     : p.b + entry * p.value_heads;
  if (HasWindow(task)) {
    const int channels = stream == Stream::kV ? values : keys, history = p.conv_width - 1;
    const float* const past = shared.past[threadIdx.x];
    asm volatile("cp.async.wait_all;" ::: "memory");
    float* const window = WindowOf(layer, shared, task, column);
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < history; ++i) {
      sum = fmaf(past[kMaxHistory + i], past[i], sum);
      if (i > 0) window[(i - 1) * channels] = past[i];
    }
    if (history > 0) window[(history - 1) * channels] = newest;
    to = (stream == Stream::kQ ? p.q : stream == Stream::kK ? p.k : p.v) + entry * channels;
    result = Silu(fmaf(past[kMaxHistory + history], newest, sum));
  }
  Put(to + task.channel, result, number);
}

// --------------------------------------------------------------------------------- mix, gated norm

// When all that read them have, by one block: nothing is held back any longer, and what was fresh
// is written.
template <int kRows>
__device__ inline void MarkWritten(const Params& p, const Layer& layer, const Shared<kRows>& shared,
                                   const bool (*fresh)[kMaxMemories]) {
  const int row = threadIdx.x / p.columns;
  if (row >= p.rows || shared.slots[row] < 0) return;
  const int slot = shared.slots[row], memory = shared.memories[row][threadIdx.x % p.columns];
  if (p.capacity > 0) {
    auto* const range = layer.range.At<int2>(slot, memory);
    if (fresh[row][memory] || range->x != range->y) {
      const delta::Range empty = delta::EmptyRange(slot, memory, p.capacity);
      *range = {empty.begin, empty.end};
    }
  }
  *layer.written.At<uint8_t>(slot, memory) = 1;
}

// x = norm of each head of sum_j weight_j read_j, times silu(gate).
template <int kRows>
__device__ inline void Mix(const Params& p, const Layer& layer, Shared<kRows>& shared, int values,
                           float* x, uint32_t number) {
  enum : int { kPair = 2 * kWarp };  // channels of a warp, all of one head
  const int parts = p.value_dim / kPair;
#pragma unroll 1
  for (int r = 0; r < p.rows; ++r) {
    const bool active = shared.slots[r] >= 0;
#pragma unroll 1
    for (int i = 2 * threadIdx.x; i < values; i += 2 * kComputeThreads) {
      float2 factor = __ldg(reinterpret_cast<const float2*>(layer.out_norm + i % p.value_dim));
      float2 sum = {0, 0};
      if (active) {
        // All words are on their way at once.
        constexpr int kAtOnce = 4;
        const Word* const gate = p.gated ? p.gate + r * values : p.read + r * p.columns * values;
        uint64_t gates[2], reads[kAtOnce][2];
#pragma unroll 1
        for (int first = 0; first < p.columns; first += kAtOnce) {
          bool there;
          do {
            Peek2(gate + i, gates[0], gates[1]);
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
              const int column = min(first + j, p.columns - 1);
              Peek2(p.read + (r * p.columns + column) * values + i, reads[j][0], reads[j][1]);
            }
            there = Is(gates[0], number) && Is(gates[1], number);
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
              there = there && Is(reads[j][0], number) && Is(reads[j][1], number);
            }
          } while (!there);
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            const float weight = first + j < p.columns ? shared.weights[r][first + j] : 0.0f;
            sum.x = fmaf(weight, ValueOf(reads[j][0]), sum.x);
            sum.y = fmaf(weight, ValueOf(reads[j][1]), sum.y);
          }
        }
        if (p.gated) {
          factor.x *= Silu(ValueOf(gates[0]));
          factor.y *= Silu(ValueOf(gates[1]));
        }
      }
      const float squares = WarpSum(fmaf(sum.x, sum.x, sum.y * sum.y));
      if (threadIdx.x % kWarp == 0) shared.head_squares[r][i / kPair] = squares;
      *reinterpret_cast<float2*>(x + r * p.widest + PlaceInX(i)) = {sum.x * factor.x,
                                                                    sum.y * factor.y};
    }
  }
  SyncCompute();
#pragma unroll 1
  for (int r = 0; r < p.rows; ++r) {
#pragma unroll 1
    for (int i = 2 * threadIdx.x; i < values; i += 2 * kComputeThreads) {
      const float* squares = shared.head_squares[r] + i / p.value_dim * parts;
      float sum = 0;
#pragma unroll 1
      for (int part = 0; part < parts; ++part) sum += squares[part];
      const float scale = rsqrtf(sum / static_cast<float>(p.value_dim) + p.out_norm_eps);
      auto* const pair = reinterpret_cast<float2*>(x + r * p.widest + PlaceInX(i));
      *pair = {pair->x * scale, pair->y * scale};
    }
  }
  SyncCompute();
}

}  // namespace mneme::cuda::layers
