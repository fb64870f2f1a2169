// Everything of a mixer's decode step in front of its memories, for a few rows: each block takes
// the norm and the router's choice for itself, which costs less than a launch, and then a share of
// the projections' outputs. A convolution's window belongs to the lane that makes its newest value.
#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/decode_step.h"
#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/route_rank.cuh"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

enum class Stream : int { kQ, kK, kV, kA, kB, kGate };
enum : int { kStreams = 6 };

struct Projection {
  const void* weights[kMaxStepMemories];  // [outputs, model_dim] each
  int count;                              // 1: for all memories
  int outputs;
  int first_block;
  float* y;
  // Of q, k, v.
  const float* conv;  // [outputs, width]
  StateView window;
};

struct Params {
  Projection projections[kStreams];
  const float* hidden;
  const float* norm;
  float norm_eps;
  int model_dim;
  const void* router;
  bool round_logits;
  int memories, top_k, columns, rows, conv_width;
  const int32_t* row_slots;
  const int32_t* forced;
  StateView written;
  int32_t* indices;
  float* weights;
  StepBuffers buffers;
};

// Which row's token goes to which memories, in shared memory.
template <int kRows>
struct Routes {
  float logits[kRows][kMaxStepMemories];
  int memory[kRows][kMaxStepMemories];  // of each column
};

// By one thread per row.
template <int kRows>
__device__ inline void Choose(const Params& p, int row, Routes<kRows>& routes) {
  uint64_t last = ~uint64_t{0};
  for (int j = 0; j < p.top_k; ++j) {
    if (p.forced != nullptr) {
      routes.memory[row][j] = p.forced[row * p.top_k + j];
      continue;
    }
    uint64_t best = 0;
    for (int m = 0; m < p.memories; ++m) {
      const uint64_t rank = RouteRank(routes.logits[row][m], m);
      if (rank < last && rank > best) best = rank;
    }
    routes.memory[row][j] = MemoryOfRank(best);
    last = best;
  }
  if (p.columns > p.top_k) routes.memory[row][p.top_k] = p.memories;
}

// By one block: what the kernels behind this one read.
template <int kRows>
__device__ inline void WriteRoutes(const Params& p, const Routes<kRows>& routes) {
  const int row = threadIdx.x;
  if (row >= p.rows) return;
  const int slot = p.row_slots[row];
  for (int j = 0; j < p.columns; ++j) {
    const int entry = row * p.columns + j, memory = routes.memory[row][j];
    p.buffers.offsets[entry] = entry;
    p.buffers.slots[entry] = slot;
    p.buffers.memories[entry] = memory;
    p.buffers.fresh[entry] =
        slot >= 0 && *MemoryAt<const uint8_t>(p.written, slot, memory) == 0 ? 1 : 0;
  }
  if (row == 0) p.buffers.offsets[p.rows * p.columns] = p.rows * p.columns;
  float largest = -INFINITY;
  for (int j = 0; j < p.top_k; ++j) {
    largest = fmaxf(largest, routes.logits[row][routes.memory[row][j]]);
  }
  float sum = 0;
  for (int j = 0; j < p.top_k; ++j) {
    sum += expf(routes.logits[row][routes.memory[row][j]] - largest);
  }
  for (int j = 0; j < p.top_k; ++j) {
    p.indices[row * p.top_k + j] = routes.memory[row][j];
    p.weights[row * p.top_k + j] = expf(routes.logits[row][routes.memory[row][j]] - largest) / sum;
  }
}

// What a lane has to know of a window to move it on by its newest value: asked for ahead of the
// products, all at once, because each value is far away.
struct Past {
  enum : int { kMostHistory = 3 };
  float* window;  // of the channel; null: padding
  bool fresh;
  float values[kMostHistory];
};

__device__ inline Past LoadPast(const Params& p, const Projection& projection, int slot, int memory,
                                int channel) {
  Past past = {};
  if (slot < 0) return past;
  past.window = MemoryAt<float>(projection.window, slot, memory) + channel;
  const uint8_t written = *MemoryAt<const uint8_t>(p.written, slot, memory);
#pragma unroll
  for (int i = 0; i < Past::kMostHistory; ++i) {
    if (i < p.conv_width - 1) past.values[i] = past.window[int64_t{i} * projection.outputs];
  }
  past.fresh = written == 0;
  return past;
}

// silu of the convolution at one channel; the window moves on by `newest`.
__device__ inline float Convolve(const Params& p, const Projection& projection, const Past& past,
                                 int channel, float newest) {
  const int history = p.conv_width - 1;
  const float* weight = projection.conv + int64_t{channel} * p.conv_width;
  float sum = 0;
  if (history <= Past::kMostHistory) {
    float values[Past::kMostHistory];
#pragma unroll
    for (int i = 0; i < Past::kMostHistory; ++i) {
      values[i] = past.fresh ? 0.0f : past.values[i];
      if (i < history) sum = fmaf(weight[i], values[i], sum);
    }
    if (past.window != nullptr) {
#pragma unroll
      for (int i = 1; i < Past::kMostHistory; ++i) {
        if (i < history) past.window[int64_t{i - 1} * projection.outputs] = values[i];
      }
    }
  } else if (past.window != nullptr) {
    for (int i = 0; i < history; ++i) {
      const float value = past.fresh ? 0.0f : past.window[int64_t{i} * projection.outputs];
      sum = fmaf(weight[i], value, sum);
      if (i > 0) past.window[int64_t{i - 1} * projection.outputs] = value;
    }
  }
  if (past.window != nullptr && history > 0) {
    past.window[int64_t{history - 1} * projection.outputs] = newest;
  }
  return Silu(fmaf(weight[history], newest, sum));
}

// Blocks of a projection: for one row, of the memories that it will choose; else of all.
template <int kRows>
__host__ __device__ inline int MatricesOf(const Params& p, const Projection& projection) {
  return kRows == 1 && projection.count > 1 ? p.columns : projection.count;
}

template <typename T, int kPiece, int kRows, int kOutputs>
__global__ void __launch_bounds__(kThreads, 2) ProjectKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) float x[];  // [kRows, model_dim], times the norm's weight
  __shared__ Routes<kRows> routes;
  __shared__ float squares[kWarps][kRows];
  __shared__ int entry_rows[kRows], entry_columns[kRows], entry_count;

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int stream = 0;
  while (stream + 1 < kStreams &&
         static_cast<int>(blockIdx.x) >= p.projections[stream + 1].first_block) {
    ++stream;
  }
  const Projection& projection = p.projections[stream];
  const int blocks_per_matrix = (projection.outputs + kWarps * kOutputs - 1) / (kWarps * kOutputs);
  const int block = blockIdx.x - projection.first_block;
  const int first = ((block % blocks_per_matrix) * kWarps + warp) * kOutputs;
  // Which of the matrices; with one row and several, the column that will say.
  int matrix = block / blocks_per_matrix;
  const bool is_one_of_many = projection.count > 1;
  const bool by_column = kRows == 1 && is_one_of_many;
  const int column = by_column ? matrix : -1;
  const bool known = !is_one_of_many || (by_column ? column == p.top_k : matrix == p.memories);
  if (by_column && known) matrix = p.memories;
  const T* rows[kOutputs];
  WeightRound<T, kPiece, kOutputs> round;
  const auto start = [&] {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      rows[o] = static_cast<const T*>(projection.weights[matrix]) +
                int64_t{min(first + o, projection.outputs - 1)} * p.model_dim;
    }
    StartRows(rows, p.model_dim, lane, round);
  };
  if (known) start();  // nobody writes them
  if (blockIdx.x < 8) {
    for (int m = warp; m < p.memories; m += kWarps) {
      PrefetchRow(static_cast<const T*>(p.router) + int64_t{m} * p.model_dim, p.model_dim, lane);
    }
    if (warp == 0) PrefetchRow(p.norm, p.model_dim, lane);
  }
  LetNextKernelStart();
  WaitForPreviousKernel();

  // The norm is a factor of each row, and so of each product: it is not waited for.
  float sums_of_squares[kRows] = {};
  for (int i = threadIdx.x; i < p.model_dim; i += kThreads) {
    const float weight = p.norm[i];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float h = r < p.rows ? p.hidden[int64_t{r} * p.model_dim + i] : 0.0f;
      sums_of_squares[r] = fmaf(h, h, sums_of_squares[r]);
      x[r * p.model_dim + PlaceOf<kPiece>(i, p.model_dim)] = h * weight;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = WarpSum(sums_of_squares[r]);
    if (lane == 0) squares[warp][r] = sum;
  }
  __syncthreads();
  float scale[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += squares[w][r];
    scale[r] = rsqrtf(sum / static_cast<float>(p.model_dim) + p.norm_eps);
  }

  const bool is_last = blockIdx.x == gridDim.x - 1;
  if (stream != static_cast<int>(Stream::kGate) || is_last) {
    for (int m = warp; m < p.memories; m += kWarps) {
      const T* const row[1] = {static_cast<const T*>(p.router) + int64_t{m} * p.model_dim};
      const float* entries[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) entries[r] = x + r * p.model_dim;
      float sums[kRows] = {};
      WeightRound<T, kPiece, 1> weights;
      weights.Load(row, lane * kPiece, p.model_dim);
      AddProducts(row, weights, entries, p.model_dim, lane, sums);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = WarpSum(sums[r]) * scale[r];
        if (lane == 0) {
          routes.logits[r][m] = p.round_logits ? __bfloat162float(__float2bfloat16_rn(sum)) : sum;
        }
      }
    }
    __syncthreads();
    if (threadIdx.x < kRows) Choose(p, threadIdx.x, routes);
    __syncthreads();
    if (is_last) WriteRoutes(p, routes);
  }

  // The rows that this block's matrix is for, and their columns; -1: all columns.
  int count = 1;
  if constexpr (kRows == 1) {
    if (by_column && !known) {
      matrix = routes.memory[0][column];
      start();
    }
  } else {
    if (threadIdx.x == 0) {
      int found = 0;
      for (int r = 0; r < p.rows; ++r) {
        if (!is_one_of_many) {
          entry_rows[found] = r;
          entry_columns[found++] = -1;
          continue;
        }
        for (int j = 0; j < p.columns; ++j) {
          if (routes.memory[r][j] != matrix) continue;
          entry_rows[found] = r;
          entry_columns[found++] = j;
        }
      }
      entry_count = found;
    }
    __syncthreads();
    count = entry_count;
    if (count == 0) return;
    if (!known) start();
  }
  if (first >= projection.outputs) return;

  // Several lanes end up with each sum: each takes other columns.
  constexpr int kLanesPerSum = kWarp / (kOutputs * kRows);
  const int output = first + lane / kLanesPerSum / kRows, e = lane / kLanesPerSum % kRows;
  const int part = lane % kLanesPerSum;
  const bool own = output < projection.outputs && e < count;
  const int row = kRows == 1 || !own ? 0 : entry_rows[e];
  const int of_entry = kRows == 1 ? column : own ? entry_columns[e] : 0;
  const int begin = of_entry < 0 ? 0 : of_entry;
  const int end = !own ? 0 : of_entry < 0 ? p.columns : begin + 1;
  const int slot = p.row_slots[row];
  Past past = {};
  if (projection.conv != nullptr && begin + part < end) {
    past = LoadPast(p, projection, slot, routes.memory[row][begin + part], output);
  }

  const float* entries[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    entries[i] = x + (kRows == 1 ? 0 : entry_rows[min(i, count - 1)]) * p.model_dim;
  }
  float sums[kOutputs * kRows] = {};
  AddProducts(rows, round, entries, p.model_dim, lane, sums);
  const float sum = WarpSums(sums, lane);
  if (!own) return;
  float row_scale = scale[0];
#pragma unroll
  for (int r = 1; r < kRows; ++r) row_scale = row == r ? scale[r] : row_scale;
  const float value = sum * row_scale;

  if (stream == static_cast<int>(Stream::kGate)) {
    if (part == 0) projection.y[int64_t{row} * projection.outputs + output] = value;
    return;
  }
  for (int j = begin + part; j < end; j += kLanesPerSum) {
    float* y = projection.y + int64_t{row * p.columns + j} * projection.outputs + output;
    if (projection.conv == nullptr) {
      *y = value;
      continue;
    }
    if (j != begin + part) {
      past = LoadPast(p, projection, slot, routes.memory[row][j], output);
    }
    *y = Convolve(p, projection, past, output, value);
  }
}

template <typename T, int kPiece, int kRows, int kOutputs>
void Launch(Device& device, Params& p) {
  int blocks = 0;
  for (Projection& projection : p.projections) {
    projection.first_block = blocks;
    blocks += MatricesOf<kRows>(p, projection) *
              ((projection.outputs + kWarps * kOutputs - 1) / (kWarps * kOutputs));
  }
  LaunchOverlapping(device, "projections of a decode step",
                    ProjectKernel<T, kPiece, kRows, kOutputs>, blocks, kThreads,
                    static_cast<int64_t>(sizeof(float)) * kRows * p.model_dim, 1, p);
}

template <typename T, int kPiece>
void LaunchRows(Device& device, Params& p) {
  if (p.rows == 1) return Launch<T, kPiece, 1, 4>(device, p);
  Launch<T, kPiece, kMaxFewRows, 4>(device, p);
}

void Take(Projection& projection, std::span<const PackedMatrix> matrices, float* y) {
  projection.count = static_cast<int>(matrices.size());
  for (int i = 0; i < projection.count; ++i) projection.weights[i] = matrices[i].data;
  projection.outputs = matrices[0].out_features;
  projection.y = y;
}

}  // namespace

void LaunchStepProjections(Device& device, const DeltaMixerStepArgs& args,
                           const StepBuffers& buffers) {
  Params p = {};
  Take(p.projections[static_cast<int>(Stream::kQ)], {&args.q_proj, 1}, buffers.q);
  Take(p.projections[static_cast<int>(Stream::kK)], args.k_proj, buffers.k);
  Take(p.projections[static_cast<int>(Stream::kV)], args.v_proj, buffers.v);
  Take(p.projections[static_cast<int>(Stream::kA)], args.a_proj, buffers.a);
  Take(p.projections[static_cast<int>(Stream::kB)], args.b_proj, buffers.b);
  if (args.g_proj.data != nullptr) {
    Take(p.projections[static_cast<int>(Stream::kGate)], {&args.g_proj, 1}, buffers.gate);
  }
  const auto convolve = [&](Stream stream, const TensorView& conv, const StateView& window) {
    p.projections[static_cast<int>(stream)].conv = conv.as<const float>();
    p.projections[static_cast<int>(stream)].window = window;
  };
  convolve(Stream::kQ, args.q_conv, args.q_window);
  convolve(Stream::kK, args.k_conv, args.k_window);
  convolve(Stream::kV, args.v_conv, args.v_window);
  p.hidden = args.hidden.as<const float>();
  p.norm = args.norm.as<const float>();
  p.norm_eps = args.norm_eps;
  p.model_dim = static_cast<int>(args.hidden.shape[1]);
  p.router = args.router.data;
  p.round_logits = args.round_logits == DType::kBF16;
  p.memories = args.memories;
  p.top_k = args.memories == 0 ? 0 : args.top_k;
  p.columns = buffers.columns;
  p.rows = buffers.rows;
  p.conv_width = static_cast<int>(args.q_conv.shape[1]);
  p.row_slots = args.slots.as<const int32_t>();
  p.forced = args.forced.as<const int32_t>();
  p.written = args.written;
  p.indices = args.indices.as<int32_t>();
  p.weights = args.weights.as<float>();
  p.buffers = buffers;

  const bool aligned = p.model_dim % 8 == 0;
  switch (args.q_proj.dtype) {
    case DType::kBF16:
      return aligned ? LaunchRows<__nv_bfloat16, 8>(device, p)
                     : LaunchRows<__nv_bfloat16, 1>(device, p);
    case DType::kF16:
      return aligned ? LaunchRows<__half, 8>(device, p) : LaunchRows<__half, 1>(device, p);
    default:
      return aligned ? LaunchRows<float, 4>(device, p) : LaunchRows<float, 1>(device, p);
  }
}

}  // namespace mneme::cuda
