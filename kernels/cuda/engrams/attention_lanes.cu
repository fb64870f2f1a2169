// Attention to engrams in steps of decode rows, keys and values of bf16: a warp takes a head of a
// row, or, where there are few, the warps of a block share it. Of one or two rows such a block also
// makes the head's query from the residual: its warps hold the weights of a few columns each before
// the residual is there, and norm it each by itself.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/async_copy.cuh"
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
constexpr int kMostModelDim = 1024;

// What queries are made of.
struct QueryProduct {
  const float *hidden, *norm, *norm_bias;  // [rows, model_dim], [model_dim], the same or null
  float eps;
  int model_dim;
  const __nv_bfloat16* weights;  // [heads * dim, model_dim]
  const float* bias;             // [heads * dim] or null
};

constexpr int kLanesAhead = LaneAttention<kMostQueryDim / kLaneColumns>::kAhead;

enum class Form : uint8_t {
  kAlone,    // a warp to a head of a row
  kShared,   // a block
  kProduct,  // a block of kMostQueryWarps, which makes the query
};

// The norm in shared memory.
struct NormRoom {
  alignas(16) float weight[kMostModelDim], bias[kMostModelDim];
};

// The columns of a head's query that a warp makes.
template <int kPieces>
class QueryColumns {
 public:
  // Before the residual is there. The whole block, which it leaves in step.
  __device__ QueryColumns(const QueryProduct& p, int head, int dim, NormRoom& norm)
      : p_(p),
        norm_(norm),
        first_(static_cast<int>(threadIdx.x) / kWarp * kColumnsOfWarp),
        dim_(dim),
        row_(head * dim + first_) {
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
    for (int k = static_cast<int>(threadIdx.x) * 4; k < p_.model_dim;
         k += static_cast<int>(blockDim.x) * 4) {
      CopyAsync16(norm.weight + k, p_.norm + k);
      if (p_.norm_bias != nullptr) {
        CopyAsync16(norm.bias + k, p_.norm_bias + k);
      } else {
        SaveFour(norm.bias + k, {});
      }
    }
    AwaitCopies();
    __syncthreads();
  }

  // The residual of a token, on its way.
  __device__ void Load(int token) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) x_[j][i] = 0;
      const int k = Feature(j);
      if (k < p_.model_dim) {
        linear::LoadActivations<kPiece>(p_.hidden + int64_t{token} * p_.model_dim + k, x_[j]);
      }
    }
  }

  // To `query`, shared memory. Whole warps; uses up what was loaded.
  __device__ void Make(float* query) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) sum += x_[j][i];
    }
    const float mean = WarpSum(sum) / p_.model_dim;
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (Feature(j) >= p_.model_dim) continue;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        x_[j][i] -= mean;
        squares = fmaf(x_[j][i], x_[j][i], squares);
      }
    }
    const float factor = 1.0f / sqrtf(WarpSum(squares) / p_.model_dim + p_.eps);
    float sums[kColumnsOfWarp] = {};
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int k = Feature(j);
      if (k >= p_.model_dim) continue;
      float scale[kPiece], bias[kPiece];
      linear::LoadActivations<kPiece>(norm_.weight + k, scale);
      linear::LoadActivations<kPiece>(norm_.bias + k, bias);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) x_[j][i] = fmaf(factor * x_[j][i], scale[i], bias[i]);
#pragma unroll
      for (int o = 0; o < kColumnsOfWarp; ++o) {
        float w[kPiece];
        linear::Unpack(raw_[o][j], w);
#pragma unroll
        for (int i = 0; i < kPiece; ++i) sums[o] = fmaf(w[i], x_[j][i], sums[o]);
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
  const NormRoom& norm_;
  const int first_, dim_, row_;
  linear::Piece<__nv_bfloat16, kPiece> raw_[kColumnsOfWarp][kPieces];
  float x_[kPieces][kPiece];
};
__device__ inline void PrefetchToL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

__device__ inline void PrefetchEngrams(const __nv_bfloat16* keys, const __nv_bfloat16* values,
                                       int64_t pitch, int first, int step, int count) {
#pragma unroll
  for (int a = 0; a < kLanesAhead; ++a) {
    const int i = first + a * step;
    if (i >= count) break;
    PrefetchToL2(keys + i * pitch);
    PrefetchToL2(values + i * pitch);
  }
}

// `pairs`: heads of all rows. kPieces > 0: Form::kProduct.
template <int kLanes, Form kForm, int kPieces>
__global__ void __launch_bounds__((kForm == Form::kAlone ? kWarpsAlone : kMostQueryWarps) * kWarp,
                                  kForm == Form::kAlone ? 6 : 1)
    EngramLanes(const __grid_constant__ AttendProblem p, const __grid_constant__ QueryProduct made,
                int pairs) {
  using Lanes = LaneAttention<kLanes>;
  static_assert(Lanes::kAhead == kLanesAhead);
  constexpr bool kAlone = kForm == Form::kAlone, kMakes = kForm == Form::kProduct;
  extern __shared__ float scores[];  // [most] of each query, where sums are wanted
  __shared__ QueryParts<kLanes> parts;
  LetNextKernelStart();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int pair = static_cast<int>(blockIdx.x) * (kAlone ? kWarpsAlone : 1) + (kAlone ? warp : 0);
  const int row = pair / p.heads, head = pair % p.heads;
  const int thread = kAlone ? lane : static_cast<int>(threadIdx.x);
  const int threads = kAlone ? kWarp : static_cast<int>(blockDim.x), warps = threads / kWarp;
  const int own = lane % kLanes * kLaneColumns, group = lane / kLanes;
  const int first_key = (kAlone ? 0 : warp) * Lanes::kKeys + group;
  const bool has_columns = own < p.dim;
  const int64_t pitch = int64_t{p.heads} * p.dim;
  const int64_t at = p.first * pitch + int64_t{head} * p.dim + own;
  float* const own_scores = scores + (kAlone ? warp * p.most : 0);

  // What engrams got so far; of those that there are not, what the slab has there.
  const auto sums_of = [&](int slot) {
    return p.sums.base == nullptr ? nullptr
                                  : p.sums.At<float>(slot, p.layer) + int64_t{head} * p.recalled;
  };
  // A token's, whose query starts at `from`.
  const auto attend = [&](const float* from, int64_t out, int slot, int count, float old) {
    const __nv_bfloat16* const keys = p.keys.At<const __nv_bfloat16>(slot, 0) + at;
    const __nv_bfloat16* const values = p.values.At<const __nv_bfloat16>(slot, 0) + at;
    float* const sums = sums_of(slot);
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
      const float before = i == thread ? old : sums[i];
      sums[i] = before + exp2f(own_scores[i] - attention.largest) / attention.total;
    }
  };

  if constexpr (kMakes) {
    __shared__ NormRoom norm;
    __shared__ alignas(16) float query[kMostQueryDim];
    QueryColumns<kPieces> columns(made, head, p.dim, norm);
    WaitForPreviousKernel();
    // All that does not depend on each other is on its way before the query is made.
    const int slot = p.slots[row];
    columns.Load(row);  // rows have one token each
    if (slot < 0) return;
    if (has_columns) {
      PrefetchEngrams(p.keys.At<const __nv_bfloat16>(slot, 0) + at,
                      p.values.At<const __nv_bfloat16>(slot, 0) + at, pitch, first_key,
                      Lanes::kGroups, p.most);
    }
    const float* const sums = sums_of(slot);
    const float old = sums != nullptr && thread < p.most ? sums[thread] : 0.0f;
    const int seen = SeenBy(p, row);
    columns.Make(query);
    __syncthreads();
    attend(query, int64_t{pair} * p.dim, slot, min(seen, p.most), old);
  } else {
    WaitForPreviousKernel();
    if (pair >= pairs) return;
    const int slot = p.slots[row];
    const int begin = p.row_offsets[row], end = p.row_offsets[row + 1];
    if (slot < 0) return;
    const int count = min(SeenBy(p, row), p.most);
    for (int token = begin; token < end; ++token) {
      const float* const sums = sums_of(slot);
      const float old = sums != nullptr && thread < p.most ? sums[thread] : 0.0f;
      const int64_t out = (int64_t{token} * p.heads + head) * p.dim;
      attend(p.q + out, out, slot, count, old);
      if (token + 1 == end) break;
      // What was shared has been read.
      if constexpr (kAlone) {
        __syncwarp();
      } else {
        __syncthreads();
      }
    }
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
  if (model_dim > kMostModelDim) return false;
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
