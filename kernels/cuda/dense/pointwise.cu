// Operations that take every number by itself: biases, activations, products.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/dense/dense.h"

namespace mneme::cuda::dense {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxActivations = 4;  // in one launch

// One block per entry; those behind the last group have none.
__global__ void AddBiasKernel(const float* bias, const int32_t* group_offsets, int groups, int dim,
                              float* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int entry = static_cast<int>(blockIdx.x);
  int group = 0;
  if (group_offsets != nullptr) {
    if (entry >= group_offsets[groups]) return;
    int end = groups;  // the last group that starts at or before the entry: those after are empty
    while (end - group > 1) {
      const int middle = (group + end) / 2;
      (group_offsets[middle] <= entry ? group : end) = middle;
    }
  }
  const float* from = bias + int64_t{group} * dim;
  float* to = y + int64_t{entry} * dim;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) to[i] += from[i];
}

struct OneActivation {
  const void* x;
  const int32_t* entry_rows;
  void* y;
  int64_t items;  // of y, fours or single elements
  int dim;        // items of a row
  float scale;
  Activation activation;
  bool rounded_x, rounded_y;  // bf16
  int64_t blocks_end;         // the launch's blocks up to here are this or an earlier one's
};
struct Activations {
  OneActivation list[kMaxActivations];
};

template <int kStep, typename X, typename Y>
__device__ inline void ActivateItem(const OneActivation& a, int64_t from, int64_t to) {
  const X* x = static_cast<const X*>(a.x) + from * kStep;
  Y* y = static_cast<Y*>(a.y) + to * kStep;
  const auto activated = [&](float value) { return a.scale * Activated(a.activation, value); };
  if constexpr (kStep == 4) {
    const float4 v = LoadFour(x);
    SaveFour(y, {activated(v.x), activated(v.y), activated(v.z), activated(v.w)});
  } else {
    *y = FromFloat<Y>(activated(ToFloat(*x)));
  }
}

// A thread reads before it writes, as y may be x.
template <int kStep>
__global__ void __launch_bounds__(kThreads)
    ActivateKernel(const __grid_constant__ Activations activations) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  int64_t block = blockIdx.x;
  int n = 0;
  while (block >= activations.list[n].blocks_end) ++n;
  if (n > 0) block -= activations.list[n - 1].blocks_end;
  const OneActivation& a = activations.list[n];
  const int64_t to = block * kThreads + threadIdx.x;
  if (to >= a.items) return;
  int64_t from = to;
  if (a.entry_rows != nullptr) {
    const int64_t entry = to / a.dim;
    from = int64_t{a.entry_rows[entry]} * a.dim + (to - entry * a.dim);
  }
  if (a.rounded_x) {
    return a.rounded_y ? ActivateItem<kStep, __nv_bfloat16, __nv_bfloat16>(a, from, to)
                       : ActivateItem<kStep, __nv_bfloat16, float>(a, from, to);
  }
  a.rounded_y ? ActivateItem<kStep, float, __nv_bfloat16>(a, from, to)
              : ActivateItem<kStep, float, float>(a, from, to);
}

bool IsRounded(const TensorView& tensor) {
  CHECK(tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16) << Name(tensor.dtype);
  return tensor.dtype == DType::kBF16;
}

// Launches those that go by fours, or the others.
void LaunchActivations(Device& device, std::span<const ActivateArgs> activations, bool fours) {
  Activations launch = {};
  int count = 0;
  int64_t blocks = 0;
  const auto flush = [&] {
    if (blocks > 0) {
      LaunchOverlapping(device, "Activate", fours ? ActivateKernel<4> : ActivateKernel<1>,
                        static_cast<int>(blocks), kThreads, 0, 1, launch);
    }
    count = 0;
    blocks = 0;
  };
  for (const ActivateArgs& args : activations) {
    const int64_t dim = args.y.shape[1];
    if (InFours(dim, args.x, args.y) != fours || args.y.shape.elements() == 0) continue;
    OneActivation& a = launch.list[count];
    a = {.x = args.x.data,
         .entry_rows = args.entry_rows.as<const int32_t>(),
         .y = args.y.data,
         .items = args.y.shape.elements() / (fours ? 4 : 1),
         .dim = static_cast<int>(fours ? dim / 4 : dim),
         .scale = args.scale,
         .activation = args.activation,
         .rounded_x = IsRounded(args.x),
         .rounded_y = IsRounded(args.y),
         .blocks_end = 0};
    blocks += BlocksFor(a.items, kThreads);
    a.blocks_end = blocks;
    if (++count == kMaxActivations) flush();
  }
  flush();
}

// One block per row.
__global__ void AddScaledKernel(const float* x, const float* scale, int dim, float* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t row = int64_t{blockIdx.x} * dim;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    y[row + i] = fmaf(scale[i], x[row + i], y[row + i]);
  }
}

// y may be a or b.
template <bool kAccumulate>
__global__ void MultiplyKernel(const float* a, const float* b, float* y, int64_t fours, int64_t n) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < fours) {
    const float4 u = LoadFour(a + 4 * i), v = LoadFour(b + 4 * i);
    float4 before = {};
    if (kAccumulate) before = LoadFour(y + 4 * i);
    SaveFour(y + 4 * i, {fmaf(u.x, v.x, before.x), fmaf(u.y, v.y, before.y),
                         fmaf(u.z, v.z, before.z), fmaf(u.w, v.w, before.w)});
    return;
  }
  const int64_t j = 4 * fours + (i - fours);
  if (j < n) y[j] = fmaf(a[j], b[j], kAccumulate ? y[j] : 0.0f);
}

// A factor for each `of_factor` elements; y may be a.
__global__ void __launch_bounds__(kThreads)
    MultiplyHeadsKernel(const float* a, const float* b, float* y, int64_t n, int of_factor,
                        bool accumulate) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  y[i] = fmaf(a[i], b[i / of_factor], accumulate ? y[i] : 0.0f);
}

}  // namespace

void AddBias(Device& device, const AddBiasArgs& args) {
  const int64_t entries = args.y.shape[0], dim = args.y.shape[1];
  if (entries == 0 || dim == 0) return;
  CHECK(args.y.dtype == DType::kF32);
  LaunchOverlapping(device, "AddBias", AddBiasKernel, static_cast<int>(entries), ThreadsFor(dim), 0,
                    1, args.bias.as<const float>(), args.group_offsets.as<const int32_t>(),
                    static_cast<int>(args.bias.shape[0]), static_cast<int>(dim),
                    args.y.as<float>());
}

void Activate(Device& device, std::span<const ActivateArgs> activations) {
  LaunchActivations(device, activations, /*fours=*/true);
  LaunchActivations(device, activations, /*fours=*/false);
}

void AddScaled(Device& device, const AddScaledArgs& args) {
  const int64_t rows = args.x.shape[0], dim = args.x.shape[1];
  if (rows == 0 || dim == 0) return;
  CHECK(args.x.dtype == DType::kF32 && args.y.dtype == DType::kF32);
  LaunchOverlapping(device, "AddScaled", AddScaledKernel, static_cast<int>(rows), ThreadsFor(dim),
                    0, 1, args.x.as<const float>(), args.scale.as<const float>(),
                    static_cast<int>(dim), args.y.as<float>());
}

void Multiply(Device& device, const MultiplyArgs& args) {
  const int64_t n = args.y.shape.elements();
  if (n == 0) return;
  CHECK(args.y.dtype == DType::kF32);
  if (const int64_t of_factor = args.y.shape[1] / args.b.shape[1]; of_factor > 1) {
    LaunchOverlapping(device, "Multiply", MultiplyHeadsKernel, BlocksFor(n, kThreads), kThreads, 0,
                      1, args.a.as<const float>(), args.b.as<const float>(), args.y.as<float>(), n,
                      static_cast<int>(of_factor), args.accumulate);
    return;
  }
  const int64_t fours = InFours(4, args.a, args.b, args.y) ? n / 4 : 0;
  const auto kernel = args.accumulate ? MultiplyKernel<true> : MultiplyKernel<false>;
  LaunchOverlapping(device, "Multiply", kernel, BlocksFor(fours + n - 4 * fours, kThreads),
                    kThreads, 0, 1, args.a.as<const float>(), args.b.as<const float>(),
                    args.y.as<float>(), fours, n);
}

}  // namespace mneme::cuda::dense
