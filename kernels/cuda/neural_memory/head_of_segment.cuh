// A head of one segment of any neural memory, whose tokens a block of threads walks (general.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/neural_memory/network.cuh"
#include "kernels/cuda/neural_memory/step.cuh"

namespace mneme::cuda::neural_memory {

using MemoryRead = NeuralMemoryArgs::Read;

// The copies that a slab may hold of the tensors. Those from kBefore on have no initial values.
enum CopyOf { kWeights, kMomenta, kAnchors, kFrozen, kGradients, kBefore, kResidual, kCopies };
enum PartOfPairs { kKeys, kValues, kRates, kPairParts };

struct MemoryParams {
  MemoryNetwork network;
  const float *q, *k, *v, *rate, *momentum, *momentum_mix, *keep, *tensor_rates, *residual_mix,
      *transition, *step_scale, *gain, *shift;
  const int64_t* positions;
  SegmentArrays segments;
  float *out, *loss;
  float* scratch;  // of all blocks
  int64_t scratch_floats;
  int64_t step, anchor_period, frozen_period, first_position;
  float rate_scale, max_grad_norm;
  MemoryRead read;
  int heads, dim, tensors, keys, orders, mix_logits;
  bool fixed_anchor;  // A is initial_anchor
  bool gathers;       // G is needed as a whole
  bool spectral_norm;
  bool has[kCopies], has_pairs;
  StateView copies[kCopies][kMaxMemoryTensors], pairs[kPairParts];
  const float* initial[kBefore][kMaxMemoryTensors];  // null: zeros, or W
  const float* initial_anchor[kMaxMemoryTensors];
  const float* initial_pairs[kPairParts];
};

// Floats of the factors of a pair's gradient.
__host__ __device__ inline int64_t FactorFloats(const MemoryNetwork& network, int64_t dim) {
  int64_t floats = dim;
  for (int l = 1; l <= network.depth; ++l) floats += network.in(l, dim) + network.out(l, dim);
  return floats;
}

// G of a tensor, as its factors: rows of z, or none of vectors, whose row is 0, and of delta.
struct Gradient {
  const float *z, *delta;
  int64_t pitch, rows;

  __device__ float operator()(int row, int column) const {
    float sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const float part = delta[r * pitch + column];
      sum = z == nullptr ? sum + part : fmaf(z[r * pitch + row], part, sum);
    }
    return sum;
  }
};

class HeadOfSegment {
 public:
  __device__ HeadOfSegment(const MemoryParams& p, const Segment& segment, int head, float* shared)
      : p_(p),
        head_(head),
        begin_(segment.first),
        pairs_(p.step * p.keys),
        net_(p.network, p.dim, p.gain == nullptr ? nullptr : p.gain + head * p.dim,
             p.shift == nullptr ? nullptr : p.shift + head * p.dim, shared) {
    for (int copy = 0; copy < kCopies; ++copy) {
      for (int t = 0; t < p.tensors; ++t) {
        copies_[copy].at[t] =
            p.has[copy] ? MemoryAt<float>(p.copies[copy][t], segment.slot, segment.memory) +
                              int64_t{head} * net_.Elements(t)
                        : nullptr;
      }
    }
    for (int part = 0; part < kPairParts; ++part) {
      held_[part] = p.has_pairs ? MemoryAt<float>(p.pairs[part], segment.slot, segment.memory) +
                                      head * HeldPairs() * (part == kRates ? 1 : p.dim)
                                : nullptr;
    }
    float* scratch = p.scratch + int64_t{blockIdx.x} * p.scratch_floats;
    for (int t = 0; t < p.tensors; ++t) {
      anchor_.at[t] = p.fixed_anchor ? const_cast<float*>(p.initial_anchor[t]) +
                                           int64_t{head} * net_.Elements(t)
                                     : copies_[p.has[kAnchors] ? kAnchors : kWeights].at[t];
      mixed_.at[t] = scratch;
      if (p.has[kResidual]) scratch += net_.Elements(t);
    }
    factors_ = scratch;
    gathered_ = factors_ + (pairs_ > 1 ? pairs_ * FactorFloats(p.network, p.dim) : 0);
  }

  __device__ void Run(int begin, int end) {
    const bool first = p_.positions[begin] == p_.first_position;
    if (p_.k == nullptr) return Recall(begin, end, first);
    if (first) Initialise();
    for (int e = begin; e < end; ++e) Token(e);
    if (p_.has_pairs) LeaveOpenStep(end);
  }

 private:
  __device__ void Token(int e) {
    const int64_t n = p_.positions[e], done = n + 1;
    const bool ends = done % p_.step == 0;
    if (p_.read == MemoryRead::kAnchor) Read(e, anchor_);
    if (p_.read == MemoryRead::kFrozen) Read(e, copies_[kFrozen]);
    if (p_.read == MemoryRead::kAhead) return TokenAhead(e, ends);
    const bool refreshes = p_.has[kAnchors] && done % p_.anchor_period == 0;
    if (ends) Step(e);
    if (refreshes) Refresh();
    if (p_.has[kFrozen] && done % p_.frozen_period == 0) Copy(copies_[kWeights], copies_[kFrozen]);
    // A step that did not gather its gradient has read, and wrote what may not have been final.
    const bool was_read = ends && !p_.gathers && !(refreshes && p_.transition != nullptr);
    if (p_.read == MemoryRead::kRunning && !was_read) Read(e, copies_[kWeights]);
  }

  __device__ void Recall(int begin, int end, bool first) {
    const int copy = p_.read == MemoryRead::kFrozen                       ? kFrozen
                     : p_.read == MemoryRead::kAnchor && p_.has[kAnchors] ? kAnchors
                                                                          : kWeights;
    HeadTensors from = p_.read == MemoryRead::kAnchor ? anchor_ : copies_[copy];
    if (first && !(p_.read == MemoryRead::kAnchor && p_.fixed_anchor)) {
      const int own = p_.initial[copy][0] != nullptr ? copy : kWeights;
      for (int t = 0; t < p_.tensors; ++t) {
        from.at[t] = const_cast<float*>(p_.initial[own][t]) + int64_t{head_} * net_.Elements(t);
      }
    }
    for (int e = begin; e < end; ++e) Read(e, from);
  }
  __device__ void Read(int e, const HeadTensors& from) {
    net_.Read(from, p_.q + VectorAt(e), p_.out + VectorAt(e));
  }

  __device__ void TokenAhead(int e, bool ends) {
    const HeadTensors &weights = copies_[kWeights], &sums = copies_[kGradients];
    for (int i = 0; i < p_.keys; ++i) {
      net_.Train(anchor_, PairOf(e, i), /*gradients=*/true);
      for (int t = 0; t < p_.tensors; ++t) {
        const Gradient gradient = OwnGradient(t);
        ForElements(t,
                    [&](int at, int row, int column) { sums.at[t][at] += gradient(row, column); });
      }
      __syncthreads();
    }
    const float scale = ScaleOf(e);
    for (int t = 0; ends && t < p_.tensors; ++t) {
      ForElements(t, [&](int at, int, int) {
        weights.at[t][at] = fmaf(-scale, sums.at[t][at], weights.at[t][at]);
        sums.at[t][at] = 0;
      });
    }
    __syncthreads();
    net_.ReadAhead(weights, sums, scale, p_.q + VectorAt(e), p_.out + VectorAt(e));
    if (p_.has[kAnchors] && ends && (p_.positions[e] + 1) % p_.anchor_period == 0) Refresh();
    if (p_.has[kFrozen] && (p_.positions[e] + 1) % p_.frozen_period == 0) {
      Copy(weights, copies_[kFrozen]);
    }
  }

  // The step that ends with token e; reads it, too, where no gradient is gathered.
  __device__ void Step(int e) {
    HeadTensors net = anchor_;
    if (p_.has[kResidual]) {
      Mix(e);
      net = mixed_;
    }
    const int64_t pitch = FactorFloats(p_.network, p_.dim);
    for (int64_t pair = 0; pair < pairs_; ++pair) {
      const int64_t back = p_.step - 1 - pair / p_.keys;  // tokens before e
      const int i = static_cast<int>(pair % p_.keys);
      net_.Train(net, e - back < begin_ ? HeldPair(pair) : PairOf(static_cast<int>(e - back), i),
                 /*gradients=*/true);
      if (pairs_ > 1) KeepFactors(factors_ + pair * pitch);
    }
    if (p_.has[kBefore]) Copy(copies_[kWeights], copies_[kBefore]);
    const StepGates gates = GatesOf(e);
    if (p_.gathers) return StepGathered(e, gates);
    for (int t = p_.network.depth; t < p_.tensors; ++t) {
      const float factor = FactorOf(e, t);
      const Gradient gradient = GradientOf(t);
      ForElements(t, [&](int at, int row, int column) {
        StepOn(gates, t, at, factor * gradient(row, column));
      });
    }
    __syncthreads();
    net_.ReadBy(copies_[kWeights], p_.q + VectorAt(e),
                p_.read == MemoryRead::kRunning ? p_.out + VectorAt(e) : nullptr, [&](int l) {
                  const float factor = FactorOf(e, l - 1);
                  return [this, &gates, l, factor, gradient = GradientOf(l - 1)](
                             int row, int column, int64_t at) {
                    return StepOn(gates, l - 1, static_cast<int>(at),
                                  factor * gradient(row, column));
                  };
                });
  }
  __device__ void StepGathered(int e, const StepGates& gates) {
    for (int t = 0; t < p_.tensors; ++t) {
      float squares = 0;
      const Gradient gradient = GradientOf(t);
      ForElements(t, [&](int at, int row, int column) {
        const float g = gradient(row, column);
        gathered_[at] = g;
        squares = fmaf(g, g, squares);
      });
      const float norm = sqrtf(net_.Sum(squares));
      float factor = FactorOf(e, t);
      if (p_.max_grad_norm > 0 && norm > 0) {
        const float x = p_.max_grad_norm / 2;
        factor *= x * (tanhf(norm / x) + 1) / norm;
      }
      if (!p_.spectral_norm || t >= p_.network.depth) {
        ForElements(t, [&](int at, int, int) { StepOn(gates, t, at, factor * gathered_[at]); });
        __syncthreads();
        continue;
      }
      const int64_t pitch = int64_t{p_.heads} * net_.Elements(t);
      ForElements(t, [&](int at, int, int) {
        float* momentum = p_.orders > 0 ? copies_[kMomenta].at[t] + at : nullptr;
        gathered_[at] = UpdateOf(gates, factor * gathered_[at], momentum, pitch);
      });
      __syncthreads();
      Orthogonalise(net_, gathered_, net_.in(t + 1), net_.out(t + 1), gathered_ + net_.Elements(t));
      ForElements(t, [&](int at, int, int) {
        float& w = copies_[kWeights].at[t][at];
        w = fmaf(gates.keep, w, gathered_[at]);
      });
      __syncthreads();
    }
  }
  // The element of W after its step, from that of S_0.
  __device__ float StepOn(const StepGates& gates, int t, int at, float s) const {
    float* momentum = p_.orders > 0 ? copies_[kMomenta].at[t] + at : nullptr;
    const float u = UpdateOf(gates, s, momentum, int64_t{p_.heads} * net_.Elements(t));
    float& w = copies_[kWeights].at[t][at];
    return w = fmaf(gates.keep, w, u);
  }

  // The factors of the pair that was trained last.
  __device__ void KeepFactors(float* to) const {
    for (int l = 1; l <= p_.network.depth; ++l) {
      const int in = net_.in(l), out = net_.out(l);
      for (int i = threadIdx.x; i < in; i += kThreads) to[i] = net_.z(l)[i];
      to += in;
      for (int i = threadIdx.x; i < out; i += kThreads) to[i] = net_.delta(l)[i];
      to += out;
    }
    for (int i = threadIdx.x; i < p_.dim; i += kThreads) to[i] = net_.gain_gradient()[i];
    __syncthreads();
  }
  // The gradient of the pair that was trained last.
  __device__ Gradient OwnGradient(int t) const {
    const int depth = p_.network.depth;
    if (t < depth) return {net_.z(t + 1), net_.delta(t + 1), 0, 1};
    return {nullptr, t == p_.network.gain() ? net_.gain_gradient() : net_.delta(t - depth + 1), 0,
            1};
  }
  // The gradient of the step's pairs.
  __device__ Gradient GradientOf(int t) const {
    if (pairs_ == 1) return OwnGradient(t);
    const int depth = p_.network.depth;
    const bool is_gain = t == p_.network.gain();
    const int l = t < depth ? t + 1 : is_gain ? depth + 1 : t - depth + 1;
    const float* at = factors_;
    for (int before = 1; before < l; ++before) at += net_.in(before) + net_.out(before);
    return {t < depth ? at : nullptr, is_gain ? at : at + net_.in(l),
            FactorFloats(p_.network, p_.dim), pairs_};
  }

  // A + mix P, in scratch.
  __device__ void Mix(int e) {
    const float mix = p_.residual_mix[int64_t{e} * p_.heads + head_];
    for (int t = 0; t < p_.tensors; ++t) {
      ForElements(t, [&](int at, int, int) {
        mixed_.at[t][at] = fmaf(mix, copies_[kResidual].at[t][at], anchor_.at[t][at]);
      });
    }
    __syncthreads();
  }
  __device__ void Refresh() {
    if (p_.transition != nullptr) {
      const float gate = Sigmoid(p_.transition[0]);
      for (int t = 0; t < p_.tensors; ++t) {
        ForElements(t, [&](int at, int, int) {
          float& w = copies_[kWeights].at[t][at];
          const float a = copies_[kAnchors].at[t][at];
          w = fmaf(gate, w - a, a);
        });
      }
    }
    Copy(copies_[kWeights], copies_[kAnchors]);  // each thread the elements that it wrote
  }

  __device__ StepGates GatesOf(int e) const {
    StepGates gates;
    const int64_t at = int64_t{e} * p_.heads + head_;
    if (p_.keep != nullptr) gates.keep = p_.keep[at];
    gates.orders = p_.orders;
    for (int i = 0; i < p_.orders; ++i) gates.momentum[i] = p_.momentum[at * p_.orders + i];
    if (p_.mix_logits == 0) {
      gates.mix[p_.orders] = 1;
      return gates;
    }
    const float* logits = p_.momentum_mix + at * p_.mix_logits;
    float* mix = gates.mix + p_.orders + 1 - p_.mix_logits;
    float most = logits[0], sum = 0;
    for (int i = 1; i < p_.mix_logits; ++i) most = fmaxf(most, logits[i]);
    for (int i = 0; i < p_.mix_logits; ++i) sum += mix[i] = expf(logits[i] - most);
    for (int i = 0; i < p_.mix_logits; ++i) mix[i] /= sum;
    return gates;
  }
  __device__ float ScaleOf(int e) const {
    return p_.step_scale == nullptr ? 1.0f : p_.step_scale[p_.positions[e] % p_.step];
  }
  // The factor of a tensor's G in its S_0.
  __device__ float FactorOf(int e, int t) const {
    const float rate = p_.tensor_rates == nullptr
                           ? 1.0f
                           : p_.tensor_rates[(int64_t{e} * p_.heads + head_) * p_.tensors + t];
    return -ScaleOf(e) * rate;
  }

  __device__ int64_t VectorAt(int e) const { return (int64_t{e} * p_.heads + head_) * p_.dim; }
  __device__ int64_t HeldPairs() const { return (p_.step - 1) * p_.keys; }
  __device__ int64_t PairAt(int e, int i) const {
    return (int64_t{e} * p_.heads + head_) * p_.keys + i;
  }
  __device__ TrainedPair PairOf(int e, int i) const {
    const int64_t at = PairAt(e, i);
    return {p_.k + at * p_.dim, p_.v + at * p_.dim, p_.rate_scale * p_.rate[at],
            p_.loss == nullptr ? nullptr : p_.loss + at};
  }
  __device__ TrainedPair HeldPair(int64_t pair) const {
    return {held_[kKeys] + pair * p_.dim, held_[kValues] + pair * p_.dim,
            p_.rate_scale * held_[kRates][pair], nullptr};
  }

  // The losses of the tokens of the step that is open before entry `end`, and their pairs.
  __device__ void LeaveOpenStep(int end) {
    const int open = static_cast<int>((p_.positions[end - 1] + 1) % p_.step), first = end - open;
    for (int e = max(first, begin_); e < end; ++e) {
      for (int i = 0; i < p_.keys; ++i) {
        const TrainedPair pair = PairOf(e, i);
        if (p_.loss != nullptr) net_.Train(anchor_, pair, /*gradients=*/false);
        const int64_t to = int64_t{e - first} * p_.keys + i;
        for (int c = threadIdx.x; c < p_.dim; c += kThreads) {
          held_[kKeys][to * p_.dim + c] = pair.k[c];
          held_[kValues][to * p_.dim + c] = pair.v[c];
        }
        if (threadIdx.x == 0) held_[kRates][to] = p_.rate[PairAt(e, i)];
      }
    }
    // Rows of a step that has ended since are cleared: an open step is zero behind its last token.
    const int64_t all = int64_t{open} * p_.keys;
    const int64_t before = p_.positions[begin_] % p_.step * p_.keys;
    for (int64_t at = all * p_.dim + threadIdx.x; at < before * p_.dim; at += kThreads) {
      held_[kKeys][at] = held_[kValues][at] = 0;
    }
    for (int64_t at = all + threadIdx.x; at < before; at += kThreads) held_[kRates][at] = 0;
  }

  // visit(index, row, column) for the thread's elements of a tensor; of vectors the row is 0.
  template <typename Visit>
  __device__ void ForElements(int t, Visit visit) const {
    const int n = net_.Elements(t), columns = t < p_.network.depth ? net_.out(t + 1) : n;
    for (int at = threadIdx.x; at < n; at += kThreads) visit(at, at / columns, at % columns);
  }
  __device__ void Copy(const HeadTensors& from, const HeadTensors& to) const {
    for (int t = 0; t < p_.tensors; ++t) {
      ForElements(t, [&](int at, int, int) { to.at[t][at] = from.at[t][at]; });
    }
    __syncthreads();
  }
  // The first write: what all sessions share becomes the session's own.
  __device__ void Initialise() const {
    for (int copy = 0; copy < kBefore; ++copy) {
      if (!p_.has[copy]) continue;
      const bool otherwise = copy == kAnchors || copy == kFrozen;
      const int from = otherwise && p_.initial[copy][0] == nullptr ? kWeights : copy;
      for (int order = 0; order < (copy == kMomenta ? p_.orders : 1); ++order) {
        for (int t = 0; t < p_.tensors; ++t) {
          const int64_t n = net_.Elements(t), to = int64_t{order} * p_.heads * n;
          const float* initial = p_.initial[from][t];
          if (initial != nullptr) initial += to + head_ * n;
          float* own = copies_[copy].at[t] + to;
          for (int64_t i = threadIdx.x; i < n; i += kThreads) {
            own[i] = initial == nullptr ? 0.0f : initial[i];
          }
        }
      }
    }
    for (int part = 0; p_.has_pairs && part < kPairParts; ++part) {
      const int64_t n = HeldPairs() * (part == kRates ? 1 : p_.dim);
      const float* initial = p_.initial_pairs[part];
      for (int64_t i = threadIdx.x; i < n; i += kThreads) {
        held_[part][i] = initial == nullptr ? 0.0f : initial[head_ * n + i];
      }
    }
    __syncthreads();
  }

  const MemoryParams& p_;
  const int head_, begin_;
  const int64_t pairs_;  // of a step
  HeadNetwork net_;
  HeadTensors copies_[kCopies], anchor_, mixed_;
  float* held_[kPairParts];  // the head's, in the slab
  float* factors_;           // of the step's pairs, if they are several
  float* gathered_;          // a tensor's G or U, and what makes it orthogonal
};

}  // namespace mneme::cuda::neural_memory
