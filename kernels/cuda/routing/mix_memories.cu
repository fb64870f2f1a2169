// What a token's memories gave it, weighted and added up; and with the norm behind it.
#include <cstdint>
#include <type_traits>

#include "base/log.h"
#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/routing/routing.h"

namespace mneme::cuda::routing {
namespace {

struct Mixture {
  const float* x;
  const int32_t* token_entries;
  const float* weights;
  int top_k, choices, dim;

  explicit Mixture(const MixMemoriesArgs& args)
      : x(args.x.as<const float>()),
        token_entries(args.token_entries.as<const int32_t>()),
        weights(args.weights.as<const float>()),
        top_k(static_cast<int>(args.weights.shape[1])),
        choices(static_cast<int>(args.token_entries.shape[1])),
        dim(static_cast<int>(args.y.shape[1])) {
    CHECK(choices == top_k || choices == top_k + 1);
  }
  __device__ float Weight(int64_t token, int choice) const {
    return choice < top_k ? weights[token * top_k + choice] : 1.0f;
  }
};

// One block per token.
template <bool kFours>
__global__ void MixKernel(Mixture mix, float* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  constexpr int kStep = kFours ? 4 : 1;
  const int64_t token = blockIdx.x;
  const int32_t* entries = mix.token_entries + token * mix.choices;
  for (int i = kStep * threadIdx.x; i < mix.dim; i += kStep * blockDim.x) {
    float sum[kStep] = {};
    for (int j = 0; j < mix.choices; ++j) {
      const float weight = mix.Weight(token, j);
      const float* from = mix.x + int64_t{entries[j]} * mix.dim + i;
      if constexpr (kFours) {
        const float4 v = LoadFour(from);
        sum[0] = fmaf(weight, v.x, sum[0]);
        sum[1] = fmaf(weight, v.y, sum[1]);
        sum[2] = fmaf(weight, v.z, sum[2]);
        sum[3] = fmaf(weight, v.w, sum[3]);
      } else {
        sum[0] = fmaf(weight, *from, sum[0]);
      }
    }
    float* to = y + token * mix.dim + i;
    if constexpr (kFours) {
      *reinterpret_cast<float4*>(to) = {sum[0], sum[1], sum[2], sum[3]};
    } else {
      *to = sum[0];
    }
  }
}

constexpr int kLongestHead = 256;  // of MixAndNorm
constexpr int kNormThreads = 128;

// A warp per token and head; adds up as MixKernel and the norm of dense/elementwise.cu do. Gate: of
// no meaning where `gate` is null.
template <typename Gate, typename Y>
__global__ void __launch_bounds__(kNormThreads)
    MixNormKernel(Mixture mix, int heads, int64_t rows, const Gate* gate, bool sigmoid,
                  const float* norm, float eps, Y* y) {
  constexpr int kHeld = kLongestHead / (4 * kWarp);
  constexpr int kTogether = 3;  // choices on their way at a time
  const int lane = threadIdx.x % kWarp;
  const int64_t row = int64_t{blockIdx.x} * (kNormThreads / kWarp) + threadIdx.x / kWarp;
  const int head_dim = mix.dim / heads, head = static_cast<int>(row % heads);
  LetNextKernelStart();
  WaitForPreviousKernel();
  if (row >= rows) return;
  const int64_t token = row / heads;
  const int32_t* const entries = mix.token_entries + token * mix.choices;
  const auto at = [&](int n) { return (n * kWarp + lane) * 4; };

  float4 by[kHeld], sum[kHeld] = {};
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    if (at(n) >= head_dim) continue;
    by[n] = LoadFour(norm + at(n));
    if (gate == nullptr) continue;
    const float4 g = LoadFour(gate + row * head_dim + at(n));
    by[n] = {by[n].x * OutputGate(sigmoid, g.x), by[n].y * OutputGate(sigmoid, g.y),
             by[n].z * OutputGate(sigmoid, g.z), by[n].w * OutputGate(sigmoid, g.w)};
  }
  for (int first = 0; first < mix.choices; first += kTogether) {
    float4 v[kTogether][kHeld] = {};
    float weight[kTogether] = {};
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (first + j >= mix.choices) break;
      weight[j] = mix.Weight(token, first + j);
      const float* from = mix.x + int64_t{entries[first + j]} * mix.dim + head * head_dim;
#pragma unroll
      for (int n = 0; n < kHeld; ++n) {
        if (at(n) < head_dim) v[j][n] = LoadFour(from + at(n));
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (first + j >= mix.choices) break;
#pragma unroll
      for (int n = 0; n < kHeld; ++n) {
        sum[n] = {fmaf(weight[j], v[j][n].x, sum[n].x), fmaf(weight[j], v[j][n].y, sum[n].y),
                  fmaf(weight[j], v[j][n].z, sum[n].z), fmaf(weight[j], v[j][n].w, sum[n].w)};
      }
    }
  }
  float squares = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    squares += sum[n].x * sum[n].x;
    squares += sum[n].y * sum[n].y;
    squares += sum[n].z * sum[n].z;
    squares += sum[n].w * sum[n].w;
  }
  const float factor = 1.0f / sqrtf(WarpSum(squares) / head_dim + eps);
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    if (at(n) >= head_dim) continue;
    SaveFour(y + row * head_dim + at(n),
             {sum[n].x * factor * by[n].x, sum[n].y * factor * by[n].y, sum[n].z * factor * by[n].z,
              sum[n].w * factor * by[n].w});
  }
}

}  // namespace

void MixMemories(Device& device, const MixMemoriesArgs& args) {
  const int64_t tokens = args.y.shape[0], dim = args.y.shape[1];
  if (tokens == 0) return;
  const bool fours = InFours(dim, args.x, args.y);
  LaunchOverlapping(device, "MixMemories", fours ? MixKernel<true> : MixKernel<false>,
                    static_cast<int>(tokens), ThreadsFor(fours ? dim / 4 : dim), 0, 1,
                    Mixture(args), args.y.as<float>());
}

bool MixAndNorm(Device& device, const MixMemoriesArgs& mix, const GatedRmsNormArgs& norm) {
  const int64_t heads = norm.x.shape[1], dim = norm.x.shape[2], rows = norm.x.shape[0] * heads;
  if (norm.weight.shape.rank != 1 || dim > kLongestHead ||
      !InFours(dim, mix.x, norm.gate, norm.weight, norm.y))
    return false;
  if (rows == 0) return true;
  CHECK(norm.activation == Activation::kSilu || norm.activation == Activation::kSigmoid);
  constexpr int kRows = kNormThreads / kWarp;
  const auto launch = [&](auto* gate, auto* y) {
    LaunchOverlapping(device, "MixAndNorm",
                      MixNormKernel<std::decay_t<decltype(*gate)>, std::decay_t<decltype(*y)>>,
                      BlocksFor(rows, kRows), kNormThreads, 0, 1, Mixture(mix),
                      static_cast<int>(heads), rows, gate, norm.activation == Activation::kSigmoid,
                      norm.weight.as<const float>(), norm.eps, y);
  };
  const auto launch_for = [&](auto* gate) {
    if (norm.y.dtype == DType::kBF16) return launch(gate, norm.y.as<__nv_bfloat16>());
    CHECK(norm.y.dtype == DType::kF32);
    launch(gate, norm.y.as<float>());
  };
  if (norm.gate.dtype == DType::kBF16) {
    launch_for(norm.gate.as<const __nv_bfloat16>());
  } else {
    launch_for(norm.gate.as<const float>());
  }
  return true;
}

}  // namespace mneme::cuda::routing
