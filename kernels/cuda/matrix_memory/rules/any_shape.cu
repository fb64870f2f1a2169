// Any rule, for any shape: a warp takes one row of a matrix, in shared memory, through all its
// entries.
#include <algorithm>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/rules/rules.h"
#include "kernels/cuda/matrix_memory/shared_row.cuh"

namespace mneme::cuda::matrix_memory::rules {
namespace {

using Rule = MatrixRule;

// One token; `s` is the warp's row, a lane uses its own elements only.
__device__ inline float TakeToken(const Problem& p, int64_t entry, int head, int row, float* s) {
  const int lane = threadIdx.x % kWarp;
  const float* q = p.q.At(entry, head, p.key_dim);
  const float* k = p.k.At(entry, head, p.key_dim);
  const float v = p.v.At(entry, head, p.value_dim)[row];
  const bool general = p.rule.correction == Rule::Correction::kGeneral;
  const bool delta = p.rule.correction == Rule::Correction::kDelta;
  const bool before = p.rule.read == Rule::Read::kBeforeWithBonus;
  const float* c = general ? p.c.At(entry, head, p.key_dim) : nullptr;
  const float* e = general ? p.e.At(entry, head, p.key_dim) : nullptr;
  const float* bonus = before ? p.bonus + int64_t{head} * p.key_dim : nullptr;
  const float* log_decays =
      p.rule.decay == Rule::Decay::kKey ? p.decay.At(entry, head, p.key_dim) : nullptr;
  const float decay = RowDecay(p, entry, head, row);

  float recalled = 0, read = 0, through = 0;
  for (int d = lane; d < p.key_dim; d += kWarp) {
    float x = s[d];
    if (before) {
      read = fmaf(x, q[d], read);
      through = fmaf(q[d] * bonus[d], k[d], through);
    }
    if (general) recalled = fmaf(x, c[d], recalled);
    x *= log_decays != nullptr ? expf(log_decays[d]) : decay;
    if (delta) recalled = fmaf(x, k[d], recalled);
    s[d] = x;
  }
  if (general || delta) recalled = SumLanes(recalled);
  const float u = delta ? *p.beta.At(entry, head, 1) * (v - recalled) : v;
  for (int d = lane; d < p.key_dim; d += kWarp) {
    float x = fmaf(u, k[d], s[d]);
    if (general) x = fmaf(recalled, e[d], x);
    if (!before) read = fmaf(x, q[d], read);
    s[d] = x;
  }
  read = SumLanes(read);
  if (before) read = fmaf(SumLanes(through), v, read);
  return p.scale * read;
}

template <typename T>
__global__ void AnyShapeKernel(const __grid_constant__ Problem p) {
  extern __shared__ float shared_rows[];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp;
  Piece piece;
  if (!FindPiece(p, blockIdx.x, piece)) return;
  const int row = piece.tile * warps + warp;
  if (row >= p.value_dim) return;
  float* s = shared_rows + warp * p.key_dim;
  T* state = p.state.At<T>(piece.slot, piece.memory) +
             (int64_t{piece.head} * p.value_dim + row) * RowPitch<T>(p.key_dim);
  ReadSharedRow(state, piece.fresh, p.key_dim, s);
  for (int64_t entry = piece.first; entry < piece.first + piece.length; ++entry) {
    const float out = TakeToken(p, entry, piece.head, row, s);
    // The output may take the place of v, which all lanes have read.
    if (threadIdx.x % kWarp == 0) {
      p.out[(entry * p.heads + piece.head) * p.value_dim + row] = out;
    }
  }
  StoreSharedRow(s, p.key_dim, state);
}

}  // namespace

void LaunchAnyShape(Device& device, Problem problem, DType state_dtype) {
  // As many warps as there is shared memory for.
  const int64_t row_bytes = sizeof(float) * int64_t{problem.key_dim};
  const auto most = static_cast<int64_t>(device.properties().sharedMemPerBlockOptin);
  const int warps = static_cast<int>(std::clamp<int64_t>(most / row_bytes, 1, 4));
  problem.tiles = (problem.value_dim + warps - 1) / warps;
  const int64_t blocks = int64_t{problem.segments.count} * problem.heads * problem.tiles;
  ForStateType(state_dtype, [&]<typename T>() {
    LaunchOverlapping(device, "matrix memory, any shape", AnyShapeKernel<T>,
                      static_cast<int>(blocks), warps * kWarp, warps * row_bytes, 1, problem);
  });
}

}  // namespace mneme::cuda::matrix_memory::rules
