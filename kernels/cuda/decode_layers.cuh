// The kernel of decode_layers.cu: five phases a layer, a barrier of the grid behind each.
#pragma once

#include <type_traits>

#include "kernels/cuda/decode_layers_ring.cuh"
#include "kernels/cuda/gated_delta_row.cuh"
#include "kernels/cuda/route_rank.cuh"

namespace mneme::cuda::layers {

// All compute warps; the loader goes its own way.
__device__ inline void SyncCompute() {
  asm volatile("bar.sync 1, %0;" ::"n"(static_cast<int>(kComputeThreads)) : "memory");
}

// All compute warps of all blocks; what they wrote before is seen behind it by loads that pass L1
// by, as __ldcg. `arrived` counts what the barrier has to reach.
__device__ inline void SyncGrid(unsigned* barrier, unsigned& arrived) {
  SyncCompute();
  if (threadIdx.x == 0) {
    arrived += gridDim.x;
    __threadfence();
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(barrier) : "memory");
    unsigned seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(barrier) : "memory");
    } while (static_cast<int>(seen - arrived) < 0);
  }
  SyncCompute();
}

// At the end: leaves the barrier as it was found.
__device__ inline void ResetGrid(unsigned* barrier) {
  if (threadIdx.x != 0) return;
  if (atomicAdd(barrier + 1, 1u) == gridDim.x - 1) {
    barrier[0] = 0;
    barrier[1] = 0;
  }
}

// -------------------------------------------------------------------------------- norm and router

// x = hidden * norm, less the factor 1 / |hidden|, which is the same for all: squares has its
// parts.
template <int kRows>
__device__ inline void LoadHidden(const Params& p, const float* norm, float* x,
                                  float (*squares)[kRows]) {
  float sums[kRows] = {};
  for (int i = 2 * threadIdx.x; i < p.model_dim; i += 2 * kComputeThreads) {
    const float2 weight = __ldg(reinterpret_cast<const float2*>(norm + i));
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float2 h = {0, 0};
      if (r < p.rows) {
        h = __ldcg(reinterpret_cast<const float2*>(p.hidden + int64_t{r} * p.model_dim + i));
      }
      sums[r] = fmaf(h.x, h.x, fmaf(h.y, h.y, sums[r]));
      *reinterpret_cast<float2*>(x + r * p.widest + PlaceInX(i)) = {h.x * weight.x, h.y * weight.y};
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = WarpSum(sums[r]);
    if (threadIdx.x % kWarp == 0) squares[threadIdx.x / kWarp][r] = sum;
  }
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
  float logit = 0;
  uint64_t rank = 0;
  if (lane < p.memories) {
    for (int i = 0; i < parts; ++i) logit += shared.router_parts[row][lane * parts + i];
    logit *= NormScale(p, shared.squares, row, p.norm_eps);
    if (p.round_logits) logit = __bfloat162float(__float2bfloat16_rn(logit));
    shared.logits[row][lane] = logit;
    rank = RouteRank(logit, lane);
  }
  int place = 0;
  for (int m = 0; m < p.memories; ++m) {
    if (__shfl_sync(kAllLanes, rank, m) > rank) ++place;
  }
  if (lane < p.memories && place < p.top_k && !given) shared.memories[row][place] = lane;
  if (lane < p.top_k && given) shared.memories[row][lane] = p.forced[row * p.top_k + lane];
  __syncwarp();
  if (lane == 0) Arrive(&shared.routed);

  // The weights of what is read are not needed before the third phase.
  const int memory = lane < p.top_k ? shared.memories[row][lane] : 0;
  const float chosen = lane < p.top_k ? shared.logits[row][memory] : -INFINITY;
  float largest = chosen;
  for (int mask = 1; mask < kWarp; mask *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, mask));
  }
  const float share = lane < p.top_k ? expf(chosen - largest) : 0.0f;
  const float weight = share / WarpSum(share);
  if (lane >= p.top_k) return;
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

// One output of a row in one of the memories that it goes to, and, of q, k and v, the past of the
// channel: asked for ahead of the products, because it is far away.
struct Output {
  bool active;
  Stream stream;
  int unit, output, row, column, channel;
  float* window;
  bool fresh;
  float past[kMaxHistory], filter[kMaxHistory + 1];
};

template <int kRows>
__device__ inline Output MakeOutput(const Params& p, const Layer& layer,
                                    const bool (*fresh)[kMaxStepMemories],
                                    const Shared<kRows>& shared, int keys, int values,
                                    int known_units, unsigned chosen, int task) {
  Output out = {};
  out.column = task % p.columns;
  task /= p.columns;
  out.row = task % kRows;
  task /= kRows;
  out.output = task % kUnitRows;
  out.unit = task / kUnitRows;
  const Unit unit = out.unit < known_units
                        ? KnownUnit(p, keys, values, OwnUnit(out.unit))
                        : ChosenUnit(p, keys, values, chosen, OwnUnit(out.unit - known_units));
  out.stream = unit.stream;
  out.channel = unit.first + out.output;
  if (out.output >= unit.count || out.row >= p.rows) return out;
  const int slot = shared.slots[out.row], memory = shared.memories[out.row][out.column];
  const bool of_all = unit.stream == Stream::kQ || !p.per_memory;
  out.active = slot >= 0 &&
               (unit.stream == Stream::kGate ? out.column == 0 : of_all || memory == unit.memory);
  const delta::Field* field = unit.stream == Stream::kQ   ? &layer.q_window
                              : unit.stream == Stream::kK ? &layer.k_window
                                                          : &layer.v_window;
  if (!out.active ||
      (unit.stream != Stream::kQ && unit.stream != Stream::kK && unit.stream != Stream::kV)) {
    return out;
  }
  const float* filter = unit.stream == Stream::kQ   ? layer.q_conv
                        : unit.stream == Stream::kK ? layer.k_conv
                                                    : layer.v_conv;
  const int channels = unit.stream == Stream::kV ? values : keys;
  out.window = field->At<float>(slot, memory) + out.channel;
  out.fresh = fresh[out.row][memory];
#pragma unroll
  for (int i = 0; i < kMaxHistory; ++i) {
    if (i < p.conv_width - 1 && !out.fresh) out.past[i] = out.window[i * channels];
  }
#pragma unroll
  for (int i = 0; i <= kMaxHistory; ++i) {
    if (i < p.conv_width) out.filter[i] = __ldg(filter + out.channel * p.conv_width + i);
  }
  return out;
}

template <int kRows>
__device__ inline void FinishOutput(const Params& p, const Shared<kRows>& shared, int keys,
                                    int values, const Output& out) {
  if (!out.active) return;
  const float newest = UnitSum(shared, out.unit, p.model_dim, out.output, out.row) *
                       NormScale(p, shared.squares, out.row, p.norm_eps);
  const int entry = out.row * p.columns + out.column;
  if (out.stream == Stream::kGate) {
    p.gate[out.row * values + out.channel] = newest;
    return;
  }
  if (out.stream == Stream::kA || out.stream == Stream::kB) {
    float* const gates = out.stream == Stream::kA ? p.a : p.b;
    gates[entry * p.value_heads + out.channel] = newest;
    return;
  }
  const int channels = out.stream == Stream::kV ? values : keys;
  const int history = p.conv_width - 1;
  float sum = 0, last = newest;
#pragma unroll
  for (int i = 0; i < kMaxHistory; ++i) {
    if (i >= history) continue;
    const float past = out.fresh ? 0.0f : out.past[i];
    sum = fmaf(out.filter[i], past, sum);
    if (i > 0) out.window[(i - 1) * channels] = past;
  }
#pragma unroll
  for (int i = 0; i <= kMaxHistory; ++i) {
    if (i == history) sum = fmaf(out.filter[i], last, sum);
  }
  if (history > 0) out.window[(history - 1) * channels] = newest;
  float* const y = out.stream == Stream::kQ ? p.q : out.stream == Stream::kK ? p.k : p.v;
  y[entry * channels + out.channel] = Silu(sum);
}

// ---------------------------------------------------------------------------------- the delta rule

// Two rows of a head's matrix, in a warp: asked for as soon as it is known which.
template <typename S, int kKeyDim>
struct MatrixRows {
  enum : int { kCount = 2, kSize = delta::Lane<kKeyDim>::kSize };
  using Word = typename std::conditional<std::is_same_v<S, float>, float4, uint2>::type;
  enum : int { kWords = kSize / 4 };

  bool active, fresh;
  int entry, head, first, slot, memory;
  S* state;
  Word words[kCount][kWords];

  template <int kRows>
  __device__ void Load(const Params& p, const Layer& layer,
                       const bool (*fresh_memories)[kMaxStepMemories], const Shared<kRows>& shared,
                       int task) {
    const int per_head = p.value_dim / kCount;
    first = task % per_head * kCount;
    task /= per_head;
    head = task % p.value_heads;
    entry = task / p.value_heads;
    const int row = entry / p.columns;
    active = row < p.rows && shared.slots[row] >= 0;
    if (!active) return;
    slot = shared.slots[row];
    memory = shared.memories[row][entry % p.columns];
    fresh = fresh_memories[row][memory];
    state = layer.state.At<S>(slot, memory) + (int64_t{head} * p.value_dim + first) * kKeyDim;
    if (fresh) return;
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int c = 0; c < kWords; ++c) {
        words[i][c] = __ldcs(reinterpret_cast<const Word*>(state + i * kKeyDim) + c * kWarp + lane);
      }
    }
  }
  __device__ void Unpack(float (&x)[kCount][kSize]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int c = 0; c < kWords; ++c) {
        if constexpr (std::is_same_v<S, float>) {
          x[i][4 * c] = words[i][c].x;
          x[i][4 * c + 1] = words[i][c].y;
          x[i][4 * c + 2] = words[i][c].z;
          x[i][4 * c + 3] = words[i][c].w;
        } else {
          const float2 a = __half22float2(reinterpret_cast<const __half2&>(words[i][c].x));
          const float2 b = __half22float2(reinterpret_cast<const __half2&>(words[i][c].y));
          x[i][4 * c] = a.x;
          x[i][4 * c + 1] = a.y;
          x[i][4 * c + 2] = b.x;
          x[i][4 * c + 3] = b.y;
        }
      }
    }
  }
};

// A row that other blocks of this launch wrote.
template <int kKeyDim>
__device__ inline void LoadFreshRow(const float* row, float (&x)[delta::Lane<kKeyDim>::kSize]) {
  const auto* vectors = reinterpret_cast<const float4*>(row) + threadIdx.x % kWarp;
#pragma unroll
  for (int c = 0; c < delta::Lane<kKeyDim>::kChunks; ++c) {
    const float4 four = __ldcg(vectors + c * kWarp);
    x[4 * c] = four.x;
    x[4 * c + 1] = four.y;
    x[4 * c + 2] = four.z;
    x[4 * c + 3] = four.w;
  }
}

// Adds writes that were held back to two rows, as PendingWrites says.
template <typename Rows, int kKeyDim>
__device__ inline void AddHeldBack(const Params& p, const Layer& layer, const Rows& rows,
                                   float (&s)[2][delta::Lane<kKeyDim>::kSize]) {
  if (p.capacity == 0) return;
  const int2 range = *layer.range.At<const int2>(rows.slot, rows.memory);
  if (range.x == range.y) return;
  const float* decays = layer.decays.At<const float>(rows.slot, rows.memory) + rows.head;
  const float* updates =
      layer.updates.At<const float>(rows.slot, rows.memory) + rows.head * p.value_dim + rows.first;
  const float* keys = layer.keys.At<const float>(rows.slot, rows.memory) +
                      rows.head / (p.value_heads / p.heads) * kKeyDim;
  float sum = 0;
  for (int j = range.x; j < range.y; ++j) sum += decays[j * p.value_heads];
  const float stored = expf(sum);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    for (float& x : s[i]) x *= stored;
  }
  sum = 0;
  for (int j = range.y - 1; j >= range.x; --j) {
    const float weight = expf(sum);
    sum += decays[j * p.value_heads];
    float key[delta::Lane<kKeyDim>::kSize];
    delta::LoadRow<kKeyDim>(keys + int64_t{j} * p.heads * kKeyDim, key);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float u = weight * updates[int64_t{j} * p.value_heads * p.value_dim + i];
#pragma unroll
      for (int n = 0; n < delta::Lane<kKeyDim>::kSize; ++n) s[i][n] = fmaf(u, key[n], s[i][n]);
    }
  }
}

template <typename S, int kKeyDim>
__device__ inline void WriteAndRead(const Params& p, const Layer& layer,
                                    const MatrixRows<S, kKeyDim>& rows) {
  constexpr int kSize = delta::Lane<kKeyDim>::kSize;
  if (!rows.active) return;
  const int lane = threadIdx.x % kWarp, entry = rows.entry, head = rows.head;
  const int at_head = entry * p.value_heads + head;
  const int at_key = (entry * p.heads + head / (p.value_heads / p.heads)) * kKeyDim;
  float k[kSize], q[kSize];
  LoadFreshRow<kKeyDim>(p.k + at_key, k);
  LoadFreshRow<kKeyDim>(p.q + at_key, q);
  const float2 v =
      __ldcg(reinterpret_cast<const float2*>(p.v + at_head * p.value_dim + rows.first));
  const float log_decay = LogDecay(__ldcg(p.a + at_head), layer.a_log[head], layer.dt_bias[head]);
  const float beta = p.beta_scale * Sigmoid(__ldcg(p.b + at_head));
  float s[2][kSize] = {};
  if (!rows.fresh) {
    rows.Unpack(s);
    AddHeldBack<MatrixRows<S, kKeyDim>, kKeyDim>(p, layer, rows, s);
  }
  float dots[8] = {delta::DotLane(k, k),    delta::DotLane(q, q),
                   delta::DotLane(k, q),    0,
                   delta::DotLane(s[0], k), delta::DotLane(s[0], q),
                   delta::DotLane(s[1], k), delta::DotLane(s[1], q)};
  const float sum = WarpSums(dots, lane);
  const auto dot = [&](int i) { return __shfl_sync(kAllLanes, sum, i * 4); };
  const float k_scale = 1.0f / sqrtf(dot(0) + 1e-6f);
  const float q_scale = rsqrtf(static_cast<float>(kKeyDim)) / sqrtf(dot(1) + 1e-6f);
  const float k_dot_q = dot(2) * k_scale * q_scale;
  const float decay = expf(log_decay);
  const delta::Write first =
      delta::OneToken(dot(4) * k_scale, dot(5) * q_scale, k_dot_q, v.x, decay, beta);
  const delta::Write second =
      delta::OneToken(dot(6) * k_scale, dot(7) * q_scale, k_dot_q, v.y, decay, beta);
  if (lane == 0) {
    *reinterpret_cast<float2*>(p.read + at_head * p.value_dim + rows.first) = {first.out,
                                                                               second.out};
  }
  const float u[2] = {first.u * k_scale, second.u * k_scale};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int n = 0; n < kSize; ++n) s[i][n] = fmaf(u[i], k[n], decay * s[i][n]);
    delta::StoreRow<kKeyDim>(rows.state + i * kKeyDim, s[i]);
  }
}

// --------------------------------------------------------------------------------- mix, gated norm

// Behind the kernel's last read of them, by one block: nothing is held back any longer, and what
// was fresh is written.
template <int kRows>
__device__ inline void MarkWritten(const Params& p, const Layer& layer,
                                   const bool (*fresh)[kMaxStepMemories],
                                   const Shared<kRows>& shared) {
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
                           float* x) {
  enum : int { kPair = 2 * kWarp };  // channels of a warp, all of one head
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= p.rows) continue;
    for (int i = 2 * threadIdx.x; i < values; i += 2 * kComputeThreads) {
      float2 factor = __ldg(reinterpret_cast<const float2*>(layer.out_norm + i % p.value_dim));
      if (p.gated) {
        const float2 gate = __ldcg(reinterpret_cast<const float2*>(p.gate + r * values + i));
        factor.x *= Silu(gate.x);
        factor.y *= Silu(gate.y);
      }
      float2 sum = {0, 0};
      for (int j = 0; j < p.columns; ++j) {
        const float2 read =
            __ldcg(reinterpret_cast<const float2*>(p.read + (r * p.columns + j) * values + i));
        const float weight = shared.weights[r][j];
        sum.x = fmaf(weight, read.x, sum.x);
        sum.y = fmaf(weight, read.y, sum.y);
      }
      const float squares = WarpSum(fmaf(sum.x, sum.x, sum.y * sum.y));
      if (threadIdx.x % kWarp == 0) shared.head_squares[r][i / kPair] = squares;
      *reinterpret_cast<float2*>(x + r * p.widest + PlaceInX(i)) = {sum.x * factor.x,
                                                                    sum.y * factor.y};
    }
  }
  SyncCompute();
  const int parts = p.value_dim / kPair;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= p.rows) continue;
    for (int i = 2 * threadIdx.x; i < values; i += 2 * kComputeThreads) {
      const float* squares = shared.head_squares[r] + i / p.value_dim * parts;
      float sum = 0;
      for (int part = 0; part < parts; ++part) sum += squares[part];
      const float scale = rsqrtf(sum / static_cast<float>(p.value_dim) + p.out_norm_eps);
      auto* const pair = reinterpret_cast<float2*>(x + r * p.widest + PlaceInX(i));
      *pair = {pair->x * scale, pair->y * scale};
    }
  }
  SyncCompute();
}

// ----------------------------------------------------------------------------------------- the
// rest

template <int kRows>
__device__ inline void LoadInputs(const Params& p, const float* from, int features, float* x) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= p.rows) continue;
    for (int i = 4 * threadIdx.x; i < features; i += 4 * kComputeThreads) {
      *reinterpret_cast<float4*>(x + r * p.widest + PlaceInX(i)) =
          __ldcg(reinterpret_cast<const float4*>(from + int64_t{r} * features + i));
    }
  }
  SyncCompute();
}

// hidden += x W^T, of a matrix of this model's width.
template <int kRows>
__device__ inline void AddToHidden(const Params& p, Shared<kRows>& shared,
                                   const unsigned char* ring, const float* x, int features,
                                   unsigned& used) {
  const int units = OwnUnits(UnitsOf(p.model_dim));
  Multiply(p, shared, ring, x, units * StagesOf(features), features, used);
  SyncCompute();
  for (int t = threadIdx.x; t < units * kUnitRows * kRows; t += kComputeThreads) {
    const int row = t % kRows, output = t / kRows % kUnitRows, unit = t / kRows / kUnitRows;
    const int channel = OwnUnit(unit) * kUnitRows + output;
    if (row >= p.rows || channel >= p.model_dim) continue;
    float* const hidden = p.hidden + int64_t{row} * p.model_dim + channel;
    *hidden = __ldcg(hidden) + UnitSum(shared, unit, features, output, row);
  }
}

template <int kRows>
__device__ inline void CopyLayer(const Params& p, Shared<kRows>& shared, int index) {
  if (index >= p.count) return;
  const auto* from = reinterpret_cast<const uint4*>(p.layers + index);
  auto* const to = reinterpret_cast<uint4*>(shared.layers + index % 2);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(Layer) / 16); i += kComputeThreads) {
    to[i] = __ldg(from + i);
  }
}

// Which memories of the rows were never written, in a layer whose pointers are there already.
template <int kRows>
__device__ inline void LoadFresh(const Params& p, Shared<kRows>& shared, int index) {
  const int row = threadIdx.x / kMaxStepMemories, memory = threadIdx.x % kMaxStepMemories;
  if (row >= kRows || memory >= p.memories + (p.shared ? 1 : 0) || shared.slots[row] < 0) return;
  shared.fresh[index % 2][row][memory] =
      *shared.layers[index % 2].written.template At<const uint8_t>(shared.slots[row], memory) == 0;
}

template <typename S, int kRows, int kKeyDim>
__device__ inline void Compute(const Params& p, Shared<kRows>& shared, const unsigned char* ring,
                               float* x) {
  const int keys = p.heads * kKeyDim, values = p.value_heads * p.value_dim;
  const int warp = threadIdx.x / kWarp;
  unsigned used = 0, arrived = 0;
  CopyLayer(p, shared, 0);
  SyncCompute();
  uint4 router = LoadRouterPart(p, shared.layers[0], warp);
  LoadFresh(p, shared, 0);
  for (int l = 0; l < p.count; ++l) {
    const Layer& layer = shared.layers[l % 2];
    const auto* const fresh = shared.fresh[l % 2];

    // Norm, router, projections, convolutions.
    LoadHidden(p, layer.norm, x, shared.squares);
    SyncCompute();
    if (p.memories > 0) Route(p, layer, shared, x, router);
    const unsigned chosen = ChosenMemories(p, shared);
    const int known_units = OwnUnits(KnownUnits(p, keys, values));
    const int units = known_units + OwnUnits(__popc(chosen) * MemoryUnits(p, keys, values));
    const int outputs = units * kUnitRows * kRows * p.columns;
    const auto output = [&](int task) {
      return MakeOutput(p, layer, fresh, shared, keys, values, known_units, chosen, task);
    };
    Output first = {};
    if (static_cast<int>(threadIdx.x) < outputs) first = output(threadIdx.x);
    const int matrix_tasks = p.rows * p.columns * values / 2;
    const int matrix_task = warp * gridDim.x + blockIdx.x;
    MatrixRows<S, kKeyDim> rows;
    rows.active = false;
    if (matrix_task < matrix_tasks) rows.Load(p, layer, fresh, shared, matrix_task);
    Multiply(p, shared, ring, x, units * StagesOf(p.model_dim), p.model_dim, used);
    SyncCompute();
    FinishOutput(p, shared, keys, values, first);
    for (int t = threadIdx.x + kComputeThreads; t < outputs; t += kComputeThreads) {
      FinishOutput(p, shared, keys, values, output(t));
    }
    SyncGrid(p.barrier, arrived);

    // The memories.
    WriteAndRead(p, layer, rows);
    for (int t = matrix_task + kWarps * gridDim.x; t < matrix_tasks; t += kWarps * gridDim.x) {
      rows.Load(p, layer, fresh, shared, t);
      WriteAndRead(p, layer, rows);
    }
    SyncGrid(p.barrier, arrived);

    // What was read, to the hidden state.
    if (blockIdx.x == 0) MarkWritten(p, layer, fresh, shared);
    Mix(p, layer, shared, values, x);
    AddToHidden(p, shared, ring, x, values, used);
    SyncGrid(p.barrier, arrived);

    // The feed-forward part.
    CopyLayer(p, shared, l + 1);
    LoadHidden(p, layer.mlp_norm, x, shared.squares);
    SyncCompute();
    const int pairs = OwnUnits(UnitsOf(p.mlp_dim));
    Multiply(p, shared, ring, x, 2 * pairs * StagesOf(p.model_dim), p.model_dim, used);
    SyncCompute();
    for (int t = threadIdx.x; t < pairs * kUnitRows * kRows; t += kComputeThreads) {
      const int row = t % kRows, at = t / kRows % kUnitRows, pair = t / kRows / kUnitRows;
      const int channel = OwnUnit(pair) * kUnitRows + at;
      if (row >= p.rows || channel >= p.mlp_dim) continue;
      const float scale = NormScale(p, shared.squares, row, p.mlp_norm_eps);
      const float gate = UnitSum(shared, 2 * pair, p.model_dim, at, row) * scale;
      const float up = UnitSum(shared, 2 * pair + 1, p.model_dim, at, row) * scale;
      p.act[int64_t{row} * p.mlp_dim + channel] = Silu(gate) * up;
    }
    SyncGrid(p.barrier, arrived);
    LoadInputs<kRows>(p, p.act, p.mlp_dim, x);
    const bool last = l + 1 == p.count;
    if (!last) {
      router = LoadRouterPart(p, shared.layers[(l + 1) % 2], warp);
      LoadFresh(p, shared, l + 1);
    }
    AddToHidden(p, shared, ring, x, p.mlp_dim, used);
    if (!last) SyncGrid(p.barrier, arrived);
  }
  ResetGrid(p.barrier);
}

template <typename S, int kRows, int kKeyDim>
__global__ void __launch_bounds__(kThreads, 1) LayersKernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* const ring = memory;
  auto* const x = reinterpret_cast<float*>(memory + RingSlots(kRows) * kStageBytes);
  auto& shared = *reinterpret_cast<Shared<kRows>*>(x + p.widest * kRows);
  if (threadIdx.x == 0) {
    for (int i = 0; i < RingSlots(kRows); ++i) {
      InitArrivals(shared.full + i, 1);
      InitArrivals(shared.empty + i, kParts);
    }
    InitArrivals(&shared.routed, kRows);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
  if (threadIdx.x < kComputeThreads) {
    Compute<S, kRows, kKeyDim>(p, shared, ring, x);
  } else {
    Loader<kRows>(p, shared, ring).Run(p.heads * kKeyDim, p.value_heads * p.value_dim);
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
  device.Check(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel),
                                           dim3(device.multiprocessors()), dim3(kThreads),
                                           arguments, bytes, device.stream()),
               "layers of a decode step");
}

template <typename S, int kKeyDim>
void LaunchRows(Device& device, const Params& p) {
  if (p.rows == 1) return Launch<S, 1, kKeyDim>(device, p);
  if (p.rows == 2) return Launch<S, 2, kKeyDim>(device, p);
  Launch<S, 4, kKeyDim>(device, p);
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
