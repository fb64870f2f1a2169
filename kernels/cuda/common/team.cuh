// The blocks that share a piece of work.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda {

constexpr int kMaxTeam = 8;  // what every GPU with clusters allows

// A thread block cluster where there are such, else one block. All of its blocks take the same
// branches, and see each other's shared memory.
class Team {
 public:
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __device__ Team()
      : rank_(cooperative_groups::this_cluster().block_rank()),
        size_(cooperative_groups::this_cluster().num_blocks()) {}
  __device__ void Sync() const {
    if (size_ == 1) {
      __syncthreads();
    } else {
      cooperative_groups::this_cluster().sync();
    }
  }
  // A block may touch another's shared memory once that has begun. Before the first Sync() each
  // says so by Enter(), and waits for the others with AwaitAll().
  __device__ void Enter() const {
    if (size_ > 1) cooperative_groups::this_cluster().barrier_arrive();
  }
  __device__ void AwaitAll() const {
    if (size_ > 1) cooperative_groups::this_cluster().barrier_wait();
  }
  // What `mine`, in shared memory, is in block `rank`.
  template <typename T>
  __device__ T* Of(int rank, T* mine) const {
    return size_ == 1 ? mine : cooperative_groups::this_cluster().map_shared_rank(mine, rank);
  }
#else
  __device__ Team() : rank_(0), size_(1) {}
  __device__ void Sync() const { __syncthreads(); }
  __device__ void Enter() const {}
  __device__ void AwaitAll() const {}
  template <typename T>
  __device__ T* Of(int, T* mine) const {
    return mine;
  }
#endif
  // visit(what `mine` is in a block) for all blocks, unrolled so that loads are issued together.
  template <typename T, typename Visit>
  __device__ void ForEach(T* mine, Visit visit) const {
#pragma unroll
    for (int rank = 0; rank < kMaxTeam; ++rank) {
      if (rank < size_) visit(Of(rank, mine));
    }
  }
  __device__ int rank() const { return rank_; }
  __device__ int size() const { return size_; }

 private:
  const int rank_, size_;
};

}  // namespace mneme::cuda
