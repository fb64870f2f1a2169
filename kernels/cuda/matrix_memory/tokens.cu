// Many tokens for a memory, or none: a warp holds its rows of the matrix in registers over all of
// them. Pending writes are folded first.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/launch.h"
#include "kernels/cuda/matrix_memory/row.cuh"

namespace mneme::cuda::matrix_memory {
namespace {

constexpr int kRows = 4, kWarps = 4;  // of a warp, of a block
constexpr int kThreads = kWarps * kWarp;
constexpr int kBlockRows = kRows * kWarps;

// What a token brings to the rows of a warp.
template <int kKeyDim>
struct Token {
  float k[Lane<kKeyDim>::kSize], q[Lane<kKeyDim>::kSize];
  float v, log_decay, beta;

  __device__ void Load(const Problem& p, const Item& item, int entry, int row) {
    const int64_t at_head = static_cast<int64_t>(entry) * p.value_heads + item.head;
    const int64_t at_key =
        (static_cast<int64_t>(entry) * p.heads + item.head / (p.value_heads / p.heads)) * kKeyDim;
    LoadRow<kKeyDim>(p.k + at_key, k);
    LoadRow<kKeyDim>(p.q + at_key, q);
    v = row < p.value_dim ? p.v[at_head * p.value_dim + row] : 0.0f;
    log_decay = LogDecayAt(p.log_decay, at_head);
    beta = p.beta[at_head];
  }
};

// With `chosen`, block b has work of segment chosen.list[b / blocks a segment].
template <typename T, int kKeyDim>
__global__ void __launch_bounds__(kThreads)
    TokensKernel(const __grid_constant__ Problem p, const ChosenSegments chosen) {
  constexpr int kSize = Lane<kKeyDim>::kSize, kPitch = RowPitch<T>(kKeyDim);
  __shared__ float shared_updates[kWarps][kMaxPending][kRows];
  Item item;
  LetNextKernelStart();
  WaitForPreviousKernel();
  int segment = blockIdx.x / (p.value_heads * p.tiles);
  const int rest = blockIdx.x - segment * (p.value_heads * p.tiles);
  if (chosen.list != nullptr) {
    if (segment >= *chosen.count) return;
    segment = chosen.list[segment];
  }
  if (!FindItem(p, segment, rest, item)) return;
  const Range range = ReadRange(p, item);
  const int pending = range.size();
  if (item.length == 0 && pending == 0 && !item.fresh) return;  // is settled
  __syncthreads();
  if (threadIdx.x == 0) {
    RangeChange change;
    change.Begin(p, item, range, /*fold=*/true);
    change.Finish();
  }
  if (item.length == 0 && item.fresh) return;  // others write the matrix

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first_row = item.tile * kBlockRows + warp * kRows;
  const int rows = min(kRows, p.value_dim - first_row);
  if (rows <= 0) return;
  const int row = first_row + lane % kRows;  // that this lane finishes
  T* state = p.state.At<T>(item.slot, item.memory) +
             (static_cast<int64_t>(item.head) * p.value_dim + first_row) * kPitch;
  float s[kRows][kSize];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) s[r][i] = 0;
    if (r < rows && !item.fresh) LoadRow<kKeyDim, Cache::kStream>(state + r * kPitch, s[r]);
  }
  if (pending > 0) {
    PendingUpdates<kRows> updates;
    updates.template Load<Term<T>>(p, item, range, first_row);
    const PendingDecay decay = LoadPendingDecay(p, item, range);
    updates.Share(expf(decay.since), shared_updates[warp]);
    const float all = expf(decay.all);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) s[r][i] *= all;
    }
    const int key_head = item.head / (p.value_heads / p.heads);
    const auto* keys = p.keys.At<const Term<T>>(item.slot, item.memory) + key_head * kKeyDim;
    AddPending<kKeyDim, 2>(p, keys, range, 0, shared_updates[warp], s);
  }

  Token<kKeyDim> token, next;
  const int last = item.first + item.length;
  if (item.length > 0) next.Load(p, item, item.first, row);
  for (int e = item.first; e < last; ++e) {
    token = next;
    if (e + 1 < last) next.Load(p, item, e + 1, row);
    __syncwarp();  // the output may take the place of v
    float recalls[kRows], reads[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      recalls[r] = DotLane(s[r], token.k);
      reads[r] = DotLane(s[r], token.q);
    }
    const float decay = expf(token.log_decay);
    const Write write = OneToken(SumRows(recalls), SumRows(reads),
                                 SumLanes(DotLane(token.k, token.q)), token.v, decay, token.beta);
    if (lane < rows) {
      p.out[(static_cast<int64_t>(e) * p.value_heads + item.head) * p.value_dim + row] =
          p.scale * write.out;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float u = __shfl_sync(kAllLanes, write.u, r);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        s[r][i] = __fmaf_rn(u, token.k[i], __fmul_rn(decay, s[r][i]));
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < rows) StoreRow<kKeyDim>(state + r * kPitch, s[r]);
  }
}

template <typename T, int kKeyDim>
void Launch(Device& device, const Problem& p, const ChosenSegments& chosen) {
  const int64_t segments = chosen.list != nullptr ? chosen.most : p.segments.count;
  LaunchOverlapping(device, "gated delta rule, token by token", TokensKernel<T, kKeyDim>,
                    static_cast<int>(segments * p.value_heads * p.tiles), kThreads, 0, 1, p,
                    chosen);
}

}  // namespace

void LaunchTokens(Device& device, Problem problem, DType state_dtype,
                  const ChosenSegments& chosen) {
  problem.tiles = (problem.value_dim + kBlockRows - 1) / kBlockRows;
  if (!RangeCountFits(device, problem)) return;
  ForState(state_dtype, problem.key_dim,
           [&]<typename T, int kKeyDim>() { Launch<T, kKeyDim>(device, problem, chosen); });
}

}  // namespace mneme::cuda::matrix_memory
