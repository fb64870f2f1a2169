// One token of a step of several that is read ahead, of a memory of one matrix that holds gradients
// back (kernels/held_steps.h): a block is one head of one segment. W is in registers, read for k
// and for q and written by the step's last token alone; what G holds comes from the vectors of the
// step's tokens so far.
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/shared_layout.h"
#include "kernels/cuda/neural_memory/resident/head.cuh"
#include "kernels/cuda/neural_memory/resident/held_ahead.h"

namespace mneme::cuda::neural_memory::resident {
namespace {

// Threads of a block: few, so that the blocks of a thousand heads run at once.
constexpr int kBlock = 128, kBlockWarps = kBlock / kWarp;

// Where a block's arrays begin in shared memory, in floats.
struct HeldAheadLayout {
  int vectors;  // [places, 2, dim]: k and error of the tokens held back, and of this one
  int dots;     // [places]: of q with k
  int partial;  // [2, kBlock, 4]: of k and q
  int q, v, gain, shift, bias, bias_sum, of_k, of_q;  // [dim]
  int floats;

  HeldAheadLayout() = default;
  HeldAheadLayout(int dim, int capacity) : floats(0) {
    const auto take = [this](int n) { return TakeFloats(n, floats); };
    vectors = take((capacity + 1) * 2 * dim);
    dots = take(capacity + 1);
    partial = take(2 * 4 * kBlock);
    for (int* const vector : {&q, &v, &gain, &shift, &bias, &bias_sum, &of_k, &of_q}) {
      *vector = take(dim);
    }
  }
};

struct HeldAheadParams {
  Params memory;
  HeldAheadLayout at;
  StateView numbers, vectors;
  int capacity;
};

// A thread's part of a matrix [dim, dim]: four columns of every groups-th row.
template <int kRows>
struct Rows {
  int dim, groups, group, column;
  bool has;

  __device__ explicit Rows(int dim) : dim(dim) {
    const int fours = dim / 4, thread = static_cast<int>(threadIdx.x);
    groups = kBlock / fours;
    group = thread / fours;
    column = thread % fours * 4;
    has = group < groups;
  }
  template <typename Visit>
  __device__ void ForEach(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = group + i * groups;
      if (has && row < dim) visit(i, row, row * dim + column);
    }
  }
};

template <int kRows>
__global__ void __launch_bounds__(kBlock, kRows <= 8 ? 8 : 2)
    HeldAheadKernel(const __grid_constant__ HeldAheadParams h) {
  extern __shared__ float4 shared_fours[];
  const Params& p = h.memory;
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const int unit = static_cast<int>(blockIdx.x), head = unit % p.heads;
  const Segment segment(p.segments, unit / p.heads);
  if (segment.slot < 0 || segment.end - segment.first != 1) return WaitForPreviousKernel();

  float* const shared = reinterpret_cast<float*>(shared_fours);
  const HeldAheadLayout& at = h.at;
  const MemoryNetwork& network = p.network;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int dim = p.dim, entry = segment.first;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone, biases = network.biases;
  const TensorsOfHead<1> tensors(p, segment, head, /*rank=*/0);
  const Rows<kRows> rows(dim);
  const int64_t position = p.positions[entry];
  float* const numbers =
      MemoryAt<float>(h.numbers, segment.slot, segment.memory) + head * HeldNumbers(h.capacity);
  float* const vectors = MemoryAt<float>(h.vectors, segment.slot, segment.memory) +
                         int64_t{head} * h.capacity * HeldVectors(dim, /*hidden=*/0);
  const auto stored = static_cast<int>(numbers[0]);
  const bool fresh = position == p.first_position;
  const int count = fresh ? 0 : stored, place = static_cast<int>(position % p.step);
  const bool ends = place + 1 == p.step;
  // The slab has a part of G unless all tokens of the step are held back.
  constexpr int kBias = 1;
  const bool has_sums = count < place;
  const float* const sums = has_sums ? tensors.Start(p.momenta, 0, fresh) : nullptr;

  float4 w[kRows];
  const float* const weights = tensors.Start(p.weights, 0, fresh);
  rows.ForEach([&](int i, int, int element) {
    w[i] = __ldcs(reinterpret_cast<const float4*>(weights + element));
  });
  for (int i = thread; i < count * dim / 2; i += kBlock) {
    CopyAsync16(shared + at.vectors + 4 * i, vectors + 4 * i);
  }
  CommitCopies();
  const float* const bias_sums =
      biases && has_sums ? tensors.Start(p.momenta, kBias, fresh) : nullptr;
  for (int i = thread; i < dim; i += kBlock) {
    if (normed) {
      shared[at.gain + i] = p.gain[head * dim + i];
      shared[at.shift + i] = p.shift == nullptr ? 0.0f : p.shift[head * dim + i];
    }
    shared[at.bias + i] = biases ? tensors.Start(p.weights, kBias, fresh)[i] : 0.0f;
    shared[at.bias_sum + i] = bias_sums == nullptr ? 0.0f : bias_sums[i];
  }
  WaitForPreviousKernel();

  float* const k = shared + at.vectors + count * 2 * dim;
  float* const error = k + dim;
  float *const q = shared + at.q, *const v = shared + at.v;
  const int64_t in_entries = (int64_t{entry} * p.heads + head) * dim;
  for (int i = thread; i < 3 * dim / 4; i += kBlock) {
    const int which = i / (dim / 4), four = i % (dim / 4) * 4;
    const float* const from = which == 0 ? p.q : which == 1 ? p.k : p.v;
    SaveFour((which == 0 ? q : which == 1 ? k : v) + four, LoadFour(from + in_entries + four));
  }
  const int64_t gate = int64_t{entry} * p.heads + head;
  const float rate = p.rate_scale * p.rate[gate];
  const float scale = p.step_scale == nullptr ? 1.0f : p.step_scale[place];
  AwaitCopies();
  __syncthreads();

  // k W, and q (W - scale G) less what is held back.
  float4 of_k = {}, of_q = {};
  rows.ForEach([&](int i, int row, int) {
    AddScaled(of_k, k[row], w[i]);
    AddScaled(of_q, q[row], w[i]);
  });
  if (sums != nullptr) {
    float4 of_sums = {};
    rows.ForEach(
        [&](int, int row, int element) { AddScaled(of_sums, q[row], LoadFour(sums + element)); });
    AddScaled(of_q, -scale, of_sums);
  }
  float* const partial = shared + at.partial;
  if (rows.has) {
    SaveFour(partial + rows.group * dim + rows.column, of_k);
    SaveFour(partial + 4 * kBlock + rows.group * dim + rows.column, of_q);
  }
  for (int i = warp; i <= count; i += kBlockWarps) {
    const float* const key = shared + at.vectors + i * 2 * dim;
    float sum = 0;
    for (int j = lane; j < dim; j += kWarp) sum = fmaf(q[j], key[j], sum);
    sum = WarpSum(sum);
    // A bias is a weight whose input is 1.
    if (lane == 0) shared[at.dots + i] = sum + (biases ? 1.0f : 0.0f);
  }
  __syncthreads();

  const auto sum_of_groups = [&](const float* from, int column) {
    float sum = shared[at.bias + column];
    for (int g = 0; g < rows.groups; ++g) sum += from[g * dim + column];
    return sum;
  };
  float *const y_of_k = shared + at.of_k, *const y_of_q = shared + at.of_q;
  if (warp == 0) {
    for (int i = lane; i < dim; i += kWarp) y_of_k[i] = sum_of_groups(partial, i);
    const float loss =
        ErrorOfWarp(p, y_of_k, 1, 0, k, v, shared + at.gain, shared + at.shift, rate, error);
    if (p.loss != nullptr && lane == 0) p.loss[gate] = loss;
  } else if (warp == 1) {
    for (int i = lane; i < dim; i += kWarp) {
      float held = shared[at.bias_sum + i];
      for (int n = 0; n < count; ++n) {
        held = fmaf(shared[at.dots + n], shared[at.vectors + (2 * n + 1) * dim + i], held);
      }
      y_of_q[i] = fmaf(-scale, held, sum_of_groups(partial + 4 * kBlock, i));
    }
  }
  __syncthreads();

  if (warp == 1) {
    const float dot = shared[at.dots + count];
    for (int i = lane; i < dim; i += kWarp) y_of_q[i] = fmaf(-scale * dot, error[i], y_of_q[i]);
    NormOfWarp(network, dim, y_of_q, 1, 0, y_of_q);
    for (int i = lane; i < dim; i += kWarp) {
      p.out[in_entries + i] =
          normed ? q[i] + fmaf(y_of_q[i], shared[at.gain + i], shared[at.shift + i]) : y_of_q[i];
    }
  }
  const bool adds = ends || count == h.capacity;
  if (adds || fresh) {
    // G of the slab, and the step at its end.
    const auto each = [&](auto visit_matrix, auto visit_bias) {
      rows.ForEach(visit_matrix);
      for (int i = thread; biases && i < dim; i += kBlock) visit_bias(i);
    };
    const int added = adds ? count + 1 : 0;
    const bool clears = has_sums || fresh;
    each(
        [&](int i, int row, int element) {
          float4 g = {};
          if (sums != nullptr) g = LoadFour(sums + element);
          for (int n = 0; n < added; ++n) {
            const float* const of_token = shared + at.vectors + n * 2 * dim;
            AddScaled(g, of_token[row], LoadFour(of_token + dim + rows.column));
          }
          if (ends) {
            AddScaled(w[i], -scale, g);
            g = {};
          }
          if (ends || fresh) SaveFour(tensors.InSlab(p.weights, 0) + element, w[i]);
          if (!ends || clears) SaveFour(tensors.InSlab(p.momenta, 0) + element, g);
        },
        [&](int i) {
          float g = shared[at.bias_sum + i], b = shared[at.bias + i];
          for (int n = 0; n < added; ++n) g += shared[at.vectors + (2 * n + 1) * dim + i];
          if (ends) {
            b = fmaf(-scale, g, b);
            g = 0;
          }
          if (ends || fresh) tensors.InSlab(p.weights, kBias)[i] = b;
          if (!ends || clears) tensors.InSlab(p.momenta, kBias)[i] = g;
        });
  }
  if (!adds) {
    float* const to = vectors + count * 2 * dim;
    for (int i = thread; i < 2 * dim; i += kBlock) to[i] = k[i];
  }
  if (thread == 0) numbers[0] = adds ? 0.0f : static_cast<float>(count + 1);
}

}  // namespace

bool TakesHeldAhead(const HeldMemoryArgs& args) {
  const int64_t dim = args.memory.q.shape[2];
  return args.memory.network.depth == 1 && dim <= 4 * kWarp;
}

void LaunchHeldAhead(Device& device, const Params& p, const HeldMemoryArgs& args) {
  const HeldAheadParams h = {.memory = p,
                             .at = HeldAheadLayout(p.dim, args.held.capacity),
                             .numbers = args.held.numbers,
                             .vectors = args.held.vectors,
                             .capacity = args.held.capacity};
  // Rows of a thread: dim / (kBlock / (dim / 4)), rounded up.
  const int groups = kBlock / (p.dim / 4), rows = (p.dim + groups - 1) / groups;
  const auto kernel = rows <= 8    ? HeldAheadKernel<8>
                      : rows <= 20 ? HeldAheadKernel<20>
                                   : HeldAheadKernel<32>;
  LaunchOverlapping(device, "tokens of a neural memory that are read ahead and held back", kernel,
                    p.segments.count * p.heads, kBlock, int64_t{4} * h.at.floats, 1, h);
}

}  // namespace mneme::cuda::neural_memory::resident
