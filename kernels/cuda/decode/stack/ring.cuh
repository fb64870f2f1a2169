// The stream of weights of decode/stack/stack.cu: which block multiplies what, a warp that brings
// it into a ring in shared memory as far ahead as the ring allows, and the products.
#pragma once

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/decode/stack/words.cuh"

namespace mneme::cuda::decode::stack {

enum class Projection : int { kQ, kGate, kK, kV, kA, kB };

// Up to kUnitRows consecutive outputs of one matrix.
struct Unit {
  Projection stream;
  int memory;  // whose matrix it is
  int first, count;
};

__device__ inline int UnitsOf(int outputs) { return (outputs + kUnitRows - 1) / kUnitRows; }

__device__ inline Unit MakeUnit(Projection stream, int memory, int outputs, int index) {
  const int first = index * kUnitRows;
  return {stream, memory, first, min(static_cast<int>(kUnitRows), outputs - first)};
}

// The units of k, v, a and b of one memory.
__device__ inline int MemoryUnits(const Params& p, int keys, int values) {
  return UnitsOf(keys) + UnitsOf(values) + 2 * UnitsOf(p.value_heads);
}
__device__ inline Unit MemoryUnit(const Params& p, int keys, int values, int memory, int index) {
  if (index < UnitsOf(keys)) return MakeUnit(Projection::kK, memory, keys, index);
  index -= UnitsOf(keys);
  if (index < UnitsOf(values)) return MakeUnit(Projection::kV, memory, values, index);
  index -= UnitsOf(values);
  const int gates = UnitsOf(p.value_heads);
  if (index < gates) return MakeUnit(Projection::kA, memory, p.value_heads, index);
  return MakeUnit(Projection::kB, memory, p.value_heads, index - gates);
}

// Known before the router has chosen: q, the output's gate, and the memory of all tokens.
__device__ inline bool HasKnownMemory(const Params& p) { return p.shared || !p.per_memory; }
__device__ inline int KnownUnits(const Params& p, int keys, int values) {
  return UnitsOf(keys) + (p.gated ? UnitsOf(values) : 0) +
         (HasKnownMemory(p) ? MemoryUnits(p, keys, values) : 0);
}
__device__ inline Unit KnownUnit(const Params& p, int keys, int values, int index) {
  if (index < UnitsOf(keys)) return MakeUnit(Projection::kQ, 0, keys, index);
  index -= UnitsOf(keys);
  if (p.gated) {
    if (index < UnitsOf(values)) return MakeUnit(Projection::kGate, 0, values, index);
    index -= UnitsOf(values);
  }
  return MemoryUnit(p, keys, values, p.per_memory ? p.memories : 0, index);
}

// The memories that rows chose, as bits; none where all share one projection.
template <int kRows>
__device__ inline unsigned ChosenMemories(const Params& p, const Shared<kRows>& shared) {
  unsigned mask = 0;
  if (!p.per_memory) return mask;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= p.rows || shared.slots[r] < 0) continue;
#pragma unroll 1
    for (int j = 0; j < p.top_k; ++j) mask |= 1u << shared.memories[r][j];
  }
  return mask;
}
// Units b, b + blocks, .. of `total` are this block's.
__device__ inline int OwnUnits(int total) {
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  return total > block ? (total - block - 1) / blocks + 1 : 0;
}
__device__ inline int OwnUnit(int i) { return blockIdx.x + i * gridDim.x; }

__device__ inline const void* WeightsOf(const Layer& layer, const Unit& unit) {
  switch (unit.stream) {
    case Projection::kQ:
      return layer.q;
    case Projection::kGate:
      return layer.gate_out;
    case Projection::kK:
      return layer.k[unit.memory];
    case Projection::kV:
      return layer.v[unit.memory];
    case Projection::kA:
      return layer.a[unit.memory];
    default:
      return layer.b[unit.memory];
  }
}

// Spreads the rows of all heads' matrices over the grid.
__device__ inline void PlanMatrices(const Params& p, Plan& plan) {
  const int heads = p.rows * p.columns * p.value_heads;
  const int parts = min(p.value_dim, max(1, static_cast<int>(gridDim.x) / heads));
  const int part_rows = (p.value_dim + parts - 1) / parts;
  plan.item_count = 0;
#pragma unroll 1
  for (int index = blockIdx.x; index < heads * parts; index += gridDim.x) {
    MatrixItem& item = plan.items[plan.item_count++];
    const int part = index % parts, head = index / parts;
    item.entry = head / p.value_heads;
    item.head = head % p.value_heads;
    item.key_head = item.head / (p.value_heads / p.heads);
    item.row = item.entry / p.columns;
    item.column = item.entry % p.columns;
    item.begin = part * part_rows;
    item.end = min(item.begin + part_rows, p.value_dim);
  }
}

__device__ inline int StagesOf(int features) {
  return (features + kStageFeatures - 1) / kStageFeatures;
}

// One warp brings all weights of this block, in the order in which they are multiplied.
template <int kRows>
class Loader {
 public:
  // row_bytes: of a row of a matrix.
  __device__ Loader(const Params& p, Shared<kRows>& shared, unsigned char* ring, int row_bytes)
      : p_(p), shared_(shared), ring_(ring), row_bytes_(row_bytes), lane_(threadIdx.x % kWarp) {}

  __device__ void Run() {
#pragma unroll 1
    for (int l = 0; l < p_.count; ++l) {
      LoadProjections(p_.layers[l], /*known=*/true, 0);
      BulkWait(&shared_.routed, l & 1);
      LoadProjections(shared_.layers[l & 1], false, ChosenMemories(p_, shared_));
      LoadMatrices(shared_.layers[l & 1], shared_.written[l & 1]);
      LoadRest(p_.layers[l]);
    }
    if (p_.head != nullptr) LoadHead();
  }

 private:
  // What is known of a layer, or what is chosen: memories, as bits.
  __device__ void LoadProjections(const Layer& layer, bool known, unsigned memories) {
    const Plan& plan = shared_.plan;
    const int before = known ? plan.known_units : 0;
    int memory = __ffs(static_cast<int>(memories)) - 1, nth = 0;
#pragma unroll 1
    for (int i = 0, n = before + __popc(memories) * plan.memory_units; i < n; ++i) {
      Unit unit;
      if (i < before) {
        unit = KnownUnit(p_, plan.keys, plan.values, OwnUnit(i));
      } else {
        unit = MemoryUnit(p_, plan.keys, plan.values, memory, OwnUnit(nth));
        if (++nth == plan.memory_units) {
          nth = 0;
          memories &= memories - 1;
          memory = __ffs(static_cast<int>(memories)) - 1;
        }
      }
      Load(WeightsOf(layer, unit), unit.first, unit.count, p_.model_dim);
    }
  }

  // Brings the matrices that the rows' tokens go to, kWarps rows a stage; those of memories with
  // writes held back compute warps bring them.
  __device__ void LoadMatrices(const Layer& layer, const Written (*written)[kMaxMemories]) {
#pragma unroll 1
    for (int i = 0; i < shared_.plan.item_count; ++i) {
      const MatrixItem& item = shared_.plan.items[i];
      const int slot = shared_.slots[item.row], memory = shared_.memories[item.row][item.column];
      if (slot < 0 || written[item.row][memory] != Written::kAll) continue;
      const unsigned char* const state = layer.state.At<const unsigned char>(slot, memory) +
                                         int64_t{item.head} * p_.value_dim * row_bytes_;
#pragma unroll 1
      for (int row = item.begin; row < item.end; row += kWarps) {
        const int bytes = min(static_cast<int>(kWarps), item.end - row) * row_bytes_;
        const unsigned to = Take(bytes);
        if (lane_ == 0) {
          BulkLoadOnce(ring_ + to * kStageBytes, state + int64_t{row} * row_bytes_, bytes,
                       shared_.full + to);
        }
      }
    }
  }

  // out; gate and up, in turns; down.
  __device__ void LoadRest(const Layer& layer) {
    const int hidden_units = shared_.plan.hidden_units;
    const int count = 2 * (hidden_units + shared_.plan.pairs);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const void* weights = layer.out;
      int outputs = p_.model_dim, features = shared_.plan.values, unit = i;
      if (i >= count - hidden_units) {
        weights = layer.down;
        features = p_.mlp_dim;
        unit = i - (count - hidden_units);
      } else if (i >= hidden_units) {
        unit = (i - hidden_units) / 2;
        weights = (i - hidden_units) % 2 == 0 ? layer.gate : layer.up;
        outputs = p_.mlp_dim;
        features = p_.model_dim;
      }
      const int first = OwnUnit(unit) * kUnitRows;
      Load(weights, first, min(static_cast<int>(kUnitRows), outputs - first), features);
    }
  }

  __device__ void LoadHead() {
#pragma unroll 1
    for (int i = 0; i < shared_.plan.head_units; ++i) {
      const int first = OwnUnit(i) * kUnitRows;
      Load(p_.head, first, min(static_cast<int>(kUnitRows), p_.vocab - first), p_.model_dim);
    }
  }

  __device__ void Load(const void* weights, int first, int count, int features) {
    const auto* rows = static_cast<const __nv_bfloat16*>(weights) + int64_t{first} * features;
#pragma unroll 1
    for (int begin = 0; begin < features; begin += kStageFeatures) {
      const int bytes = 2 * min(static_cast<int>(kStageFeatures), features - begin);
      const unsigned slot = Take(count * bytes);
      unsigned char* const to = ring_ + slot * kStageBytes;
      if (features <= kStageFeatures) {
        if (lane_ == 0) BulkLoadOnce(to, rows, count * bytes, shared_.full + slot);
      } else if (lane_ < count) {
        BulkLoadOnce(to + lane_ * bytes, rows + int64_t{lane_} * features + begin, bytes,
                     shared_.full + slot);
      }
    }
  }

  // The next stage of the ring, once it is free and few are on their way, announced to be of so
  // many bytes. Where more of them queue up, what blocks tell each other arrives later.
  __device__ unsigned Take(int bytes) {
    constexpr unsigned kSlots = RingSlots(kRows);
    static_assert(static_cast<unsigned>(kInFlight) < kSlots);
    const unsigned slot = loaded_ % kSlots, turn = loaded_ / kSlots;
    if (turn > 0) BulkWait(shared_.empty + slot, (turn - 1) & 1);
    if (loaded_ >= kInFlight) {
      const unsigned before = loaded_ - kInFlight;
      BulkWait(shared_.full + before % kSlots, before / kSlots & 1);
    }
    if (lane_ == 0) ArriveAndExpect(shared_.full + slot, bytes);
    __syncwarp();
    ++loaded_;
    return slot;
  }

  const Params& p_;
  Shared<kRows>& shared_;
  unsigned char* const ring_;
  const int row_bytes_, lane_;
  unsigned loaded_ = 0;
};

// Where feature k of a product's input lies: a lane reads eight features as two vectors, and a
// warp's vectors lie side by side.
__device__ inline int PlaceInX(int k) {
  const int lane = k % kPartFeatures / 8;
  return ((k / kPartFeatures * 2 + k / 4 % 2) * kWarp + lane) * 4 + k % 4;
}

// Eight features of part `part` of a row of x.
__device__ inline void LoadX(const float* x, int part, int lane, float (&values)[8]) {
  const auto* vectors = reinterpret_cast<const float4*>(x) + part * 2 * kWarp + lane;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four = vectors[i * kWarp];
    values[4 * i] = four.x;
    values[4 * i + 1] = four.y;
    values[4 * i + 2] = four.z;
    values[4 * i + 3] = four.w;
  }
}

__device__ inline void AddDot(const uint4& eight, const float (&x)[8], float& sum) {
  const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(pairs[i] << 16), x[2 * i], sum);
    sum = fmaf(__uint_as_float(pairs[i] & 0xffff0000u), x[2 * i + 1], sum);
  }
}

// The scale of each head's norm at a product's input, of which head_squares has the parts.
template <int kRows>
__device__ inline float HeadScale(const Params& p, const Shared<kRows>& shared, int row,
                                  int channel) {
  const int parts = p.value_dim / (2 * kWarp);
  const float* const squares = shared.head_squares[row] + channel / p.value_dim * parts;
  float sum = 0;
#pragma unroll 4
  for (int part = 0; part < parts; ++part) sum += squares[part];
  return rsqrtf(sum / static_cast<float>(p.value_dim) + p.out_norm_eps);
}

// Where compute warps are in the ring.
template <int kRows>
using ComputePlace = RingPlace<RingSlots(kRows)>;

// The products of the next `stages` stages of the ring, of units of `features`, with x [kRows,
// widest], `heads` of which are still to be scaled. partial[first + stage][part][output * kRows +
// row] are the sums over a part. By all compute warps.
template <int kRows>
__device__ inline void Multiply(const Params& p, Shared<kRows>& shared, const unsigned char* ring,
                                const float* x, bool heads, int first, int stages, int features,
                                ComputePlace<kRows>& at) {
  constexpr int kSums = kWarpOutputs * kRows;
  const int lane = Thread() % kWarp, warp = Thread() / kWarp;
  const int part = warp % kParts, output = warp / kParts * kWarpOutputs;
  float* to = &shared.partial[first][part][output * kRows];
  float values[kRows][8];
  bool loaded = false;
  int begin = 0;
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    const int length = min(static_cast<int>(kStageFeatures), features - begin);
    const bool own = part * kPartFeatures < length;
    if (own && !loaded) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        LoadX(x + r * p.widest, begin / kPartFeatures + part, lane, values[r]);
        if (!heads) continue;
        const float scale = HeadScale(p, shared, r, begin + part * kPartFeatures + lane * 8);
#pragma unroll
        for (float& value : values[r]) value *= scale;
      }
      loaded = features <= kStageFeatures;
    }
    BulkWait(shared.full + at.at, at.phase);
    float sums[kSums] = {};
    if (own) {
      const auto* weights = reinterpret_cast<const uint4*>(ring + at.at * kStageBytes) +
                            output * (length / 8) + part * (kPartFeatures / 8) + lane;
      uint4 rows[kWarpOutputs];
#pragma unroll
      for (int o = 0; o < kWarpOutputs; ++o) rows[o] = weights[o * (length / 8)];
#pragma unroll
      for (int o = 0; o < kWarpOutputs; ++o) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) AddDot(rows[o], values[r], sums[o * kRows + r]);
      }
    }
    __syncwarp();
    if (lane == 0) Arrive(shared.empty + at.at);
    const float sum = matrix_memory::SumRows(sums);
    if (lane < kSums) to[lane] = sum;
    to += kParts * kUnitRows * kRows;
    begin = begin + kStageFeatures < features ? begin + kStageFeatures : 0;
    at.Next();
  }
}

// Output `output` of unit `unit`, which begins at stage unit * StagesOf(features), for a row.
template <int kRows>
__device__ inline float UnitSum(const Shared<kRows>& shared, int unit, int features, int output,
                                int row) {
  float sum = 0;
#pragma unroll 1
  for (int c = 0, n = StagesOf(features); c < n; ++c) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      sum += shared.partial[unit * n + c][part][output * kRows + row];
    }
  }
  return sum;
}

}  // namespace mneme::cuda::decode::stack
