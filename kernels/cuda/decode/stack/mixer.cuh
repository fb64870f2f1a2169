// What decode/stack/stack.cu does around a mixer's products: convolutions and the way out.
#pragma once

#include "kernels/cuda/decode/stack/router.cuh"

namespace mneme::cuda::decode::stack {

// ------------------------------------------------------------------- what follows the projections

// One output for one row. Units come as the loader brings them; what q and a projection for all
// memories give is for every column, the rest for one. Small, because it is kept in registers.
struct OutputTask {
  unsigned exists : 1, stream : 3, unit : 8, output : 3, row : 3;
  unsigned of_column : 1, column : 5;  // else that of its memory
  unsigned of_choice : 1, nth : 5;     // the nth of the chosen memories, else the shared one
  int channel;

  // As Anew(int).
  __device__ OutputTask Anew() const {
    auto bits = *reinterpret_cast<const int2*>(this);
    asm volatile("" : "+r"(bits.x), "+r"(bits.y));
    return *reinterpret_cast<const OutputTask*>(&bits);
  }
};
static_assert(sizeof(OutputTask) == sizeof(int2));

__device__ inline void PlanOutputs(const Params& p, Plan& plan, int rows) {
  plan.known_units = OwnUnits(KnownUnits(p, plan.keys, plan.values));
  plan.memory_units = p.per_memory ? OwnUnits(MemoryUnits(p, plan.keys, plan.values)) : 0;
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
    // Where a block has none, no task gets here.
    const int index = at - plan.known_units, units = max(plan.memory_units, 1);
    out.of_choice = 1;
    out.nth = index / units;
    unit = MemoryUnit(p, plan.keys, plan.values, 0, OwnUnit(index % units));
  }
  out.stream = static_cast<unsigned>(unit.stream);
  out.unit = at;
  out.output = output;
  out.row = row;
  out.channel = unit.first + output;
  out.exists = output < unit.count && row < p.rows;
  if (unit.stream == Projection::kGate) {
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

// A window: [history, channels] f32, or bf16 if p.rounded_windows.
template <int kRows>
__device__ inline std::byte* WindowOf(const Layer& layer, const Shared<kRows>& shared,
                                      OutputTask task, int column) {
  const auto stream = static_cast<Projection>(task.stream);
  const Field& field = stream == Projection::kQ   ? layer.q_window
                       : stream == Projection::kK ? layer.k_window
                                                  : layer.v_window;
  return field.At<std::byte>(shared.slots[task.row], shared.memories[task.row][column]);
}
__device__ inline bool HasWindow(OutputTask task) {
  const auto stream = static_cast<Projection>(task.stream);
  return stream == Projection::kQ || stream == Projection::kK || stream == Projection::kV;
}

// Asks for what a thread's output needs besides the product, ahead of it, because it is far away.
template <int kRows>
__device__ inline void FetchPast(const Params& p, const Layer& layer, Shared<kRows>& shared,
                                 const Written (*written)[kMaxMemories], OutputTask task,
                                 int column) {
  if (column < 0) return;
  const auto stream = static_cast<Projection>(task.stream);
  Past& past = shared.past[Thread()];
  if (!HasWindow(task)) {
    if (stream != Projection::kA) return;
    CopyAsync4(past.window, layer.a_log + task.channel);
    CopyAsync4(past.window + 1, layer.dt_bias + task.channel);
    return;
  }
  const int channels = stream == Projection::kV ? shared.plan.values : shared.plan.keys;
  const std::byte* window = WindowOf(layer, shared, task, column);
  const float* filter = (stream == Projection::kQ   ? layer.q_conv
                         : stream == Projection::kK ? layer.k_conv
                                                    : layer.v_conv) +
                        task.channel * p.conv_width;
  const bool fresh = written[task.row][shared.memories[task.row][column]] == Written::kNever;
#pragma unroll 1
  for (int i = 0; i < p.conv_width; ++i) {
    CopyAsync4(past.filter + i, filter + i);
    if (i == p.conv_width - 1) break;
    if (fresh) {
      past.window[i] = 0;
    } else {
      // A value of bf16 is found in its pair.
      const int at = i * channels + task.channel;
      CopyAsync4(past.window + i, window + (p.rounded_windows ? at / 2 : at) * 4);
    }
  }
}

// Value `at` of a window, of the four bytes that FetchPast() has asked for.
__device__ inline float PastValue(const Params& p, float word, int at) {
  if (!p.rounded_windows) return word;
  const unsigned bits = __float_as_uint(word);
  return __uint_as_float(at % 2 != 0 ? bits & 0xffff0000u : bits << 16);
}

template <int kRows>
__device__ inline void FinishOutput(const Params& p, const Layer& layer, Shared<kRows>& shared,
                                    OutputTask task, int column, uint32_t number) {
  const int keys = shared.plan.keys, values = shared.plan.values, row = task.row;
  const int history = p.conv_width - 1, entry = row * p.columns + column;
  const auto stream = static_cast<Projection>(task.stream);
  const Past& past = shared.past[Thread()];
  float newest = UnitSum(shared, task.unit, p.model_dim, task.output, row) *
                 NormScale(p, shared, row, p.norm_eps);
  AwaitCopies();
  if (!HasWindow(task)) {
    Word* const to = stream == Projection::kGate ? p.gate + row * values
                     : stream == Projection::kA  ? p.decay + entry * p.value_heads
                                                 : p.beta + entry * p.value_heads;
    const float result = stream == Projection::kGate ? Silu(newest)
                         : stream == Projection::kA
                             ? expf(LogDecay(newest, past.window[0], past.window[1]))
                             : p.beta_scale * Sigmoid(newest);
    return Put(to + task.channel, result, number);
  }
  const int channels = stream == Projection::kV ? values : keys;
  if (p.rounded_windows) newest = ToFloat(FromFloat<__nv_bfloat16>(newest));
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < history; ++i) {
    sum = fmaf(past.filter[i], PastValue(p, past.window[i], i * channels + task.channel), sum);
  }
  Word* const to = (stream == Projection::kQ ? p.q : stream == Projection::kK ? p.k : p.v);
  Put(to + entry * channels + task.channel, Silu(fmaf(past.filter[history], newest, sum)), number);
  std::byte* const window = WindowOf(layer, shared, task, column);
#pragma unroll 1
  for (int i = 0; i < history; ++i) {
    const int at = i * channels + task.channel;
    const float value = i + 1 < history ? PastValue(p, past.window[i + 1], at + channels) : newest;
    if (p.rounded_windows) {
      reinterpret_cast<__nv_bfloat16*>(window)[at] = FromFloat<__nv_bfloat16>(value);
    } else {
      reinterpret_cast<float*>(window)[at] = value;
    }
  }
}

// --------------------------------------------------------------------------------- mix, gated norm

// When all that read them have, by one block: nothing is held back any longer, and what was fresh
// is written.
template <int kRows>
__device__ inline void MarkWritten(const Params& p, const Layer& layer, const Shared<kRows>& shared,
                                   const Written (*written)[kMaxMemories]) {
  const int row = Thread() / p.columns;
  if (row >= p.rows || shared.slots[row] < 0) return;
  const int slot = shared.slots[row], memory = shared.memories[row][Thread() % p.columns];
  if (p.capacity > 0 && written[row][memory] != Written::kAll) {
    const int phase = *p.phase.At<const int>(slot, 0);
    const matrix_memory::Range empty = matrix_memory::EmptyRange(phase, memory, p.capacity);
    *layer.range.At<int2>(slot, memory) = {empty.begin, empty.end};
  }
  *layer.written.At<uint8_t>(slot, memory) = 1;
}

// x = sum_j weight_j read_j, times the gate's silu and the norm's weight; head_squares has what is
// missing for the norm of each head, by which products scale.
template <int kRows>
__device__ inline void Mix(const Params& p, const Layer& layer, Shared<kRows>& shared, int values,
                           float* x, uint32_t number) {
  enum : int { kPair = 2 * kWarp };  // channels of a warp, all of one head
  const int columns = Anew(p.columns);
#pragma unroll 1
  for (int r = 0; r < p.rows; ++r) {
    const bool active = shared.slots[r] >= 0;
#pragma unroll 1
    for (int i = 2 * Thread(); i < values; i += 2 * kComputeThreads) {
      float2 factor = __ldg(reinterpret_cast<const float2*>(layer.out_norm + i % p.value_dim));
      float2 sum = {0, 0};
      if (active) {
        if (p.gated) {  // long there
          const float2 gate = Await2(p.gate + r * values + i, number);
          factor.x *= gate.x;
          factor.y *= gate.y;
        }
        // All words are on their way at once.
        constexpr int kAtOnce = 4;
        const Word* const read = p.read + r * columns * values + i;
#pragma unroll 1
        for (int first = 0; first < columns; first += kAtOnce) {
          uint64_t reads[kAtOnce][2];
          bool there;
          do {
            there = true;
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
              if (first + j < columns) {
                Peek2(read + (first + j) * values, reads[j][0], reads[j][1]);
              }
            }
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
              if (first + j < columns) {
                there = there && Is(reads[j][0], number) && Is(reads[j][1], number);
              }
            }
          } while (!there);
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            if (first + j < columns) {
              const float weight = shared.weights[r][first + j];
              sum.x = fmaf(weight, ValueOf(reads[j][0]), sum.x);
              sum.y = fmaf(weight, ValueOf(reads[j][1]), sum.y);
            }
          }
        }
      }
      const float squares = WarpSum(fmaf(sum.x, sum.x, sum.y * sum.y));
      if (Thread() % kWarp == 0) shared.head_squares[r][i / kPair] = squares;
      *reinterpret_cast<float2*>(x + r * p.widest + PlaceInX(i)) = {sum.x * factor.x,
                                                                    sum.y * factor.y};
    }
  }
  SyncCompute();
}

}  // namespace mneme::cuda::decode::stack
