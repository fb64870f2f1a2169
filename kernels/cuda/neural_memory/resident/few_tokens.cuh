// Segments of a few tokens (few_tokens.cu): how a block divides its shared memory, and what it does
// in several places. That is functions of their own, and loops are not unrolled where they need not
// be: a block goes through its code once, and waits for what of it is not in a cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/shared_layout.h"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/resident/fused_rows.cuh"
#include "kernels/cuda/neural_memory/resident/pairs.cuh"

namespace mneme::cuda::neural_memory::resident::few {

constexpr int kHeld = 8;                // rows of a matrix that a thread has, at most
constexpr int kTile = 4;                // vectors that a thread multiplies at once
constexpr int kPartial = 4 * kThreads;  // sums of all threads
constexpr int kMostDim = 128;
constexpr int kPad = 4;  // between rows that threads read side by side, so that banks differ

// Where the arrays of a block's shared memory begin, in floats.
struct Room {
  int tokens;    // of a segment, at most
  int matrices;  // two, or the sums of all tokens
  int gain, anchor_gain, new_gain, gain_momenta, shift;
  // Arrays of tokens that only read.
  int units, outputs, partial;
  // Of those that end a step, pairs being at most those of the step and of the one begun behind it.
  int k, v, inputs, rates, z, of_inputs, error;
  int floats;

  Room(int dim, int hidden, int step, int tokens) : tokens(tokens), floats(0) {
    const auto take = [this](int n) { return TakeFloats(n, floats); };
    const int inputs_at_once = 2 * tokens - 1, pairs = step + tokens - 1;
    matrices = take(std::max((2 * dim + kPad) * hidden, inputs_at_once * kPartial));
    for (int* const of_gain : {&gain, &anchor_gain, &new_gain, &gain_momenta, &shift}) {
      *of_gain = take(dim);
    }
    const int both = floats;
    units = take(hidden);
    outputs = take(dim);
    partial = take(2 * kPartial);
    const int of_reads = floats;
    floats = both;
    k = take(pairs * dim);
    v = take(pairs * dim);
    inputs = take(inputs_at_once * dim);
    rates = take(pairs);
    z = take(2 * pairs * hidden);
    of_inputs = z + pairs * hidden;  // where the pairs have no units, or need them no more
    error = take(pairs * dim);
    floats = std::max(floats, of_reads);
  }
};

// What is fetched of a matrix that is needed later, so that it comes from the L2 cache then.
__device__ inline void Prefetch(const float* from, int floats) {
  constexpr int kLine = 32;
  if (from == nullptr) return;
#pragma unroll 1
  for (int i = kLine * static_cast<int>(threadIdx.x); i < floats; i += kLine * kThreads) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
  }
}

// What a vector has for the rows of a share.
__device__ inline void LoadRows(const float* x, const Part& part, const Share& share,
                                float (&rows)[kHeld]) {
  if (part.held == kHeld && share.count == kHeld) {
    const float4 low = LoadFour(x + share.first), high = LoadFour(x + share.first + 4);
    const float values[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kHeld; ++i) rows[i] = values[i];
  } else {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) rows[i] = i < share.count ? x[share.first + i] : 0.0f;
  }
}

// The share of x W, of a matrix that is held, where its sums are put together.
__device__ inline void MultiplyHeld(const float* x, const float4 (&held)[kHeld], const Part& part,
                                    const Share& share, float* partial) {
  float rows[kHeld];
  LoadRows(x, part, share, rows);
  float4 sum = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) AddScaled(sum, rows[i], held[i]);
  SaveFour(partial + 4 * threadIdx.x, sum);
}

// How many threads share the rows of `count` vectors' products, `most` at most.
__device__ inline int SplitsOf(int count, int columns, int most) {
  const int items = (count + kTile - 1) / kTile * (columns / 4);
  return max(1, min(most, kThreads / items));
}
// x W of `count` vectors of `rows`, as sums over `splits` parts of the rows: [splits, count,
// columns]. Rows and columns are in fours, rows of W `pitch` apart.
static __device__ __noinline__ void MultiplyPairs(const float* x, int count, const float* weights,
                                                  int pitch, int rows, int columns, int splits,
                                                  float* sums) {
  const int fours = columns / 4, of_split = (count + kTile - 1) / kTile * fours;
  const int rows_of_split = (rows / 4 + splits - 1) / splits * 4;
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x); item < splits * of_split; item += kThreads) {
    const int split = item / of_split, token = item % of_split / fours * kTile;
    const int column = item % fours * 4, end = min(rows, (split + 1) * rows_of_split);
    const float* own[kTile];
    float4 sum[kTile] = {};
#pragma unroll
    for (int n = 0; n < kTile; ++n) own[n] = x + min(token + n, count - 1) * rows;
#pragma unroll 1
    for (int row = split * rows_of_split; row < end; row += 4) {
      float4 w[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) w[r] = LoadFour(weights + (row + r) * pitch + column);
#pragma unroll
      for (int n = 0; n < kTile; ++n) {
        const float4 four = LoadFour(own[n] + row);
        AddScaled(sum[n], four.x, w[0]);
        AddScaled(sum[n], four.y, w[1]);
        AddScaled(sum[n], four.z, w[2]);
        AddScaled(sum[n], four.w, w[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kTile; ++n) {
      if (token + n < count) {
        SaveFour(sums + (split * count + token + n) * columns + column, sum[n]);
      }
    }
  }
}

// y_i <- sum_o W_io x_o y_i  of `count` vectors x of `columns`, y of `rows`, a thread having a row.
__device__ inline void MultiplyBack(const float* weights, int pitch, int rows, int columns,
                                    const float* x, int count, float* y) {
  constexpr int kVectors = 8;  // at once
  const int tiles = (count + kVectors - 1) / kVectors;
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x); item < rows * tiles; item += kThreads) {
    const int row = item % rows, first = item / rows * kVectors;
    float sum[kVectors] = {};
#pragma unroll 1
    for (int o = 0; o < columns; o += 4) {
      const float4 w = LoadFour(weights + row * pitch + o);
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        const float4 four = LoadFour(x + min(first + n, count - 1) * columns + o);
        sum[n] = fmaf(w.x, four.x, sum[n]);
        sum[n] = fmaf(w.y, four.y, sum[n]);
        sum[n] = fmaf(w.z, four.z, sum[n]);
        sum[n] = fmaf(w.w, four.w, sum[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
      if (first + n < count) y[(first + n) * rows + row] *= sum[n];
    }
  }
}

// Where sums are that are put together: of each item `parts`, `between` apart, for each column.
struct Parts {
  const float* from;
  int pitch;  // from an item to the next one
  int parts, between;
};
// Puts them together, [items, columns], as activations if it `activates`; `slopes` may be null. To
// may be from.
static __device__ __noinline__ void AddUp(Parts sums, int items, int columns,
                                          MemoryNetwork::Activation activation, bool activates,
                                          float* to, float* slopes) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < items * columns; i += kThreads) {
    const float* const own = sums.from + i / columns * sums.pitch + i % columns;
    float sum = own[0];
#pragma unroll 4
    for (int part = 1; part < sums.parts; ++part) sum += own[part * sums.between];
    if (activates) {
      float slope;
      sum = Activate(activation, sum, &slope);
      if (slopes != nullptr) slopes[i] = slope;
    }
    to[i] = sum;
  }
}

// The first lanes of a warp have four of a token's outputs each, sums of `parts`, `between` apart:
// as their norm leaves them, without gain and shift.
struct NormedOutputs {
  int at;    // the lane's first one
  bool has;  // whether there is one
  Four n;
  float by = 1;  // what they were multiplied by

  __device__ NormedOutputs(const MemoryNetwork& network, int dim, const float* outputs, int parts,
                           int between)
      : at(static_cast<int>(threadIdx.x) % kWarp * 4), has(at < dim) {
    float4 sum = {};
    if (has) {
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        AddScaled(sum, 1.0f, LoadFour(outputs + part * between + at));
      }
    }
    n = Four(sum);
    if (network.norm == MemoryNetwork::Norm::kNone) return;
    const auto width = static_cast<float>(dim);
    const bool centred = network.norm == MemoryNetwork::Norm::kLayer;
    const float mean = centred ? WarpSum((sum.x + sum.y) + (sum.z + sum.w)) / width : 0.0f;
    float squares = 0;
    for (float& x : n.x) {
      x = has ? x - mean : 0.0f;
      squares = fmaf(x, x, squares);
    }
    by = 1.0f / sqrtf(WarpSum(squares) / width + network.eps);
    for (float& x : n.x) x *= by;
  }
};
// The lane's elements of another vector; zeros of null, and where there are none.
__device__ inline Four FourOfLane(const float* from, int dim) {
  const int at = static_cast<int>(threadIdx.x) % kWarp * 4;
  return Four(from != nullptr && at < dim ? LoadFour(from + at) : float4{});
}

// Finds what ErrorOfWarp() does, of such outputs; by one warp.
__device__ inline float FindError(const Params& p, const float* outputs, int parts, int between,
                                  const float* k, float* v, const float* gain, const float* shift,
                                  float rate, float* error) {
  const MemoryNetwork& network = p.network;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  const float offset = network.trains_gain ? network.gain_offset : 0.0f;
  const auto width = static_cast<float>(p.dim);
  const Four of_k = FourOfLane(k, p.dim), of_v = FourOfLane(v, p.dim);
  const Four gains = FourOfLane(normed ? gain : nullptr, p.dim);
  const Four shifts = FourOfLane(normed ? shift : nullptr, p.dim);
  const NormedOutputs y(network, p.dim, outputs, parts, between);
  Four own, of_gain;
  float loss = 0, mean = 0, along = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float g = normed ? offset + gains.x[i] : 1.0f;
    const float out = normed ? of_k.x[i] + (y.n.x[i] * g + shifts.x[i]) : y.n.x[i];
    const float difference = out - of_v.x[i], scaled = rate * difference;
    loss = fmaf(difference, difference, loss);
    own.x[i] = normed ? scaled * g : scaled;
    mean += own.x[i];
    along += own.x[i] * y.n.x[i];
    of_gain.x[i] = scaled * y.n.x[i];
  }
  mean = network.norm == MemoryNetwork::Norm::kLayer ? WarpSum(mean) / width : 0.0f;
  along = normed ? WarpSum(along) / width : 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (normed) own.x[i] = (own.x[i] - mean - y.n.x[i] * along) * y.by;
  }
  if (y.has) {
    SaveFour(error + y.at, own.all());
    if (network.trains_gain) SaveFour(v + y.at, of_gain.all());
  }
  return p.loss == nullptr ? 0.0f : WarpSum(loss);
}

// One warp makes a token's answer of the network's outputs of x, or, where there is a v, its loss.
// Nothing is written of an entry that is not there, for whose gate x stands.
__device__ inline void Finish(const Params& p, const float* outputs, const float* x, const float* v,
                              const float* gain, const float* shift, int entry, int head,
                              bool is_there) {
  const MemoryNetwork& network = p.network;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  const int64_t place = int64_t{entry} * p.heads + head;
  // On their way while the outputs are put together.
  const bool answers = v == nullptr, gated = answers && p.answer_gate != nullptr;
  const float logit = gated ? *(is_there ? p.answer_gate + place : x) : 0.0f;
  const Four of_x = FourOfLane(x, p.dim), of_v = FourOfLane(v, p.dim);
  const Four gains = FourOfLane(normed ? gain : nullptr, p.dim);
  const Four shifts = FourOfLane(normed ? shift : nullptr, p.dim);
  const NormedOutputs y(network, p.dim, outputs, 1, 0);
  const float offset = network.trains_gain ? network.gain_offset : 0.0f;
  Four out = y.n;
  float loss = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (normed) out.x[i] = of_x.x[i] + (y.n.x[i] * (offset + gains.x[i]) + shifts.x[i]);
    const float difference = out.x[i] - of_v.x[i];
    loss = fmaf(difference, difference, loss);
  }
  if (!answers) {
    loss = WarpSum(loss);
    if (is_there && threadIdx.x % kWarp == 0) p.loss[place] = loss;
    return;
  }
  const float gate = Sigmoid(logit);
  if (!is_there || !y.has) return;
  const int64_t to = place * p.dim + y.at;
  SaveFour(p.out + to, out.all());
  if (!gated) return;
  p.gated.SaveTwo(to, {gate * out.x[0], gate * out.x[1]});
  p.gated.SaveTwo(to + 2, {gate * out.x[2], gate * out.x[3]});
}

// A matrix on its way through registers.
struct Passage {
  const float *weights, *momenta;               // null: zeros
  float *to_weights, *to_momenta, *to_anchors;  // null: not there
  // The step: S = kept S - sum left right, W = keep W + S.
  const float *left, *right;
  int pairs;
  float kept, keep;
  // Vectors of which the first `before` are multiplied by what W was, the others by what it
  // becomes.
  const float* x;
  int before, count;
  float* partial;  // kPartial of each
};
static __device__ __noinline__ void PassMatrix(const Part& part, const Passage& passage) {
  const Share share(part);
  float4 w[kHeld], s[kHeld];
  LoadShare(passage.weights, part, share, w);
  LoadShare(passage.momenta, part, share, s);
  const auto multiply = [&](int from, int to) {
#pragma unroll 1
    for (int n = from; n < to; ++n) {
      MultiplyHeld(passage.x + n * part.rows, w, part, share, passage.partial + n * kPartial);
    }
  };
  const auto save = [&](float* to, const float4(&held)[kHeld]) {
    if (to == nullptr) return;
    ForEachFour<kHeld>(part, share, [&](int i, int, int in_slab, int) {
      __stcs(reinterpret_cast<float4*>(to + in_slab), held[i]);
    });
  };
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    if (pass == 1) {
      if (passage.pairs > 0) {
        const float kept = passage.kept, keep = passage.keep;
#pragma unroll
        for (float4& four : s) four = {kept * four.x, kept * four.y, kept * four.z, kept * four.w};
#pragma unroll 1
        for (int pair = 0; pair < passage.pairs; ++pair) {
          float rows[kHeld];
          LoadRows(passage.left + pair * part.rows, part, share, rows);
          const float4 right = LoadFour(passage.right + pair * part.columns + share.column);
#pragma unroll
          for (int i = 0; i < kHeld; ++i) AddScaled(s[i], -rows[i], right);
        }
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          float4 sum = s[i];
          AddScaled(sum, keep, w[i]);
          w[i] = sum;
        }
      }
      save(passage.to_weights, w);
      save(passage.to_momenta, s);
      save(passage.to_anchors, w);
    }
    multiply(pass == 0 ? 0 : passage.before, pass == 0 ? passage.before : passage.count);
  }
}

}  // namespace mneme::cuda::neural_memory::resident::few
