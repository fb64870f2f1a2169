// Tokens of segments that end no step: they read W, and their loss is that at A. A block is one
// head of one token, through which both pass once, each into registers, with a product of every row
// of a thread's share. Nothing of them is written; the token's pair is kept for its step.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/resident/head.cuh"

namespace mneme::cuda::neural_memory::resident {
namespace {

constexpr int kHeld = 8;                         // rows of a matrix that a thread has, at most
constexpr int kMostDim = 128, kMostUnits = 512;  // of the network

// What is fetched of a matrix that is needed later, so that it comes from the L2 cache then.
__device__ inline void Prefetch(const float* from, int floats) {
  constexpr int kLine = 32;
  for (int i = kLine * static_cast<int>(threadIdx.x); i < floats; i += kLine * kThreads) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
  }
}

template <bool kLoss>
__device__ inline void Products(const float* const (&x)[2],
                                const float4 (&held)[kLoss ? 2 : 1][kHeld], const Share& share,
                                float (*partial)[4 * kThreads]) {
#pragma unroll
  for (int which = 0; which < (kLoss ? 2 : 1); ++which) {
    float4 sum = {};
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i < share.count) AddScaled(sum, x[which][share.first + i], held[which][i]);
    }
    SaveFour(partial[which] + 4 * threadIdx.x, sum);
  }
}

// Of two products. The first answer is that of q through W, the second that of k through A, which
// is left out without kLoss.
template <bool kLoss>
__global__ void __launch_bounds__(kThreads, 2)
    SingleTokensKernel(const __grid_constant__ Params p, const Part part_1, const Part part_2,
                       bool by_entries) {
  constexpr int kAnswers = kLoss ? 2 : 1;
  constexpr int kGain = TensorsOfHead<2>::kGain;
  __shared__ float4 fours[kAnswers][kThreads];
  __shared__ alignas(16) float vectors[3][kMostDim];  // q, k and v
  __shared__ float units[kAnswers][kMostUnits], outputs[kAnswers][kMostDim];
  __shared__ float error[kMostDim];
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const int head = static_cast<int>(blockIdx.x) % p.heads, thread = static_cast<int>(threadIdx.x);
  const int place = static_cast<int>(blockIdx.x) / p.heads;
  const Segment segment(p.segments, by_entries ? SegmentOf(p.segments, place) : place);
  const int entry = by_entries ? place : segment.first;
  if (segment.slot < 0 || entry >= segment.end) return WaitForPreviousKernel();
  const int64_t begin = p.positions[segment.first];
  const int open = static_cast<int>(begin % p.step) + entry - segment.first;
  if (!OnlyReads(p, segment, begin)) return WaitForPreviousKernel();

  const MemoryNetwork& network = p.network;
  const TensorsOfHead<2> tensors(p, segment, head, /*rank=*/0);
  const int dim = p.dim;
  const bool initial = !p.writes_anchors;
  const auto matrix = [&](int which, int l) {
    return which == 0 || !p.has_anchors ? tensors.Start(p.weights, l, false)
                                        : tensors.Start(p.anchors, l, initial);
  };
  const Share share_1(part_1), share_2(part_2);
  float4 held[kAnswers][kHeld];
#pragma unroll
  for (int which = 0; which < kAnswers; ++which) {
    LoadShare(matrix(which, 0), part_1, share_1, held[which]);
  }
  if (p.early) {
#pragma unroll
    for (int which = 0; which < kAnswers; ++which) {
      Prefetch(matrix(which, 1), part_2.rows * part_2.columns);
    }
  }
  float gains[kAnswers] = {};  // of the element that the thread ends with
  if (network.trains_gain && thread < dim) {
    gains[0] = tensors.Start(p.weights, kGain, false)[thread];
    if (kLoss) {
      gains[kAnswers - 1] =
          p.has_anchors ? tensors.Start(p.anchors, kGain, initial)[thread] : gains[0];
    }
  }
  if (p.early) WaitForPreviousKernel();

  const int64_t of_entry = (int64_t{entry} * p.heads + head) * dim;
  for (int i = thread; i < 3 * dim / 4; i += kThreads) {
    const int which = i / (dim / 4), four = i % (dim / 4) * 4;
    const float* const from = which == 0 ? p.q : which == 1 ? p.k : p.v;
    SaveFour(vectors[which] + four, LoadFour(from + of_entry + four));
  }
  __syncthreads();
  float(*const partial)[4 * kThreads] = reinterpret_cast<float(*)[4 * kThreads]>(fours);
  Products<kLoss>({vectors[0], vectors[1]}, held, share_1, partial);
#pragma unroll
  for (int which = 0; which < kAnswers; ++which) {
    LoadShare(matrix(which, 1), part_2, share_2, held[which]);
  }
  // The pair, and its rate.
  const int64_t row = int64_t{head} * (p.step - 1) + open;
  const auto pending = [&](const StateView& view) {
    return MemoryAt<float>(view, segment.slot, segment.memory);
  };
  if (thread < dim) {
    pending(p.pending_k)[row * dim + thread] = vectors[1][thread];
    pending(p.pending_v)[row * dim + thread] = vectors[2][thread];
  }
  if (thread == 0) pending(p.pending_rate)[row] = GateOf(p, p.rate, entry, head);
  __syncthreads();
  for (int i = thread; i < kAnswers * part_1.columns; i += kThreads) {
    const int which = i / part_1.columns, unit = i % part_1.columns;
    float slope;
    units[which][unit] =
        Activate(network.activation, SumOfGroups(partial[which], part_1, unit), &slope);
  }
  __syncthreads();
  Products<kLoss>({units[0], units[kAnswers - 1]}, held, share_2, partial);
  __syncthreads();
  for (int i = thread; i < kAnswers * dim; i += kThreads) {
    outputs[i / dim][i % dim] = SumOfGroups(partial[i / dim], part_2, i % dim);
  }
  // What the last part needs of gains, where the sums were.
  __syncthreads();
  float* const of_gain = partial[0];
  if (thread < dim) {
    of_gain[thread] = gains[0];
    of_gain[kMostDim + thread] = gains[kAnswers - 1];
    if (!network.trains_gain && network.norm != MemoryNetwork::Norm::kNone) {
      of_gain[thread] = of_gain[kMostDim + thread] = p.gain[head * dim + thread];
    }
    of_gain[2 * kMostDim + thread] = p.shift == nullptr ? 0.0f : p.shift[head * dim + thread];
  }
  __syncthreads();
  const int warp = thread / kWarp, lane = thread % kWarp;
  const float* const shift = of_gain + 2 * kMostDim;
  if (warp == 0) {
    float* const n = outputs[0];
    NormOfWarp(network, dim, n, 1, 0, n);
    const bool normed = network.norm != MemoryNetwork::Norm::kNone;
    const float offset = network.trains_gain ? network.gain_offset : 0.0f;
    const float gate = AnswerGateOf(p, entry, head);
    for (int i = lane; i < dim; i += kWarp) {
      SaveAnswer(p, of_entry + i,
                 normed ? vectors[0][i] + (n[i] * (offset + of_gain[i]) + shift[i]) : n[i], gate);
    }
  } else if (kLoss && warp == 1) {
    const float loss = ErrorOfWarp(p, outputs[kAnswers - 1], 1, 0, vectors[1], vectors[2],
                                   of_gain + kMostDim, shift, 0.0f, error);
    if (lane == 0) p.loss[int64_t{entry} * p.heads + head] = loss;
  }
}

}  // namespace

bool LaunchSingleTokens(Device& device, const Params& p, int entries) {
  const MemoryNetwork& network = p.network;
  if (network.depth != 2 || network.biases || p.dim > kMostDim || network.hidden > kMostUnits) {
    return false;
  }
  const Part part_1(p.dim, network.hidden, network.hidden, 0);
  const Part part_2(network.hidden, p.dim, p.dim, 0);
  if (std::max(part_1.held, part_2.held) > kHeld) return false;
  LaunchOverlapping(device, "tokens of a neural memory",
                    p.loss != nullptr ? SingleTokensKernel<true> : SingleTokensKernel<false>,
                    (entries > 0 ? entries : p.segments.count) * p.heads, kThreads, 0, 1, p, part_1,
                    part_2, entries > 0);
  return true;
}

}  // namespace mneme::cuda::neural_memory::resident
