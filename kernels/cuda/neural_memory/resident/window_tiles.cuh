// The tiles that tokens under an anchor are multiplied in: a warp's part, and where a block
// keeps them.
#pragma once

#include <cstdint>

#include "kernels/cuda/neural_memory/resident/anchored_windows.cuh"

namespace mneme::cuda::neural_memory::resident {

constexpr int kWindowThreads = 512;
constexpr int kWindowWarps = kWindowThreads / kWarp;

class WindowTiles {
 public:
  __device__ WindowTiles(const Params& p, const WindowLayout& at, const Team& team, float* shared)
      : p_(p),
        at_(at),
        team_(team),
        shared_(shared),
        weights_{TurnedMatrix(shared + at.weights[0], at.units),
                 TurnedMatrix(shared + at.weights[1], p.dim)},
        momenta_{TurnedMatrix(shared + at.momenta[0], at.units),
                 TurnedMatrix(shared + at.momenta[1], p.dim)} {}

  // Starts copies of a matrix' part to shared memory; null: of zeros.
  __device__ void FetchMatrix(const float* from, const Part& part, const TurnedMatrix& to) const {
    for (int row = warp_; row < part.rows; row += kWindowWarps) {
      for (int column = 4 * lane_; column < part.columns; column += 4 * kWarp) {
        if (from == nullptr) {
          SaveFour(to.At(row, column), {});
        } else {
          CopyAsync16(to.At(row, column), from + row * part.pitch + column);
        }
      }
    }
  }
  __device__ void StoreMatrix(const TurnedMatrix& from, const Part& part, float* to) const {
    for (int row = warp_; row < part.rows; row += kWindowWarps) {
      for (int column = 4 * lane_; column < part.columns; column += 4 * kWarp) {
        __stcs(reinterpret_cast<float4*>(to + row * part.pitch + column),
               LoadFour(from.At(row, column)));
      }
    }
  }
  __device__ const TurnedMatrix& weights(int l) const { return weights_[l]; }
  __device__ const TurnedMatrix& momenta(int l) const { return momenta_[l]; }

 protected:
  // An element of an output, of all blocks' parts.
  __device__ float OutputOf(const float* parts, int i) const {
    float y = parts[i];
#pragma unroll 4
    for (int part = 1; part < p_.blocks; ++part) y += parts[part * at_.owned * p_.dim + i];
    return y;
  }
  // visit(tile, half of it, token, column) for each pair of columns that the lane has of sums.
  template <int kTiles, typename Visit>
  __device__ void ForEachPair(const Visit& visit) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        visit(m, half, kWindowTile * m + 8 * half + place_.eighth, 2 * place_.fourth);
      }
    }
  }
  template <int kM, int kN>
  __device__ void Save(const float (&sums)[kM][kN][4], int to, int pitch, int column,
                       int tile = 0) const {
    float* const own =
        shared_ + to + (kWindowTile * tile + place_.eighth) * pitch + column + 2 * place_.fourth;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<float2*>(own + (16 * m + 8 * half) * pitch + 8 * n) = {
              sums[m][n][2 * half], sums[m][n][2 * half + 1]};
        }
      }
    }
  }
  template <int kM, int kN>
  __device__ void Load(int from, int pitch, int column, float (&sums)[kM][kN][4],
                       int tile = 0) const {
    const float* const own =
        shared_ + from + (kWindowTile * tile + place_.eighth) * pitch + column + 2 * place_.fourth;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 pair =
              *reinterpret_cast<const float2*>(own + (16 * m + 8 * half) * pitch + 8 * n);
          sums[m][n][2 * half] = pair.x;
          sums[m][n][2 * half + 1] = pair.y;
        }
      }
    }
  }
  // To where the owners of the tokens sum them.
  __device__ void Send(const float (&sums)[1][1][4], int which, int tile, int column) const {
    float* const own = shared_ + at_.outputs[which] + team_.rank() * at_.owned * p_.dim + column +
                       2 * place_.fourth;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = kWindowTile * tile + 8 * half + place_.eighth;
      float* const here = own + (token >> at_.owner_bits) * p_.dim;
      *reinterpret_cast<float2*>(team_.Of(token & (p_.blocks - 1), here)) = {
          sums[0][0][2 * half], sums[0][0][2 * half + 1]};
    }
  }
  // Products with W_0 and S_0 of tokens from a tile on, as these count at each.
  template <int kM>
  __device__ void OfBefore(const float (&sums)[kM][2][4], int tile,
                           float (&before)[kM][1][4]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = kWindowTile * (tile + m) + 8 * half + place_.eighth;
        const float kept = shared_[at_.kept + token], moved = shared_[at_.moved + token];
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          before[m][0][i] = kept * sums[m][0][i] + moved * sums[m][1][i];
        }
      }
    }
  }
  __device__ LeftRows Left(int vectors, int pitch, int tile = 0) const {
    return {shared_ + vectors + (kWindowTile * tile + place_.eighth) * pitch + place_.fourth,
            pitch};
  }
  // Two tiles of rows.
  __device__ RightColumns<2> RowsAsColumns(int vectors, int pitch, int first) const {
    const float* const own = shared_ + vectors + (first + place_.eighth) * pitch + place_.fourth;
    return {{own, own + 8 * pitch}, 1};
  }
  __device__ RightVectors ColumnsOfVectors(int vectors, int pitch, int column) const {
    return {shared_ + vectors + place_.fourth * pitch + column + place_.eighth, pitch};
  }
  __device__ const float* ColumnOf(const TurnedMatrix& w, int column) const {
    return w.At(place_.fourth, column + place_.eighth);
  }
  __device__ RightColumns<2> ColumnsOf(const TurnedMatrix& a, const TurnedMatrix& b, int column_a,
                                       int column_b) const {
    return {{ColumnOf(a, column_a), ColumnOf(b, column_b)}, a.pitch};
  }

  const Params& p_;
  const WindowLayout& at_;
  const Team& team_;
  float* const shared_;
  const TurnedMatrix weights_[2], momenta_[2];
  const LanePlace place_;
  const bool normed_ = p_.network.norm != MemoryNetwork::Norm::kNone;
  const int lane_ = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_ = static_cast<int>(threadIdx.x) / kWarp;
};

}  // namespace mneme::cuda::neural_memory::resident
