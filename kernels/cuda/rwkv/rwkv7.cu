// Gates and output of RWKV-7: a warp takes one head of one entry. Outputs that may be inputs are
// written by the lane that read the same element, after it has.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/rwkv/gates.cuh"
#include "kernels/cuda/rwkv/rwkv.h"

namespace mneme::cuda::rwkv {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

struct GatesProblem {
  const float *decay, *rate, *decay_bias, *rate_bias, *k_k, *k_a;
  float *k, *log_decay, *c, *e;
  int64_t rows;
  int heads, dim;
  float eps, least;
};

__global__ void __launch_bounds__(kThreads) GatesKernel(const __grid_constant__ GatesProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= p.rows) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t at = row * p.dim, channels = row % p.heads * p.dim;
  float squares = 0;
  for (int i = lane; i < p.dim; i += kWarp) {
    const float z = p.k[at + i] * p.k_k[channels + i];
    squares += z * z;
  }
  const float norm = KeyNorm(WarpSum(squares), p.eps, p.least);
  for (int i = lane; i < p.dim; i += kWarp) {
    const Gates gates = GatesOf(p.decay[at + i] + p.decay_bias[channels + i],
                                p.rate[at + i] + p.rate_bias[channels + i], p.k[at + i],
                                p.k_k[channels + i], p.k_a[channels + i], norm);
    p.log_decay[at + i] = gates.log_decay;
    p.c[at + i] = gates.c;
    p.e[at + i] = gates.e;
    p.k[at + i] = gates.k;
  }
}

struct OutputProblem {
  const float *x, *weight, *bias, *r, *k, *r_k, *v, *gate;
  int64_t rows;
  int heads, key_dim, value_dim;
  float eps;
};

template <typename Y>
__global__ void __launch_bounds__(kThreads)
    OutputKernel(const __grid_constant__ OutputProblem p, Y* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= p.rows) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t at = row * p.value_dim;
  const int head = static_cast<int>(row % p.heads);
  const float* x = p.x + at;
  float bonus = 0, sum = 0, squares = 0;
  for (int j = lane; j < p.key_dim; j += kWarp) {
    bonus += p.r[row * p.key_dim + j] * p.k[row * p.key_dim + j] * p.r_k[head * p.key_dim + j];
  }
  for (int i = lane; i < p.value_dim; i += kWarp) sum += x[i];
  bonus = WarpSum(bonus);
  const float mean = WarpSum(sum) / p.value_dim;
  for (int i = lane; i < p.value_dim; i += kWarp) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / sqrtf(WarpSum(squares) / p.value_dim + p.eps);
  for (int i = lane; i < p.value_dim; i += kWarp) {
    const int channel = head * p.value_dim + i;
    const float normed = (x[i] - mean) * scale * p.weight[channel] + p.bias[channel];
    y[at + i] = FromFloat<Y>((normed + bonus * p.v[at + i]) * p.gate[at + i]);
  }
}

__global__ void __launch_bounds__(kThreads)
    ValueResidualKernel(const float* first, const float* gate, const float* bias, float* v,
                        int64_t n, int gates, int of_gate) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t g = i / of_gate;
  v[i] = MixValue(v[i], first[i], gate[g], bias[g % gates]);
}

}  // namespace

void Rwkv7Gates(Device& device, const Rwkv7GatesArgs& args) {
  const GatesProblem problem = {.decay = args.decay.as<const float>(),
                                .rate = args.rate.as<const float>(),
                                .decay_bias = args.decay_bias.as<const float>(),
                                .rate_bias = args.rate_bias.as<const float>(),
                                .k_k = args.k_k.as<const float>(),
                                .k_a = args.k_a.as<const float>(),
                                .k = args.k.as<float>(),
                                .log_decay = args.log_decay.as<float>(),
                                .c = args.c.as<float>(),
                                .e = args.e.as<float>(),
                                .rows = args.k.shape[0] * args.k.shape[1],
                                .heads = static_cast<int>(args.k.shape[1]),
                                .dim = static_cast<int>(args.k.shape[2]),
                                .eps = args.eps,
                                .least = args.least};
  CHECK(args.k.dtype == DType::kF32) << "Rwkv7Gates";
  if (problem.rows == 0) return;
  LaunchOverlapping(device, "Rwkv7Gates", GatesKernel, BlocksFor(problem.rows, kWarps), kThreads, 0,
                    1, problem);
}

void ValueResidual(Device& device, const ValueResidualArgs& args) {
  CHECK(args.v.dtype == DType::kF32) << "ValueResidual";
  const int64_t n = args.v.shape.elements();
  if (n == 0) return;
  LaunchOverlapping(device, "ValueResidual", ValueResidualKernel, BlocksFor(n, kThreads), kThreads,
                    0, 1, args.first.as<const float>(), args.gate.as<const float>(),
                    args.bias.as<const float>(), args.v.as<float>(), n,
                    static_cast<int>(args.gate.shape[1]),
                    static_cast<int>(args.v.shape[1] / args.gate.shape[1]));
}

void Rwkv7Output(Device& device, const Rwkv7OutputArgs& args) {
  const OutputProblem problem = {.x = args.x.as<const float>(),
                                 .weight = args.weight.as<const float>(),
                                 .bias = args.bias.as<const float>(),
                                 .r = args.r.as<const float>(),
                                 .k = args.k.as<const float>(),
                                 .r_k = args.r_k.as<const float>(),
                                 .v = args.v.as<const float>(),
                                 .gate = args.gate.as<const float>(),
                                 .rows = args.x.shape[0] * args.x.shape[1],
                                 .heads = static_cast<int>(args.x.shape[1]),
                                 .key_dim = static_cast<int>(args.r.shape[2]),
                                 .value_dim = static_cast<int>(args.x.shape[2]),
                                 .eps = args.eps};
  CHECK(args.x.dtype == DType::kF32) << "Rwkv7Output";
  if (problem.rows == 0) return;
  const auto launch = [&](auto kernel, auto* y) {
    LaunchOverlapping(device, "Rwkv7Output", kernel, BlocksFor(problem.rows, kWarps), kThreads, 0,
                      1, problem, y);
  };
  if (args.y.dtype == DType::kBF16) {
    return launch(OutputKernel<__nv_bfloat16>, args.y.as<__nv_bfloat16>());
  }
  CHECK(args.y.dtype == DType::kF32) << "Rwkv7Output";
  launch(OutputKernel<float>, args.y.as<float>());
}

}  // namespace mneme::cuda::rwkv
