// A block of threads takes a head, and tokens one after the other. A group of lanes shares an
// engram: its score first and then, once all scores are known, its value. Of steps of few tokens a
// team of blocks shares the engrams. Prompts whose engrams are kept in bf16 are the tiles' matter.
#include <cstdint>
#include <type_traits>

#include "base/log.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/row_at.cuh"
#include "kernels/cuda/common/team.cuh"
#include "kernels/cuda/engrams/attention.cuh"
#include "kernels/cuda/engrams/engrams.h"

namespace mneme::cuda::engrams {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroup = 8;  // lanes that share an engram
constexpr int kGroups = kThreads / kGroup;
constexpr int kAhead = 4;          // engrams of a group that are read at once
constexpr int kTokensOfBlock = 8;  // in steps with prompts

// kCount elements that are read by one access, if there are several.
template <typename T, int kCount>
struct Piece {
  static_assert(kCount * sizeof(T) == 16);
  uint4 bits = {};

  __device__ void Load(const T* from) { bits = *reinterpret_cast<const uint4*>(from); }
  __device__ float operator[](int i) const { return ToFloat(reinterpret_cast<const T*>(&bits)[i]); }
};
template <typename T>
struct Piece<T, 1> {
  T value = {};

  __device__ void Load(const T* from) { value = *from; }
  __device__ float operator[](int) const { return ToFloat(value); }
};

__device__ inline void Prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// Each thread reads kPiece elements of a key or value at a time. The blocks of a team take equal
// parts of the engrams, and put together what they have found.
template <typename T, int kPiece>
class Attention {
 public:
  // Floats of shared memory.
  __host__ __device__ static int Room(int dim, int most) {
    return 2 * dim + most + kWarps * kGroup * kPiece;
  }
  __device__ Attention(const AttendProblem& p, const Team& team, int head, float* shared)
      : p_(p),
        team_(team),
        head_(head),
        query_(shared),
        read_(query_ + p.dim),
        scores_(read_ + p.dim),
        parts_(scores_ + p.most) {}

  // What a token sees of `count` engrams. add(i, weight) hears what each of them got.
  template <typename Add>
  __device__ void Token(int token, int slot, int count, const Add& add) {
    const int64_t at = (int64_t{token} * p_.heads + head_) * p_.dim;
    const ReadOutput out = p_.output();
    if (count == 0) {
      if (team_.rank() != 0) return;
      for (int i = threadIdx.x; i < p_.dim; i += kThreads) out.Save(at + i, 0);
      return;
    }
    const int share = (count + team_.size() - 1) / team_.size();
    const int begin = min(count, team_.rank() * share), own_count = min(count - begin, share);
    const int64_t pitch = int64_t{p_.heads} * p_.dim;
    const int64_t first = (p_.first + begin) * pitch + head_ * int64_t{p_.dim};
    for (int i = threadIdx.x / kGroup; i < own_count; i += kGroups) {
      Prefetch(p_.values.At<const T>(slot, 0) + first + i * pitch + threadIdx.x % kGroup * kPiece);
    }
    for (int i = threadIdx.x; i < p_.dim; i += kThreads) query_[i] = p_.q[at + i];
    __syncthreads();
    Score(p_.keys.At<const T>(slot, 0) + first, own_count);
    __syncthreads();
    float largest, total;
    Weigh(own_count, &largest, &total);
    for (int i = threadIdx.x; i < own_count; i += kThreads) {
      add(begin + i, expf(scores_[i] - largest) / total);
    }
    Sum(p_.values.At<const T>(slot, 0) + first, own_count, largest);
    team_.Sync();
    if (team_.rank() == 0) {
      for (int i = threadIdx.x; i < p_.dim; i += kThreads) {
        float sum = 0;
        team_.ForEach(read_ + i, [&](const float* part) { sum += *part; });
        out.Save(at + i, sum / total);
      }
    }
    team_.Sync();  // what was read may be written anew
  }

 private:
  __device__ void Score(const T* keys, int count) {
    const int group = threadIdx.x / kGroup, own = threadIdx.x % kGroup * kPiece;
    const int64_t pitch = int64_t{p_.heads} * p_.dim;
    for (int base = group; base - group < count; base += kGroups * kAhead) {
      float scores[kAhead] = {};
      for (int d = own; d < p_.dim; d += kGroup * kPiece) {
        Piece<T, kPiece> pieces[kAhead];
        LoadAhead(keys + d, pitch, base, count, pieces);
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
          for (int n = 0; n < kPiece; ++n) {
            scores[a] = fmaf(query_[d + n], pieces[a][n], scores[a]);
          }
        }
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int offset = kGroup / 2; offset > 0; offset /= 2) {
          scores[a] += __shfl_xor_sync(kAllLanes, scores[a], offset);
        }
        const int i = base + a * kGroups;
        if (own == 0 && i < count) scores_[i] = p_.scale * scores[a];
      }
    }
  }

  // Of engrams base, base + kGroups, ..., all on their way at once; zeros beyond the last.
  __device__ void LoadAhead(const T* from, int64_t pitch, int base, int count,
                            Piece<T, kPiece> (&pieces)[kAhead]) const {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = base + a * kGroups;
      if (i < count) pieces[a].Load(from + i * pitch);
    }
  }

  // The largest score of all, and the sum of weights: of a block's own every warp for itself.
  __device__ void Weigh(int count, float* largest, float* total) {
    const int lane = threadIdx.x % kWarp;
    float most = -INFINITY, sum = 0;
    for (int i = lane; i < count; i += kWarp) most = fmaxf(most, scores_[i]);
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
    }
    for (int i = lane; i < count; i += kWarp) sum += expf(scores_[i] - most);
    sum = WarpSum(sum);
    *largest = most, *total = sum;
    if (team_.size() == 1) return;
    __shared__ float2 found;
    if (threadIdx.x == 0) found = {most, sum};
    team_.Sync();
    float all = -INFINITY;
    team_.ForEach(&found, [&](const float2* part) { all = fmaxf(all, part->x); });
    float whole = 0;
    team_.ForEach(&found, [&](const float2* part) {
      if (part->x != -INFINITY) whole += part->y * expf(part->x - all);
    });
    *largest = all, *total = whole;
  }

  // Of weights and values, to `read`.
  __device__ void Sum(const T* values, int count, float largest) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int group = threadIdx.x / kGroup, own = threadIdx.x % kGroup * kPiece;
    const int64_t pitch = int64_t{p_.heads} * p_.dim;
    for (int d = 0; d < p_.dim; d += kGroup * kPiece) {
      const bool in = d + own < p_.dim;
      float sums[kPiece] = {};
      for (int base = group; base < count && in; base += kGroups * kAhead) {
        Piece<T, kPiece> pieces[kAhead];
        LoadAhead(values + d + own, pitch, base, count, pieces);
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          const int i = base + a * kGroups;
          const float weight = i < count ? expf(scores_[i] - largest) : 0.0f;
#pragma unroll
          for (int n = 0; n < kPiece; ++n) sums[n] = fmaf(weight, pieces[a][n], sums[n]);
        }
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
        read_[d + i] = sum;
      }
      __syncthreads();
    }
  }

  const AttendProblem& p_;
  const Team& team_;
  const int head_;
  float *const query_, *const read_, *const scores_, *const parts_;
};

// A team takes a head and all tokens of a row.
template <typename T, int kPiece>
__global__ void __launch_bounds__(kThreads) AttendRows(const __grid_constant__ AttendProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ float shared[];
  const Team team;
  const int pair = blockIdx.x / team.size();
  const int row = pair / p.heads, head = pair % p.heads, slot = p.slots[row];
  if (slot < 0) return;
  const int count = SeenBy(p, row);
  Attention<T, kPiece> attention(p, team, head, shared);
  float* const sums = p.sums.base == nullptr
                          ? nullptr
                          : p.sums.At<float>(slot, p.layer) + int64_t{head} * p.recalled;
  for (int token = p.row_offsets[row]; token < p.row_offsets[row + 1]; ++token) {
    attention.Token(token, slot, count, [&](int i, float weight) {
      if (sums != nullptr) sums[i] += weight;
    });
  }
}

// A block takes a head and some tokens, of whatever rows.
template <typename T, int kPiece>
__global__ void __launch_bounds__(kThreads) AttendTokens(const __grid_constant__ AttendProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ float shared[];
  const Team alone;
  const int head = blockIdx.x % p.heads, begin = blockIdx.x / p.heads * kTokensOfBlock;
  const int end = min(begin + kTokensOfBlock, p.tokens);
  Attention<T, kPiece> attention(p, alone, head, shared);
  for (int row = RowAt(p.row_offsets, p.rows, begin); row < p.rows && p.row_offsets[row] < end;
       ++row) {
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

// Blocks that share a row's head: as many as find a multiprocessor at once, and enough to do.
int TeamOf(const Device& device, const AttendProblem& p) {
  if (!HasHopperCode(device)) return 1;
  int team = 1;
  while (2 * team <= kMaxTeam && 2 * team * p.rows * p.heads <= device.multiprocessors() &&
         p.most > team * kGroups * kAhead) {
    team *= 2;
  }
  return team;
}

template <typename T, int kPiece>
void Launch(Device& device, AttendProblem p) {
  const int64_t shared = Attention<T, kPiece>::Room(p.dim, p.most) * int64_t{sizeof(float)};
  if (p.tokens <= p.rows) {
    const int team = TeamOf(device, p);
    LaunchOverlapping(device, "EngramAttention", AttendRows<T, kPiece>, p.rows * p.heads * team,
                      kThreads, shared, team, p);
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
  if (p.dim % kPiece != 0 || !AreAligned(p.keys, p.values)) return Launch<T, 1>(device, p);
  if (std::is_same_v<T, __nv_bfloat16> && TakesLanes(p) && AreAligned(p.q, p.out)) {
    return AttendLanes(device, p);
  }
  if (std::is_same_v<T, __nv_bfloat16> && p.tokens > p.rows && p.dim <= kMostTileDim) {
    return AttendTiles(device, p);
  }
  Launch<T, kPiece>(device, p);
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

AttendProblem ProblemOf(const EngramAttentionArgs& args) {
  return {.q = args.q.as<const float>(),
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
          .rounds = args.out.dtype == DType::kBF16,
          .weights = nullptr};
}

void EngramAttention(Device& device, const EngramAttentionArgs& args) {
  const AttendProblem problem = ProblemOf(args);
  CHECK(args.out.dtype == DType::kF32 || (problem.rounds && problem.tokens <= problem.rows))
      << "out";
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
  LaunchOverlapping(device, "AddFrom", AddFromKernel, BlocksFor(numbers, kAddThreads), kAddThreads,
                    0, 1, args.x.as<const float>(), args.positions.as<const int64_t>(), args.first,
                    numbers, static_cast<int>(args.x.shape[1]), args.y.as<float>());
}

}  // namespace mneme::cuda::engrams
