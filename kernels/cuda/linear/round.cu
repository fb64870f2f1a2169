// Copies of activations in a 16-bit dtype for the tensor cores.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/linear/entries.cuh"
#include "kernels/cuda/linear/round.h"

namespace mneme::cuda::linear {
namespace {

constexpr int kThreads = 128;

// Term t of a number is what the terms before it leave of it, rounded. Eight numbers a thread at a
// time: `all` of them, or, with `rows`, those of as many rows of `of_row`.
template <typename T>
__global__ void Round(const float* x, int64_t all, const int32_t* rows, int64_t of_row, int terms,
                      T* rounded) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t count = rows != nullptr ? min(all, *rows * of_row) : all;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    float4 low = reinterpret_cast<const float4*>(x)[2 * i];
    float4 high = reinterpret_cast<const float4*>(x)[2 * i + 1];
    for (int t = 0; t < terms; ++t) {
      const uint4 term = RoundEight<T>(low, high);
      reinterpret_cast<uint4*>(rounded)[t * all + i] = term;
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

template <typename T>
void Launch(Device& device, const TensorView& x, const int32_t* rows, int terms, void* rounded) {
  const int64_t count = x.shape.elements() / 8;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  const int grid = static_cast<int>(std::min<int64_t>(blocks, 16 * device.multiprocessors()));
  LaunchOverlapping(device, "Round", Round<T>, grid, kThreads, 0, 1, x.as<const float>(), count,
                    rows, x.shape[1] / 8, terms, static_cast<T*>(rounded));
}

}  // namespace

void RoundRows(Device& device, const TensorView& x, const int32_t* rows, DType dtype, int terms,
               void* rounded) {
  if (dtype == DType::kBF16) return Launch<__nv_bfloat16>(device, x, rows, terms, rounded);
  Launch<__half>(device, x, rows, terms, rounded);
}

void RoundActivations(Device& device, const TensorView& x, DType dtype, int terms, void* rounded) {
  RoundRows(device, x, nullptr, dtype, terms, rounded);
}

}  // namespace mneme::cuda::linear
