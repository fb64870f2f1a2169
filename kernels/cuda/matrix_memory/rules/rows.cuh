// A warp takes its rows of a matrix, in registers, through all entries of a segment.
#pragma once

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/rules/token.cuh"

namespace mneme::cuda::matrix_memory::rules {

constexpr int kRowWarps = 4, kRowThreads = kRowWarps * kWarp;

// kMany: segments may have more than one entry, the next of which is then on its way.
template <typename Rule, typename T, int kKeyDim, int kRows, bool kMany>
__global__ void __launch_bounds__(kRowThreads) RowsKernel(const __grid_constant__ Problem p) {
  constexpr int kSize = Lane<kKeyDim>::kSize, kPitch = RowPitch<T>(kKeyDim);
  LetNextKernelStart();
  WaitForPreviousKernel();
  Piece piece;
  if (!FindPiece(p, blockIdx.x, piece)) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first_row = (piece.tile * kRowWarps + warp) * kRows;
  const int rows = min(kRows, p.value_dim - first_row);
  if (rows <= 0) return;
  const int row = first_row + lane % kRows;  // that this lane finishes
  T* state = p.state.At<T>(piece.slot, piece.memory) +
             (int64_t{piece.head} * p.value_dim + first_row) * kPitch;
  float s[kRows][kSize];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) s[r][i] = 0;
    if (r < rows && !piece.fresh) LoadRow<kKeyDim, Cache::kStream>(state + r * kPitch, s[r]);
  }
  Token<Rule, kKeyDim> next;
  next.LoadHead(p, piece.first, piece.head);
  next.LoadValue(p, piece.first, piece.head, row);
  float* out = p.out + (int64_t{piece.first} * p.heads + piece.head) * p.value_dim + row;
  const auto take = [&](Token<Rule, kKeyDim>& token) {
    token.Finish();
    const float y = p.scale * TakeToken(token, s);
    // All lanes have read v, the place of which this may take.
    if (lane < rows) *out = y;
  };
  if constexpr (kMany) {
    const int64_t pitch = int64_t{p.heads} * p.value_dim, last = piece.first + piece.length - 1;
    for (int64_t entry = piece.first; entry < last; ++entry, out += pitch) {
      Token<Rule, kKeyDim> token = next;
      next.LoadHead(p, entry + 1, piece.head);
      next.LoadValue(p, entry + 1, piece.head, row);
      take(token);
    }
  }
  take(next);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < rows) StoreRow<kKeyDim>(state + r * kPitch, s[r]);
  }
}

}  // namespace mneme::cuda::matrix_memory::rules
