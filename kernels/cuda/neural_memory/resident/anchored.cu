// Steps of one token whose gradients are at an anchor, the memory read after them: W and A in
// shared memory, S in registers, a cluster of blocks for a head of a segment, as in one_token.cu.
// The gradients of tokens under the same anchor are found together; then S and W take them token by
// token, each of which reads W: a few tokens between two barriers.
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/resident/tokens.cuh"

namespace mneme::cuda::neural_memory::resident {
namespace {

template <int kDepth, int kHeld>
__global__ void __launch_bounds__(kThreads, 2)
    AnchoredStepsKernel(const __grid_constant__ Params p) {
  extern __shared__ float4 shared_fours[];
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const Layout& at = p.division.at;
  const Team team;
  const int unit = static_cast<int>(blockIdx.x) / p.blocks, head = unit % p.heads;
  const Segment segment(p.segments, unit / p.heads);
  const int tokens = segment.end - segment.first;
  if (segment.slot < 0 || tokens == 0 || (p.only_single && tokens > 1)) {
    return WaitForPreviousKernel();
  }
  team.Enter();

  const MemoryNetwork& network = p.network;
  const TensorsOfHead<kDepth> tensors(p, segment, head, team.rank());
  float* const shared = reinterpret_cast<float*>(shared_fours);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int dim = p.dim, rank = team.rank(), most = p.division.tokens;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  const int64_t begin = p.positions[segment.first];
  const bool first = begin == p.first_position;
  const Part &part_1 = p.division.parts[0], &part_2 = p.division.parts[kDepth - 1];
  Share share_1(part_1), share_2(part_2);
  float *const k = shared + at.vectors, *const v = k + most * dim, *const q = v + most * dim;
  float *const z = shared + at.z, *const delta_1 = shared + at.delta_1;
  float *const z_of_q = shared + at.z_of_q, *const error = shared + at.error;
  float *const rates = shared + at.rates, *const momentum = rates + most,
               *const keep = momentum + most;
  float *const gain = shared + at.gain, *const gain_momenta = shared + at.gain_momenta;
  float* const anchor_gain = shared + at.anchor_gain;
  const bool has_momentum = p.momentum != nullptr;
  const auto in_entries = [&](int e) { return (int64_t{e} * p.heads + head) * dim; };

  const bool initial_anchors = first || !p.writes_anchors;
  const auto fetch_matrix = [&](int l, const Share& share) {
    const Part& part = p.division.parts[l];
    FetchShare(tensors.Start(p.weights, l, first), part, share, shared + at.weights[l]);
    FetchShare(tensors.Start(p.anchors, l, initial_anchors), part, share, shared + at.anchors[l]);
  };
  fetch_matrix(0, share_1);
  if constexpr (kDepth > 1) fetch_matrix(1, share_2);
  float4 momenta_1[kHeld], momenta_2[kDepth > 1 ? kHeld : 1];
  LoadShare(has_momentum ? tensors.Start(p.momenta, 0, first) : nullptr, part_1, share_1,
            momenta_1);
  if constexpr (kDepth > 1) {
    LoadShare(has_momentum ? tensors.Start(p.momenta, 1, first) : nullptr, part_2, share_2,
              momenta_2);
  }
  constexpr int kGain = TensorsOfHead<kDepth>::kGain;
#pragma unroll 1
  for (int i = thread; normed && i < dim; i += kThreads) {
    shared[at.shift + i] = p.shift == nullptr ? 0.0f : p.shift[head * dim + i];
    if (!network.trains_gain) {
      gain[i] = anchor_gain[i] = p.gain[head * dim + i];
      continue;
    }
    gain[i] = tensors.Start(p.weights, kGain, first)[i];
    anchor_gain[i] = tensors.Start(p.anchors, kGain, initial_anchors)[i];
    const float* const momenta = has_momentum ? tensors.Start(p.momenta, kGain, first) : nullptr;
    gain_momenta[i] = momenta == nullptr ? 0.0f : momenta[i];
  }
  const float offset = network.trains_gain ? network.gain_offset : 0.0f;
  const float scale = p.step_scale == nullptr ? 1.0f : p.step_scale[0];
  team.AwaitAll();
  WaitForPreviousKernel();  // state does not depend on it
  NetworkOfTokens<kDepth, kHeld> forward(p, team, shared);

  bool anchors_moved = false;
  for (int from = segment.first; from < segment.end;) {
    FollowHere(share_1);
    FollowHere(share_2);
    // Tokens up to where the anchors move.
    int count = min(segment.end - from, most);
    bool moves_anchors = false;
    if (p.writes_anchors) {
      const int64_t left = p.anchor_period - (begin + from - segment.first) % p.anchor_period;
      moves_anchors = left <= count;
      if (moves_anchors) count = static_cast<int>(left);
    }
    for (int i = thread; i < 3 * count * dim / 4; i += kThreads) {
      const int which = i % 3, token = i / 3 / (dim / 4), four = i / 3 % (dim / 4) * 4;
      const float* const source = which == 0 ? p.k : which == 1 ? p.v : p.q;
      float* const to = which == 0 ? k : which == 1 ? v : q;
      CopyAsync16(to + token * dim + four, source + in_entries(from + token) + four);
    }
    CommitCopies();
    for (int token = thread; token < count; token += kThreads) {
      const int64_t gate = int64_t{from + token} * p.heads + head;
      rates[token] = p.rate_scale * p.rate[gate];
      momentum[token] = has_momentum ? p.momentum[gate] : 0.0f;
      keep[token] = p.keep == nullptr ? 1.0f : p.keep[gate];
    }
    WaitCopies<0>();
    __syncthreads();

    float* const of_k = forward.Run(k, count, at.anchors, {.slopes = delta_1});
    for (int token = warp; token < count; token += kWarps) {
      const float loss = forward.Error(of_k + token * dim, k + token * dim, v + token * dim,
                                       anchor_gain, scale * rates[token], error + token * dim);
      if (p.loss != nullptr && rank == 0 && lane == 0) {
        p.loss[int64_t{from + token} * p.heads + head] = loss;
      }
    }
    __syncthreads();
    if constexpr (kDepth > 1) {
      ProductsOfRows(shared + at.anchors[1], part_2, error, count, delta_1);
      __syncthreads();
    }

    // take(token, column, a) for the tokens in turn, as many at once as have room for their parts
    // of a product: the outputs of k are done with, too.
    const auto step = [&](int l, const float* keys, const float* delta, int delta_pitch,
                          const float* x, const Share& share, auto& momenta, auto take) {
      const Part& part = p.division.parts[l];
      float* const partial = shared + at.partial;
      for (int begun = 0; begun < count; begun += p.division.walked) {
        const int some = min(count - begun, p.division.walked);
        const bool moves = moves_anchors && begun + some == count;
        StepsOfShare<kHeld>({.z = keys + begun * part.rows,
                             .delta = delta + begun * delta_pitch,
                             .x = x + begun * part.rows,
                             .delta_pitch = delta_pitch,
                             .momentum = momentum + begun,
                             .keep = keep + begun},
                            some, has_momentum, part, share, shared + at.weights[l],
                            moves ? shared + at.anchors[l] : nullptr, momenta, partial);
        __syncthreads();
        for (int item = thread; item < some * part.columns; item += kThreads) {
          const int token = item / part.columns, i = item % part.columns;
          take(begun + token, i, SumOfGroups(partial + token * 4 * kThreads, part, i));
        }
        __syncthreads();
      }
    };
    // The gain after each token takes the place of its gradient.
    for (int i = thread; network.trains_gain && i < dim; i += kThreads) {
      float s = gain_momenta[i], g = gain[i];
      for (int token = 0; token < count; ++token) {
        const float change = -v[token * dim + i];
        s = has_momentum ? fmaf(momentum[token], s, change) : change;
        v[token * dim + i] = g = fmaf(keep[token], g, s);
      }
      gain_momenta[i] = s;
      gain[i] = g;
      if (moves_anchors) anchor_gain[i] = g;
    }
    float* const of_q = forward.NextOutputs();
    const auto send = [&](int token, int i, float y) { forward.Send(of_q, token, i, y); };
    if constexpr (kDepth > 1) {
      step(0, k, delta_1, part_1.columns, q, share_1, momenta_1, [&](int token, int i, float a) {
        float slope;
        z_of_q[token * part_1.columns + i] = Activate(network.activation, a, &slope);
      });
      step(1, z, error, dim, z_of_q, share_2, momenta_2, send);
    } else {
      step(0, k, error + rank * part_1.columns, dim, q, share_1, momenta_1, send);
    }
    team.Sync();
    for (int token = rank + warp * p.blocks; token < count; token += kWarps * p.blocks) {
      float* const n = of_q + token * dim;
      forward.Norm(n);
      for (int i = lane; i < dim; i += kWarp) {
        p.out[in_entries(from + token) + i] =
            normed ? q[token * dim + i] +
                         (n[i] * (offset + (network.trains_gain ? v[token * dim + i] : gain[i])) +
                          shared[at.shift + i])
                   : n[i];
      }
    }

    anchors_moved |= moves_anchors;
    __syncthreads();
    from += count;
  }

  const bool stores_anchors = p.writes_anchors && (anchors_moved || first);
  const auto store = [&](int l, const Share& share, const auto& momenta) {
    float* const weights = tensors.InSlab(p.weights, l);
    float* const anchors = stores_anchors ? tensors.InSlab(p.anchors, l) : nullptr;
    float* const to_momenta = has_momentum ? tensors.InSlab(p.momenta, l) : nullptr;
    ForEachFour<kHeld>(p.division.parts[l], share, [&](int i, int element, int in_slab, int) {
      __stcs(reinterpret_cast<float4*>(weights + in_slab),
             LoadFour(shared + at.weights[l] + element));
      if (has_momentum) __stcs(reinterpret_cast<float4*>(to_momenta + in_slab), momenta[i]);
      if (stores_anchors) {
        SaveFour(anchors + in_slab, LoadFour(shared + at.anchors[l] + element));
      }
    });
  };
  store(0, share_1, momenta_1);
  if constexpr (kDepth > 1) store(1, share_2, momenta_2);
  for (int i = thread; network.trains_gain && rank == 0 && i < dim; i += kThreads) {
    tensors.InSlab(p.weights, kGain)[i] = gain[i];
    if (has_momentum) tensors.InSlab(p.momenta, kGain)[i] = gain_momenta[i];
    if (p.writes_anchors) tensors.InSlab(p.anchors, kGain)[i] = anchor_gain[i];
  }
}

template <int kDepth>
void Launch(Device& device, const Plan& plan, const Params& p) {
  const auto kernel = plan.held <= kFewHeld ? AnchoredStepsKernel<kDepth, kFewHeld>
                                            : AnchoredStepsKernel<kDepth, kMostHeld>;
  LaunchOverlapping(device, "anchored steps of a neural memory", kernel,
                    p.segments.count * p.heads * plan.blocks, kThreads, plan.shared_bytes,
                    plan.blocks, p);
}

}  // namespace

void LaunchAnchoredSteps(Device& device, const Plan& plan, const Params& p) {
  if (p.network.depth == 1) return Launch<1>(device, plan, p);
  Launch<2>(device, plan, p);
}

}  // namespace mneme::cuda::neural_memory::resident
