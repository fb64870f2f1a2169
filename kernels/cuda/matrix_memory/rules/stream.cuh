// One token for each memory, where there are many: as many warps as the GPU holds walk over all
// matrices, each by itself. Bulk copies bring the rows that a warp comes to next into its ring in
// shared memory, across the seams between one head and another.
#pragma once

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/rules/token.cuh"

namespace mneme::cuda::matrix_memory::rules {

// A warp takes kChunks times kRows rows of a head, and has kDepth chunks on their way.
template <typename T, int kKeyDim>
struct StreamShape {
  static constexpr int kWarps = 8, kBlocks = 2;  // of a block, of a multiprocessor
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = kWarpElements / kKeyDim, kChunks = 4;
  static constexpr int kPieceRows = kRows * kChunks;
  static constexpr int kDepth = 12 / sizeof(T);
  static constexpr int kChunkElements = kRows * RowPitch<T>(kKeyDim);
  static constexpr int kBytes = static_cast<int>(sizeof(T)) * kWarps * kDepth * kChunkElements;
};

// A warp's ring, and what it has still to ask for.
template <typename T, int kKeyDim>
class RowRing {
 public:
  using Shape = StreamShape<T, kKeyDim>;
  static constexpr int kPitch = RowPitch<T>(kKeyDim);

  __device__ RowRing(const Problem& p, int64_t units, int64_t first, int64_t stride, T* memory,
                     uint64_t* full)
      : p_(p), units_(units), unit_(first), stride_(stride), memory_(memory), full_(full) {
#pragma unroll 1
    for (int i = 0; i < Shape::kDepth; ++i) Ask(i);
  }
  // The rows that come next.
  __device__ const T* Await() const {
    BulkWait(&full_[place_.at], place_.phase);
    return memory_ + place_.at * Shape::kChunkElements;
  }
  // Gives them up, for others.
  __device__ void Release() {
    __syncwarp();
    Ask(place_.at);
    place_.Next();
  }

 private:
  __device__ void Ask(int stage) {
    while (rows_ <= 0) {
      if (unit_ >= units_) return;
      Piece piece;
      if (FindPiece(p_, unit_, piece) && !piece.fresh) {
        const int first_row = piece.tile * Shape::kPieceRows;
        rows_ = min(Shape::kPieceRows, p_.value_dim - first_row);
        from_ = p_.state.At<const T>(piece.slot, piece.memory) +
                (int64_t{piece.head} * p_.value_dim + first_row) * kPitch;
      }
      unit_ += stride_;
    }
    if (threadIdx.x % kWarp == 0) {
      BulkLoadStreaming(memory_ + stage * Shape::kChunkElements, from_,
                        static_cast<uint32_t>(min(Shape::kRows, rows_) * kPitch * sizeof(T)),
                        &full_[stage]);
    }
    rows_ -= Shape::kRows;
    from_ += Shape::kRows * kPitch;
  }

  const Problem& p_;
  const int64_t units_;
  int64_t unit_;  // the next one to look at
  const int64_t stride_;
  T* const memory_;
  uint64_t* const full_;
  RingPlace<Shape::kDepth> place_;
  const T* from_ = nullptr;
  int rows_ = 0;  // from there on, of a unit
};

template <typename Rule, typename T, int kKeyDim>
__global__ void __launch_bounds__(StreamShape<T, kKeyDim>::kThreads,
                                  StreamShape<T, kKeyDim>::kBlocks)
    StreamKernel(const __grid_constant__ Problem p, int64_t units) {
  using Shape = StreamShape<T, kKeyDim>;
  constexpr int kRows = Shape::kRows, kPitch = RowPitch<T>(kKeyDim);
  extern __shared__ __align__(128) unsigned char shared_rings[];
  __shared__ uint64_t barriers[Shape::kWarps][Shape::kDepth];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  LetNextKernelStart();
  if (lane == 0) {
    for (int i = 0; i < Shape::kDepth; ++i) InitBulkBarrier(&barriers[warp][i]);
    FenceBulkBarriers();
  }
  __syncwarp();
  WaitForPreviousKernel();
  // Units that follow each other go to different multiprocessors.
  const int64_t first = warp * int64_t{gridDim.x} + blockIdx.x;
  const int64_t stride = int64_t{gridDim.x} * Shape::kWarps;
  RowRing<T, kKeyDim> ring(
      p, units, first, stride,
      reinterpret_cast<T*>(shared_rings) + warp * Shape::kDepth * Shape::kChunkElements,
      barriers[warp]);
  for (int64_t unit = first; unit < units; unit += stride) {
    Piece piece;
    if (!FindPiece(p, unit, piece)) continue;
    const int first_row = piece.tile * Shape::kPieceRows;
    const int rows = min(Shape::kPieceRows, p.value_dim - first_row);
    int row = first_row + lane % kRows;  // that this lane finishes
    Token<Rule, kKeyDim> token;
    token.LoadHead(p, piece.first, piece.head);
    token.LoadValue(p, piece.first, piece.head, row);
    T* state = p.state.At<T>(piece.slot, piece.memory) +
               (int64_t{piece.head} * p.value_dim + first_row) * kPitch;
    float* out = p.out + (int64_t{piece.first} * p.heads + piece.head) * p.value_dim;
    token.Finish();
#pragma unroll 1
    for (int left = rows; left > 0; left -= kRows) {
      float s[kRows][Lane<kKeyDim>::kSize];
      if (piece.fresh) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (float& x : s[r]) x = 0;
        }
      } else {
        // Past the last row is what was there before, which is not used.
        const T* stored = ring.Await();
#pragma unroll
        for (int r = 0; r < kRows; ++r) LoadRow<kKeyDim>(stored + r * kPitch, s[r]);
        ring.Release();
      }
      const float y = p.scale * TakeToken(token, s);
      const int own = row;
      row += kRows;
      if (left > kRows) token.LoadValue(p, piece.first, piece.head, row);
      __syncwarp();  // the output may take the place of v
      if (lane < min(kRows, left)) out[own] = y;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < left) StoreRow<kKeyDim>(state + r * kPitch, s[r]);
      }
      state += kRows * kPitch;
    }
  }
}

}  // namespace mneme::cuda::matrix_memory::rules
