// Seeded problems of the gated delta rule, made on the GPU, for programs that time or check it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/kernels.h"

namespace mneme::cuda {

#define MUST(call)                                                \
  do {                                                            \
    const cudaError_t status = (call);                            \
    if (status != cudaSuccess) {                                  \
      std::printf("%s: %s\n", #call, cudaGetErrorString(status)); \
      std::exit(1);                                               \
    }                                                             \
  } while (false)

// SplitMix64; the same numbers on the host and on the device.
__host__ __device__ inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
__host__ __device__ inline float Uniform(uint64_t seed, uint64_t i) {
  return static_cast<float>(Mix(seed * 0x100000001b3u + i) >> 40) * 0x1p-24f;
}
// About normal: a sum of four uniform numbers, variance 1.
__host__ __device__ inline float Normal(uint64_t seed, uint64_t i) {
  float sum = -2;
  for (int j = 0; j < 4; ++j) sum += Uniform(seed + j, i);
  return sum * 1.7320508f;
}

static __global__ void FillVectors(uint64_t seed, float* x, int64_t vectors, int dim,
                                   float length) {
  const int64_t vector = blockIdx.x * int64_t{8} + threadIdx.x / 32;
  if (vector >= vectors) return;
  float sum = 0;
  for (int i = threadIdx.x % 32; i < dim; i += 32) {
    const float y = Normal(seed, vector * dim + i);
    sum += y * y;
  }
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  const float scale = length > 0 ? length * rsqrtf(sum + 1e-6f) : 1.0f;
  for (int i = threadIdx.x % 32; i < dim; i += 32) {
    x[vector * dim + i] = scale * Normal(seed, vector * dim + i);
  }
}
template <typename T>
static __global__ void FillNormal(uint64_t seed, T* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i < n) x[i] = static_cast<T>(Normal(seed, i));
}
// kind 0: any decay; 1: 0.5; 2: none; 3: about 0.999; 4: as models have it, down to 0.9.
static __global__ void FillGates(uint64_t seed, float* log_decay, float* beta, int64_t n,
                                 int kind) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i >= n) return;
  const float u = Uniform(seed, i);
  log_decay[i] = kind == 0   ? -expf(-9 + 11 * u)
                 : kind == 1 ? -0.6931472f
                 : kind == 2 ? 0.0f
                 : kind == 3 ? -0.002f * u
                             : -0.1f * u * u * u;
  beta[i] = Uniform(seed + 1, i);
}

struct ProblemSegment {
  int length, slot, memory;
  bool fresh;
};

struct Dims {
  int heads, value_heads, key_dim, value_dim;
};

template <typename T>
T* NewDevice(int64_t n) {
  T* p = nullptr;
  MUST(cudaMalloc(&p, std::max<int64_t>(n, 1) * sizeof(T)));
  return p;
}
template <typename T>
T* Upload(const std::vector<T>& x) {
  T* p = NewDevice<T>(x.size());
  MUST(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
template <typename T>
std::vector<T> Download(const T* p, int64_t n) {
  std::vector<T> x(n);
  MUST(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
  return x;
}

// Inputs and state on the device.
struct Problem {
  Problem(Dims d, std::vector<ProblemSegment> list, int slots, int memories, int decay_kind,
          uint64_t seed, DType state_dtype = DType::kF32, float value_scale = 1)
      : dims(d), segments(std::move(list)), slots(slots), memories(memories), dtype(state_dtype) {
    std::vector<int> offsets = {0}, slot, memory, fresh;
    for (const ProblemSegment& s : segments) {
      offsets.push_back(offsets.back() + s.length);
      slot.push_back(s.slot), memory.push_back(s.memory), fresh.push_back(s.fresh);
    }
    entries = offsets.back();
    const int64_t n = entries;
    q = NewDevice<float>(n * d.heads * d.key_dim), k = NewDevice<float>(n * d.heads * d.key_dim);
    v = NewDevice<float>(n * d.value_heads * d.value_dim);
    out = NewDevice<float>(n * d.value_heads * d.value_dim);
    log_decay = NewDevice<float>(n * d.value_heads), beta = NewDevice<float>(n * d.value_heads);
    const auto vectors = [&](uint64_t s, float* x, int64_t count, int dim, float length) {
      if (count > 0) FillVectors<<<(count + 7) / 8, 256>>>(s, x, count, dim, length);
    };
    vectors(seed, q, n * d.heads, d.key_dim, 1 / std::sqrt(static_cast<float>(d.key_dim)));
    vectors(seed + 10, k, n * d.heads, d.key_dim, 1);
    vectors(seed + 20, v, n * d.value_heads, d.value_dim, 0);
    if (n > 0) {
      FillGates<<<(n * d.value_heads + 255) / 256, 256>>>(seed + 30, log_decay, beta,
                                                          n * d.value_heads, decay_kind);
    }
    MUST(cudaMemset(out, 0xff, n * d.value_heads * d.value_dim * 4));
    state_elements = int64_t{d.value_heads} * d.value_dim * d.key_dim;
    std::vector<float> initial(slots * memories * state_elements);
    for (size_t i = 0; i < initial.size(); ++i) initial[i] = Normal(seed + 40, i);
    if (value_scale != 1) {
      std::vector<float> values = Download(v, n * d.value_heads * d.value_dim);
      for (float& x : values) x *= value_scale;
      for (float& x : initial) x *= value_scale;
      MUST(cudaMemcpy(v, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
    }
    for (const ProblemSegment& s : segments) {  // a fresh memory holds anything
      if (!s.fresh) continue;
      std::fill_n(initial.begin() + (s.slot * memories + s.memory) * state_elements, state_elements,
                  NAN);
    }
    if (dtype == DType::kF16) {
      std::vector<__half> halves(initial.size());
      for (size_t i = 0; i < initial.size(); ++i) {
        halves[i] = __float2half_rn(initial[i]);
        initial[i] = __half2float(halves[i]);
      }
      state = Upload(halves);
    } else {
      state = Upload(initial);
    }
    initial_state = std::move(initial);
    args.q = {q, DType::kF32, {n, d.heads, d.key_dim}};
    args.k = {k, DType::kF32, {n, d.heads, d.key_dim}};
    args.v = {v, DType::kF32, {n, d.value_heads, d.value_dim}};
    args.out = {out, DType::kF32, {n, d.value_heads, d.value_dim}};
    args.log_decay = {log_decay, DType::kF32, {n, d.value_heads}};
    args.beta = {beta, DType::kF32, {n, d.value_heads}};
    args.segments.count = static_cast<int>(segments.size());
    owned = {Upload(offsets), Upload(slot), Upload(memory), Upload(fresh)};
    args.segments.offsets = {owned[0], DType::kI32, {args.segments.count + 1}};
    args.segments.slots = {owned[1], DType::kI32, {args.segments.count}};
    args.segments.memories = {owned[2], DType::kI32, {args.segments.count}};
    args.segments.fresh = {owned[3], DType::kI32, {args.segments.count}};
    args.state.base = static_cast<std::byte*>(state);
    args.state.memory_bytes = state_elements * SizeOf(dtype);
    args.state.slab_bytes = memories * args.state.memory_bytes;
    args.state.dtype = dtype;
    first = std::move(offsets);
    MUST(cudaDeviceSynchronize());
  }
  ~Problem() {
    for (void* p : {static_cast<void*>(q), static_cast<void*>(k), static_cast<void*>(v),
                    static_cast<void*>(out), static_cast<void*>(log_decay),
                    static_cast<void*>(beta), state}) {
      cudaFree(p);
    }
    for (int* p : owned) cudaFree(p);
  }

  std::vector<float> State() const {
    const int64_t n = slots * memories * state_elements;
    if (dtype == DType::kF32) return Download(static_cast<const float*>(state), n);
    const std::vector<__half> halves = Download(static_cast<const __half*>(state), n);
    std::vector<float> x(n);
    for (int64_t i = 0; i < n; ++i) x[i] = __half2float(halves[i]);
    return x;
  }

  Dims dims;
  std::vector<ProblemSegment> segments;
  int slots, memories;
  DType dtype;
  int entries = 0;
  int64_t state_elements = 0;
  std::vector<int> first;
  float *q, *k, *v, *out, *log_decay, *beta;
  void* state;
  std::vector<float> initial_state;
  std::vector<int*> owned;
  MatrixMemoryArgs args;
};

// The arguments that a layer of a bf16 model hands to DeltaMemoryPass: projections and windows in
// bf16, k, v and gates by entry, room for pending writes, the output in the place of v. Nothing is
// pending yet.
class Pass {
 public:
  // A slot's tokens are as many as its longest segment has entries, and shorter segments take every
  // so manieth of them.
  Pass(Dims d, const std::vector<ProblemSegment>& segments, int slots, int memories, uint64_t seed)
      : dims(d) {
    std::vector<int> offsets = {0}, slot, memory, fresh, lengths(slots), first_token(slots + 1);
    Segments list;
    list.count = static_cast<int>(segments.size());
    for (const ProblemSegment& s : segments) {
      offsets.push_back(offsets.back() + s.length);
      slot.push_back(s.slot), memory.push_back(s.memory), fresh.push_back(s.fresh);
      lengths[s.slot] = std::max(lengths[s.slot], s.length);
      list.longest = std::max(list.longest, s.length);
      list.longer += s.length > 1 ? 1 : 0;
    }
    for (int i = 0; i < slots; ++i) first_token[i + 1] = first_token[i] + lengths[i];
    std::vector<int> entry_tokens;
    for (const ProblemSegment& s : segments) {
      for (int i = 0; i < s.length; ++i) {
        const int64_t token = int64_t{i} * lengths[s.slot] / s.length;
        entry_tokens.push_back(first_token[s.slot] + static_cast<int>(token));
      }
    }
    entries = offsets.back();
    const int tokens = first_token.back();
    const int64_t n = entries, keys = int64_t{d.heads} * d.key_dim,
                  values = int64_t{d.value_heads} * d.value_dim;
    list.offsets = Indices(offsets), list.slots = Indices(slot);
    list.memories = Indices(memory), list.fresh = Indices(fresh);

    const auto field = [&](int64_t elements, DType dtype) {
      const int64_t memory_bytes = elements * SizeOf(dtype), slab_bytes = memories * memory_bytes;
      auto* base = static_cast<std::byte*>(New(slots * slab_bytes));
      MUST(cudaMemset(base, 0, slots * slab_bytes));
      return StateView{base, slab_bytes, 0, memory_bytes, dtype};
    };
    const auto convolution = [&](int64_t rows, int64_t channels, bool by_token) {
      return ShortConvArgs{.x = Normals<__nv_bfloat16>(seed++, DType::kBF16, {rows, channels}),
                           .entry_rows = by_token ? Indices(entry_tokens) : TensorView{},
                           .weight = Normals<float>(seed++, DType::kF32, {channels, kWidth}),
                           .segments = list,
                           .window = field((kWidth - 1) * channels, DType::kBF16),
                           .y = Floats({n, channels})};
    };
    args.q = convolution(tokens, keys, true);
    args.k = convolution(n, keys, false);
    args.v = convolution(n, values, false);
    args.norms.q.scale = 1 / std::sqrt(static_cast<float>(d.key_dim));
    args.gates = {.a = Normals<float>(seed++, DType::kF32, {n, d.value_heads}),
                  .b = Normals<float>(seed++, DType::kF32, {n, d.value_heads}),
                  .a_log = Constants(d.value_heads, -3),
                  .dt_bias = Constants(d.value_heads, 0),
                  .log_decay = Floats({n, d.value_heads}),
                  .beta = Floats({n, d.value_heads})};
    const auto shaped = [](TensorView view, Shape shape) {
      view.shape = shape;
      return view;
    };
    args.rule.q = shaped(args.q.y, {n, d.heads, d.key_dim});
    args.rule.k = shaped(args.k.y, {n, d.heads, d.key_dim});
    args.rule.v = args.rule.out = shaped(args.v.y, {n, d.value_heads, d.value_dim});
    args.rule.log_decay = args.gates.log_decay;
    args.rule.beta = args.gates.beta;
    args.rule.segments = list;
    args.rule.state = field(values * d.key_dim, DType::kF32);
    args.rule.pending = {.capacity = kCapacity,
                         .phase = field(1, DType::kI32),
                         .range = field(2, DType::kI32),
                         .keys = field(kCapacity * keys, DType::kF32),
                         .updates = field(kCapacity * values, DType::kF32),
                         .log_decay = field(kCapacity * d.value_heads, DType::kF32)};
    const int64_t elements = slots * memories * values * d.key_dim;
    FillNormal<<<(elements + 255) / 256, 256>>>(
        seed++, reinterpret_cast<float*>(args.rule.state.base), elements);
    MUST(cudaDeviceSynchronize());
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  ~Pass() {
    for (void* p : owned_) cudaFree(p);
  }

  Dims dims;
  int entries = 0;
  DeltaMemoryPassArgs args;

 private:
  static constexpr int kWidth = 4, kCapacity = 16;

  void* New(int64_t bytes) {
    owned_.push_back(NewDevice<std::byte>(bytes));
    return owned_.back();
  }
  TensorView Indices(const std::vector<int>& values) {
    int* const data = Upload(values);
    owned_.push_back(data);
    return {data, DType::kI32, {static_cast<int64_t>(values.size())}};
  }
  TensorView Constants(int n, float value) {
    float* const data = Upload(std::vector<float>(n, value));
    owned_.push_back(data);
    return {data, DType::kF32, {n}};
  }
  TensorView Floats(Shape shape) {
    return {New(shape.elements() * int64_t{sizeof(float)}), DType::kF32, shape};
  }
  template <typename T>
  TensorView Normals(uint64_t seed, DType dtype, Shape shape) {
    const int64_t n = shape.elements();
    T* const data = static_cast<T*>(New(n * int64_t{sizeof(T)}));
    FillNormal<<<(n + 255) / 256, 256>>>(seed, data, n);
    return {data, dtype, shape};
  }

  std::vector<void*> owned_;
};

}  // namespace mneme::cuda
