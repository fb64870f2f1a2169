// Additions to the residual stream element by element, with the norms in front of them: a block
// takes a row, a thread a few times four elements of it.
#include <cstdint>

#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/decode/layer_norm_step.h"
#include "kernels/cuda/matrix_memory/stream.cuh"

namespace mneme::cuda::decode {
namespace {

constexpr int kThreads = 512;
constexpr int kMostHeld = 4;  // accesses of a thread

// visit(which access, element) for those that this thread has.
template <int kHeld, typename Visit>
__device__ inline void ForEachFour(int dim, Visit visit) {
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = 4 * (n * kThreads + static_cast<int>(threadIdx.x));
    if (i < dim) visit(n, i);
  }
}

__device__ inline float SquaresOf(const float4& x) {
  return (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
}
__device__ inline float FactorOf(float squares, int dim, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(dim) + eps);
}
__device__ inline float4 Normed(const float4& x, float factor, const float4& weight) {
  return {x.x * factor * weight.x, x.y * factor * weight.y, x.z * factor * weight.z,
          x.w * factor * weight.w};
}

struct NormedConvolution {
  matrix_memory::Stream stream;
  SegmentArrays segments;
  const float* norm;
  float* hidden;
  int dim;
  float eps;
  bool settled;
};

template <int kHeld>
__global__ void __launch_bounds__(kThreads, 1)
    NormedConvolutionKernel(const __grid_constant__ NormedConvolution p) {
  using matrix_memory::Filters;
  using matrix_memory::Past;
  __shared__ float sums[kThreads / kWarp];
  LetNextKernelStart();
  const matrix_memory::Stream& s = p.stream;
  Filters filters[kHeld];
  float4 weights[kHeld];
  ForEachFour<kHeld>(p.dim, [&](int n, int i) {
    weights[n] = LoadFour(p.norm + i);
    filters[n] = Filters(s.conv + int64_t{i} * s.width, s.width,
                         s.conv_bias == nullptr ? nullptr : s.conv_bias + i);
  });
  if (!p.settled) WaitForPreviousKernel();
  const auto segment = matrix_memory::LoadSegment(p.segments, static_cast<int>(blockIdx.x));
  if (segment.slot < 0 || segment.end == segment.first) return WaitForPreviousKernel();
  Past past[kHeld];
  ForEachFour<kHeld>(p.dim, [&](int n, int i) { past[n] = Past(s, segment, i); });
  WaitForPreviousKernel();
  float* const hidden = p.hidden + int64_t{segment.first} * p.dim;
  float4 x[kHeld];
  float squares = 0;
  ForEachFour<kHeld>(p.dim, [&](int n, int i) {
    x[n] = LoadFour(hidden + i);
    squares += SquaresOf(x[n]);
  });
  const float factor = FactorOf(BlockSum<kThreads>(squares, sums), p.dim, p.eps);
  ForEachFour<kHeld>(p.dim, [&](int n, int i) {
    const float4 y = matrix_memory::Convolve(s, filters[n], segment, i, past[n],
                                             Normed(x[n], factor, weights[n]));
    SaveFour(hidden + i, {x[n].x + y.x, x[n].y + y.y, x[n].z + y.z, x[n].w + y.w});
  });
}

struct NormedGate {
  struct Factor {
    const float *x, *norm;
    float eps;
    Activation activation;
  };
  Factor factors[2];
  float* hidden;
  int dim;
};

template <int kHeld>
__global__ void __launch_bounds__(kThreads, 1)
    NormedGateKernel(const __grid_constant__ NormedGate p) {
  __shared__ float sums[2][kThreads / kWarp];
  LetNextKernelStart();
  float4 weights[2][kHeld], x[2][kHeld], hidden[kHeld];
  ForEachFour<kHeld>(p.dim, [&](int n, int i) {
    for (int f = 0; f < 2; ++f) weights[f][n] = LoadFour(p.factors[f].norm + i);
  });
  WaitForPreviousKernel();
  const int64_t row = int64_t{blockIdx.x} * p.dim;
  float squares[2] = {};
  ForEachFour<kHeld>(p.dim, [&](int n, int i) {
    hidden[n] = LoadFour(p.hidden + row + i);
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      x[f][n] = LoadFour(p.factors[f].x + row + i);
      squares[f] += SquaresOf(x[f][n]);
    }
  });
  float factors[2];
#pragma unroll
  for (int f = 0; f < 2; ++f) {
    factors[f] = FactorOf(BlockSum<kThreads>(squares[f], sums[f]), p.dim, p.factors[f].eps);
  }
  ForEachFour<kHeld>(p.dim, [&](int n, int i) {
    float4 y[2];
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      y[f] = Activated(p.factors[f].activation, Normed(x[f][n], factors[f], weights[f][n]));
    }
    const float4& h = hidden[n];
    SaveFour(p.hidden + row + i, {fmaf(y[0].x, y[1].x, h.x), fmaf(y[0].y, y[1].y, h.y),
                                  fmaf(y[0].z, y[1].z, h.z), fmaf(y[0].w, y[1].w, h.w)});
  });
}

// From so many rows on nothing is gained by fewer launches.
constexpr int64_t kMostRows = 64;

bool Takes(const TensorView& hidden) {
  return hidden.shape[0] > 0 && hidden.shape[0] <= kMostRows &&
         hidden.shape[1] <= 4 * kThreads * kMostHeld && InFours(hidden.shape[1], hidden);
}

}  // namespace

bool NormedConvolutionStep(Device& device, const NormedConvolutionStepArgs& args) {
  const ShortConvArgs& convolution = args.convolution;
  NormedConvolution p = {};
  MemoryStream stream;
  stream.convolution = convolution;
  if (!Takes(args.hidden) || convolution.segments.longest != 1 || convolution.segments.count == 0 ||
      !convolution.entry_rows.empty() || !AreAligned(args.norm.weight) ||
      !matrix_memory::MakeStream(stream, p.stream)) {
    return false;
  }
  p.segments = ArraysOf(convolution.segments);
  p.norm = args.norm.weight.as<const float>();
  p.hidden = args.hidden.as<float>();
  p.dim = static_cast<int>(args.hidden.shape[1]);
  p.eps = args.norm.eps;
  p.settled = args.settled;
  const auto kernel =
      p.dim <= 4 * kThreads ? NormedConvolutionKernel<1> : NormedConvolutionKernel<kMostHeld>;
  LaunchOverlapping(device, "NormedConvolution", kernel, p.segments.count, kThreads, 0, 1, p);
  return true;
}

bool NormedGateStep(Device& device, const NormedGateStepArgs& args) {
  if (!Takes(args.hidden)) return false;
  NormedGate p = {};
  for (int f = 0; f < 2; ++f) {
    const NormedGateStepArgs::Factor& factor = args.factors[f];
    if (!AreAligned(factor.x, factor.norm.weight)) return false;
    p.factors[f] = {.x = factor.x.as<const float>(),
                    .norm = factor.norm.weight.as<const float>(),
                    .eps = factor.norm.eps,
                    .activation = factor.activation};
  }
  p.hidden = args.hidden.as<float>();
  p.dim = static_cast<int>(args.hidden.shape[1]);
  const auto kernel = p.dim <= 4 * kThreads ? NormedGateKernel<1> : NormedGateKernel<kMostHeld>;
  LaunchOverlapping(device, "NormedGate", kernel, static_cast<int>(args.hidden.shape[0]), kThreads,
                    0, 1, p);
  return true;
}

}  // namespace mneme::cuda::decode
