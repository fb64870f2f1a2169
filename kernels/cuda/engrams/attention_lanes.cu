// Attention to engrams in steps of decode rows, keys and values of bf16: a warp takes a head of a
// row, or, where there are few, the warps of a block share it. Of one or two rows such a block also
// makes the head's query from the residual: its warps hold the weights of a few columns each before
// the residual is there, and norm it each by itself.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/attention_tiles.cuh"
#include "kernels/cuda/common/lane_attention.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/engrams/attention.cuh"
#include "kernels/cuda/engrams/read_step.h"
#include "kernels/cuda/linear/pieces.cuh"

namespace mneme::cuda::engrams {
namespace {

constexpr int kWarpsAlone = 4;  // of a block whose warps have a head each
constexpr int kMostRows = 2;    // whose queries are made here
constexpr int kPiece = 8;       // features of a lane that lie side by side
constexpr int kMostQueryDim = 64;
constexpr int kColumnsOfWarp = kMostQueryDim / kMostQueryWarps;

// What queries are made of.
struct QueryProduct {
  const float *hidden, *norm, *norm_bias;  // [rows, model_dim], [model_dim], the same or null
  float eps;
  int model_dim;
  const __nv_bfloat16* weights;  // [heads * dim, model_dim]
  const float* bias;             // [heads * dim] or null
};

enum class Form : uint8_t {
  kAlone,    // a warp to a head of a row
  kShared,   // a block
  kProduct,  // a block of kMostQueryWarps, which makes the query
};

// The columns of a head's query that a warp makes.
template <int kPieces>
class QueryColumns {
 public:
  // Before the residual is there.
  __device__ QueryColumns(const QueryProduct& p, int head, int dim)
      : p_(p), first_(threadIdx.x / kWarp * kColumnsOfWarp), dim_(dim), row_(head * dim + first_) {
#pragma unroll
    for (int o = 0; o < kColumnsOfWarp; ++o) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        raw_[o][j] = {};
        const int k = Feature(j);
        if (first_ + o < dim_ && k < p_.model_dim) {
          raw_[o][j] = linear::LoadWeights<__nv_bfloat16, kPiece>(
              p_.weights + int64_t{row_ + o} * p_.model_dim + k);
        }
      }
    }
  }

  // To `query`, shared memory. Whole warps.
  __device__ void Make(int token, float* query) const {
    float x[kPieces][kPiece] = {};
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int k = Feature(j);
      if (k < p_.model_dim) {
        linear::LoadActivations<kPiece>(p_.hidden + int64_t{token} * p_.model_dim + k, x[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) sum += x[j][i];
    }
    const float mean = WarpSum(sum) / p_.model_dim;
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (Feature(j) >= p_.model_dim) continue;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        x[j][i] -= mean;
        squares = fmaf(x[j][i], x[j][i], squares);
      }
    }
    const float factor = 1.0f / sqrtf(WarpSum(squares) / p_.model_dim + p_.eps);
    float sums[kColumnsOfWarp] = {};
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int k = Feature(j);
      if (k >= p_.model_dim) continue;
      float scale[kPiece], bias[kPiece] = {};
      linear::LoadActivations<kPiece>(p_.norm + k, scale);
      if (p_.norm_bias != nullptr) linear::LoadActivations<kPiece>(p_.norm_bias + k, bias);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) x[j][i] = fmaf(factor * x[j][i], scale[i], bias[i]);
#pragma unroll
      for (int o = 0; o < kColumnsOfWarp; ++o) {
        float w[kPiece];
        linear::Unpack(raw_[o][j], w);
#pragma unroll
        for (int i = 0; i < kPiece; ++i) sums[o] = fmaf(w[i], x[j][i], sums[o]);
      }
    }
    const int lane = threadIdx.x % kWarp, own = lane / (kWarp / kColumnsOfWarp);
    const float product = WarpSums(sums, lane);
    if (lane % (kWarp / kColumnsOfWarp) != 0 || first_ + own >= dim_) return;
    query[first_ + own] = p_.bias != nullptr ? product + p_.bias[row_ + own] : product;
  }

 private:
  __device__ static int Feature(int piece) {
    return (piece * kWarp + static_cast<int>(threadIdx.x) % kWarp) * kPiece;
  }

  const QueryProduct& p_;
  const int first_, dim_, row_;
  linear::Piece<__nv_bfloat16, kPiece> raw_[kColumnsOfWarp][kPieces];
};
template <>
class QueryColumns<0> {
 public:
  __device__ QueryColumns(const QueryProduct&, int, int) {}
  __device__ void Make(int, float*) const {}
};

__device__ inline void PrefetchToL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// `pairs`: heads of all rows. kPieces > 0: Form::kProduct.
template <int kLanes, Form kForm, int kPieces>
__global__ void __launch_bounds__((kForm == Form::kAlone ? kWarpsAlone : kMostQueryWarps) * kWarp,
                                  kForm == Form::kAlone ? 6 : 1)
    EngramLanes(const __grid_constant__ AttendProblem p, const __grid_constant__ QueryProduct made,
                int pairs) {
  using Lanes = LaneAttention<kLanes>;
  constexpr bool kAlone = kForm == Form::kAlone, kMakes = kForm == Form::kProduct;
  extern __shared__ float scores[];  // [most] of each query, where sums are wanted
  __shared__ QueryParts<kLanes> parts;
  __shared__ alignas(16) float query[kMakes ? kMostQueryDim : 1];
  LetNextKernelStart();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int pair = static_cast<int>(blockIdx.x) * (kAlone ? kWarpsAlone : 1) + (kAlone ? warp : 0);
  const int row = pair / p.heads, head = pair % p.heads;
  const QueryColumns<kPieces> columns(made, head, p.dim);
  WaitForPreviousKernel();
  if (pair >= pairs) return;
  const int slot = p.slots[row];
  if (slot < 0) return;

  const int thread = kAlone ? lane : static_cast<int>(threadIdx.x);
  const int threads = kAlone ? kWarp : static_cast<int>(blockDim.x), warps = threads / kWarp;
  const int own = lane % kLanes * kLaneColumns, group = lane / kLanes;
  const bool has_columns = own < p.dim;
  const int64_t pitch = int64_t{p.heads} * p.dim;
  const int64_t at = p.first * pitch + int64_t{head} * p.dim + own;
  const __nv_bfloat16* const keys = p.keys.At<const __nv_bfloat16>(slot, 0) + at;
  const __nv_bfloat16* const values = p.values.At<const __nv_bfloat16>(slot, 0) + at;
  const int first_key = (kAlone ? 0 : warp) * Lanes::kKeys + group;
  if constexpr (kMakes) {
    // Engrams come nearer while the query is made.
#pragma unroll
    for (int a = 0; a < Lanes::kAhead; ++a) {
      const int i = first_key + a * Lanes::kGroups;
      if (i < p.most && has_columns) {
        PrefetchToL2(keys + i * pitch);
        PrefetchToL2(values + i * pitch);
      }
    }
  }
  float* const sums = p.sums.base == nullptr
                          ? nullptr
                          : p.sums.At<float>(slot, p.layer) + int64_t{head} * p.recalled;
  float* const own_scores = scores + (kAlone ? warp * p.most : 0);
  const int count = min(SeenBy(p, row), p.most);
  const float old = sums != nullptr && thread < count ? sums[thread] : 0.0f;

  const int begin = p.row_offsets[row], end = p.row_offsets[row + 1];
  for (int token = begin; token < end; ++token) {
    if (!kAlone && token > begin) __syncthreads();  // what was shared has been read
    const int64_t out = (int64_t{token} * p.heads + head) * p.dim;
    const float* from = p.q + out;
    if constexpr (kMakes) {
      columns.Make(token, query);
      __syncthreads();
      from = query;
    }
    Lanes attention;
    attention.LoadQuery(from + own, has_columns, p.scale * kLog2E);
    for (int base = first_key - group; base < count; base += warps * Lanes::kKeys) {
      uint4 k[Lanes::kAhead] = {}, v[Lanes::kAhead] = {};
#pragma unroll
      for (int a = 0; a < Lanes::kAhead; ++a) {
        const int i = base + a * Lanes::kGroups + group;
        if (i >= count || !has_columns) continue;
        k[a] = *reinterpret_cast<const uint4*>(keys + i * pitch);
        v[a] = *reinterpret_cast<const uint4*>(values + i * pitch);
      }
      const int seen = (count - base - group + Lanes::kGroups - 1) / Lanes::kGroups;
      float found[Lanes::kAhead];
      attention.Take(k, v, seen, found);
      if (sums == nullptr || lane % kLanes != 0) continue;
#pragma unroll
      for (int a = 0; a < Lanes::kAhead; ++a) {
        if (a < seen) own_scores[base + a * Lanes::kGroups + group] = found[a];
      }
    }
    if constexpr (kAlone) {
      attention.Finish(p.output(), out, p.dim);
      __syncwarp();  // scores of all lanes
    } else {
      attention.FinishBlock(&parts, p.output(), out, p.dim);
    }
    for (int i = thread; i < count && sums != nullptr; i += threads) {
      const float before = i == thread && token == begin ? old : sums[i];
      sums[i] = before + exp2f(own_scores[i] - attention.largest) / attention.total;
    }
    if constexpr (kMakes) break;         // rows have one token each
    if constexpr (kAlone) __syncwarp();  // scores have been read
  }
}

int64_t SharedBytes(const AttendProblem& p, int queries) {
  return p.sums.base == nullptr ? 0 : int64_t{queries} * p.most * int64_t{sizeof(float)};
}

template <int kLanes>
void Launch(Device& device, const AttendProblem& p) {
  const int pairs = p.rows * p.heads;
  // As many warps as run at a time, each with engrams enough to be worth its start.
  constexpr int kWarpsAtOnce = 16, kKeys = LaneAttention<kLanes>::kKeys;
  int warps = 1;
  while (warps < kMostQueryWarps && 2 * warps * pairs <= kWarpsAtOnce * device.multiprocessors() &&
         warps * kKeys < p.most) {
    warps *= 2;
  }
  if (warps == 1) {
    LaunchOverlapping(device, "EngramAttention of heads", EngramLanes<kLanes, Form::kAlone, 0>,
                      (pairs + kWarpsAlone - 1) / kWarpsAlone, kWarpsAlone * kWarp,
                      SharedBytes(p, kWarpsAlone), 1, p, QueryProduct{}, pairs);
  } else {
    LaunchOverlapping(device, "EngramAttention of heads", EngramLanes<kLanes, Form::kShared, 0>,
                      pairs, warps * kWarp, SharedBytes(p, 1), 1, p, QueryProduct{}, pairs);
  }
}

template <int kPieces>
void LaunchProduct(Device& device, const AttendProblem& p, const QueryProduct& made) {
  const int pairs = p.rows * p.heads;
  LaunchOverlapping(device, "EngramAttention with queries",
                    EngramLanes<kMostQueryDim / kLaneColumns, Form::kProduct, kPieces>, pairs,
                    kMostQueryWarps * kWarp, SharedBytes(p, 1), 1, p, made, pairs);
}

}  // namespace

bool TakesLanes(const AttendProblem& p) {
  return p.tokens <= p.rows && p.dim % kLaneColumns == 0 && p.dim <= kMostLaneDim &&
         p.most <= kMostLaneEngrams;
}

void AttendLanes(Device& device, const AttendProblem& p) {
  (p.dim > kMostQueryDim ? Launch<kMostLaneDim / kLaneColumns>
                         : Launch<kMostQueryDim / kLaneColumns>)(device, p);
}

bool EngramReadStep(Device& device, const EngramReadStepArgs& args) {
  const EngramAttentionArgs& engrams = args.engrams;
  const int64_t model_dim = args.hidden.shape[1];
  const PackedMatrix& w = args.q.weights;
  const AttendProblem p = ProblemOf(engrams);
  if (p.rows < 1 || p.rows > kMostRows || p.tokens != p.rows || !TakesLanes(p) ||
      p.dim > kMostQueryDim || engrams.keys.dtype != DType::kBF16 || w.dtype != DType::kBF16 ||
      model_dim % kPiece != 0 ||
      !AreAligned(p.keys, p.values, engrams.out, args.hidden, args.norm.weight, args.norm.bias,
                  w)) {
    return false;
  }
  const QueryProduct made = {.hidden = args.hidden.as<const float>(),
                             .norm = args.norm.weight.as<const float>(),
                             .norm_bias = args.norm.bias.as<const float>(),
                             .eps = args.norm.eps,
                             .model_dim = static_cast<int>(model_dim),
                             .weights = static_cast<const __nv_bfloat16*>(w.data),
                             .bias = args.q.bias.as<const float>()};
  constexpr int kOfPiece = kWarp * kPiece;
  if (model_dim > 4 * kOfPiece) return false;
  if (model_dim > 3 * kOfPiece) {
    LaunchProduct<4>(device, p, made);
  } else if (model_dim > kOfPiece) {
    LaunchProduct<3>(device, p, made);
  } else {
    LaunchProduct<1>(device, p, made);
  }
  return true;
}

}  // namespace mneme::cuda::engrams
