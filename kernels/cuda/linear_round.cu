// Copies of activations in a 16-bit dtype for the tensor cores.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/linear_device.cuh"
#include "kernels/cuda/linear_mma.cuh"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 128;

// Term t of a number is what the terms before it leave of it, rounded. Eight numbers a thread at a
// time; rows have `pieces` times eight.
template <typename T, bool kGather>
__global__ void Round(const float* x, const int32_t* rows, int64_t count, int pieces, int terms,
                      T* rounded) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t from = kGather ? int64_t{rows[i / pieces]} * pieces + i % pieces : i;
    float4 low = reinterpret_cast<const float4*>(x)[2 * from];
    float4 high = reinterpret_cast<const float4*>(x)[2 * from + 1];
    for (int t = 0; t < terms; ++t) {
      const uint4 term = RoundEight<T>(low, high);
      reinterpret_cast<uint4*>(rounded)[t * count + i] = term;
      const T* taken = reinterpret_cast<const T*>(&term);
      low.x -= ToFloat(taken[0]);
      low.y -= ToFloat(taken[1]);
      low.z -= ToFloat(taken[2]);
      low.w -= ToFloat(taken[3]);
      high.x -= ToFloat(taken[4]);
      high.y -= ToFloat(taken[5]);
      high.z -= ToFloat(taken[6]);
      high.w -= ToFloat(taken[7]);
    }
  }
}

// Rows that are in the products' dtype already, in the order of entries.
__global__ void Gather(const uint4* x, const int32_t* rows, int64_t count, int pieces,
                       uint4* gathered) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    gathered[i] = x[int64_t{rows[i / pieces]} * pieces + i % pieces];
  }
}

template <typename T>
void Launch(Device& device, const TensorView& x, const TensorView& entry_rows, int terms,
            void* rounded) {
  const bool gather = !entry_rows.empty();
  const int pieces = static_cast<int>(x.shape[1] / 8);
  const int64_t count = (gather ? entry_rows.shape[0] : x.shape[0]) * pieces;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  const int grid = static_cast<int>(std::min<int64_t>(blocks, 16 * device.multiprocessors()));
  if (x.dtype != DType::kF32) {
    return LaunchOverlapping(device, "Gather", Gather, grid, kThreads, 0, 1, x.as<const uint4>(),
                             entry_rows.as<const int32_t>(), count, pieces,
                             static_cast<uint4*>(rounded));
  }
  LaunchOverlapping(device, "Round", gather ? Round<T, true> : Round<T, false>, grid, kThreads, 0,
                    1, x.as<const float>(), entry_rows.as<const int32_t>(), count, pieces, terms,
                    static_cast<T*>(rounded));
}

}  // namespace

void RoundActivations(Device& device, const TensorView& x, const TensorView& entry_rows,
                      DType dtype, int terms, void* rounded) {
  if (dtype == DType::kBF16) return Launch<__nv_bfloat16>(device, x, entry_rows, terms, rounded);
  Launch<__half>(device, x, entry_rows, terms, rounded);
}

}  // namespace mneme::cuda
