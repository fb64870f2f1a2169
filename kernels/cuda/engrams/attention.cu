// A block of threads takes a head, and tokens one after the other. A group of lanes shares an
// engram: its score first and then, once all scores are known, its value.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/engrams/engrams.h"

namespace mneme::cuda::engrams {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroup = 8;  // lanes that share an engram
constexpr int kGroups = kThreads / kGroup;
constexpr int kTokensOfBlock = 8;  // in steps with prompts

struct AttendProblem {
  const float* q;
  const int32_t *row_offsets, *slots;
  const int64_t* positions;
  int rows, tokens, heads, dim, segment, first, most, layer, recalled;
  EngramFact counted;
  float scale;
  Field keys, values, facts, sums;
  float* out;
  float* weights;  // [tokens, heads, recalled]; of steps with prompts, with sums
};

// kCount elements by one access, if there are several.
template <int kCount, typename T>
__device__ inline void Load(const T* from, float (&to)[kCount]) {
  if constexpr (kCount == 1) {
    to[0] = ToFloat(from[0]);
  } else {
    static_assert(kCount * sizeof(T) == 16);
    union {
      uint4 bits;
      T values[kCount];
    } piece;
    piece.bits = *reinterpret_cast<const uint4*>(from);
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = ToFloat(piece.values[i]);
  }
}

// The engrams that tokens of a row see.
__device__ int SeenBy(const AttendProblem& p, int row) {
  if (p.positions[row] < p.segment) return 0;
  return p.facts.At<const int32_t>(p.slots[row], 0)[p.counted];
}

// Each thread reads kPiece elements of a key or value at a time.
template <typename T, int kPiece>
class Attention {
 public:
  // Floats of shared memory.
  __host__ __device__ static int Room(int dim, int most) {
    return dim + most + kWarps * kGroup * kPiece;
  }
  __device__ Attention(const AttendProblem& p, int head, float* shared)
      : p_(p), head_(head), query_(shared), scores_(query_ + p.dim), parts_(scores_ + p.most) {}

  // What a token sees of `count` engrams. add(i, weight) hears what each of them got.
  template <typename Add>
  __device__ void Token(int token, int slot, int count, const Add& add) const {
    const int64_t at = (int64_t{token} * p_.heads + head_) * p_.dim;
    float* const out = p_.out + at;
    if (count == 0) {
      for (int i = threadIdx.x; i < p_.dim; i += kThreads) out[i] = 0;
      return;
    }
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int group = threadIdx.x / kGroup, own = threadIdx.x % kGroup * kPiece;
    const int64_t pitch = int64_t{p_.heads} * p_.dim;
    const int64_t first = p_.first * pitch + head_ * int64_t{p_.dim};
    const T* const keys = p_.keys.At<const T>(slot, 0) + first;
    const T* const values = p_.values.At<const T>(slot, 0) + first;

    for (int i = threadIdx.x; i < p_.dim; i += kThreads) query_[i] = p_.q[at + i];
    __syncthreads();
    for (int base = 0; base < count; base += kGroups) {
      const int i = base + group;
      float score = 0;
      for (int d = own; d < p_.dim && i < count; d += kGroup * kPiece) {
        float key[kPiece];
        Load(keys + i * pitch + d, key);
#pragma unroll
        for (int n = 0; n < kPiece; ++n) score = fmaf(query_[d + n], key[n], score);
      }
#pragma unroll
      for (int offset = kGroup / 2; offset > 0; offset /= 2) {
        score += __shfl_xor_sync(kAllLanes, score, offset);
      }
      if (own == 0 && i < count) scores_[i] = p_.scale * score;
    }
    __syncthreads();

    // Every warp for itself.
    float largest = -INFINITY, total = 0;
    for (int i = lane; i < count; i += kWarp) largest = fmaxf(largest, scores_[i]);
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
    for (int i = lane; i < count; i += kWarp) total += expf(scores_[i] - largest);
    total = WarpSum(total);
    for (int i = threadIdx.x; i < count; i += kThreads) {
      add(i, expf(scores_[i] - largest) / total);
    }

    for (int d = 0; d < p_.dim; d += kGroup * kPiece) {
      const bool in = d + own < p_.dim;
      float sums[kPiece] = {};
      for (int i = group; i < count && in; i += kGroups) {
        const float weight = expf(scores_[i] - largest);
        float value[kPiece];
        Load(values + i * pitch + d + own, value);
#pragma unroll
        for (int n = 0; n < kPiece; ++n) sums[n] = fmaf(weight, value[n], sums[n]);
      }
#pragma unroll
      for (int n = 0; n < kPiece; ++n) {
#pragma unroll
        for (int offset = kGroup; offset < kWarp; offset *= 2) {
          sums[n] += __shfl_xor_sync(kAllLanes, sums[n], offset);
        }
        if (lane < kGroup) parts_[warp * kGroup * kPiece + own + n] = sums[n];
      }
      __syncthreads();
      for (int i = threadIdx.x; i < min(kGroup * kPiece, p_.dim - d); i += kThreads) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) sum += parts_[w * kGroup * kPiece + i];
        out[d + i] = sum / total;
      }
      __syncthreads();
    }
  }

 private:
  const AttendProblem& p_;
  const int head_;
  float *const query_, *const scores_, *const parts_;
};

// A block takes a head and all tokens of a row.
template <typename T, int kPiece>
__global__ void __launch_bounds__(kThreads) AttendRows(const __grid_constant__ AttendProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ float shared[];
  const int row = blockIdx.x / p.heads, head = blockIdx.x % p.heads, slot = p.slots[row];
  if (slot < 0) return;
  const int count = SeenBy(p, row);
  const Attention<T, kPiece> attention(p, head, shared);
  float* const sums = p.sums.base == nullptr
                          ? nullptr
                          : p.sums.At<float>(slot, p.layer) + int64_t{head} * p.recalled;
  for (int token = p.row_offsets[row]; token < p.row_offsets[row + 1]; ++token) {
    attention.Token(token, slot, count, [&](int i, float weight) {
      if (sums != nullptr) sums[i] += weight;
    });
  }
}

__device__ int RowOf(const AttendProblem& p, int token) {
  int low = 0, high = p.rows;  // the last row that begins at `token` or before it
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (p.row_offsets[middle] <= token ? low : high) = middle;
  }
  return low;
}

// A block takes a head and some tokens, of whatever rows.
template <typename T, int kPiece>
__global__ void __launch_bounds__(kThreads) AttendTokens(const __grid_constant__ AttendProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ float shared[];
  const int head = blockIdx.x % p.heads, begin = blockIdx.x / p.heads * kTokensOfBlock;
  const int end = min(begin + kTokensOfBlock, p.tokens);
  const Attention<T, kPiece> attention(p, head, shared);
  for (int row = RowOf(p, begin); row < p.rows && p.row_offsets[row] < end; ++row) {
    const int slot = p.slots[row];
    if (slot < 0) continue;
    const int count = SeenBy(p, row), last = min(end, p.row_offsets[row + 1]);
    for (int token = max(begin, p.row_offsets[row]); token < last; ++token) {
      float* const weights = p.weights == nullptr
                                 ? nullptr
                                 : p.weights + (int64_t{token} * p.heads + head) * p.recalled;
      attention.Token(token, slot, count, [&](int i, float weight) {
        if (weights != nullptr) weights[i] = weight;
      });
    }
  }
}

// Adds up what AttendTokens has written, in the order of tokens: a block for each row and head.
__global__ void __launch_bounds__(kThreads) AddWeights(const __grid_constant__ AttendProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int row = blockIdx.x / p.heads, head = blockIdx.x % p.heads, slot = p.slots[row];
  if (slot < 0) return;
  const int count = SeenBy(p, row), begin = p.row_offsets[row], end = p.row_offsets[row + 1];
  if (begin == end) return;
  float* const sums = p.sums.At<float>(slot, p.layer) + int64_t{head} * p.recalled;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    float sum = sums[i];
#pragma unroll 8
    for (int token = begin; token < end; ++token) {
      sum += p.weights[(int64_t{token} * p.heads + head) * p.recalled + i];
    }
    sums[i] = sum;
  }
}

template <typename T, int kPiece>
void Launch(Device& device, AttendProblem p) {
  const int64_t shared = Attention<T, kPiece>::Room(p.dim, p.most) * int64_t{sizeof(float)};
  if (p.tokens <= p.rows) {
    LaunchOverlapping(device, "EngramAttention", AttendRows<T, kPiece>, p.rows * p.heads, kThreads,
                      shared, 1, p);
    return;
  }
  const bool adds = p.sums.base != nullptr;
  if (adds) {
    p.weights = static_cast<float*>(device.Scratch(int64_t{p.tokens} * p.heads * p.recalled *
                                                   static_cast<int64_t>(sizeof(float))));
    if (p.weights == nullptr) return;
  }
  const int tiles = (p.tokens + kTokensOfBlock - 1) / kTokensOfBlock;
  // Not as a kernel that overlaps, which would leave little cache: tokens read the same engrams.
  AttendTokens<T, kPiece>
      <<<tiles * p.heads, kThreads, static_cast<size_t>(shared), device.stream()>>>(p);
  device.Check(cudaGetLastError(), "EngramAttention of prompts");
  if (!adds) return;
  LaunchOverlapping(device, "EngramAttention, weights", AddWeights, p.rows * p.heads, kThreads, 0,
                    1, p);
}

template <typename T>
void LaunchOf(Device& device, const AttendProblem& p) {
  constexpr int kPiece = 16 / sizeof(T);
  if (p.dim % kPiece == 0 && AreAligned(p.keys, p.values)) return Launch<T, kPiece>(device, p);
  Launch<T, 1>(device, p);
}

constexpr int kAddThreads = 256;

__global__ void __launch_bounds__(kAddThreads)
    AddFromKernel(const float* x, const int64_t* positions, int64_t first, int64_t numbers, int dim,
                  float* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = int64_t{blockIdx.x} * kAddThreads + threadIdx.x;
  if (i < numbers && positions[i / dim] >= first) y[i] += x[i];
}

}  // namespace

void EngramAttention(Device& device, const EngramAttentionArgs& args) {
  const AttendProblem problem = {.q = args.q.as<const float>(),
                                 .row_offsets = args.row_offsets.as<const int32_t>(),
                                 .slots = args.slots.as<const int32_t>(),
                                 .positions = args.positions.as<const int64_t>(),
                                 .rows = static_cast<int>(args.slots.shape[0]),
                                 .tokens = static_cast<int>(args.q.shape[0]),
                                 .heads = static_cast<int>(args.q.shape[1]),
                                 .dim = static_cast<int>(args.q.shape[2]),
                                 .segment = args.segment,
                                 .first = args.first,
                                 .most = args.most,
                                 .layer = args.layer,
                                 .recalled = args.recalled,
                                 .counted = args.counted,
                                 .scale = args.scale,
                                 .keys = Field(args.keys),
                                 .values = Field(args.values),
                                 .facts = Field(args.facts),
                                 .sums = Field(args.sums),
                                 .out = args.out.as<float>(),
                                 .weights = nullptr};
  if (problem.tokens == 0 || problem.rows == 0) return;
  CHECK(args.keys.dtype == args.values.dtype);
  if (args.keys.dtype == DType::kBF16) {
    LaunchOf<__nv_bfloat16>(device, problem);
  } else {
    CHECK(args.keys.dtype == DType::kF32) << "EngramAttention";
    LaunchOf<float>(device, problem);
  }
}

void AddFrom(Device& device, const AddFromArgs& args) {
  const int64_t numbers = args.x.shape.elements();
  if (numbers == 0) return;
  LaunchOverlapping(device, "AddFrom", AddFromKernel,
                    static_cast<int>((numbers + kAddThreads - 1) / kAddThreads), kAddThreads, 0, 1,
                    args.x.as<const float>(), args.positions.as<const int64_t>(), args.first,
                    numbers, static_cast<int>(args.x.shape[1]), args.y.as<float>());
}

}  // namespace mneme::cuda::engrams
