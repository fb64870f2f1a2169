// A cluster of blocks is one head of one segment, and walks its tokens with the state on chip,
// which is read and written once, however many tokens there are. A block has some of the hidden
// units: columns of W_1 and rows of W_2 (of a depth of 1, columns of W_1). Only the network's
// outputs cross blocks, those of k and those of q: of two products, as sums over hidden units.
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/resident/head.cuh"

namespace mneme::cuda::neural_memory::resident {
namespace {

struct TokenGates {
  float rate;
  StepGates step;
};

template <int kDepth, int kHeld>
__global__ void __launch_bounds__(kThreads, 2)
    OneTokenStepsKernel(const __grid_constant__ Params p) {
  extern __shared__ float4 shared_fours[];
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const Team team;
  const int unit = static_cast<int>(blockIdx.x) / p.blocks, head = unit % p.heads;
  const Segment segment(p.segments, unit / p.heads);
  const int tokens = segment.end - segment.first;
  if (segment.slot < 0 || tokens <= p.others) return WaitForPreviousKernel();
  team.Enter();

  const MemoryNetwork& network = p.network;
  const TensorsOfHead<kDepth> tensors(p, segment, head, team.rank());
  const Layout& at = p.division.at;
  float* const shared = reinterpret_cast<float*>(shared_fours);
  int thread = static_cast<int>(threadIdx.x);
  const int dim = p.dim, rank = team.rank();
  const bool has_momentum = p.momentum != nullptr;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  const bool first = p.positions[segment.first] == p.first_position;
  const Part &part_1 = p.division.parts[0], &part_2 = p.division.parts[kDepth - 1];
  Share share_1(part_1), share_2(part_2);
  float *const partial = shared + at.partial, *const error = shared + at.error;
  float *const gain = shared + at.gain, *const gain_momenta = shared + at.gain_momenta;

  // q, k and v of an entry, in one of two places.
  const auto vector_of = [&](int e, int which) {
    return shared + at.vectors + ((e - segment.first) % 2 * 3 + which) * dim;
  };
  const auto in_entries = [&](int e) { return (int64_t{e} * p.heads + head) * dim; };
  const auto source_of = [&](int which) { return which == 0 ? p.q : which == 1 ? p.k : p.v; };
  const auto fetch_vectors = [&](int e) {
    for (int i = thread; i < 3 * dim / 4; i += kThreads) {
      const int which = i / (dim / 4), four = i % (dim / 4) * 4;
      CopyAsync16(vector_of(e, which) + four, source_of(which) + in_entries(e) + four);
    }
  };
  const auto gates_of = [&](int e) {
    const int64_t i = int64_t{e} * p.heads + head;
    return TokenGates{.rate = p.rate_scale * p.rate[i],
                      .step = {.momentum = has_momentum ? p.momentum[i] : 0.0f,
                               .keep = p.keep == nullptr ? 1.0f : p.keep[i]}};
  };

  // Everything is under way before anything is waited for: of state, that may be the kernel ahead.
  const auto fetch_matrix = [&](int l, const Share& share) {
    FetchShare(tensors.Start(p.weights, l, first), p.division.parts[l], share,
               shared + at.weights[l]);
  };
  fetch_matrix(0, share_1);
  CommitCopies();
  if constexpr (kDepth > 1) fetch_matrix(1, share_2);
  CommitCopies();
  float4 momenta_1[kHeld], momenta_2[kDepth > 1 ? kHeld : 1];
  if (has_momentum) {
    LoadShare(tensors.Start(p.momenta, 0, first), part_1, share_1, momenta_1);
    if constexpr (kDepth > 1) {
      LoadShare(tensors.Start(p.momenta, 1, first), part_2, share_2, momenta_2);
    }
  }
#pragma unroll 1
  for (int i = thread; normed && i < dim; i += kThreads) {
    shared[at.shift + i] = p.shift == nullptr ? 0.0f : p.shift[head * dim + i];
    if (!network.trains_gain) {
      gain[i] = p.gain[head * dim + i];
      continue;
    }
    constexpr int kGain = TensorsOfHead<kDepth>::kGain;
    gain[i] = tensors.Start(p.weights, kGain, first)[i];
    const float* const momenta = has_momentum ? tensors.Start(p.momenta, kGain, first) : nullptr;
    gain_momenta[i] = momenta == nullptr ? 0.0f : momenta[i];
  }
  // Memories of two products may have steps that others held back.
  float* numbers = nullptr;
  if constexpr (kDepth > 1) {
    if (p.held.capacity > 0) {
      numbers = NumbersOfHead(p, segment.slot, segment.memory, head);
      const int held = first ? 0 : static_cast<int>(numbers[0]);
      if (held > 0) {
        WaitCopies<0>();
        const StepsOfHead steps(p, segment, head, rank, numbers, held);
        AddStepsOfSlab<kHeld>(steps.of_parts[0], part_1, share_1, shared + at.weights[0],
                              momenta_1);
        AddStepsOfSlab<kHeld>(steps.of_parts[1], part_2, share_2, shared + at.weights[1],
                              momenta_2);
      }
    }
  }
  WaitForPreviousKernel();
  // Not behind W_2, as a copy would be.
  for (int i = thread; i < 3 * dim / 4; i += kThreads) {
    const int which = i / (dim / 4), four = i % (dim / 4) * 4;
    SaveFour(vector_of(segment.first, which) + four,
             LoadFour(source_of(which) + in_entries(segment.first) + four));
  }
  TokenGates next = gates_of(segment.first);

  const auto activate = [&](float* z, float* slope) {
    for (int i = thread; i < part_1.columns; i += kThreads) {
      float derivative;
      z[i] = Activate(network.activation, SumOfGroups(partial, part_1, i), &derivative);
      if (slope != nullptr) slope[i] = derivative;
    }
    __syncthreads();
  };
  // This block's columns of the outputs, or its part of their sums, to all blocks.
  const auto send_outputs = [&](float* outputs) {
    for (int i = thread; i < part_2.columns; i += kThreads) {
      const float y = SumOfGroups(partial, part_2, i);
#pragma unroll 1
      for (int to = 0; to < p.blocks; ++to) *team.Of(to, outputs + rank * part_2.columns + i) = y;
    }
    team.Sync();
  };
  const int sent = kDepth > 1 ? p.blocks : 1;
  const float offset = network.trains_gain ? network.gain_offset : 0.0f;
  const float scale = p.step_scale == nullptr ? 1.0f : p.step_scale[0];

  team.AwaitAll();
  for (int e = segment.first; e < segment.end; ++e) {
    FollowHere(share_1);
    FollowHere(share_2);
    FollowHere(thread);
    const int lane = thread % kWarp, warp = thread / kWarp;
    const bool last = e + 1 == segment.end;
    const TokenGates gates = next;
    const float *const q = vector_of(e, 0), *const k = vector_of(e, 1);
    float* const v = vector_of(e, 2);
    if (e == segment.first) {
      WaitCopies<1>();  // W_2 may come later
    } else {
      WaitCopies<0>();
    }
    __syncthreads();
    if (!last) {
      fetch_vectors(e + 1);
      next = gates_of(e + 1);
    }
    CommitCopies();

    ProductOfShare<kHeld>(k, shared + at.weights[0], part_1, share_1, partial);
    __syncthreads();
    if constexpr (kDepth > 1) {
      activate(shared + at.z, shared + at.delta_1);
      WaitCopies<1>();
      ProductOfShare<kHeld>(shared + at.z, shared + at.weights[1], part_2, share_2, partial);
      __syncthreads();
    }
    send_outputs(shared + at.outputs[0]);

    float loss = 0;
    if (warp == 0) {
      loss = ErrorOfWarp(p, shared + at.outputs[0], sent, dim, k, v, gain, shared + at.shift,
                         scale * gates.rate, error);
      for (int i = lane; network.trains_gain && i < dim; i += kWarp) {
        const float s = fmaf(gates.step.momentum, gain_momenta[i], -v[i]);
        if (has_momentum) gain_momenta[i] = s;
        gain[i] = fmaf(gates.step.keep, gain[i], s);
      }
    }
    if (p.loss != nullptr && rank == 0 && thread == 0) {
      p.loss[int64_t{e} * p.heads + head] = loss;
    }
    __syncthreads();
    if constexpr (kDepth > 1) {
      ProductsOfRows(shared + at.weights[1], part_2, error, 1, shared + at.delta_1);
      __syncthreads();
    }

    const auto step = [&](int l, const float* z, const float* delta, const float* x,
                          const Share& share, auto& momenta) {
      float* const weights = shared + at.weights[l];
      const float4 four = LoadFour(delta + share.column);
      if (last) {
        const StepTargets to = {.weights = tensors.InSlab(p.weights, l),
                                .momenta = has_momentum ? tensors.InSlab(p.momenta, l) : nullptr};
        StepOfShare<kHeld, true>(z, four, x, gates.step, has_momentum, weights, p.division.parts[l],
                                 share, to, momenta, partial);
      } else {
        StepOfShare<kHeld, false>(z, four, x, gates.step, has_momentum, weights,
                                  p.division.parts[l], share, {.weights = weights}, momenta,
                                  partial);
      }
      __syncthreads();
    };
    step(0, k, kDepth > 1 ? shared + at.delta_1 : error + rank * part_1.columns, q, share_1,
         momenta_1);
    if constexpr (kDepth > 1) {
      activate(shared + at.z_of_q, nullptr);
      step(1, shared + at.z, error, shared + at.z_of_q, share_2, momenta_2);
    }
    send_outputs(shared + at.outputs[1]);

    // Not by the warp that is waited for next.
    if (rank == 0 && warp == 1) {
      float* const n = shared + at.n_of_q;
      NormOfWarp(network, dim, shared + at.outputs[1], sent, dim, n);
      for (int i = lane; i < dim; i += kWarp) {
        p.out[in_entries(e) + i] =
            normed ? q[i] + (n[i] * (offset + gain[i]) + shared[at.shift + i]) : n[i];
      }
    }
  }

  // All blocks have read it.
  if (numbers != nullptr && rank == 0 && thread == 0) numbers[0] = 0;
  for (int i = thread; network.trains_gain && rank == 0 && i < dim; i += kThreads) {
    constexpr int kGain = TensorsOfHead<kDepth>::kGain;
    tensors.InSlab(p.weights, kGain)[i] = gain[i];
    if (has_momentum) tensors.InSlab(p.momenta, kGain)[i] = gain_momenta[i];
  }
}

template <int kDepth>
void Launch(Device& device, const Plan& plan, const Params& p) {
  const auto kernel = plan.held <= kFewHeld ? OneTokenStepsKernel<kDepth, kFewHeld>
                                            : OneTokenStepsKernel<kDepth, kMostHeld>;
  LaunchOverlapping(device, "steps of one token of a neural memory", kernel,
                    p.segments.count * p.heads * plan.blocks, kThreads, plan.shared_bytes,
                    plan.blocks, p);
}

}  // namespace

void LaunchOneTokenSteps(Device& device, const Plan& plan, const Params& p) {
  if (p.network.depth == 1) return Launch<1>(device, plan, p);
  Launch<2>(device, plan, p);
}

}  // namespace mneme::cuda::neural_memory::resident
