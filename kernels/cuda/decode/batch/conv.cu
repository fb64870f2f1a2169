// The convolutions of a decode step of many rows: a thread takes four channels of some
// entries. Their windows are on their way before the projections have ended.
#include <cstdint>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/decode/batch/batch.h"

namespace mneme::cuda::decode::batch {
namespace {

constexpr int kThreads = 128;
constexpr int kHistory = 3;  // rows of a window

struct Params {
  ManyConvolutionsArgs args;
  int fours[3];     // of a row of each convolution
  int entry_fours;  // of all
};

// kEach entries to a thread, which share filters.
template <int kEach>
__global__ void __launch_bounds__(kThreads) ManyConvolutions(const __grid_constant__ Params p) {
  LetNextKernelStart();
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int first = static_cast<int>(thread / p.entry_fours) * kEach;
  int four = static_cast<int>(thread % p.entry_fours);
  int n = 0;
  while (n + 1 < p.args.count && four >= p.fours[n]) four -= p.fours[n++];
  const ManyConvolution& conv = p.args.list[n];

  // The table is that of the kernel before the previous one, which lets this one start only when it
  // may itself read it; windows are of earlier steps. Loads of all entries come before the first is
  // used: they share a latency.
  int slots[kEach], memories[kEach], fresh[kEach], rows[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int entry = min(first + e, p.args.entries - 1);
    slots[e] = __ldcg(p.args.table.slots + entry);
    memories[e] = __ldcg(p.args.table.memories + entry);
    fresh[e] = __ldcg(p.args.table.fresh + entry);
    rows[e] = conv.by_row ? __ldcg(p.args.table.rows + entry) : entry;
    if (first + e >= p.args.entries) slots[e] = -1;
  }
  float4 weight[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    weight[i] = LoadFour(conv.weight + 4 * (4 * four + i));
  }
  uint2 past[kEach][kHistory], newest[kEach];
  uint2* windows[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    windows[e] =
        slots[e] < 0 ? nullptr : MemoryAt<uint2>(conv.window, slots[e], memories[e]) + four;
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
      past[e][j] = slots[e] < 0 || fresh[e] != 0 ? uint2{} : __ldcg(windows[e] + j * p.fours[n]);
    }
  }
  WaitForPreviousKernel();
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (windows[e] == nullptr) continue;
    newest[e] =
        __ldcg(reinterpret_cast<const uint2*>(conv.x) + int64_t{rows[e]} * p.fours[n] + four);
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (windows[e] == nullptr) continue;
    const auto floats = [](const uint2& bits) {
      return LoadFour(reinterpret_cast<const __nv_bfloat16*>(&bits));
    };
    const float4 in[kHistory + 1] = {floats(past[e][0]), floats(past[e][1]), floats(past[e][2]),
                                     floats(newest[e])};
    const auto convolve = [](const float4& w, float a, float b, float c, float d) {
      return Silu(fmaf(w.w, d, fmaf(w.z, c, fmaf(w.y, b, w.x * a))));
    };
    SaveFour(conv.y + (int64_t{first + e} * p.fours[n] + four) * 4,
             {convolve(weight[0], in[0].x, in[1].x, in[2].x, in[3].x),
              convolve(weight[1], in[0].y, in[1].y, in[2].y, in[3].y),
              convolve(weight[2], in[0].z, in[1].z, in[2].z, in[3].z),
              convolve(weight[3], in[0].w, in[1].w, in[2].w, in[3].w)});
    __stcs(windows[e], past[e][1]);
    __stcs(windows[e] + p.fours[n], past[e][2]);
    __stcs(windows[e] + 2 * p.fours[n], newest[e]);
  }
}

}  // namespace

bool LaunchManyConvolutions(Device& device, const ManyConvolutionsArgs& args) {
  Params p = {};
  p.args = args;
  for (int i = 0; i < args.count; ++i) {
    const ManyConvolution& conv = args.list[i];
    if (conv.channels % 4 != 0 || !AreAligned(conv.x, conv.weight, conv.y, conv.window)) {
      return false;
    }
    p.fours[i] = conv.channels / 4;
    p.entry_fours += p.fours[i];
  }
  const auto launch = [&](auto kernel, int each) {
    const int64_t threads = int64_t{(args.entries + each - 1) / each} * p.entry_fours;
    LaunchOverlapping(device, "convolutions of a decode step", kernel, BlocksFor(threads, kThreads),
                      kThreads, 0, 1, p);
  };
  // The bounds follow from what each took on an H200.
  if (args.entries <= 192) {
    launch(ManyConvolutions<2>, 2);
  } else {
    launch(ManyConvolutions<4>, 4);
  }
  return true;
}

}  // namespace mneme::cuda::decode::batch
