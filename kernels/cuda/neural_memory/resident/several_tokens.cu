// Steps of several tokens, the memory read as it is after the last step: a cluster of blocks is one
// head of one segment, with W in shared memory and S in registers, as in one_token.cu. Between the
// ends of steps tokens only read. The pairs of as many steps as have one anchor, and as there is
// room for, go through the network together, those of former segments from the slab: their
// gradients do not wait for each other. Then the steps take them one after the other, and each is
// read. What the network makes of a token goes to one block, its owner, which finds the token's
// error for all of them.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/resident/chosen.cuh"
#include "kernels/cuda/neural_memory/resident/pairs.cuh"
#include "kernels/cuda/neural_memory/resident/tokens.cuh"

namespace mneme::cuda::neural_memory::resident {
namespace {

// One head of one segment, with what the blocks of the cluster share in `shared`. No loop is
// unrolled: what is inlined into it has to fit the instruction cache.
template <int kDepth, int kHeld>
__device__ inline void WalkSegment(const Params& p, const Team& team, int unit, float* shared) {
  const Layout& at = p.division.at;
  const int head = unit % p.heads;
  const Segment segment(p.segments, unit / p.heads);
  if (segment.slot < 0 || segment.first == segment.end) return;
  const int64_t begin = p.positions[segment.first];
  team.Enter();

  const MemoryNetwork& network = p.network;
  const TensorsOfHead<kDepth> tensors(p, segment, head, team.rank());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int dim = p.dim, rank = team.rank(), step = p.step, most = p.division.tokens;
  const bool has_momentum = p.momentum != nullptr;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
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
  // Pairs `from` to `from + count`, counted from the first one of the step that ends at an entry;
  // values where their errors are found.
  const auto fetch_pairs = [&](int end, int from, int count) {
#pragma unroll 1
    for (int i = thread; i < count * dim / 2; i += kThreads) {
      const int which = i % 2, pair = i / 2 / (dim / 4), four = i / 2 % (dim / 4) * 4;
      if (which == 1 && pair % p.blocks != rank) continue;
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
#pragma unroll 1
    for (int pair = thread; pair < count; pair += kThreads) {
      const int e = end - (step - 1) + from + pair;
      float rate = 0;
      if (e >= segment.first) {
        rate = GateOf(p, p.rate, e, head);
      } else if (const float* const held =
                     PendingRow(p.pending_rate, p.initial_rate, segment, first,
                                int64_t{head} * (step - 1) + from + pair);
                 held != nullptr) {
        rate = *held;
      }
      shared[at.rates + pair] = p.rate_scale * rate;
    }
  };
  const auto fetch_queries = [&](int from, int count) {
#pragma unroll 1
    for (int i = thread; i < count * dim / 4; i += kThreads) {
      const int token = i / (dim / 4), four = i % (dim / 4) * 4;
      CopyAsync16(q + token * dim + four, p.q + in_entries(from + token) + four);
    }
  };

  // How many steps, from the one that ends at an entry on, are taken together.
  const auto steps_from = [&](int end) {
    int together = min((segment.end - 1 - end) / step + 1, max(most / step, 1));
    // A that is W moves with it.
    const int64_t period = p.has_anchors ? p.anchor_period : step;
    if (!p.has_anchors || p.writes_anchors) {
      const int64_t left = period - (begin + end - segment.first + 1 - step) % period;
      together = static_cast<int>(min(int64_t{together}, left / step));
    }
    return together;
  };

  fetch_queries(segment.first, min(min(first_end, segment.end) - segment.first, most));
  fetch_matrix(0, share_1);
  if constexpr (kDepth > 1) fetch_matrix(1, share_2);
  CommitCopies();
  if (steps) fetch_pairs(first_end, 0, min(steps_from(first_end) * step, most));
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
  NetworkOfTokens<kDepth, kHeld, Outputs::kToOwner> forward(p, team, shared);

  // Behind a barrier of the team: answers of `count` tokens; gain_of(token) says what its gain is.
  const auto answer = [&](float* outputs, int from, int count, const auto& gain_of) {
#pragma unroll 1
    for (int token = rank + warp * p.blocks; token < count; token += kWarps * p.blocks) {
      float* const n = outputs + token / p.blocks * dim;
      const float* const own_gain = gain_of(token);
      forward.Norm(n);
      const float gate = AnswerGateOf(p, from + token, head);
#pragma unroll 1
      for (int i = lane; i < dim; i += kWarp) {
        const float x =
            normed ? q[token * dim + i] + (n[i] * (offset + own_gain[i]) + shared[at.shift + i])
                   : n[i];
        SaveAnswer(p, in_entries(from + token) + i, x, gate);
      }
    }
    __syncthreads();
  };
  // Tokens that read what W is now. The first queries, `most` of them, are under way, and what came
  // behind them may stay so.
  const auto read = [&](int from, int end) {
#pragma unroll 1
    for (int e = from; e < end; e += most) {
      const int count = min(end - e, most);
      if (e == from) {
        WaitCopies<1>();
      } else {
        fetch_queries(e, count);
        CommitCopies();
        WaitCopies<0>();
      }
      __syncthreads();
      answer(forward.Run(q, count, at.weights, {}), e, count, [&](int) { return gain; });
    }
  };
  // Finds the errors of pairs whose first one is that of an entry, which may be before the segment,
  // at the blocks that own them.
  const auto find_errors = [&](int entry, int count, float scale) {
    float* const outputs = forward.Run(k, count, at.anchors, {.slopes = delta_1});
#pragma unroll 1
    for (int pair = rank + warp * p.blocks; pair < count; pair += kWarps * p.blocks) {
      const int place = pair * dim;
      const float loss = forward.Error(outputs + pair / p.blocks * dim, k + place, v + place,
                                       anchor_gain, scale * shared[at.rates + pair], error + place);
      if (p.loss != nullptr && lane == 0 && entry + pair >= segment.first) {
        p.loss[int64_t{entry + pair} * p.heads + head] = loss;
      }
    }
  };
  // Finds what the gradients of `count` pairs are made of, at all blocks.
  const auto find_gradients = [&](int entry, int count, float scale) {
    find_errors(entry, count, scale);
#pragma unroll 1
    for (int pair = rank + warp * p.blocks; pair < count; pair += kWarps * p.blocks) {
#pragma unroll 1
      for (int i = pair * dim + lane; i < (pair + 1) * dim; i += kWarp) {
#pragma unroll 1
        for (int to = 0; to < p.blocks; ++to) {
          if (to == rank) continue;
          *team.Of(to, error + i) = error[i];
          if (network.trains_gain) *team.Of(to, v + i) = v[i];
        }
      }
    }
    team.Sync();
    if constexpr (kDepth > 1) {
      ProductsOfRows(shared + at.anchors[1], part_2, error, count, delta_1);
      __syncthreads();
    }
  };
  // `count` of them, from a pair on, become part of S.
  const auto learn = [&](int pair, int count, float kept) {
    const float* const delta =
        kDepth > 1 ? delta_1 + pair * part_1.columns : error + pair * dim + rank * part_1.columns;
    AddGradients<kHeld>(k + pair * dim, part_1.rows, delta, kDepth > 1 ? part_1.columns : dim,
                        count, kept, share_1, momenta_1);
    if constexpr (kDepth > 1) {
      AddGradients<kHeld>(z + pair * part_2.rows, part_2.rows, error + pair * dim, dim, count, kept,
                          share_2, momenta_2);
    }
#pragma unroll 1
    for (int i = thread; network.trains_gain && i < dim; i += kThreads) {
      float s = kept * gain_momenta[i];
#pragma unroll 1
      for (int n = pair; n < pair + count; ++n) s -= v[n * dim + i];
      gain_momenta[i] = s;
    }
  };
  // S becomes part of W, and this A if it moves.
  const auto apply = [&](float keep, bool moves_anchors) {
    const auto add = [&](int l, const Share& share, const auto& momenta) {
      ForEachFour<kHeld>(p.division.parts[l], share, [&](int i, int element, int, int) {
        float4 w = momenta[i];
        AddScaled(w, keep, LoadFour(shared + at.weights[l] + element));
        SaveFour(shared + at.weights[l] + element, w);
        if (moves_anchors) SaveFour(shared + at.anchors[l] + element, w);
      });
    };
    add(0, share_1, momenta_1);
    if constexpr (kDepth > 1) add(1, share_2, momenta_2);
#pragma unroll 1
    for (int i = thread; network.trains_gain && i < dim; i += kThreads) {
      gain[i] = fmaf(keep, gain[i], gain_momenta[i]);
      if (moves_anchors) anchor_gain[i] = gain[i];
    }
  };

  const float scale = p.step_scale == nullptr ? 1.0f : p.step_scale[step - 1];
  read(segment.first, min(first_end, segment.end));
  // Pairs that come next are under way while the last ones are read.
  bool anchors_moved = false;
#pragma unroll 1
  for (int end = first_end; end < segment.end;) {
    FollowHere(share_1);
    FollowHere(share_2);
    const int together = steps_from(end), pairs = together * step;
    const int next = end + pairs, reads = min(next, segment.end) - end;
    const auto fetch_next = [&] {
      if (next < segment.end) fetch_pairs(next, 0, min(steps_from(next) * step, most));
      CommitCopies();
    };
    const auto momentum_of = [&](int nth) {
      return has_momentum ? GateOf(p, p.momentum, end + nth * step, head) : 0.0f;
    };
    const auto keep_of = [&](int nth) { return KeepOf(p, end + nth * step, head); };
    const bool moves_anchors =
        p.writes_anchors && (begin + next - step - segment.first + 1) % p.anchor_period == 0;
    anchors_moved |= moves_anchors;

    const bool in_passes = pairs > most;  // of one step
    if (!in_passes) {
      fetch_queries(end, reads);
      CommitCopies();
    }
#pragma unroll 1
    for (int from = 0; from < pairs; from += most) {
      const int count = min(pairs - from, most);
      if (from > 0) {
        fetch_pairs(end, from, count);
        CommitCopies();
      }
      if (in_passes) {
        WaitCopies<0>();
      } else {
        WaitCopies<1>();
      }
      __syncthreads();
      find_gradients(end - (step - 1) + from, count, scale);
      if (!in_passes) break;
      learn(0, count, from == 0 ? momentum_of(0) : 1.0f);
      __syncthreads();
    }
    if (in_passes) {
      fetch_queries(end, min(reads, most));
      CommitCopies();
      fetch_next();
      apply(keep_of(0), moves_anchors);
      read(end, end + reads);
      end = next;
      continue;
    }
    float* const outputs = forward.NextOutputs();
#pragma unroll 1
    for (int nth = 0; nth < together; ++nth) {
      FollowHere(share_1);
      FollowHere(share_2);
      const bool last = nth + 1 == together;
      learn(nth * step, step, momentum_of(nth));
      __syncthreads();  // what was read of W, and the step's errors
      if (last) fetch_next();
      apply(keep_of(nth), last && moves_anchors);
      // The gain that the step's tokens read takes the place of its last error.
#pragma unroll 1
      for (int i = thread; network.trains_gain && i < dim; i += kThreads) {
        error[((nth + 1) * step - 1) * dim + i] = gain[i];
      }
      if (nth == 0) {
        if (last) {
          WaitCopies<1>();
        } else {
          WaitCopies<0>();
        }
      }
      __syncthreads();
      const int from = nth * step, count = min(step, reads - from);
      forward.Products(q + from * dim, count, shared + at.z_of_q, at.weights, {}, outputs, from);
    }
    team.Sync();
    answer(outputs, end, reads, [&](int token) {
      return network.trains_gain ? error + ((token / step + 1) * step - 1) * dim : gain;
    });
    end = next;
  }

  // Losses of tokens whose step is still open.
  const int tokens = segment.end - segment.first, open_now = (open + tokens) % step;
  const int losses = p.loss == nullptr ? 0 : min(tokens, open_now);
#pragma unroll 1
  for (int from = segment.end - losses; from < segment.end; from += most) {
    const int count = min(segment.end - from, most);
    const int next_end = segment.end + step - 1 - open_now;
    fetch_pairs(next_end, from - (next_end - (step - 1)), count);
    CommitCopies();
    WaitCopies<0>();
    __syncthreads();
    find_errors(from, count, 0);
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
#pragma unroll 1
    for (int i = thread; network.trains_gain && rank == 0 && i < dim; i += kThreads) {
      tensors.InSlab(p.weights, kGain)[i] = gain[i];
      if (has_momentum) tensors.InSlab(p.momenta, kGain)[i] = gain_momenta[i];
      if (p.writes_anchors) tensors.InSlab(p.anchors, kGain)[i] = anchor_gain[i];
    }
  }
  KeepPairs(p, segment, head, begin, rank, p.blocks);
}

// Of many units that may be left to others, a cluster has several.
template <int kDepth, int kHeld>
__global__ void __launch_bounds__(kThreads, 2)
    SeveralTokenStepsKernel(const __grid_constant__ Params p) {
  extern __shared__ float4 shared_fours[];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const Team team;
  float* const shared = reinterpret_cast<float*>(shared_fours);
  uint16_t* const left = reinterpret_cast<uint16_t*>(shared + p.division.floats);
  const int cluster = static_cast<int>(blockIdx.x) / p.blocks;
  const int clusters = static_cast<int>(gridDim.x) / p.blocks;
  // Which segments are left is found by all threads, so that clusters share these evenly; without
  // others to leave some to, each cluster has its unit.
  const int segments = p.others > 0 ? p.segments.count : 1;
  int before = 0;  // units of the segments looked at
#pragma unroll 1
  for (int base = 0; base < segments; base += kThreads) {
    const int units = p.others > 0 ? ChooseSegments(p, base, left,
                                                    [&](const Segment& segment) {
                                                      return segment.end - segment.first > p.others;
                                                    }) *
                                         p.heads
                                   : clusters;
#pragma unroll 1
    for (int i = (cluster + clusters - before % clusters) % clusters; i < units; i += clusters) {
      const int unit = p.others > 0 ? (base + left[i / p.heads]) * p.heads + i % p.heads : i;
      WalkSegment<kDepth, kHeld>(p, team, unit, shared);
      __syncthreads();
    }
    before += units;
    __syncthreads();
  }
}

template <int kDepth>
void Launch(Device& device, const Plan& plan, const Params& p) {
  const auto kernel = plan.held <= kFewHeld ? SeveralTokenStepsKernel<kDepth, kFewHeld>
                                            : SeveralTokenStepsKernel<kDepth, kMostHeld>;
  int clusters = p.segments.count * p.heads;
  if (p.others > 0) {
    clusters = std::min(clusters, std::max(1, 2 * device.multiprocessors() / plan.blocks));
  }
  LaunchOverlapping(device, "steps of several tokens of a neural memory", kernel,
                    clusters * plan.blocks, kThreads,
                    plan.shared_bytes + (p.others > 0 ? kChosenBytes : 0), plan.blocks, p);
}

}  // namespace

void LaunchSeveralTokenSteps(Device& device, const Plan& plan, const Params& p) {
  if (p.network.depth == 1) return Launch<1>(device, plan, p);
  Launch<2>(device, plan, p);
}

}  // namespace mneme::cuda::neural_memory::resident
