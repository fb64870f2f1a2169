// Steps of several tokens, the memory read as it is after the last step: a cluster of blocks is one
// head of one segment, with W in shared memory and S in registers, as in one_token.cu. Between the
// ends of steps tokens only read. At the end of one, its pairs, those of former segments from the
// slab, go through the network together, as many as there is room for: all their gradients are at
// the same weights.
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/resident/tokens.cuh"

namespace mneme::cuda::neural_memory::resident {
namespace {

// A row of an open step's tokens, of the slab or of a memory's initial value; null: zeros.
__device__ inline const float* PendingRow(const StateView& view, const float* initial,
                                          const Segment& segment, bool first, int64_t at) {
  if (!first) return MemoryAt<float>(view, segment.slot, segment.memory) + at;
  return initial == nullptr ? nullptr : initial + at;
}

template <int kDepth, int kHeld>
__global__ void __launch_bounds__(kThreads, 2)
    SeveralTokenStepsKernel(const __grid_constant__ Params p) {
  extern __shared__ float4 shared_fours[];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const Layout& at = p.division.at;
  const Team team;
  const int unit = static_cast<int>(blockIdx.x) / p.blocks, head = unit % p.heads;
  const Segment segment(p.segments, unit / p.heads);
  if (segment.slot < 0 || segment.first == segment.end) return;
  team.Enter();

  const MemoryNetwork& network = p.network;
  const TensorsOfHead<kDepth> tensors(p, segment, head, team.rank());
  float* const shared = reinterpret_cast<float*>(shared_fours);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int dim = p.dim, rank = team.rank(), step = p.step, most = p.division.tokens;
  const bool has_momentum = p.momentum != nullptr;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  const int64_t begin = p.positions[segment.first];
  const bool first = begin == p.first_position;
  const int open = static_cast<int>(begin % step);  // tokens of the open step, in the slab
  // Entries that end steps: this one, and every step-th behind it.
  const int first_end = segment.first + step - 1 - open;
  const bool steps = first_end < segment.end;
  const Part &part_1 = p.division.parts[0], &part_2 = p.division.parts[kDepth - 1];
  Share share_1(part_1), share_2(part_2);
  float* const error = shared + at.error;
  float *const k = shared + at.vectors, *const v = k + most * dim, *const q = v + most * dim;
  float *const z = shared + at.z, *const delta_1 = shared + at.delta_1;
  float *const gain = shared + at.gain, *const gain_momenta = shared + at.gain_momenta;
  float* const anchor_gain = shared + at.anchor_gain;
  const auto in_entries = [&](int e) { return (int64_t{e} * p.heads + head) * dim; };

  const bool initial_anchors = first || !p.writes_anchors;
  const auto fetch_matrix = [&](int l, const Share& share) {
    FetchShare(tensors.Start(p.weights, l, first), p.division.parts[l], share,
               shared + at.weights[l]);
    // Anchors that nothing is learned at stay where they are.
    if (p.has_anchors && (steps || first || p.loss != nullptr)) {
      FetchShare(tensors.Start(p.anchors, l, initial_anchors), p.division.parts[l], share,
                 shared + at.anchors[l]);
    }
  };
  // Pairs `from` to `from + count` of the step that ends at an entry.
  const auto fetch_pairs = [&](int end, int from, int count) {
    for (int i = thread; i < count * dim / 2; i += kThreads) {
      const int which = i % 2, pair = i / 2 / (dim / 4), four = i / 2 % (dim / 4) * 4;
      float* const to = (which == 0 ? k : v) + pair * dim + four;
      const int e = end - (step - 1) + from + pair;
      const float* row = (which == 0 ? p.k : p.v) + in_entries(e);
      if (e < segment.first) {
        const int64_t held = (int64_t{head} * (step - 1) + from + pair) * dim;
        row = which == 0 ? PendingRow(p.pending_k, p.initial_k, segment, first, held)
                         : PendingRow(p.pending_v, p.initial_v, segment, first, held);
      }
      if (row == nullptr) {
        SaveFour(to, {});
      } else {
        CopyAsync16(to, row + four);
      }
    }
    for (int pair = thread; pair < count; pair += kThreads) {
      const int e = end - (step - 1) + from + pair;
      const float* rate = p.rate + int64_t{e} * p.heads + head;
      if (e < segment.first) {
        rate = PendingRow(p.pending_rate, p.initial_rate, segment, first,
                          int64_t{head} * (step - 1) + from + pair);
      }
      shared[at.rates + pair] = rate == nullptr ? 0.0f : p.rate_scale * *rate;
    }
  };
  const auto fetch_queries = [&](int from, int count) {
    for (int i = thread; i < count * dim / 4; i += kThreads) {
      const int token = i / (dim / 4), four = i % (dim / 4) * 4;
      CopyAsync16(q + token * dim + four, p.q + in_entries(from + token) + four);
    }
  };

  const int reads_first = min(min(first_end, segment.end) - segment.first, most);
  fetch_queries(segment.first, reads_first);
  fetch_matrix(0, share_1);
  if constexpr (kDepth > 1) fetch_matrix(1, share_2);
  CommitCopies();
  if (steps) fetch_pairs(first_end, 0, min(step, most));
  CommitCopies();
  float4 momenta_1[kHeld], momenta_2[kDepth > 1 ? kHeld : 1];
  const bool has_momenta = has_momentum && (steps || first);
  LoadShare(has_momenta ? tensors.Start(p.momenta, 0, first) : nullptr, part_1, share_1, momenta_1);
  if constexpr (kDepth > 1) {
    LoadShare(has_momenta ? tensors.Start(p.momenta, 1, first) : nullptr, part_2, share_2,
              momenta_2);
  }
  constexpr int kGain = TensorsOfHead<kDepth>::kGain;
#pragma unroll 1
  for (int i = thread; normed && i < dim; i += kThreads) {
    shared[at.shift + i] = p.shift == nullptr ? 0.0f : p.shift[head * dim + i];
    gain_momenta[i] = 0;
    if (!network.trains_gain) {
      gain[i] = p.gain[head * dim + i];
      anchor_gain[i] = gain[i];
      continue;
    }
    if (p.has_anchors) anchor_gain[i] = tensors.Start(p.anchors, kGain, initial_anchors)[i];
    gain[i] = tensors.Start(p.weights, kGain, first)[i];
    const float* const momenta = has_momentum ? tensors.Start(p.momenta, kGain, first) : nullptr;
    if (momenta != nullptr) gain_momenta[i] = momenta[i];
  }
  const float offset = network.trains_gain ? network.gain_offset : 0.0f;

  team.AwaitAll();
  NetworkOfTokens<kDepth, kHeld> forward(p, team, shared);

  const auto read = [&](int from, int count) {
    WaitCopies<1>();
    __syncthreads();
    float* const outputs = forward.Run(q, count, at.weights, {});
    for (int token = rank + warp * p.blocks; token < count; token += kWarps * p.blocks) {
      float* const n = outputs + token * dim;
      forward.Norm(n);
      for (int i = lane; i < dim; i += kWarp) {
        p.out[in_entries(from + token) + i] =
            normed ? q[token * dim + i] + (n[i] * (offset + gain[i]) + shared[at.shift + i]) : n[i];
      }
    }
    __syncthreads();
  };

  // Of pairs whose first one is that of an entry, which may be before the segment.
  const auto find_errors = [&](float* outputs, int entry, int count, float scale) {
    for (int pair = warp; pair < count; pair += kWarps) {
      const float loss =
          forward.Error(outputs + pair * dim, k + pair * dim, v + pair * dim, anchor_gain,
                        scale * shared[at.rates + pair], error + pair * dim);
      if (p.loss != nullptr && rank == 0 && lane == 0 && entry + pair >= segment.first) {
        p.loss[int64_t{entry + pair} * p.heads + head] = loss;
      }
    }
  };
  // The gradients of the step that ends at `end` become part of S.
  const auto learn = [&](int end, float momentum, float scale) {
    for (int from = 0; from < step; from += most) {
      const int count = min(step - from, most);
      if (from > 0) {
        fetch_pairs(end, from, count);
        CommitCopies();
        WaitCopies<0>();
      } else {
        WaitCopies<1>();
      }
      __syncthreads();
      float* const outputs = forward.Run(k, count, at.anchors, {.slopes = delta_1});
      find_errors(outputs, end - (step - 1) + from, count, scale);
      __syncthreads();
      if constexpr (kDepth > 1) {
        ProductsOfRows(shared + at.anchors[1], part_2, error, count, delta_1);
        __syncthreads();
      }
      const float kept = from == 0 ? momentum : 1.0f;
      const float* const delta = kDepth > 1 ? delta_1 : error + rank * part_1.columns;
      AddGradients<kHeld>(k, part_1.rows, delta, kDepth > 1 ? part_1.columns : dim, count, kept,
                          share_1, momenta_1);
      if constexpr (kDepth > 1) {
        AddGradients<kHeld>(z, part_2.rows, error, dim, count, kept, share_2, momenta_2);
      }
      for (int i = thread; network.trains_gain && i < dim; i += kThreads) {
        float s = kept * gain_momenta[i];
        for (int pair = 0; pair < count; ++pair) s -= v[pair * dim + i];
        gain_momenta[i] = s;
      }
      __syncthreads();
    }
  };

  // Reads and steps in turns. What comes next is under way while the other is at work.
  bool anchors_moved = false;
  for (int from = segment.first; from < segment.end;) {
    FollowHere(share_1);
    FollowHere(share_2);
    const int end = first_end + (from - segment.first + open) / step * step;  // of the open step
    // The token that ends a step reads what it wrote, as those do that come after it.
    if (from == end) {
      const int next = end + step;
      const int64_t gate = int64_t{end} * p.heads + head;
      const float keep = p.keep == nullptr ? 1.0f : p.keep[gate];
      fetch_queries(end, min(min(next, segment.end) - end, most));
      CommitCopies();
      const float scale = p.step_scale == nullptr ? 1.0f : p.step_scale[step - 1];
      learn(end, has_momentum ? p.momentum[gate] : 0.0f, scale);
      if (next < segment.end) fetch_pairs(next, 0, min(step, most));
      CommitCopies();
      const bool moves_anchors = p.writes_anchors && (p.positions[end] + 1) % p.anchor_period == 0;
      anchors_moved |= moves_anchors;
      const auto apply = [&](int l, const Share& share, const auto& momenta) {
        ForEachFour<kHeld>(p.division.parts[l], share, [&](int i, int element, int, int) {
          float4 w = momenta[i];
          AddScaled(w, keep, LoadFour(shared + at.weights[l] + element));
          SaveFour(shared + at.weights[l] + element, w);
          if (moves_anchors) SaveFour(shared + at.anchors[l] + element, w);
        });
      };
      apply(0, share_1, momenta_1);
      if constexpr (kDepth > 1) apply(1, share_2, momenta_2);
      for (int i = thread; network.trains_gain && i < dim; i += kThreads) {
        gain[i] = fmaf(keep, gain[i], gain_momenta[i]);
        if (moves_anchors) anchor_gain[i] = gain[i];
      }
      const int count = min(min(next, segment.end) - end, most);
      read(end, count);
      from += count;
      continue;
    }
    const int count = min(min(end, segment.end) - from, most);
    if (from > segment.first) {
      fetch_queries(from, count);
      CommitCopies();
      WaitCopies<0>();
    }
    read(from, count);
    from += count;
  }

  // Losses of tokens whose step is still open.
  const int tokens = segment.end - segment.first, open_now = (open + tokens) % step;
  const int losses = p.loss == nullptr ? 0 : min(tokens, open_now);
  for (int from = segment.end - losses; from < segment.end; from += most) {
    const int count = min(segment.end - from, most);
    const int next_end = segment.end + step - 1 - open_now;
    fetch_pairs(next_end, from - (next_end - (step - 1)), count);
    CommitCopies();
    WaitCopies<0>();
    __syncthreads();
    find_errors(forward.Run(k, count, at.anchors, {}), from, count, 0);
    __syncthreads();
  }

  // To the slab: what has changed, or was never there.
  if (steps || first) {
    const auto store = [&](int l, const Share& share, const auto& momenta) {
      float* const weights = tensors.InSlab(p.weights, l);
      float* const to_momenta = has_momentum ? tensors.InSlab(p.momenta, l) : nullptr;
      float* const anchors =
          p.writes_anchors && (anchors_moved || first) ? tensors.InSlab(p.anchors, l) : nullptr;
      ForEachFour<kHeld>(p.division.parts[l], share, [&](int i, int element, int in_slab, int) {
        __stcs(reinterpret_cast<float4*>(weights + in_slab),
               LoadFour(shared + at.weights[l] + element));
        if (has_momentum) __stcs(reinterpret_cast<float4*>(to_momenta + in_slab), momenta[i]);
        if (anchors != nullptr) {
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
  // Pairs of the step that is open now, and zeros behind them where there were others.
  for (int row = rank; row < step - 1; row += p.blocks) {
    const int e = segment.end - open_now + row;  // the row's entry, if it is of this segment
    const bool is_new = row < open_now && e >= segment.first;
    if (!is_new && !first && !(steps && row >= open_now)) continue;
    const bool is_initial = first && row < open && row < open_now && !is_new;
    const int64_t held = int64_t{head} * (step - 1) + row;
    const auto keep_row = [&](const StateView& view, const float* initial, const float* entries,
                              int64_t entry_row, int width) {
      float* const to = MemoryAt<float>(view, segment.slot, segment.memory) + held * width;
      for (int i = thread; i < width; i += kThreads) {
        float x = 0;
        if (is_new) x = entries[entry_row + i];
        if (is_initial && initial != nullptr) x = initial[held * width + i];
        to[i] = x;
      }
    };
    keep_row(p.pending_k, p.initial_k, p.k, in_entries(e), dim);
    keep_row(p.pending_v, p.initial_v, p.v, in_entries(e), dim);
    keep_row(p.pending_rate, p.initial_rate, p.rate, int64_t{e} * p.heads + head, 1);
  }
}

template <int kDepth>
void Launch(Device& device, const Plan& plan, const Params& p) {
  const auto kernel = plan.held <= kFewHeld ? SeveralTokenStepsKernel<kDepth, kFewHeld>
                                            : SeveralTokenStepsKernel<kDepth, kMostHeld>;
  LaunchOverlapping(device, "steps of several tokens of a neural memory", kernel,
                    p.segments.count * p.heads * plan.blocks, kThreads, plan.shared_bytes,
                    plan.blocks, p);
}

}  // namespace

void LaunchSeveralTokenSteps(Device& device, const Plan& plan, const Params& p) {
  if (p.network.depth == 1) return Launch<1>(device, plan, p);
  Launch<2>(device, plan, p);
}

}  // namespace mneme::cuda::neural_memory::resident
