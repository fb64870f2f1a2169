// The convolutions of a decode step of many rows: a thread takes four channels of an entry. Its
// window is on its way before the projections have ended.
#include <cstdint>

#include "kernels/cuda/decode_many.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/cuda/overlap.cuh"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWidth = 4;

struct Params {
  ManyConvolutionsArgs args;
  int fours[3];     // of a row of each convolution
  int entry_fours;  // of all
};

__global__ void __launch_bounds__(kThreads) ManyConvolutions(const __grid_constant__ Params p) {
  LetNextKernelStart();
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int entry = static_cast<int>(thread / p.entry_fours);
  int four = static_cast<int>(thread % p.entry_fours);
  const bool inside = entry < p.args.entries;
  int n = 0;
  while (n + 1 < p.args.count && four >= p.fours[n]) four -= p.fours[n++];
  const ManyConvolution& conv = p.args.list[n];

  // The table is that of the kernel before the previous one, which lets this one start only when it
  // may itself read it; windows are of earlier steps.
  int slot = -1, memory = 0, row = 0;
  bool fresh = false;
  float4 weight[4] = {}, past[kWidth - 1] = {};
  float4* window = nullptr;
  if (inside) {
    slot = __ldcg(p.args.table.slots + entry);
    memory = __ldcg(p.args.table.memories + entry);
    fresh = __ldcg(p.args.table.fresh + entry) != 0;
    row = conv.by_row ? __ldcg(p.args.table.rows + entry) : entry;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weight[i] = reinterpret_cast<const float4*>(conv.weight)[4 * four + i];
    }
    if (slot >= 0) {
      window = reinterpret_cast<float4*>(MemoryAt<float>(conv.window, slot, memory)) + four;
      if (!fresh) {
#pragma unroll
        for (int j = 0; j + 1 < kWidth; ++j) past[j] = __ldcg(window + j * p.fours[n]);
      }
    }
  }
  WaitForPreviousKernel();
  if (slot < 0) return;
  const float4 x = reinterpret_cast<const float4*>(conv.x)[int64_t{row} * p.fours[n] + four];
  const float newest[4] = {x.x, x.y, x.z, x.w};
  float y[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto of = [i](const float4& v) {
      return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
    };
    float sum = fmaf(weight[i].x, of(past[0]), 0.0f);
    sum = fmaf(weight[i].y, of(past[1]), sum);
    sum = fmaf(weight[i].z, of(past[2]), sum);
    y[i] = Silu(fmaf(weight[i].w, newest[i], sum));
  }
  reinterpret_cast<float4*>(conv.y)[int64_t{entry} * p.fours[n] + four] = {y[0], y[1], y[2], y[3]};
  __stcs(window, past[1]);
  __stcs(window + p.fours[n], past[2]);
  __stcs(window + 2 * p.fours[n], x);
}

bool Whole(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

bool LaunchManyConvolutions(Device& device, const ManyConvolutionsArgs& args) {
  Params p = {};
  p.args = args;
  for (int i = 0; i < args.count; ++i) {
    const ManyConvolution& conv = args.list[i];
    if (conv.channels % 4 != 0 || !Whole(conv.x) || !Whole(conv.weight) || !Whole(conv.y) ||
        !Whole(conv.window.base) || conv.window.slab_bytes % 16 != 0 ||
        conv.window.offset % 16 != 0 || conv.window.memory_bytes % 16 != 0) {
      return false;
    }
    p.fours[i] = conv.channels / 4;
    p.entry_fours += p.fours[i];
  }
  const int64_t threads = int64_t{args.entries} * p.entry_fours;
  LaunchOverlapping(device, "convolutions of a decode step", ManyConvolutions,
                    static_cast<int>((threads + kThreads - 1) / kThreads), kThreads, 0, 1, p);
  return true;
}

}  // namespace mneme::cuda
