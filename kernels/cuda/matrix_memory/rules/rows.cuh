// A warp has rows of a matrix in registers: for one token, or over all entries of a segment.
//
// Blocks are small, come in order and end soon, which is what memory likes best when a matrix is
// replaced where it lies. By 1.6 GB of plain reads and writes on an H200, TB/s: 4.13 with 2 KB of a
// warp and four warps of a block, 4.08 with 4 KB, 4.03 if loads are marked as streaming as well,
// and 3.95 at best by bulk copies into rings of blocks that stay; a copy to another place
// takes 4.28.
#pragma once

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/rules/token.cuh"

namespace mneme::cuda::matrix_memory::rules {

// Warps and threads of a block, and the blocks of a multiprocessor that registers are to allow.
constexpr int kRowWarps = 4, kRowThreads = kRowWarps * kWarp;
constexpr int BlocksOf(int warp_elements) { return warp_elements > 512 ? 5 : 8; }

// A warp's rows of a piece.
template <typename T, int kKeyDim, int kRows, Cache kCache = Cache::kKeep>
struct WarpRows {
  static constexpr int kPitch = RowPitch<T>(kKeyDim);

  __device__ WarpRows(const Problem& p, const Piece& piece) {
    const int lane = threadIdx.x % kWarp;
    const int first_row = (piece.tile * kRowWarps + threadIdx.x / kWarp) * kRows;
    count = min(kRows, p.value_dim - first_row);
    row = first_row + lane % kRows;
    state = p.state.At<T>(piece.slot, piece.memory) +
            (int64_t{piece.head} * p.value_dim + first_row) * kPitch;
    out = p.out + (int64_t{piece.first} * p.heads + piece.head) * p.value_dim + row;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (float& x : s[r]) x = 0;
      if (r < count && !piece.fresh) LoadRow<kKeyDim, kCache>(state + r * kPitch, s[r]);
    }
  }
  __device__ void Store() const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < count) StoreRow<kKeyDim>(state + r * kPitch, s[r]);
    }
  }

  int count;   // not positive: there are none
  int row;     // that this lane finishes, if lane < count
  T* state;    // of the first row
  float* out;  // of this lane's row and the first entry
  float s[kRows][Lane<kKeyDim>::kSize];
};

// Segments of one entry. What all rows are multiplied by is copied to shared memory while they
// come; where they may, they are on their way before the kernel ahead has ended.
template <typename Rule, typename T, int kKeyDim, int kRows>
__global__ void __launch_bounds__(kRowThreads, BlocksOf(kRows* kKeyDim))
    RowsKernel(const __grid_constant__ Problem p) {
  constexpr int kVectors = Rule::kVectors;
  __shared__ alignas(16) float vectors[kVectors][kKeyDim];
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  Piece piece;
  const bool found = FindPiece(p, blockIdx.x, piece);
  if (!found) {
    WaitForPreviousKernel();
    return;
  }
  // Past the cache of the multiprocessor, in which an earlier kernel may have left what was there
  // before.
  WarpRows<T, kKeyDim, kRows, Cache::kGlobal> rows(p, piece);
  if (p.early) WaitForPreviousKernel();
  const float* sources[kVectors];
  Token<Rule, kKeyDim>::FindVectors(p, piece.first, piece.head, sources);
  static_assert(kVectors * kKeyDim % 4 == 0);
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    for (int i = 4 * threadIdx.x; i < kKeyDim; i += 4 * kRowThreads) {
      CopyAsync16(&vectors[n][i], sources[n] + i);
    }
  }
  Token<Rule, kKeyDim> token;
  token.LoadValue(p, piece.first, piece.head, rows.row);
  AwaitCopies();
  __syncthreads();
  if (rows.count <= 0) return;
  const float* shared[kVectors];
#pragma unroll
  for (int n = 0; n < kVectors; ++n) shared[n] = vectors[n];
  token.TakeVectors(shared);
  token.Finish();
  const float y = p.scale * TakeToken(token, rows.s);
  // All lanes have read v, the place of which this may take.
  if (threadIdx.x % kWarp < rows.count) *rows.out = y;
  rows.Store();
}

// Segments of any number of entries, one after the other; the next is on its way.
template <typename Rule, typename T, int kKeyDim, int kRows>
__global__ void __launch_bounds__(kRowThreads) TokensKernel(const __grid_constant__ Problem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  Piece piece;
  if (!FindPiece(p, blockIdx.x, piece)) return;
  WarpRows<T, kKeyDim, kRows> rows(p, piece);
  if (rows.count <= 0) return;
  Token<Rule, kKeyDim> token, next;
  next.LoadHead(p, piece.first, piece.head);
  next.LoadValue(p, piece.first, piece.head, rows.row);
  const int64_t pitch = int64_t{p.heads} * p.value_dim, end = piece.first + piece.length;
  float* out = rows.out;
  for (int64_t entry = piece.first; entry < end; ++entry, out += pitch) {
    token = next;
    if (entry + 1 < end) {
      next.LoadHead(p, entry + 1, piece.head);
      next.LoadValue(p, entry + 1, piece.head, rows.row);
    }
    token.Finish();
    const float y = p.scale * TakeToken(token, rows.s);
    if (threadIdx.x % kWarp < rows.count) *out = y;
  }
  rows.Store();
}

}  // namespace mneme::cuda::matrix_memory::rules
