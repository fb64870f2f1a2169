// Mini-batches that are read ahead of their end: W in shared memory, G in registers, a cluster of
// blocks for a head of a segment, as in one_token.cu. The gradients of a batch's tokens are all at
// W and found together; then G takes them token by token, each of which reads W - scale G.
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/resident/tokens.cuh"

namespace mneme::cuda::neural_memory::resident {
namespace {

// A gradient becomes part of a share of G; that of x (W - scale G), of `partial`.
template <int kHeld>
__device__ inline void ReadAheadOfShare(const float* z, const float4& delta, const float* x,
                                        float scale, const float* weights, const Part& part,
                                        const Share& share, float4 (&sums)[kHeld], float* partial) {
  float4 sum = {};
  ForEachFour<kHeld>(part, share, [&](int i, int at, int, int row) {
    AddScaled(sums[i], z[row], delta);
    float4 w = LoadFour(weights + at);
    AddScaled(w, -scale, sums[i]);
    AddScaled(sum, x[row], w);
  });
  SaveFour(partial + 4 * threadIdx.x, sum);
}

template <int kDepth, int kHeld>
__global__ void __launch_bounds__(kThreads, 2) ReadAheadKernel(const __grid_constant__ Params p) {
  extern __shared__ float4 shared_fours[];
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const Layout& at = p.division.at;
  const Team team;
  const int unit = static_cast<int>(blockIdx.x) / p.blocks, head = unit % p.heads;
  const Segment segment(p.segments, unit / p.heads);
  const int tokens = segment.end - segment.first;
  if (segment.slot < 0 || tokens <= p.others) return WaitForPreviousKernel();
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
  float *const rates = shared + at.rates, *const scales = rates + most;
  const auto in_entries = [&](int e) { return (int64_t{e} * p.heads + head) * dim; };
  // One of the blocks adds the biases of outputs that are sums of all blocks'.
  const bool adds_output_biases = network.biases && (kDepth == 1 || rank == 0);

  FetchShare(tensors.Start(p.weights, 0, first), part_1, share_1, shared + at.weights[0]);
  if constexpr (kDepth > 1) {
    FetchShare(tensors.Start(p.weights, 1, first), part_2, share_2, shared + at.weights[1]);
  }
  float4 sums_1[kHeld], sums_2[kDepth > 1 ? kHeld : 1];
  LoadShare(tensors.Start(p.momenta, 0, first), part_1, share_1, sums_1);
  if constexpr (kDepth > 1) {
    LoadShare(tensors.Start(p.momenta, 1, first), part_2, share_2, sums_2);
  }
  // A thread has the same elements of biases for good.
  for (int l = 0; network.biases && l < kDepth; ++l) {
    const float* const of_biases = tensors.Start(p.weights, kDepth + l, first);
    const float* const of_sums = tensors.Start(p.momenta, kDepth + l, first);
    for (int i = thread; i < p.division.parts[l].columns; i += kThreads) {
      shared[at.biases[l] + i] = of_biases[i];
      shared[at.bias_sums[l] + i] = of_sums == nullptr ? 0.0f : of_sums[i];
    }
  }
  for (int i = thread; normed && i < dim; i += kThreads) {
    shared[at.shift + i] = p.shift == nullptr ? 0.0f : p.shift[head * dim + i];
    shared[at.gain + i] = p.gain[head * dim + i];
  }
  team.AwaitAll();
  WaitForPreviousKernel();  // state does not depend on it
  NetworkOfTokens<kDepth, kHeld> forward(p, team, shared);

  bool steps = false;
  for (int from = segment.first; from < segment.end;) {
    FollowHere(share_1);
    FollowHere(share_2);
    const int place = static_cast<int>((begin + from - segment.first) % p.step);
    const int count = min(min(segment.end - from, p.step - place), most);
    for (int i = thread; i < 3 * count * dim / 4; i += kThreads) {
      const int which = i % 3, token = i / 3 / (dim / 4), four = i / 3 % (dim / 4) * 4;
      const float* const source = which == 0 ? p.k : which == 1 ? p.v : p.q;
      float* const to = which == 0 ? k : which == 1 ? v : q;
      CopyAsync16(to + token * dim + four, source + in_entries(from + token) + four);
    }
    CommitCopies();
    for (int token = thread; token < count; token += kThreads) {
      rates[token] = p.rate_scale * p.rate[int64_t{from + token} * p.heads + head];
      scales[token] = p.step_scale == nullptr ? 1.0f : p.step_scale[place + token];
    }
    WaitCopies<0>();
    __syncthreads();

    float* const of_k = forward.Run(
        k, count, at.weights,
        {.slopes = delta_1,
         .unit_biases = network.biases && kDepth > 1 ? shared + at.biases[0] : nullptr,
         .output_biases = adds_output_biases ? shared + at.biases[kDepth - 1] : nullptr});
    for (int token = warp; token < count; token += kWarps) {
      const float loss = forward.Error(of_k + token * dim, k + token * dim, v + token * dim,
                                       shared + at.gain, rates[token], error + token * dim);
      if (p.loss != nullptr && rank == 0 && lane == 0) {
        p.loss[int64_t{from + token} * p.heads + head] = loss;
      }
    }
    __syncthreads();
    if constexpr (kDepth > 1) {
      ProductsOfRows(shared + at.weights[1], part_2, error, count, delta_1);
      __syncthreads();
    }

    // take(token, column, a) for the tokens in turn. Their parts of a product are in one of two
    // places, so that a barrier between two tokens is enough.
    const auto read = [&](int l, const float* keys, const float* delta, int delta_pitch,
                          const float* x, const Share& share, bool adds_biases, auto& sums,
                          auto take) {
      const Part& part = p.division.parts[l];
      for (int token = 0; token < count; ++token) {
        const float* const own_delta = delta + token * delta_pitch;
        float* const partial = shared + at.partial + token % 2 * 4 * kThreads;
        ReadAheadOfShare<kHeld>(keys + token * part.rows, LoadFour(own_delta + share.column),
                                x + token * part.rows, scales[token], shared + at.weights[l], part,
                                share, sums, partial);
        __syncthreads();
        for (int i = thread; i < part.columns; i += kThreads) {
          float a = SumOfGroups(partial, part, i);
          if (network.biases) {
            float& bias_sum = shared[at.bias_sums[l] + i];
            bias_sum += own_delta[i];
            if (adds_biases) a += fmaf(-scales[token], bias_sum, shared[at.biases[l] + i]);
          }
          take(token, i, a);
        }
      }
      __syncthreads();
    };
    float* const of_q = forward.NextOutputs();
    const auto send = [&](int token, int i, float y) { forward.Send(of_q, token, i, y); };
    if constexpr (kDepth > 1) {
      read(0, k, delta_1, part_1.columns, q, share_1, true, sums_1, [&](int token, int i, float a) {
        float slope;
        z_of_q[token * part_1.columns + i] = Activate(network.activation, a, &slope);
      });
      read(1, z, error, dim, z_of_q, share_2, adds_output_biases, sums_2, send);
    } else {
      read(0, k, error + rank * part_1.columns, dim, q, share_1, true, sums_1, send);
    }
    team.Sync();
    for (int token = rank + warp * p.blocks; token < count; token += kWarps * p.blocks) {
      float* const n = of_q + token * dim;
      forward.Norm(n);
      for (int i = lane; i < dim; i += kWarp) {
        p.out[in_entries(from + token) + i] =
            normed ? q[token * dim + i] + (n[i] * shared[at.gain + i] + shared[at.shift + i])
                   : n[i];
      }
    }

    if (place + count == p.step) {
      steps = true;
      const float scale = scales[count - 1];
      const auto apply = [&](int l, const Share& share, auto& sums) {
        float* const weights = shared + at.weights[l];
        ForEachFour<kHeld>(p.division.parts[l], share, [&](int i, int element, int, int) {
          float4 w = LoadFour(weights + element);
          AddScaled(w, -scale, sums[i]);
          SaveFour(weights + element, w);
          sums[i] = {};
        });
        for (int i = thread; network.biases && i < p.division.parts[l].columns; i += kThreads) {
          float& bias = shared[at.biases[l] + i];
          bias = fmaf(-scale, shared[at.bias_sums[l] + i], bias);
          shared[at.bias_sums[l] + i] = 0;
        }
      };
      apply(0, share_1, sums_1);
      if constexpr (kDepth > 1) apply(1, share_2, sums_2);
    }
    __syncthreads();
    from += count;
  }

  const auto store = [&](int l, const Share& share, const auto& sums) {
    float* const weights = tensors.InSlab(p.weights, l);
    float* const to_sums = tensors.InSlab(p.momenta, l);
    ForEachFour<kHeld>(p.division.parts[l], share, [&](int i, int element, int in_slab, int) {
      __stcs(reinterpret_cast<float4*>(to_sums + in_slab), sums[i]);
      if (!steps && !first) return;
      __stcs(reinterpret_cast<float4*>(weights + in_slab),
             LoadFour(shared + at.weights[l] + element));
    });
    if (!network.biases || (l + 1 == kDepth && !adds_output_biases)) return;
    for (int i = thread; i < p.division.parts[l].columns; i += kThreads) {
      tensors.InSlab(p.weights, kDepth + l)[i] = shared[at.biases[l] + i];
      tensors.InSlab(p.momenta, kDepth + l)[i] = shared[at.bias_sums[l] + i];
    }
  };
  store(0, share_1, sums_1);
  if constexpr (kDepth > 1) store(1, share_2, sums_2);
}

template <int kDepth>
void Launch(Device& device, const Plan& plan, const Params& p) {
  const auto kernel = plan.held <= kFewHeld ? ReadAheadKernel<kDepth, kFewHeld>
                                            : ReadAheadKernel<kDepth, kMostHeld>;
  LaunchOverlapping(device, "mini-batches of a neural memory, read ahead", kernel,
                    p.segments.count * p.heads * plan.blocks, kThreads, plan.shared_bytes,
                    plan.blocks, p);
}

}  // namespace

void LaunchReadAhead(Device& device, const Plan& plan, const Params& p) {
  if (p.network.depth == 1) return Launch<1>(device, plan, p);
  Launch<2>(device, plan, p);
}

}  // namespace mneme::cuda::neural_memory::resident
