// Counts from histories: popcounts over all multiprocessors, so that the one that walks
// (retrieve.cu) reads rows as it does where pairs are counted.
#include <algorithm>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/engrams/counts.cuh"

namespace mneme::cuda::engrams {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;   // rows and columns of a block
constexpr int kPiece = 32;  // words of a row at a time
constexpr int kSide = 16;   // threads of a side, of as many rows or columns each
constexpr int kOfThread = kTile / kSide;
constexpr int64_t kMostBytes = int64_t{128} << 20;

struct CountProblem {
  Store store;
  CrossingArrays crossings;
  int first;  // crossing of the launch
  int tiles;  // of a side
  uint16_t* counts;
};

__global__ void __launch_bounds__(kThreads) CountKernel(const __grid_constant__ CountProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  __shared__ uint32_t x[kTile][kPiece + 1], y[kTile][kPiece + 1];
  __shared__ int rows_wanted, columns_wanted;
  const int of_launch = static_cast<int>(blockIdx.x) / (p.tiles * p.tiles);
  const int tile = static_cast<int>(blockIdx.x) % (p.tiles * p.tiles);
  const int slot = p.crossings.slots[p.first + of_launch];
  if (slot < 0) return;
  const int segment = p.crossings.segments[p.first + of_launch];
  const int capacity = p.store.capacity;
  const int row = tile / p.tiles * kTile, column = tile % p.tiles * kTile;
  const EngramType* const types = p.store.types(slot);

  if (threadIdx.x == 0) rows_wanted = columns_wanted = 0;
  __syncthreads();
  if (threadIdx.x < kTile) {
    const int i = row + static_cast<int>(threadIdx.x), j = column + static_cast<int>(threadIdx.x);
    if (i < capacity && (types[i] == EngramType::kShortTerm || types[i] == EngramType::kLongTerm)) {
      rows_wanted = 1;
    }
    if (j < capacity && types[j] == EngramType::kLongTerm) columns_wanted = 1;
  }
  __syncthreads();
  if (rows_wanted == 0 || columns_wanted == 0) return;

  // Later words are zeros.
  const int words = min(segment, p.store.steps - 1) / kStepsOfWord + 1;
  const int across = threadIdx.x % kSide, down = threadIdx.x / kSide;
  int sums[kOfThread][kOfThread] = {};
  for (int at = 0; at < words; at += kPiece) {
    for (int n = threadIdx.x; n < kTile * kPiece; n += kThreads) {
      const int i = n / kPiece, w = n % kPiece;
      const bool in = at + w < words;
      x[i][w] = in && row + i < capacity ? p.store.fired(slot, row + i)[at + w] : 0;
      y[i][w] = in && column + i < capacity ? p.store.fired(slot, column + i)[at + w] : 0;
    }
    __syncthreads();
    const int piece = min(kPiece, words - at);
    for (int w = 0; w < piece; ++w) {
      uint32_t a[kOfThread], b[kOfThread];
#pragma unroll
      for (int n = 0; n < kOfThread; ++n) {
        a[n] = x[down + n * kSide][w];
        b[n] = y[across + n * kSide][w];
      }
#pragma unroll
      for (int n = 0; n < kOfThread; ++n) {
#pragma unroll
        for (int m = 0; m < kOfThread; ++m) sums[n][m] += __popc(a[n] & b[m]);
      }
    }
    __syncthreads();
  }
  uint16_t* const counts = p.counts + int64_t{of_launch} * capacity * capacity;
#pragma unroll
  for (int n = 0; n < kOfThread; ++n) {
    const int i = row + down + n * kSide;
    if (i >= capacity) continue;
#pragma unroll
    for (int m = 0; m < kOfThread; ++m) {
      const int j = column + across + m * kSide;
      if (j < capacity) counts[int64_t{i} * capacity + j] = static_cast<uint16_t>(sums[n][m]);
    }
  }
}

int64_t MatrixBytes(int capacity) {
  return int64_t{capacity} * capacity * static_cast<int64_t>(sizeof(uint16_t));
}

}  // namespace

int CountedTogether(int capacity) {
  return static_cast<int>(std::max<int64_t>(1, kMostBytes / MatrixBytes(capacity)));
}

const uint16_t* CountFirings(Device& device, const Store& store, const CrossingArrays& crossings,
                             int first, int count) {
  auto* const counts = static_cast<uint16_t*>(device.Scratch(count * MatrixBytes(store.capacity)));
  if (counts == nullptr) return nullptr;
  const int tiles = (store.capacity + kTile - 1) / kTile;
  const CountProblem problem = {
      .store = store, .crossings = crossings, .first = first, .tiles = tiles, .counts = counts};
  LaunchOverlapping(device, "RetrieveEngrams, counts", CountKernel, count * tiles * tiles, kThreads,
                    0, 1, problem);
  return counts;
}

}  // namespace mneme::cuda::engrams
