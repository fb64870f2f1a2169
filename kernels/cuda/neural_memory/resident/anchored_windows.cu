// Segments of several tokens whose steps are of one token each, with gradients at an anchor: tokens
// under the same anchor, a window, go through two products together, on tensor cores. With n tokens
// of a window behind W_0 and S_0 the memory stands for (kernels/held_steps.h)
//
//   W_n = kept_n W_0 + moved_n S_0 + sum_i g_ni z_i^T delta_i
//   S_n = slowed_n S_0 + sum_i s_ni z_i^T delta_i
//
// so that what token n reads of them are products with W_0 and S_0, and with gradients before it
// through their scores. W and S are in shared memory, hidden units divided among the blocks of a
// cluster. A is W_0 where the window begins with it, else it is read where it is in the slab, or
// in the weights.
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/shared_layout.h"
#include "kernels/cuda/neural_memory/resident/head_windows.cuh"

namespace mneme::cuda::neural_memory::resident {

WindowLayout::WindowLayout(const MemoryNetwork& network, int dim, int blocks, int tiles)
    : tokens(kWindowTile * tiles),
      owned((tokens + blocks - 1) / blocks),
      owner_bits(0),
      units(network.hidden / blocks),
      dim_pitch(dim + 4),
      unit_pitch(units + 4),
      delta_pitch(units + 8),
      token_pitch(tokens + 4),
      floats(0) {
  const auto take = [this](int n) { return TakeFloats(n, floats); };
  while (1 << owner_bits < blocks) ++owner_bits;
  for (int* const matrices : {weights, momenta}) {
    matrices[0] = take(dim * TurnedMatrix::Pitch(units));
    matrices[1] = take(units * TurnedMatrix::Pitch(dim));
  }
  for (int* const vectors : {&q, &k, &v}) *vectors = take(tokens * dim_pitch);
  error = network.trains_gain ? take(tokens * dim_pitch) : v;
  for (int* const of_units : {&z, &z_of_q}) *of_units = take(tokens * unit_pitch);
  delta = take(tokens * delta_pitch);
  for (int* const square : {&reach, &scores}) *square = take(tokens * token_pitch);
  // One block has read its outputs for keys before those for queries come.
  outputs[0] = take(blocks * owned * dim);
  outputs[1] = blocks == 1 ? outputs[0] : take(blocks * owned * dim);
  answers = blocks == 1 ? outputs[1] : take(tokens * dim);
  for (int* const gates : {&rates, &momentum, &keep, &kept, &moved, &slowed, &last}) {
    *gates = take(tokens);
  }
  for (int* const vector : {&gain, &gain_momenta, &anchor_gain, &shift}) *vector = take(dim);
}

namespace {

// The n-th segment of several tokens, or -1. Called by whole warps.
__device__ int LongerSegment(const SegmentArrays& p, int n) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int from = 0; from < p.count; from += kWarp) {
    const int own = from + lane;
    const bool longer = own < p.count && p.offsets[own + 1] - p.offsets[own] > 1;
    const unsigned found = __ballot_sync(kAllLanes, longer);
    if (n < __popc(found)) return from + static_cast<int>(__fns(found, 0, n + 1));
    n -= __popc(found);
  }
  return -1;
}

template <int kTiles>
__global__ void __launch_bounds__(kWindowThreads, 1)
    AnchoredWindowsKernel(const __grid_constant__ Params p,
                          const __grid_constant__ WindowLayout at) {
  extern __shared__ float4 shared_fours[];
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const Team team;
  const int unit = static_cast<int>(blockIdx.x) / p.blocks, head = unit % p.heads;
  const int nth = LongerSegment(p.segments, unit / p.heads);
  if (nth < 0) return WaitForPreviousKernel();
  const Segment segment(p.segments, nth);
  if (segment.slot < 0) return WaitForPreviousKernel();
  team.Enter();

  constexpr int kDepth = 2, kGain = TensorsOfHead<kDepth>::kGain;
  const MemoryNetwork& network = p.network;
  const TensorsOfHead<kDepth> tensors(p, segment, head, team.rank());
  float* const shared = reinterpret_cast<float*>(shared_fours);
  const HeadWindows<kTiles> windows(p, at, team, head, shared);
  const int thread = static_cast<int>(threadIdx.x), dim = p.dim;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  const bool has_momentum = p.momentum != nullptr;
  const int64_t begin = p.positions[segment.first];
  const bool first = begin == p.first_position;
  const bool initial_anchors = first || !p.writes_anchors;

#pragma unroll
  for (int l = 0; l < kDepth; ++l) {
    const Part& part = p.division.parts[l];
    windows.FetchMatrix(tensors.Start(p.weights, l, first), part, windows.weights(l));
    windows.FetchMatrix(has_momentum ? tensors.Start(p.momenta, l, first) : nullptr, part,
                        windows.momenta(l));
  }
  for (int i = thread; normed && i < dim; i += kWindowThreads) {
    shared[at.shift + i] = p.shift == nullptr ? 0.0f : p.shift[head * dim + i];
    if (!network.trains_gain) {
      shared[at.gain + i] = shared[at.anchor_gain + i] = p.gain[head * dim + i];
      continue;
    }
    shared[at.gain + i] = tensors.Start(p.weights, kGain, first)[i];
    shared[at.anchor_gain + i] = tensors.Start(p.anchors, kGain, initial_anchors)[i];
    const float* const momenta = has_momentum ? tensors.Start(p.momenta, kGain, first) : nullptr;
    shared[at.gain_momenta + i] = momenta == nullptr ? 0.0f : momenta[i];
  }
  // Rows behind a window's tokens, which have no errors.
  for (int i = thread; network.trains_gain && i < at.tokens * at.dim_pitch; i += kWindowThreads) {
    shared[at.error + i] = 0;
  }
  const float scale = p.step_scale == nullptr ? 1.0f : p.step_scale[0];
  team.AwaitAll();
  WaitForPreviousKernel();  // state does not depend on it

  const auto window_from = [&](int from) {
    Window window = {from, min(segment.end - from, at.tokens), false};
    if (p.writes_anchors) {
      const int64_t left = p.anchor_period - (begin + from - segment.first) % p.anchor_period;
      window.moves_anchors = left <= window.count;
      if (window.moves_anchors) window.count = static_cast<int>(left);
    }
    return window;
  };
  // A is W, or where these are.
  bool at_weights = false, anchors_moved = false;
  const float* anchors[kDepth];
  for (int l = 0; l < kDepth; ++l) anchors[l] = tensors.Start(p.anchors, l, initial_anchors);

  Window window = window_from(segment.first);
  auto gates = windows.LoadGates(window);
  windows.Fetch(window);
  for (;;) {
    const int last = window.count - 1;
    const float* const anchor_1 = at_weights ? nullptr : anchors[0];
    const float* const anchor_2 = at_weights ? nullptr : anchors[1];
    windows.FindGates(gates);
    AwaitCopies();
    __syncthreads();
    windows.MultiplyVectors(anchor_1, last);
    __syncthreads();
    windows.ActivateKeys();
    __syncthreads();
    windows.SendOutputs(anchor_2);
    team.Sync();
    windows.FindErrors(window, scale);
    team.Sync();
    windows.FindDeltas(anchor_2);
    __syncthreads();
    windows.AddReached();
    __syncthreads();
    windows.ActivateQueries();
    __syncthreads();
    windows.MultiplyUnits();
    __syncthreads();
    windows.SendAnswers();
    if (network.trains_gain) windows.LearnGain(window);
    float* to_anchors[kDepth] = {};
    if (window.moves_anchors) {
      at_weights = anchors_moved = true;
    } else if (at_weights) {
      for (int l = 0; l < kDepth; ++l) anchors[l] = to_anchors[l] = tensors.InSlab(p.anchors, l);
      at_weights = false;
    }
    windows.Learn(last, to_anchors);
    team.Sync();

    const Window done = window;
    const int next = window.from + window.count;
    const bool more = next < segment.end;
    if (more) {
      window = window_from(next);
      gates = windows.LoadGates(window);
      if (!normed) windows.Fetch(window);
    }
    windows.Answer(done);
    if (!more) break;
    if (!normed) continue;
    __syncthreads();
    windows.Fetch(window);
  }

#pragma unroll
  for (int l = 0; l < kDepth; ++l) {
    const Part& part = p.division.parts[l];
    windows.StoreMatrix(windows.weights(l), part, tensors.InSlab(p.weights, l));
    if (has_momentum) windows.StoreMatrix(windows.momenta(l), part, tensors.InSlab(p.momenta, l));
    if (at_weights) windows.StoreMatrix(windows.weights(l), part, tensors.InSlab(p.anchors, l));
    if (!p.writes_anchors || !first || anchors_moved) continue;
    // As they began, in the slab, where they were not yet.
    float* const to = tensors.InSlab(p.anchors, l);
    for (int i = thread; i < part.rows * (part.columns / 4); i += kWindowThreads) {
      const int element = i / (part.columns / 4) * part.pitch + i % (part.columns / 4) * 4;
      SaveFour(to + element, LoadFour(anchors[l] + element));
    }
  }
  for (int i = thread; network.trains_gain && team.rank() == 0 && i < dim; i += kWindowThreads) {
    tensors.InSlab(p.weights, kGain)[i] = shared[at.gain + i];
    if (has_momentum) tensors.InSlab(p.momenta, kGain)[i] = shared[at.gain_momenta + i];
    if (p.writes_anchors) tensors.InSlab(p.anchors, kGain)[i] = shared[at.anchor_gain + i];
  }
}

}  // namespace

void LaunchAnchoredWindows(Device& device, const Plan& plan, const Params& p, int segments) {
  const int tiles = plan.tokens / kWindowTile;
  const WindowLayout layout(p.network, p.dim, plan.blocks, tiles);
  const auto kernel = tiles == 1 ? AnchoredWindowsKernel<1> : AnchoredWindowsKernel<2>;
  LaunchOverlapping(device, "windows of a neural memory under an anchor", kernel,
                    segments * p.heads * plan.blocks, kWindowThreads, plan.shared_bytes,
                    plan.blocks, p, layout);
}

}  // namespace mneme::cuda::neural_memory::resident
