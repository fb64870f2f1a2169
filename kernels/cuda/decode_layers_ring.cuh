// The stream of weights of decode_layers.cu: which block multiplies what, a warp that brings it
// into a ring in shared memory as far ahead as the ring allows, and the products.
#pragma once

#include "kernels/cuda/decode_layers.h"
#include "kernels/cuda/few_rows.cuh"

namespace mneme::cuda::layers {

enum class Stream : int { kQ, kGate, kK, kV, kA, kB };

// Up to kUnitRows consecutive outputs of one matrix.
struct Unit {
  Stream stream;
  int memory;  // whose matrix it is
  int first, count;
};

__device__ inline int UnitsOf(int outputs) { return (outputs + kUnitRows - 1) / kUnitRows; }

__device__ inline Unit MakeUnit(Stream stream, int memory, int outputs, int index) {
  const int first = index * kUnitRows;
  return {stream, memory, first, min(static_cast<int>(kUnitRows), outputs - first)};
}

// The units of k, v, a and b of one memory.
__device__ inline int MemoryUnits(const Params& p, int keys, int values) {
  return UnitsOf(keys) + UnitsOf(values) + 2 * UnitsOf(p.value_heads);
}
__device__ inline Unit MemoryUnit(const Params& p, int keys, int values, int memory, int index) {
  if (index < UnitsOf(keys)) return MakeUnit(Stream::kK, memory, keys, index);
  index -= UnitsOf(keys);
  if (index < UnitsOf(values)) return MakeUnit(Stream::kV, memory, values, index);
  index -= UnitsOf(values);
  const int gates = UnitsOf(p.value_heads);
  if (index < gates) return MakeUnit(Stream::kA, memory, p.value_heads, index);
  return MakeUnit(Stream::kB, memory, p.value_heads, index - gates);
}

// Known before the router has chosen: q, the output's gate, and the memory of all tokens.
__device__ inline bool HasKnownMemory(const Params& p) { return p.shared || !p.per_memory; }
__device__ inline int KnownUnits(const Params& p, int keys, int values) {
  return UnitsOf(keys) + (p.gated ? UnitsOf(values) : 0) +
         (HasKnownMemory(p) ? MemoryUnits(p, keys, values) : 0);
}
__device__ inline Unit KnownUnit(const Params& p, int keys, int values, int index) {
  if (index < UnitsOf(keys)) return MakeUnit(Stream::kQ, 0, keys, index);
  index -= UnitsOf(keys);
  if (p.gated) {
    if (index < UnitsOf(values)) return MakeUnit(Stream::kGate, 0, values, index);
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
    for (int j = 0; j < p.top_k; ++j) mask |= 1u << shared.memories[r][j];
  }
  return mask;
}
__device__ inline Unit ChosenUnit(const Params& p, int keys, int values, unsigned mask, int index) {
  const int units = MemoryUnits(p, keys, values);
  const int nth = index / units;
  for (int n = 0; n < nth; ++n) mask &= mask - 1;
  return MemoryUnit(p, keys, values, __ffs(static_cast<int>(mask)) - 1, index - nth * units);
}

// Units b, b + blocks, .. of `total` are this block's.
__device__ inline int OwnUnits(int total) {
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  return total > block ? (total - block - 1) / blocks + 1 : 0;
}
__device__ inline int OwnUnit(int i) { return blockIdx.x + i * gridDim.x; }

__device__ inline const void* WeightsOf(const Layer& layer, const Unit& unit) {
  switch (unit.stream) {
    case Stream::kQ:
      return layer.q;
    case Stream::kGate:
      return layer.gate_out;
    case Stream::kK:
      return layer.k[unit.memory];
    case Stream::kV:
      return layer.v[unit.memory];
    case Stream::kA:
      return layer.a[unit.memory];
    default:
      return layer.b[unit.memory];
  }
}

__device__ inline int StagesOf(int features) {
  return (features + kStageFeatures - 1) / kStageFeatures;
}

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void InitArrivals(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
__device__ inline void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
__device__ inline void Expect(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ inline void BulkCopy(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile(
      "{ .reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], policy; }" ::"r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}
// Until the phase of this parity has ended.
__device__ inline void AwaitPhase(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again%=; }" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// By one warp: all weights of this block, in the order in which they are multiplied.
template <int kRows>
class Loader {
 public:
  __device__ Loader(const Params& p, Shared<kRows>& shared, unsigned char* ring)
      : p_(p), shared_(shared), ring_(ring), lane_(threadIdx.x % kWarp) {}

  __device__ void Run(int keys, int values) {
    for (int l = 0; l < p_.count; ++l) {
      const Layer& layer = p_.layers[l];
      for (int i = 0, n = OwnUnits(KnownUnits(p_, keys, values)); i < n; ++i) {
        const Unit unit = KnownUnit(p_, keys, values, OwnUnit(i));
        Load(WeightsOf(layer, unit), unit.first, unit.count, p_.model_dim);
      }
      if (p_.memories > 0) {
        AwaitPhase(&shared_.routed, l & 1);
        const unsigned chosen = ChosenMemories(p_, shared_);
        const int total = __popc(chosen) * MemoryUnits(p_, keys, values);
        for (int i = 0, n = OwnUnits(total); i < n; ++i) {
          const Unit unit = ChosenUnit(p_, keys, values, chosen, OwnUnit(i));
          Load(WeightsOf(shared_.layers[l & 1], unit), unit.first, unit.count, p_.model_dim);
        }
      }
      LoadUnits(layer.out, nullptr, p_.model_dim, values);
      LoadUnits(layer.gate, layer.up, p_.mlp_dim, p_.model_dim);
      LoadUnits(layer.down, nullptr, p_.model_dim, p_.mlp_dim);
    }
  }

 private:
  // This block's units of one matrix, or of two in turns.
  __device__ void LoadUnits(const void* weights, const void* other, int outputs, int features) {
    for (int i = 0, n = OwnUnits(UnitsOf(outputs)); i < n; ++i) {
      const int first = OwnUnit(i) * kUnitRows;
      const int count = min(static_cast<int>(kUnitRows), outputs - first);
      Load(weights, first, count, features);
      if (other != nullptr) Load(other, first, count, features);
    }
  }

  __device__ void Load(const void* weights, int first, int count, int features) {
    constexpr unsigned kSlots = RingSlots(kRows);
    const auto* rows = static_cast<const __nv_bfloat16*>(weights) + int64_t{first} * features;
    for (int begin = 0; begin < features; begin += kStageFeatures, ++loaded_) {
      const unsigned slot = loaded_ % kSlots, turn = loaded_ / kSlots;
      if (turn > 0) AwaitPhase(shared_.empty + slot, (turn - 1) & 1);
      const int bytes = 2 * min(static_cast<int>(kStageFeatures), features - begin);
      unsigned char* const to = ring_ + slot * kStageBytes;
      uint64_t* const full = shared_.full + slot;
      if (lane_ == 0) Expect(full, count * bytes);
      __syncwarp();
      if (features <= kStageFeatures) {
        if (lane_ == 0) BulkCopy(to, rows, count * bytes, full);
      } else if (lane_ < count) {
        BulkCopy(to + lane_ * bytes, rows + int64_t{lane_} * features + begin, bytes, full);
      }
    }
  }

  const Params& p_;
  Shared<kRows>& shared_;
  unsigned char* const ring_;
  const int lane_;
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

// The products of the next `stages` stages of the ring, of units of `features`, with x [kRows,
// widest]; partial[stage][part][output * kRows + row] are the sums over a part. By all compute
// warps; `used` counts the stages that they are through with.
template <int kRows>
__device__ inline void Multiply(const Params& p, Shared<kRows>& shared, const unsigned char* ring,
                                const float* x, int stages, int features, unsigned& used) {
  constexpr unsigned kSlots = RingSlots(kRows);
  constexpr int kSums = kUnitRows * kRows;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int part = warp % kParts, per_unit = StagesOf(features);
  for (int s = warp / kParts; s < stages; s += kGroups) {
    const int begin = s % per_unit * kStageFeatures;
    const int length = min(static_cast<int>(kStageFeatures), features - begin);
    const unsigned slot = (used + s) % kSlots, turn = (used + s) / kSlots;
    AwaitPhase(shared.full + slot, turn & 1);
    float sums[kSums] = {};
    if (part * kPartFeatures < length) {
      const auto* weights = reinterpret_cast<const uint4*>(ring + slot * kStageBytes) +
                            part * (kPartFeatures / 8) + lane;
      uint4 rows[kUnitRows];
#pragma unroll
      for (int o = 0; o < kUnitRows; ++o) rows[o] = weights[o * (length / 8)];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float values[8];
        LoadX(x + r * p.widest, begin / kPartFeatures + part, lane, values);
#pragma unroll
        for (int o = 0; o < kUnitRows; ++o) AddDot(rows[o], values, sums[o * kRows + r]);
      }
    }
    __syncwarp();
    if (lane == 0) Arrive(shared.empty + slot);
    const float sum = WarpSums(sums, lane);
    constexpr int kLanesPerSum = kWarp / kSums;
    if (lane % kLanesPerSum == 0) shared.partial[s][part][lane / kLanesPerSum] = sum;
  }
  used += stages;
}

// Output `output` of unit `unit`, which begins at stage unit * StagesOf(features), for a row.
template <int kRows>
__device__ inline float UnitSum(const Shared<kRows>& shared, int unit, int features, int output,
                                int row) {
  float sum = 0;
  for (int c = 0, n = StagesOf(features); c < n; ++c) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      sum += shared.partial[unit * n + c][part][output * kRows + row];
    }
  }
  return sum;
}

}  // namespace mneme::cuda::layers
