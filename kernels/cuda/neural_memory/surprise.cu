// What the training of a memory says of each token.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/neural_memory.h"
#include "kernels/cuda/neural_memory/surprise.cuh"

namespace mneme::cuda::neural_memory {
namespace {

constexpr int kTokensOfBlock = 4;

__global__ void __launch_bounds__(kTokensOfBlock* kWarp) SurpriseKernel(SurpriseOfTokens all) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  all.Find(static_cast<int>(blockIdx.x) * kTokensOfBlock + static_cast<int>(threadIdx.x) / kWarp);
}

}  // namespace

void Surprise(Device& device, const SurpriseArgs& args) {
  const auto tokens = static_cast<int>(args.surprise.shape[0]);
  if (tokens == 0) return;
  LaunchOverlapping(device, "Surprise", SurpriseKernel,
                    (tokens + kTokensOfBlock - 1) / kTokensOfBlock, kTokensOfBlock * kWarp, 0, 1,
                    SurpriseOfTokens(args));
}

}  // namespace mneme::cuda::neural_memory
