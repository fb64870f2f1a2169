// Seeded problems of matrix memories of any rule, made on the GPU, for cuda_matrix_chunk_bench.cu.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bench/cuda_delta_chunk_problem.cuh"
#include "kernels/kernels.h"

namespace mneme::cuda {

using Decay = MatrixRule::Decay;
using Correction = MatrixRule::Correction;

// Sizes of a memory, and heads of the tensors.
struct Sizes {
  int heads, key_dim, value_dim;
  int query_heads, key_heads, value_heads, decay_heads;
};

constexpr Sizes Alike(int heads, int key_dim, int value_dim) {
  return {heads, key_dim, value_dim, heads, heads, heads, heads};
}

// Kernels differ in which log decays they take, and how fast: the problem's are one of these.
enum class Gates {
  kAny,      // from next to none to nearly all, in any order
  kMild,     // as models have it
  kExtreme,  // none, all (minus infinity), and long runs of strong ones
};

__host__ __device__ inline float LogDecayOf(Gates gates, float u, int64_t entry) {
  if (gates == Gates::kAny) return -expf(-9 + 11 * u);
  if (gates == Gates::kMild) return -0.1f * u * u * u;
  if (u < 0.02f) return -INFINITY;
  if (u < 0.3f) return 0;
  return entry / 40 % 2 == 0 ? -30 * u : -1e-3f * u;
}

static __global__ void FillDecays(uint64_t seed, float* x, int64_t n, int64_t width, Gates gates) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i < n) x[i] = LogDecayOf(gates, Uniform(seed, i), i / width);
}
static __global__ void FillUniform(uint64_t seed, float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i < n) x[i] = Uniform(seed, i);
}

// Inputs and state of one call, on the device.
class ChunkProblem {
 public:
  ChunkProblem(const MatrixRule& rule, const Sizes& d, std::vector<ProblemSegment> list, int slots,
               int memories, Gates gates, uint64_t seed, bool in_place,
               DType state_dtype = DType::kF32)
      : sizes(d), segments(std::move(list)), memories(memories), dtype(state_dtype) {
    std::vector<int> slot, memory, fresh;
    args.rule = rule;
    for (const ProblemSegment& s : segments) {
      first.push_back(first.back() + s.length);
      slot.push_back(s.slot), memory.push_back(s.memory), fresh.push_back(s.fresh);
    }
    const int64_t n = entries = first.back();
    const bool delta = rule.correction == Correction::kDelta;
    const float length = 1 / std::sqrt(static_cast<float>(d.key_dim));
    args.scale = delta ? length : 0.5f;
    args.q = Vectors(seed, n, d.query_heads, d.key_dim, delta ? 1 : 0);
    args.k = Vectors(seed + 10, n, d.key_heads, d.key_dim, delta ? 1 : 0);
    args.v = Vectors(seed + 20, n, d.value_heads, d.value_dim, 0);
    args.out = args.v;
    if (!in_place) {
      args.out = Floats({n, d.heads, d.value_dim});
      MUST(cudaMemset(args.out.data, 0xff, args.out.shape.elements() * sizeof(float)));
    }
    const int64_t width = rule.decay == Decay::kKey     ? d.key_dim
                          : rule.decay == Decay::kValue ? d.value_dim
                                                        : 1;
    if (rule.decay == Decay::kConstant) {
      std::vector<float> decays;
      for (int h = 0; h < d.heads; ++h) decays.push_back(std::log1p(-std::exp2(-5.0f - h)));
      args.log_decay = {Owned(Upload(decays)), DType::kF32, {d.heads}};
    } else if (rule.decay != Decay::kNone) {
      args.log_decay = rule.decay == Decay::kHead ? Floats({n, d.decay_heads})
                                                  : Floats({n, d.decay_heads, width});
      const int64_t count = args.log_decay.shape.elements();
      FillDecays<<<(count + 255) / 256, 256>>>(seed + 30, args.log_decay.as<float>(), count,
                                               d.decay_heads * width, gates);
    }
    if (delta) {
      args.beta = Floats({n, d.heads});
      FillUniform<<<(n * d.heads + 255) / 256, 256>>>(seed + 31, args.beta.as<float>(),
                                                      n * d.heads);
    }
    if (rule.correction == Correction::kGeneral) {
      args.c = Vectors(seed + 50, n, d.decay_heads, d.key_dim, 1);
      args.e = Vectors(seed + 60, n, d.decay_heads, d.key_dim, 0.5f);
    }
    if (rule.read == MatrixRule::Read::kBeforeWithBonus) {
      args.bonus = Vectors(seed + 70, 1, d.heads, d.key_dim, 0);
      args.bonus.shape = {d.heads, d.key_dim};
    }
    const auto indices = [&](const std::vector<int>& values) -> TensorView {
      return {Owned(Upload(values)), DType::kI32, {static_cast<int64_t>(values.size())}};
    };
    args.segments.count = static_cast<int>(segments.size());
    args.segments.offsets = indices(first);
    args.segments.slots = indices(slot);
    args.segments.memories = indices(memory);
    args.segments.fresh = indices(fresh);
    elements = int64_t{d.heads} * d.value_dim * d.key_dim;
    args.state.memory_bytes = elements * SizeOf(dtype);
    args.state.slab_bytes = memories * args.state.memory_bytes;
    args.state.dtype = dtype;
    initial.resize(slots * memories * elements);
    for (size_t i = 0; i < initial.size(); ++i) initial[i] = Normal(seed + 40, i);
    for (const ProblemSegment& s : segments) {  // a fresh memory holds anything
      if (!s.fresh || s.slot < 0) continue;
      std::fill_n(initial.begin() + (s.slot * memories + s.memory) * elements, elements, NAN);
    }
    if (dtype == DType::kF16) {
      std::vector<__half> halves(initial.size());
      for (size_t i = 0; i < initial.size(); ++i) {
        halves[i] = __float2half_rn(initial[i]);
        initial[i] = __half2float(halves[i]);
      }
      args.state.base = static_cast<std::byte*>(Owned(Upload(halves)));
    } else {
      args.state.base = static_cast<std::byte*>(Owned(Upload(initial)));
    }
    MUST(cudaDeviceSynchronize());
  }
  ChunkProblem(const ChunkProblem&) = delete;
  ChunkProblem& operator=(const ChunkProblem&) = delete;
  ~ChunkProblem() {
    for (void* p : owned_) cudaFree(p);
  }

  std::vector<float> State() const {
    if (dtype == DType::kF32) {
      return Download(reinterpret_cast<const float*>(args.state.base), initial.size());
    }
    const std::vector<__half> halves =
        Download(reinterpret_cast<const __half*>(args.state.base), initial.size());
    std::vector<float> x;
    for (const __half h : halves) x.push_back(__half2float(h));
    return x;
  }

  Sizes sizes;
  std::vector<ProblemSegment> segments;
  std::vector<int> first = {0};
  int memories, entries = 0;
  DType dtype;
  int64_t elements = 0;  // of a memory
  std::vector<float> initial;
  MatrixMemoryArgs args;

 private:
  void* Owned(void* p) {
    owned_.push_back(p);
    return p;
  }
  TensorView Floats(Shape shape) {
    return {Owned(NewDevice<float>(shape.elements())), DType::kF32, shape};
  }
  TensorView Vectors(uint64_t seed, int64_t n, int heads, int dim, float length) {
    const TensorView x = Floats({n, heads, dim});
    if (n > 0) {
      FillVectors<<<(n * heads + 7) / 8, 256>>>(seed, x.as<float>(), n * heads, dim, length);
    }
    return x;
  }

  std::vector<void*> owned_;
};

}  // namespace mneme::cuda
