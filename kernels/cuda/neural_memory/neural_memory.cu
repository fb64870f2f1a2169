// A block of threads is one head of one segment, and walks its tokens: vectors are in shared
// memory, weights and what is kept beside them in the slab. Threads share a product's columns and,
// where those are fewer than the threads, the rows, whose parts are then summed in order. Where a
// step is one token, W and S are rewritten in the pass that also reads.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/neural_memory.h"
#include "kernels/cuda/neural_memory/resident/resident.h"

namespace mneme::cuda::neural_memory {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

using MemoryRead = NeuralMemoryArgs::Read;

// The copies that a slab may hold of the tensors.
enum CopyOf { kWeights, kMomenta, kAnchors, kFrozen, kGradients, kCopies };

struct MemoryParams {
  MemoryNetwork network;
  const float *q, *k, *v, *rate, *momentum, *keep, *step_scale, *gain, *shift;
  const int64_t* positions;
  SegmentArrays segments;
  float* out;
  int64_t step, anchor_period, frozen_period, first_position;
  float rate_scale;
  MemoryRead read;
  int heads, dim, tensors;
  bool fixed_anchor;  // A is initial_anchor
  bool has[kCopies];
  StateView copies[kCopies][kMaxMemoryTensors];
  const float* initial[kCopies][kMaxMemoryTensors];  // null: zeros, or W
  const float* initial_anchor[kMaxMemoryTensors];
};

struct HeadTensors {
  float* at[kMaxMemoryTensors];
};

// Columns [c0, c0 + columns) of a product, and which rows of them are the thread's.
struct Share {
  int column, group, groups;
  __device__ Share(int columns)
      : column(static_cast<int>(threadIdx.x) % columns),
        group(static_cast<int>(threadIdx.x) / columns),
        groups(kThreads / columns) {}
};

class HeadOfSegment {
 public:
  __device__ HeadOfSegment(const MemoryParams& p, const Segment& segment, int head, float* shared)
      : p_(p), net_(p.network), head_(head) {
    const auto take = [&](int n) {
      float* taken = shared;
      shared += n;
      return taken;
    };
    const int wide = max(p.dim, net_.hidden);
    partial_ = take(kThreads);
    for (int l = 0; l < net_.depth; ++l) {
      z_[l] = take(l == 0 ? p.dim : net_.hidden);
      slope_[l] = l == 0 ? nullptr : take(net_.hidden);
      delta_[l] = take(wide);
    }
    y_ = take(p.dim);
    gain_ = take(p.dim);
    gain_gradient_ = take(p.dim);
    read_[0] = take(wide);
    read_[1] = take(wide);
    for (int copy = 0; copy < kCopies; ++copy) {
      for (int t = 0; t < p.tensors; ++t) {
        copies_[copy].at[t] =
            p.has[copy] ? MemoryAt<float>(p.copies[copy][t], segment.slot, segment.memory) +
                              int64_t{head} * Elements(t)
                        : nullptr;
      }
    }
    for (int t = 0; t < p.tensors; ++t) {
      anchor_.at[t] = p.fixed_anchor
                          ? const_cast<float*>(p.initial_anchor[t]) + int64_t{head} * Elements(t)
                          : copies_[p.has[kAnchors] ? kAnchors : kWeights].at[t];
    }
  }

  static int64_t SharedFloats(const MemoryNetwork& network, int64_t dim) {
    const int64_t wide = dim > network.hidden ? dim : network.hidden;
    return kThreads + (3 * network.depth + 5) * wide;
  }

  __device__ void Run(int begin, int end) {
    const bool first = p_.positions[begin] == p_.first_position;
    if (p_.k == nullptr) {
      const int copy = p_.read == MemoryRead::kFrozen                       ? kFrozen
                       : p_.read == MemoryRead::kAnchor && p_.has[kAnchors] ? kAnchors
                                                                            : kWeights;
      HeadTensors from = p_.read == MemoryRead::kAnchor ? anchor_ : copies_[copy];
      if (first && !(p_.read == MemoryRead::kAnchor && p_.fixed_anchor)) {
        const int own = p_.initial[copy][0] != nullptr ? copy : kWeights;
        for (int t = 0; t < p_.tensors; ++t) {
          from.at[t] = const_cast<float*>(p_.initial[own][t]) + int64_t{head_} * Elements(t);
        }
      }
      for (int e = begin; e < end; ++e) Read(e, from, 0);
      return;
    }
    if (first) Initialise();
    for (int e = begin; e < end; ++e) Token(e);
  }

 private:
  __device__ void Token(int e) {
    const int64_t n = p_.positions[e], done = n + 1;
    if (p_.read == MemoryRead::kAnchor) Read(e, anchor_, 0);
    if (p_.read == MemoryRead::kFrozen) Read(e, copies_[kFrozen], 0);
    FindGradient(e);
    const float scale = p_.step_scale == nullptr ? 1.0f : p_.step_scale[n % p_.step];
    const float momentum = Gate(p_.momentum, e, 0.0f), keep = Gate(p_.keep, e, 1.0f);
    if (p_.step == 1) {
      StepAndRead(e, scale, momentum, keep);
    } else {
      AddGradient();
      __syncthreads();
      if (done % p_.step == 0) Step(scale, momentum, keep);
      if (p_.read == MemoryRead::kRunning) Read(e, copies_[kWeights], 0);
      if (p_.read == MemoryRead::kAhead) Read(e, copies_[kWeights], scale);
    }
    for (const int copy : {kAnchors, kFrozen}) {
      const int64_t period = copy == kAnchors ? p_.anchor_period : p_.frozen_period;
      if (!p_.has[copy] || done % period != 0) continue;
      for (int t = 0; t < p_.tensors; ++t) Copy(copies_[kWeights].at[t], copies_[copy].at[t], t);
      __syncthreads();
    }
  }

  __device__ int Elements(int t) const {
    return static_cast<int>(net_.shape(t, p_.dim).elements());
  }
  __device__ float Gate(const float* gate, int e, float otherwise) const {
    return gate == nullptr ? otherwise : gate[int64_t{e} * p_.heads + head_];
  }
  __device__ int64_t VectorAt(int e) const { return (int64_t{e} * p_.heads + head_) * p_.dim; }

  __device__ void Copy(const float* from, float* to, int t) const {
    const int n = Elements(t);
    for (int i = threadIdx.x; i < n; i += kThreads) to[i] = from == nullptr ? 0.0f : from[i];
  }
  // The first write: what all sessions share becomes the session's own.
  __device__ void Initialise() const {
    for (int copy = 0; copy < kCopies; ++copy) {
      if (!p_.has[copy]) continue;
      const bool otherwise = copy == kAnchors || copy == kFrozen;
      const int from = otherwise && p_.initial[copy][0] == nullptr ? kWeights : copy;
      for (int t = 0; t < p_.tensors; ++t) {
        const float* initial = p_.initial[from][t];
        Copy(initial == nullptr ? nullptr : initial + int64_t{head_} * Elements(t),
             copies_[copy].at[t], t);
      }
    }
    __syncthreads();
  }

  // y = bias + x W, of W - ahead G, or after a step on W. `x` and `y` are in shared memory, but for
  // the first x. Ends with a barrier.
  template <bool kStep>
  __device__ void Product(const float* x, const HeadTensors& from, int l, float ahead, float scale,
                          float momentum, float keep, float* y) {
    const int in = static_cast<int>(net_.in(l, p_.dim)),
              out = static_cast<int>(net_.out(l, p_.dim));
    float* weights = from.at[l - 1];
    const float* sums = ahead != 0 ? copies_[kGradients].at[l - 1] : nullptr;
    float* momenta = kStep ? copies_[kMomenta].at[l - 1] : nullptr;
    for (int c0 = 0; c0 < out; c0 += kThreads) {
      const int columns = min(out - c0, kThreads);
      const Share share(columns);
      const int c = c0 + share.column;
      float sum = 0;
      if (share.group < share.groups) {
        const float delta = kStep ? delta_[l - 1][c] : 0.0f;
#pragma unroll 4
        for (int i = share.group; i < in; i += share.groups) {
          const int64_t at = int64_t{i} * out + c;
          float w = weights[at];
          if constexpr (kStep) {
            float s = -scale * z_[l - 1][i] * delta;
            if (momenta != nullptr) momenta[at] = s = fmaf(momentum, momenta[at], s);
            weights[at] = w = fmaf(keep, w, s);
          }
          if (sums != nullptr) w = fmaf(-ahead, sums[at], w);
          sum = fmaf(x[i], w, sum);
        }
      }
      partial_[threadIdx.x] = sum;
      __syncthreads();
      if (share.group == 0) {
        for (int g = 1; g < share.groups; ++g) sum += partial_[g * columns + share.column];
        if (net_.biases) {
          const int t = net_.depth + l - 1;
          sum += from.at[t][c];
          if (ahead != 0) sum = fmaf(-ahead, copies_[kGradients].at[t][c], sum);
        }
        y[c] = sum;
      }
      __syncthreads();
    }
  }

  __device__ void ActivateLayer(float* a, float* slope) const {
    for (int i = threadIdx.x; i < net_.hidden; i += kThreads) {
      float derivative;
      a[i] = Activate(net_.activation, a[i], &derivative);
      if (slope != nullptr) slope[i] = derivative;
    }
    __syncthreads();
  }

  __device__ void FindGain(const HeadTensors& from, float ahead) {
    for (int i = threadIdx.x; i < p_.dim; i += kThreads) {
      if (!net_.trains_gain) {
        gain_[i] = p_.gain[head_ * p_.dim + i];
        continue;
      }
      const int t = net_.gain();
      gain_[i] = net_.gain_offset + from.at[t][i];
      if (ahead != 0) gain_[i] -= ahead * copies_[kGradients].at[t][i];
    }
    __syncthreads();
  }
  __device__ float Sum(float x) const {
    const float sum = BlockSum<kThreads>(x, partial_);
    __syncthreads();  // partial_ is free
    return sum;
  }
  // y becomes n; returns what y was divided by.
  __device__ float NormInPlace(float* y) const {
    const auto width = static_cast<float>(p_.dim);
    float mean = 0, squares = 0;
    if (net_.norm == MemoryNetwork::Norm::kLayer) {
      for (int i = threadIdx.x; i < p_.dim; i += kThreads) mean += y[i];
      mean = Sum(mean) / width;
    }
    for (int i = threadIdx.x; i < p_.dim; i += kThreads) squares += (y[i] - mean) * (y[i] - mean);
    const float spread = sqrtf(Sum(squares) / width + net_.eps);
    for (int i = threadIdx.x; i < p_.dim; i += kThreads) y[i] = (y[i] - mean) / spread;
    __syncthreads();
    return spread;
  }
  __device__ float Output(const float* x, const float* n, int i) const {
    const float shift = p_.shift == nullptr ? 0.0f : p_.shift[head_ * p_.dim + i];
    return x[i] + (n[i] * gain_[i] + shift);
  }

  // Scratch of k at the anchor: z, slopes, and the deltas of all layers.
  __device__ void FindGradient(int e) {
    const float *k = p_.k + VectorAt(e), *v = p_.v + VectorAt(e);
    for (int i = threadIdx.x; i < p_.dim; i += kThreads) z_[0][i] = k[i];
    __syncthreads();
    for (int l = 1; l <= net_.depth; ++l) {
      float* a = l == net_.depth ? y_ : z_[l];
      Product<false>(z_[l - 1], anchor_, l, 0, 0, 0, 0, a);
      if (l < net_.depth) ActivateLayer(a, slope_[l]);
    }
    const float rate = p_.rate_scale * Gate(p_.rate, e, 0.0f);
    float* delta = delta_[net_.depth - 1];
    if (net_.norm == MemoryNetwork::Norm::kNone) {
      for (int i = threadIdx.x; i < p_.dim; i += kThreads) delta[i] = rate * (y_[i] - v[i]);
    } else {
      FindGain(anchor_, 0);
      const float spread = NormInPlace(y_);
      const auto width = static_cast<float>(p_.dim);
      float mean = 0, along = 0;
      for (int i = threadIdx.x; i < p_.dim; i += kThreads) {
        const float error = rate * (Output(z_[0], y_, i) - v[i]);
        gain_gradient_[i] = error * y_[i];
        delta[i] = error * gain_[i];
        mean += delta[i];
        along += delta[i] * y_[i];
      }
      mean = net_.norm == MemoryNetwork::Norm::kLayer ? Sum(mean) / width : 0.0f;
      along = Sum(along) / width;
      for (int i = threadIdx.x; i < p_.dim; i += kThreads) {
        delta[i] = (delta[i] - mean - y_[i] * along) / spread;
      }
    }
    __syncthreads();
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    for (int l = net_.depth; l > 1; --l) {
      const int out = static_cast<int>(net_.out(l, p_.dim));
      for (int i = warp; i < net_.hidden; i += kWarps) {
        const float* row = anchor_.at[l - 1] + int64_t{i} * out;
        float sum = 0;
        for (int o = lane; o < out; o += kWarp) sum = fmaf(row[o], delta_[l - 1][o], sum);
        sum = WarpSum(sum);
        if (lane == 0) delta_[l - 2][i] = sum * slope_[l - 1][i];
      }
      __syncthreads();
    }
  }

  // visit(tensor, element, its gradient) for all elements of the vectors.
  template <typename Visit>
  __device__ void ForEachOfVectors(Visit visit) const {
    for (int l = 1; net_.biases && l <= net_.depth; ++l) {
      const int t = net_.depth + l - 1, n = Elements(t);
      for (int i = threadIdx.x; i < n; i += kThreads) visit(t, i, delta_[l - 1][i]);
    }
    if (!net_.trains_gain) return;
    for (int i = threadIdx.x; i < p_.dim; i += kThreads) visit(net_.gain(), i, gain_gradient_[i]);
  }

  __device__ void AddGradient() {
    for (int l = 1; l <= net_.depth; ++l) {
      const int in = static_cast<int>(net_.in(l, p_.dim));
      const int out = static_cast<int>(net_.out(l, p_.dim));
      float* sums = copies_[kGradients].at[l - 1];
      for (int at = threadIdx.x; at < in * out; at += kThreads) {
        sums[at] = fmaf(z_[l - 1][at / out], delta_[l - 1][at % out], sums[at]);
      }
    }
    ForEachOfVectors(
        [&](int t, int i, float gradient) { copies_[kGradients].at[t][i] += gradient; });
  }

  __device__ void StepOn(int t, int i, float gradient, float scale, float momentum, float keep) {
    float s = -scale * gradient;
    float* momenta = copies_[kMomenta].at[t];
    if (momenta != nullptr) momenta[i] = s = fmaf(momentum, momenta[i], s);
    float& w = copies_[kWeights].at[t][i];
    w = fmaf(keep, w, s);
  }
  __device__ void Step(float scale, float momentum, float keep) {
    for (int t = 0; t < p_.tensors; ++t) {
      const int n = Elements(t);
      for (int i = threadIdx.x; i < n; i += kThreads) {
        float& sum = copies_[kGradients].at[t][i];
        StepOn(t, i, sum, scale, momentum, keep);
        sum = 0;
      }
    }
    __syncthreads();
  }
  __device__ void StepAndRead(int e, float scale, float momentum, float keep) {
    ForEachOfVectors(
        [&](int t, int i, float gradient) { StepOn(t, i, gradient, scale, momentum, keep); });
    __syncthreads();
    const float* x = p_.q + VectorAt(e);
    for (int l = 1; l <= net_.depth; ++l) {
      float* y = read_[l % 2];
      Product<true>(x, copies_[kWeights], l, 0, scale, momentum, keep, y);
      if (l < net_.depth) ActivateLayer(y, nullptr);
      x = y;
    }
    if (p_.read == MemoryRead::kRunning) Emit(e, copies_[kWeights], 0);
  }

  __device__ void Read(int e, const HeadTensors& from, float ahead) {
    const float* x = p_.q + VectorAt(e);
    for (int l = 1; l <= net_.depth; ++l) {
      float* y = read_[l % 2];
      Product<false>(x, from, l, ahead, 0, 0, 0, y);
      if (l < net_.depth) ActivateLayer(y, nullptr);
      x = y;
    }
    Emit(e, from, ahead);
  }

  __device__ void Emit(int e, const HeadTensors& from, float ahead) {
    float *y = read_[net_.depth % 2], *out = p_.out + VectorAt(e);
    const bool normed = net_.norm != MemoryNetwork::Norm::kNone;
    if (normed) {
      FindGain(from, ahead);
      NormInPlace(y);
    }
    const float* q = p_.q + VectorAt(e);
    for (int i = threadIdx.x; i < p_.dim; i += kThreads) out[i] = normed ? Output(q, y, i) : y[i];
    __syncthreads();  // vectors are free
  }

  const MemoryParams& p_;
  const MemoryNetwork& net_;
  const int head_;
  HeadTensors copies_[kCopies], anchor_;
  float *z_[kMaxMemoryDepth], *slope_[kMaxMemoryDepth], *delta_[kMaxMemoryDepth];  // by layer
  float *partial_, *y_, *gain_, *gain_gradient_, *read_[2];
};

__global__ void __launch_bounds__(kThreads)
    NeuralMemoryKernel(const __grid_constant__ MemoryParams p) {
  extern __shared__ float shared[];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const Segment segment(p.segments, static_cast<int>(blockIdx.x) / p.heads);
  if (segment.slot < 0 || segment.first == segment.end) return;
  HeadOfSegment head(p, segment, static_cast<int>(blockIdx.x) % p.heads, shared);
  head.Run(segment.first, segment.end);
}

}  // namespace

void NeuralMemory(Device& device, const NeuralMemoryArgs& args) {
  const int heads = static_cast<int>(args.q.shape[1]);
  if (args.segments.count == 0 || args.q.shape[0] == 0) return;
  if (const ResidentPlan plan = PlanOneTokenSteps(device, args); plan.blocks != 0) {
    return LaunchOneTokenSteps(device, args, plan);
  }
  if (const ResidentPlan plan = PlanSeveralTokenSteps(device, args); plan.blocks != 0) {
    return LaunchSeveralTokenSteps(device, args, plan);
  }
  MemoryParams p = {.network = args.network,
                    .q = args.q.as<const float>(),
                    .k = args.k.as<const float>(),
                    .v = args.v.as<const float>(),
                    .rate = args.rate.as<const float>(),
                    .momentum = args.momentum.as<const float>(),
                    .keep = args.keep.as<const float>(),
                    .step_scale = args.step_scale.as<const float>(),
                    .gain = args.gain.as<const float>(),
                    .shift = args.shift.as<const float>(),
                    .positions = args.positions.as<const int64_t>(),
                    .segments = ArraysOf(args.segments),
                    .out = args.out.as<float>(),
                    .step = args.step,
                    .anchor_period = args.anchor_period,
                    .frozen_period = args.frozen_period,
                    .first_position = args.first_position,
                    .rate_scale = static_cast<float>(args.rate_scale),
                    .read = args.read,
                    .heads = heads,
                    .dim = static_cast<int>(args.q.shape[2]),
                    .tensors = args.network.tensors()};
  const bool trains = args.trains();
  p.has[kWeights] = true;
  p.has[kMomenta] = trains && !args.momentum.empty();
  p.has[kAnchors] = args.stores_anchor();
  p.fixed_anchor = args.anchor_period == 0;
  p.has[kFrozen] = args.frozen_period != 0;
  p.has[kGradients] = trains && args.step > 1;
  const MemoryCopy* copies[kCopies] = {&args.weights, &args.momenta, &args.anchors, &args.frozen,
                                       &args.gradients};
  const MemoryInitial* initial[kCopies] = {&args.initial_weights, &args.initial_momenta,
                                           &args.initial_anchors, &args.initial_frozen,
                                           &args.initial_gradients};
  for (int t = 0; t < p.tensors; ++t) {
    for (int copy = 0; copy < kCopies; ++copy) {
      CHECK(!p.has[copy] || copies[copy]->at[t].dtype == DType::kF32);
      p.copies[copy][t] = copies[copy]->at[t];
      p.initial[copy][t] = initial[copy]->at[t].as<const float>();
    }
    p.initial_anchor[t] = args.initial_anchor.at[t].as<const float>();
  }
  const int64_t shared =
      HeadOfSegment::SharedFloats(args.network, p.dim) * static_cast<int64_t>(sizeof(float));
  LaunchOverlapping(device, "NeuralMemory", NeuralMemoryKernel, args.segments.count * heads,
                    kThreads, shared, 1, p);
}

}  // namespace mneme::cuda::neural_memory
