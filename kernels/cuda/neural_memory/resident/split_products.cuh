// Products of f32 matrices on tensor cores, by a warp. These multiply numbers of 11 bits: each
// number is taken as two such, and of their four products the three that an f32 sum can tell are
// summed. A lane's places in tiles are those of mma.m16n8k8.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda::neural_memory::resident {

// Row or column l / 4 of eight, and l % 4 of four, are lane l's.
struct LanePlace {
  int eighth = static_cast<int>(threadIdx.x) % kWarp / 4;
  int fourth = static_cast<int>(threadIdx.x) % 4;
};

// x = high + low, but for what is less than 2^-21 of it.
__device__ inline void Split(float x, uint32_t& high, uint32_t& low) {
  high = __float_as_uint(x) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

// d += a b: a is 16 x 8, b 8 x 8. Lane l has of
//   a: rows l/4 (a[0], a[2]) and l/4 + 8 (a[1], a[3]), columns l%4 (a[0], a[1]) and l%4 + 4
//   b: column l/4, rows l%4 and l%4 + 4
//   d: rows l/4 (d[0], d[1]) and l/4 + 8, columns 2(l%4) + {0, 1}
__device__ inline void MultiplyAddTf32(float (&d)[4], const uint32_t (&a)[4],
                                       const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// sums = left right: kM tiles of 16 rows, kN tiles of 8 columns. left(m, i, k) is the element of
// the lane's row, of tile m and 8 rows on where i is odd, and column k + l%4, 4 on where i > 1;
// right(n, i, k) that of the lane's column of tile n and row k + l%4 + 4 i. `depth`, a multiple of
// 16, is what both have. Few tiles have several sums each, as one waits for the one before.
template <int kM, int kN, typename Left, typename Right>
__device__ inline void Multiply(int depth, const Left& left, const Right& right,
                                float (&sums)[kM][kN][4]) {
  constexpr int kSets = kM * kN >= 4 ? 1 : kM * kN == 2 ? 2 : 3;
  float apart[kSets][kM][kN][4] = {};
#pragma unroll 1
  for (int from = 0; from < depth; from += 16) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = from + 8 * half;
      uint32_t a_high[kM][4], a_low[kM][4], b_high[kN][2], b_low[kN][2];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) Split(left(m, i, k), a_high[m][i], a_low[m][i]);
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) Split(right(n, i, k), b_high[n][i], b_low[n][i]);
      }
#pragma unroll
      for (int term = 0; term < 3; ++term) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int n = 0; n < kN; ++n) {
            MultiplyAddTf32(apart[term % kSets][m][n], term == 0 ? a_low[m] : a_high[m],
                            term == 1 ? b_low[n] : b_high[n]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[m][n][i] = apart[0][m][n][i];
#pragma unroll
        for (int set = 1; set < kSets; ++set) sums[m][n][i] += apart[set][m][n][i];
      }
    }
  }
}
// sums += left right. Tensor cores round towards zero, so that sums which last are made outside.
template <int kM, int kN, typename Left, typename Right>
__device__ inline void AddProducts(int depth, const Left& left, const Right& right,
                                   float (&sums)[kM][kN][4]) {
  float products[kM][kN][4];
  Multiply(depth, left, right, products);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] += products[m][n][i];
    }
  }
}

// Rows, `pitch` apart, as the left of a product; `at` is the lane's place in the first tile.
struct LeftRows {
  const float* at;
  int pitch;
  __device__ float operator()(int m, int i, int k) const {
    return at[(16 * m + 8 * (i % 2)) * pitch + k + 4 * (i / 2)];
  }
};
// The same as the right of one.
struct RightVectors {
  const float* at;
  int pitch;
  __device__ float operator()(int n, int i, int k) const { return at[(k + 4 * i) * pitch + 8 * n]; }
};

// A matrix in shared memory. Where columns fill its banks, each row's are turned around by its
// number, so that four rows of eight columns are in different banks, as are eight rows of four, but
// for pairs; else rows are apart by some more.
struct TurnedMatrix {
  float* at;
  int pitch, turned;

  static __host__ __device__ int Pitch(int columns) {
    return columns % 32 == 0 ? columns : columns + 8;
  }
  __device__ TurnedMatrix(float* at, int columns)
      : at(at), pitch(Pitch(columns)), turned(columns % 32 == 0 ? 3 : 0) {}
  // Elements of up to eight columns from a multiple of eight on follow each other.
  __device__ float* At(int row, int column) const {
    return at + row * pitch + (column ^ Turn(row));
  }
  __device__ int Turn(int row) const { return (row & turned) * 8; }
};

// Columns of matrices as the right of a product, a tile of each of kN, or rows of one, whose
// elements then are 1 apart.
template <int kN>
struct RightColumns {
  const float* at[kN];
  int pitch;
  __device__ float operator()(int n, int i, int k) const { return at[n][(k + 4 * i) * pitch]; }
};
// A matrix' rows as the right of a product.
struct RightRows {
  const float* at;
  int pitch, turn;
  __device__ float operator()(int n, int i, int k) const {
    return at[8 * n * pitch + (k ^ turn) + 4 * i];
  }
};

}  // namespace mneme::cuda::neural_memory::resident
