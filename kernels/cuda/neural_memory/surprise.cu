// What the training of a memory says of each token.
#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/neural_memory.h"

namespace mneme::cuda::neural_memory {
namespace {

constexpr int kTokensOfBlock = 4;

__global__ void __launch_bounds__(kTokensOfBlock* kWarp)
    SurpriseKernel(const float* loss, const float* read, const int32_t* places,
                   const int32_t* outer, int tokens, int entries, int pairs, int64_t width,
                   float* surprise) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int token =
      static_cast<int>(blockIdx.x) * kTokensOfBlock + static_cast<int>(threadIdx.x) / kWarp;
  if (token >= tokens) return;
  const int place = outer == nullptr ? token : outer[token];
  const int entry = places == nullptr ? place : places[place];
  if (entry >= entries) return;
  float sum = 0, nothing = 0;  // 0 times what is not finite is NaN, and stays it
  for (int i = lane; i < pairs; i += kWarp) sum += loss[int64_t{entry} * pairs + i];
  for (int64_t i = lane; i < width; i += kWarp) nothing += read[entry * width + i] * 0.0f;
  sum = WarpSum(sum);
  nothing = WarpSum(nothing);
  const float mean = sum / static_cast<float>(pairs) + nothing;
  if (lane == 0) surprise[token] = isfinite(mean) ? mean : __int_as_float(0x7fffffff);
}

}  // namespace

void Surprise(Device& device, const SurpriseArgs& args) {
  const auto tokens = static_cast<int>(args.surprise.shape[0]);
  if (tokens == 0) return;
  LaunchOverlapping(device, "Surprise", SurpriseKernel,
                    (tokens + kTokensOfBlock - 1) / kTokensOfBlock, kTokensOfBlock * kWarp, 0, 1,
                    args.loss.as<const float>(), args.read.as<const float>(),
                    args.places.as<const int32_t>(), args.outer.as<const int32_t>(), tokens,
                    static_cast<int>(args.loss.shape[0]), static_cast<int>(args.loss.shape[1]),
                    args.read.shape[1] * args.read.shape[2], args.surprise.as<float>());
}

}  // namespace mneme::cuda::neural_memory
