// Neural memories: one head of one segment, token by token. Built once per instruction set.
//
// Where a step is one token, W and S are rewritten in the pass that also reads: each row of a
// matrix is met three times, by k's way forward, by the error's way back, and by its update.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

using MemoryRead = NeuralMemoryArgs::Read;

// Vectors of a row's outputs that are summed together, in registers.
constexpr int kColumns = 4;

// Floats of a vector of `n`, as a multiple of lanes.
int64_t PaddedFloats(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// The tensors of one head of a copy, in its slab; or of its initial value.
struct HeadTensors {
  float* at[kMaxMemoryTensors] = {};
};

// The changes a step makes to the rows of a matrix while they are read.
struct MatrixStep {
  float* momenta;  // or null
  float momentum, keep, scale;
  const float* z;      // [in]: row i has the gradient z[i] delta
  const float* delta;  // [out]
};

// y[c..] of N vectors: y = (y) + x W, after the step on W where there is one, or of W - ahead G.
template <int N, bool kStep, bool kAhead>
MNEME_INLINE void Columns(const float* x, float* weights, int64_t in, int64_t out, int64_t c,
                          int lanes, const MatrixStep* step, const float* gradients, float ahead,
                          float* y) {
  const auto load = [&](const float* p, int v) {
    return v == N - 1 ? LoadUpTo(p + v * kLanes, lanes) : Load(p + v * kLanes);
  };
  const auto store = [&](float* p, int v, Vec value) {
    if (v == N - 1) {
      StoreUpTo(p + v * kLanes, value, lanes);
    } else {
      Store(p + v * kLanes, value);
    }
  };
  Vec sums[N], delta[N];
  MNEME_UNROLL
  for (int v = 0; v < N; ++v) {
    sums[v] = load(y + c, v);
    if constexpr (kStep) delta[v] = load(step->delta + c, v);
  }
  for (int64_t i = 0; i < in; ++i) {
    float* row = weights + i * out + c;
    const Vec by = Set1(x[i]);
    MNEME_UNROLL
    for (int v = 0; v < N; ++v) {
      Vec w = load(row, v);
      if constexpr (kStep) {
        Vec s = Set1(-step->scale * step->z[i]) * delta[v];
        if (step->momenta != nullptr) {
          float* momenta = step->momenta + i * out + c;
          s = MulAdd(Set1(step->momentum), load(momenta, v), s);
          store(momenta, v, s);
        }
        w = MulAdd(Set1(step->keep), w, s);
        store(row, v, w);
      }
      if constexpr (kAhead) w = NegMulAdd(Set1(ahead), load(gradients + i * out + c, v), w);
      sums[v] = MulAdd(by, w, sums[v]);
    }
  }
  MNEME_UNROLL
  for (int v = 0; v < N; ++v) store(y + c, v, sums[v]);
}

template <bool kStep, bool kAhead>
void Product(const float* x, float* weights, int64_t in, int64_t out, const MatrixStep* step,
             const float* gradients, float ahead, float* y) {
  int64_t c = 0;
  for (; c + kColumns * kLanes <= out; c += kColumns * kLanes) {
    Columns<kColumns, kStep, kAhead>(x, weights, in, out, c, kLanes, step, gradients, ahead, y);
  }
  for (; c < out; c += kLanes) {
    const int lanes = static_cast<int>(out - c < kLanes ? out - c : kLanes);
    Columns<1, kStep, kAhead>(x, weights, in, out, c, lanes, step, gradients, ahead, y);
  }
}

// y[i] = row i of W . x
void ProductOfRows(const float* weights, const float* x, int64_t in, int64_t out, float* y) {
  for (int64_t i = 0; i < in; ++i) {
    Vec sum = Zero();
    ForVectors(out, [&](int64_t o, int lanes) {
      sum = MulAdd(LoadUpTo(weights + i * out + o, lanes), LoadUpTo(x + o, lanes), sum);
    });
    y[i] = Sum(sum);
  }
}

// Activated and, where it is wanted, the derivatives; `a` becomes its activation.
void ActivateLayer(MemoryNetwork::Activation activation, int64_t n, float* a, float* slope) {
  const Vec one = Set1(1.0f), half = Set1(0.5f);
  ForVectors(n, [&](int64_t i, int lanes) {
    const Vec x = LoadUpTo(a + i, lanes);
    Vec z, d;
    if (activation == MemoryNetwork::Activation::kSilu) {
      const Vec s = Sigmoid(x);
      z = x * s;
      d = s * (one + x * (one - s));
    } else if (activation == MemoryNetwork::Activation::kGelu) {
      float erf[kLanes];
      Store(erf, x * Set1(0x1.6a09e6p-1f));
      for (float& value : erf) value = __builtin_erff(value);
      const Vec phi = half * (one + Load(erf));
      z = x * phi;
      d = phi + x * Set1(0x1.988454p-2f) * Exp(Set1(-0.5f) * x * x);  // 1 / sqrt(2 pi)
    } else {
      const Vec c = Set1(0x1.988454p-1f), cubic = Set1(0.044715f);  // sqrt(2 / pi)
      const Vec t = Tanh(c * MulAdd(cubic * x, x * x, x));
      z = half * x * (one + t);
      d = half * (one + t) + half * x * (one - t * t) * c * MulAdd(Set1(3 * 0.044715f) * x, x, one);
    }
    StoreUpTo(a + i, z, lanes);
    if (slope != nullptr) StoreUpTo(slope + i, d, lanes);
  });
}

// One head of one segment.
class HeadOfSegment {
 public:
  HeadOfSegment(const NeuralMemoryArgs& args, int segment, int head, float* scratch)
      : args_(args),
        network_(args.network),
        slot_(args.segments.slots.as<int32_t>()[segment]),
        memory_(args.segments.memories.as<int32_t>()[segment]),
        head_(head),
        heads_(args.q.shape[1]),
        dim_(args.q.shape[2]) {
    const auto take = [&](int64_t n) {
      float* taken = scratch;
      scratch += PaddedFloats(n);
      return taken;
    };
    const int64_t wide = dim_ > network_.hidden ? dim_ : network_.hidden;
    for (int l = 0; l < network_.depth; ++l) {
      z_[l] = take(l == 0 ? dim_ : network_.hidden);
      slope_[l] = l == 0 ? nullptr : take(network_.hidden);
      delta_[l] = take(wide);
    }
    y_ = take(dim_);
    gain_ = take(dim_);
    gain_gradient_ = take(dim_);
    read_[0] = take(wide);
    read_[1] = take(wide);
  }

  static int64_t ScratchFloats(const MemoryNetwork& network, int64_t dim) {
    const int64_t wide = PaddedFloats(dim > network.hidden ? dim : network.hidden);
    return (3 * network.depth + 6) * wide;
  }

  void Run(int64_t begin, int64_t end) {
    weights_ = Of(args_.weights);
    if (args_.frozen_period != 0) frozen_ = Of(args_.frozen);
    if (args_.stores_anchor()) anchors_ = Of(args_.anchors);
    if (args_.trains()) {
      if (!args_.momentum.empty()) momenta_ = Of(args_.momenta);
      if (args_.step > 1) gradients_ = Of(args_.gradients);
    }
    anchor_ = args_.stores_anchor() ? anchors_ : weights_;
    if (args_.anchor_period == 0) anchor_ = Of(args_.initial_anchor);
    const bool first = args_.positions.as<int64_t>()[begin] == args_.first_position;
    if (!args_.trains()) {
      HeadTensors from = weights_;
      const MemoryInitial* initial = &args_.initial_weights;
      if (args_.read == MemoryRead::kFrozen) {
        from = frozen_;
        if (!args_.initial_frozen.at[0].empty()) initial = &args_.initial_frozen;
      } else if (args_.read == MemoryRead::kAnchor) {
        from = anchor_;
        if (args_.anchor_period == 0) initial = &args_.initial_anchor;
        if (!args_.initial_anchors.at[0].empty()) initial = &args_.initial_anchors;
      }
      if (first) from = Of(*initial);
      for (int64_t e = begin; e < end; ++e) ReadFrom(e, from);
      return;
    }
    if (first) Initialise();
    for (int64_t e = begin; e < end; ++e) Token(e);
  }

 private:
  void Token(int64_t e) {
    const int64_t n = args_.positions.as<int64_t>()[e], done = n + 1;
    if (args_.read == MemoryRead::kAnchor) ReadFrom(e, anchor_);
    if (args_.read == MemoryRead::kFrozen) ReadFrom(e, frozen_);
    FindGradient(e);
    const float scale =
        args_.step_scale.empty() ? 1.0f : args_.step_scale.as<float>()[n % args_.step];
    const float momentum = Gate(args_.momentum, e, 0.0f), keep = Gate(args_.keep, e, 1.0f);
    const bool refreshes = (args_.stores_anchor() && done % args_.anchor_period == 0) ||
                           (args_.frozen_period != 0 && done % args_.frozen_period == 0);
    if (args_.step == 1) {
      StepAndRead(e, scale, momentum, keep);
    } else {
      AddGradient();
      if (done % args_.step == 0) Step(scale, momentum, keep);
      if (args_.read == MemoryRead::kRunning) ReadFrom(e, weights_);
      if (args_.read == MemoryRead::kAhead) ReadAhead(e, scale);
    }
    if (!refreshes) return;
    for (int t = 0; t < network_.tensors(); ++t) {
      if (args_.stores_anchor() && done % args_.anchor_period == 0) Copy(weights_, anchors_, t);
      if (args_.frozen_period != 0 && done % args_.frozen_period == 0) Copy(weights_, frozen_, t);
    }
  }

  float Gate(const TensorView& gate, int64_t e, float otherwise) const {
    return gate.empty() ? otherwise : gate.as<float>()[e * heads_ + head_];
  }
  const float* VectorOf(const TensorView& x, int64_t e) const {
    return x.as<float>() + (e * heads_ + head_) * dim_;
  }
  int64_t Elements(int t) const { return network_.shape(t, dim_).elements(); }
  HeadTensors Of(const MemoryCopy& copy) const {
    HeadTensors all;
    for (int t = 0; t < network_.tensors(); ++t) {
      all.at[t] = copy.at[t].as<float>(slot_, memory_) + head_ * Elements(t);
    }
    return all;
  }
  HeadTensors Of(const MemoryInitial& initial) const {
    HeadTensors all;
    for (int t = 0; t < network_.tensors(); ++t) {
      all.at[t] = initial.at[t].as<float>() + head_ * Elements(t);
    }
    return all;
  }
  void Copy(const HeadTensors& from, const HeadTensors& to, int t) const {
    ForVectors(Elements(t), [&](int64_t i, int lanes) {
      StoreUpTo(to.at[t] + i, LoadUpTo(from.at[t] + i, lanes), lanes);
    });
  }
  void Fill(const HeadTensors& to, const MemoryInitial& initial, const HeadTensors* otherwise) {
    const HeadTensors from =
        !initial.at[0].empty() || otherwise == nullptr ? Of(initial) : *otherwise;
    const bool zero = initial.at[0].empty() && otherwise == nullptr;
    for (int t = 0; t < network_.tensors(); ++t) {
      if (!zero) {
        Copy(from, to, t);
        continue;
      }
      ForVectors(Elements(t),
                 [&](int64_t i, int lanes) { StoreUpTo(to.at[t] + i, Zero(), lanes); });
    }
  }
  // The first write: what all sessions share becomes the session's own.
  void Initialise() {
    Fill(weights_, args_.initial_weights, nullptr);
    if (!args_.momentum.empty()) Fill(momenta_, args_.initial_momenta, nullptr);
    if (args_.stores_anchor()) Fill(anchors_, args_.initial_anchors, &weights_);
    if (args_.frozen_period != 0) Fill(frozen_, args_.initial_frozen, &weights_);
    if (args_.step > 1) Fill(gradients_, args_.initial_gradients, nullptr);
  }

  void FindGain(const HeadTensors& net, float ahead = 0) {
    if (!network_.trains_gain) {
      for (int64_t i = 0; i < dim_; ++i) gain_[i] = args_.gain.as<float>()[head_ * dim_ + i];
      return;
    }
    const int t = network_.gain();
    for (int64_t i = 0; i < dim_; ++i) {
      gain_[i] = network_.gain_offset + net.at[t][i];
      if (ahead != 0) gain_[i] -= ahead * gradients_.at[t][i];
    }
  }
  // y becomes n; returns what y was divided by.
  float NormInPlace(float* y) const {
    const auto width = static_cast<float>(dim_);
    float mean = 0, squares = 0;
    if (network_.norm == MemoryNetwork::Norm::kLayer) {
      for (int64_t i = 0; i < dim_; ++i) mean += y[i];
      mean /= width;
    }
    for (int64_t i = 0; i < dim_; ++i) squares += (y[i] - mean) * (y[i] - mean);
    const float spread = __builtin_sqrtf(squares / width + network_.eps);
    for (int64_t i = 0; i < dim_; ++i) y[i] = (y[i] - mean) / spread;
    return spread;
  }
  float Output(const float* x, const float* n, int64_t i) const {
    const float shift = args_.shift.empty() ? 0.0f : args_.shift.as<float>()[head_ * dim_ + i];
    return x[i] + (n[i] * gain_[i] + shift);
  }

  void StartSum(const HeadTensors& net, int l, float* y) const {
    ForVectors(network_.out(l, dim_), [&](int64_t i, int lanes) {
      const Vec bias =
          network_.biases ? LoadUpTo(net.at[network_.depth + l - 1] + i, lanes) : Zero();
      StoreUpTo(y + i, bias, lanes);
    });
  }

  // Scratch of k at the anchor: z, slopes, and the deltas of all layers.
  void FindGradient(int64_t e) {
    const HeadTensors& net = anchor_;
    const float* k = VectorOf(args_.k, e);
    for (int64_t i = 0; i < dim_; ++i) z_[0][i] = k[i];
    for (int l = 1; l <= network_.depth; ++l) {
      float* a = l == network_.depth ? y_ : z_[l];
      StartSum(net, l, a);
      Product<false, false>(z_[l - 1], net.at[l - 1], network_.in(l, dim_), network_.out(l, dim_),
                            nullptr, nullptr, 0, a);
      if (l < network_.depth) ActivateLayer(network_.activation, network_.hidden, a, slope_[l]);
    }
    const float* v = VectorOf(args_.v, e);
    const float rate = static_cast<float>(args_.rate_scale) * Gate(args_.rate, e, 0.0f);
    float* delta = delta_[network_.depth - 1];
    if (network_.norm == MemoryNetwork::Norm::kNone) {
      for (int64_t i = 0; i < dim_; ++i) delta[i] = rate * (y_[i] - v[i]);
    } else {
      FindGain(net);
      const float spread = NormInPlace(y_);
      float mean = 0, along = 0;
      for (int64_t i = 0; i < dim_; ++i) {
        const float error = rate * (Output(k, y_, i) - v[i]);
        gain_gradient_[i] = error * y_[i];
        delta[i] = error * gain_[i];
        mean += delta[i];
        along += delta[i] * y_[i];
      }
      const auto width = static_cast<float>(dim_);
      mean = network_.norm == MemoryNetwork::Norm::kLayer ? mean / width : 0.0f;
      along /= width;
      for (int64_t i = 0; i < dim_; ++i) delta[i] = (delta[i] - mean - y_[i] * along) / spread;
    }
    for (int l = network_.depth; l > 1; --l) {
      float* before = delta_[l - 2];
      ProductOfRows(net.at[l - 1], delta_[l - 1], network_.in(l, dim_), network_.out(l, dim_),
                    before);
      ForVectors(network_.hidden, [&](int64_t i, int lanes) {
        StoreUpTo(before + i, LoadUpTo(before + i, lanes) * LoadUpTo(slope_[l - 1] + i, lanes),
                  lanes);
      });
    }
  }

  // Tensors that are vectors, one after the other: visit(tensor, gradient).
  template <typename Visit>
  void ForEachVector(Visit visit) const {
    for (int l = 1; network_.biases && l <= network_.depth; ++l) {
      visit(network_.depth + l - 1, delta_[l - 1]);
    }
    if (network_.trains_gain) visit(network_.gain(), gain_gradient_);
  }

  void AddGradient() {
    for (int l = 1; l <= network_.depth; ++l) {
      const int64_t in = network_.in(l, dim_), out = network_.out(l, dim_);
      for (int64_t i = 0; i < in; ++i) {
        float* row = gradients_.at[l - 1] + i * out;
        const Vec by = Set1(z_[l - 1][i]);
        ForVectors(out, [&](int64_t o, int lanes) {
          StoreUpTo(row + o,
                    MulAdd(by, LoadUpTo(delta_[l - 1] + o, lanes), LoadUpTo(row + o, lanes)),
                    lanes);
        });
      }
    }
    ForEachVector([&](int t, const float* gradient) {
      ForVectors(Elements(t), [&](int64_t i, int lanes) {
        float* sum = gradients_.at[t] + i;
        StoreUpTo(sum, LoadUpTo(sum, lanes) + LoadUpTo(gradient + i, lanes), lanes);
      });
    });
  }

  // On elements [i, i + lanes) of a tensor, with the gradient g.
  MNEME_INLINE void StepOn(int t, int64_t i, int lanes, Vec g, float scale, float momentum,
                           float keep) const {
    Vec s = Zero() - Set1(scale) * g;
    if (momenta_.at[t] != nullptr) {
      s = MulAdd(Set1(momentum), LoadUpTo(momenta_.at[t] + i, lanes), s);
      StoreUpTo(momenta_.at[t] + i, s, lanes);
    }
    float* w = weights_.at[t] + i;
    StoreUpTo(w, MulAdd(Set1(keep), LoadUpTo(w, lanes), s), lanes);
  }

  void Step(float scale, float momentum, float keep) {
    for (int t = 0; t < network_.tensors(); ++t) {
      ForVectors(Elements(t), [&](int64_t i, int lanes) {
        float* sum = gradients_.at[t] + i;
        StepOn(t, i, lanes, LoadUpTo(sum, lanes), scale, momentum, keep);
        StoreUpTo(sum, Zero(), lanes);
      });
    }
  }

  void StepAndRead(int64_t e, float scale, float momentum, float keep) {
    ForEachVector([&](int t, const float* gradient) {
      ForVectors(Elements(t), [&](int64_t i, int lanes) {
        StepOn(t, i, lanes, LoadUpTo(gradient + i, lanes), scale, momentum, keep);
      });
    });
    const float* x = VectorOf(args_.q, e);
    for (int l = 1; l <= network_.depth; ++l) {
      float* y = read_[l % 2];
      StartSum(weights_, l, y);
      const MatrixStep step = {momenta_.at[l - 1], momentum, keep, scale, z_[l - 1], delta_[l - 1]};
      Product<true, false>(x, weights_.at[l - 1], network_.in(l, dim_), network_.out(l, dim_),
                           &step, nullptr, 0, y);
      if (l < network_.depth) ActivateLayer(network_.activation, network_.hidden, y, nullptr);
      x = y;
    }
    if (args_.read == MemoryRead::kRunning) Emit(e, weights_, read_[network_.depth % 2]);
  }

  void ReadFrom(int64_t e, const HeadTensors& net) {
    const float* x = VectorOf(args_.q, e);
    for (int l = 1; l <= network_.depth; ++l) {
      float* y = read_[l % 2];
      StartSum(net, l, y);
      Product<false, false>(x, net.at[l - 1], network_.in(l, dim_), network_.out(l, dim_), nullptr,
                            nullptr, 0, y);
      if (l < network_.depth) ActivateLayer(network_.activation, network_.hidden, y, nullptr);
      x = y;
    }
    Emit(e, net, read_[network_.depth % 2]);
  }

  // From W - scale G.
  void ReadAhead(int64_t e, float scale) {
    const float* x = VectorOf(args_.q, e);
    for (int l = 1; l <= network_.depth; ++l) {
      float* y = read_[l % 2];
      StartSum(weights_, l, y);
      if (network_.biases) {
        const float* sum = gradients_.at[network_.depth + l - 1];
        ForVectors(network_.out(l, dim_), [&](int64_t i, int lanes) {
          const Vec bias = NegMulAdd(Set1(scale), LoadUpTo(sum + i, lanes), LoadUpTo(y + i, lanes));
          StoreUpTo(y + i, bias, lanes);
        });
      }
      Product<false, true>(x, weights_.at[l - 1], network_.in(l, dim_), network_.out(l, dim_),
                           nullptr, gradients_.at[l - 1], scale, y);
      if (l < network_.depth) ActivateLayer(network_.activation, network_.hidden, y, nullptr);
      x = y;
    }
    Emit(e, weights_, read_[network_.depth % 2], scale);
  }

  void Emit(int64_t e, const HeadTensors& net, float* y, float ahead = 0) {
    float* out = args_.out.as<float>() + (e * heads_ + head_) * dim_;
    if (network_.norm == MemoryNetwork::Norm::kNone) {
      for (int64_t i = 0; i < dim_; ++i) out[i] = y[i];
      return;
    }
    FindGain(net, ahead);
    NormInPlace(y);
    const float* q = VectorOf(args_.q, e);
    for (int64_t i = 0; i < dim_; ++i) out[i] = Output(q, y, i);
  }

  const NeuralMemoryArgs& args_;
  const MemoryNetwork& network_;
  const int slot_, memory_, head_;
  const int64_t heads_, dim_;
  HeadTensors weights_, momenta_, anchors_, frozen_, gradients_, anchor_;
  float *z_[kMaxMemoryDepth], *slope_[kMaxMemoryDepth], *delta_[kMaxMemoryDepth];  // by layer
  float *y_, *gain_, *gain_gradient_, *read_[2];
};

}  // namespace

int64_t NeuralMemoryScratch(const NeuralMemoryArgs& args) {
  return HeadOfSegment::ScratchFloats(args.network, args.q.shape[2]);
}

void NeuralMemory(const NeuralMemoryArgs& args, int segment, int head, float* scratch) {
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  HeadOfSegment(args, segment, head, scratch).Run(offsets[segment], offsets[segment + 1]);
}

}  // namespace mneme::MNEME_ISA
