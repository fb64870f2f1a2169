// Neural memories: one head of one segment, step by step. Built once per instruction set.
//
// Tokens between which nothing changes are read together. A step of few pairs whose gradient is not
// needed as a whole rewrites W and S in the pass that also reads: each row of a matrix is met three
// times, by the keys' way forward, by the errors' way back, and by its update.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/memory_network.h"
#include "kernels/cpu/memory_slab.h"
#include "kernels/cpu/memory_step.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

int64_t AtMost(int64_t a, int64_t b) { return a < b ? a : b; }

// Whether a step's gradient is needed as a whole, and so lies in scratch.
bool GathersGradient(const NeuralMemoryArgs& args) {
  return args.trains() && args.read != MemoryRead::kAhead &&
         (args.max_grad_norm > 0 || args.spectral_norm || args.step * args.keys > kMemoryRows);
}

// Rows that are in scratch at once.
int ScratchRows(const NeuralMemoryArgs& args) {
  if (!args.trains() || args.step > 1) return kMemoryRows;
  return static_cast<int>(AtMost(args.keys, kMemoryRows));
}

int64_t FloatsOfTensors(const NeuralMemoryArgs& args) {
  int64_t floats = 0;
  for (int t = 0; t < args.network.tensors(); ++t) {
    floats += PaddedFloats(args.network.shape(t, args.q.shape[2]).elements());
  }
  return floats;
}

class HeadOfSegment : private HeadInSlab {
 public:
  HeadOfSegment(const NeuralMemoryArgs& args, int segment, int head, float* scratch)
      : HeadInSlab(args, segment, head), net_(args, head, ScratchRows(args), scratch) {
    const auto take = [&](bool wanted, HeadTensors& all) {
      for (int t = 0; wanted && t < tensors_; ++t) {
        all.at[t] = scratch;
        scratch += PaddedFloats(elements(t));
      }
    };
    take(GathersGradient(args), sums_);
    take(args.has_residual(), mixed_);
    orthogonal_ = scratch;
  }

  static int64_t ScratchFloats(const NeuralMemoryArgs& args) {
    const int64_t dim = args.q.shape[2], wide = HeadNetwork::WidestLayer(args.network, dim);
    return HeadNetwork::ScratchFloats(args.network, dim, ScratchRows(args)) +
           ((GathersGradient(args) ? 1 : 0) + (args.has_residual() ? 1 : 0)) *
               FloatsOfTensors(args) +
           (args.spectral_norm ? OrthogonalScratch(wide, wide) : 0);
  }

  void Run() {
    if (!args_.trains()) return Recall();
    if (args_.read == MemoryRead::kAhead) sums_ = gradients_;
    if (first_) Initialise();
    for (int64_t e = begin_; e < end_;) {
      int64_t last = e;
      while (last + 1 < end_ && last + 1 - e < kMemoryRows && !Changes(Position(last) + 1)) ++last;
      Tokens(e, last);
      e = last + 1;
    }
    if (args_.stores_pairs()) LeaveOpenStep();
  }

 private:
  // Whether what is read may change with the token that is the `done`-th.
  bool Changes(int64_t done) const {
    return done % args_.step == 0 || (args_.frozen_period != 0 && done % args_.frozen_period == 0);
  }

  // Tokens [e, last], of which only the last one changes anything.
  void Tokens(int64_t e, int64_t last) {
    const int64_t done = Position(last) + 1;
    const bool ends = done % args_.step == 0;
    const bool refreshes = args_.stores_anchor() && done % args_.anchor_period == 0;
    // What is read of the last token is then not what its step makes of W.
    const bool gated = refreshes && !args_.transition.empty();
    if (args_.read == MemoryRead::kAnchor) ReadFrom(anchor_, e, last + 1);
    if (args_.read == MemoryRead::kFrozen) ReadFrom(frozen_, e, last + 1);
    if (args_.read == MemoryRead::kAhead) {
      for (; e <= last; ++e) TokenAhead(e);
    } else if (!ends) {
      if (args_.read == MemoryRead::kRunning) ReadFrom(weights_, e, last + 1);
    } else {
      if (args_.read == MemoryRead::kRunning) ReadFrom(weights_, e, last);
      Step(last, args_.read == MemoryRead::kRunning && !gated);
    }
    if (refreshes) Refresh();
    if (gated && args_.read == MemoryRead::kRunning) ReadFrom(weights_, last, last + 1);
    if (args_.frozen_period != 0 && done % args_.frozen_period == 0) Copy(weights_, frozen_);
  }

  void Recall() {
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
    if (first_) from = Of(*initial);
    for (int64_t e = begin_; e < end_; e += kMemoryRows) {
      ReadFrom(from, e, AtMost(end_, e + kMemoryRows));
    }
  }

  void ReadFrom(const HeadTensors& net, int64_t begin, int64_t end) {
    if (begin == end) return;
    net_.Read(net, RowsOf(args_.q, begin), static_cast<int>(end - begin), RowsOf(args_.out, begin));
  }

  void TokenAhead(int64_t e) {
    TrainPairs(anchor_, e, 0, args_.keys, [&](int rows) { net_.AddGradients(rows, sums_); });
    const float scale = ScaleOf(e);
    if ((Position(e) + 1) % args_.step == 0) {
      StepBy(sums_, GatesOf(e));
      Zero(sums_);
    }
    net_.ReadAhead(weights_, sums_, scale, RowsOf(args_.q, e)[0], RowsOf(args_.out, e)[0]);
  }

  // The step that ends with token e, which is then read with `reads`.
  void Step(int64_t e, bool reads) {
    HeadTensors net = anchor_;
    if (args_.has_residual()) net = Mixed(e);
    const StepGates gates = GatesOf(e);
    const int64_t first = e - (args_.step - 1);
    if (!GathersGradient(args_)) {
      TrainPairs(net, first, 0, pairs_, [](int) {});
      if (HasBefore()) Copy(weights_, Of(args_.before));
      return StepAndRead(e, gates, static_cast<int>(pairs_), reads);
    }
    Zero(sums_);
    TrainPairs(net, first, 0, pairs_, [&](int rows) { net_.AddGradients(rows, sums_); });
    if (HasBefore()) Copy(weights_, Of(args_.before));
    StepBy(sums_, gates);
    if (reads) ReadFrom(weights_, e, e + 1);
  }

  // Trains pairs [begin, end) of a step whose first token is that of entry `first`, which may lie
  // before the segment: then they are in the slab. done(rows) after each block of them.
  template <typename Done>
  void TrainPairs(const HeadTensors& net, int64_t first, int64_t begin, int64_t end, Done done) {
    for (int64_t pair = begin; pair < end; pair += kMemoryRows) {
      const int rows = static_cast<int>(AtMost(end - pair, kMemoryRows));
      TrainedRow trained[kMemoryRows];
      for (int r = 0; r < rows; ++r) trained[r] = FetchPair(first, pair + r, net_.input(r));
      net_.Train(net, rows, trained, /*gradients=*/true);
      done(rows);
    }
  }
  TrainedRow FetchPair(int64_t first, int64_t pair, float* input) const {
    const auto rate_scale = static_cast<float>(args_.rate_scale);
    const int64_t e = first + pair / args_.keys;
    const float* k;
    TrainedRow row;
    if (e < begin_) {
      const int64_t at = head_ * HeldPairs() + pair;
      k = Own(args_.pending.k) + at * dim_;
      row = {Own(args_.pending.v) + at * dim_, rate_scale * Own(args_.pending.rate)[at], nullptr};
    } else {
      const int64_t at = PairAt(e) + pair % args_.keys;
      k = args_.k.as<float>() + at * dim_;
      row = {args_.v.as<float>() + at * dim_, rate_scale * args_.rate.as<float>()[at],
             args_.loss.empty() ? nullptr : args_.loss.as<float>() + at};
    }
    CopyFloats(k, input, dim_);
    return row;
  }

  // The losses of the tokens of the step that the segment leaves open, and their pairs.
  void LeaveOpenStep() {
    const int64_t open = (Position(end_ - 1) + 1) % args_.step, first = end_ - open;
    const int64_t from = first < begin_ ? begin_ : first;
    const int64_t already = (from - first) * args_.keys, all = open * args_.keys;
    for (int64_t pair = already; !args_.loss.empty() && pair < all; pair += kMemoryRows) {
      const int rows = static_cast<int>(AtMost(all - pair, kMemoryRows));
      TrainedRow trained[kMemoryRows];
      for (int r = 0; r < rows; ++r) trained[r] = FetchPair(first, pair + r, net_.input(r));
      net_.Train(anchor_, rows, trained, /*gradients=*/false);
    }
    float *k = Own(args_.pending.k), *v = Own(args_.pending.v), *rate = Own(args_.pending.rate);
    for (int64_t pair = already; pair < all; ++pair) {
      const int64_t from_at = PairAt(first + pair / args_.keys) + pair % args_.keys;
      const int64_t at = head_ * HeldPairs() + pair;
      CopyFloats(args_.k.as<float>() + from_at * dim_, k + at * dim_, dim_);
      CopyFloats(args_.v.as<float>() + from_at * dim_, v + at * dim_, dim_);
      rate[at] = args_.rate.as<float>()[from_at];
    }
    // What was left of a step that has ended since.
    const int64_t before = Position(begin_) % args_.step * args_.keys;
    for (int64_t pair = all; pair < before; ++pair) {
      const int64_t at = head_ * HeldPairs() + pair;
      ZeroFloats(k + at * dim_, dim_);
      ZeroFloats(v + at * dim_, dim_);
      rate[at] = 0;
    }
  }

  StepGates GatesOf(int64_t e) const {
    StepGates gates;
    gates.keep = Gate(args_.keep, e, 1.0f);
    gates.orders = args_.orders();
    const int64_t at = e * heads_ + head_;
    for (int order = 0; order < gates.orders; ++order) {
      gates.momentum[order] = args_.momentum.as<float>()[at * gates.orders + order];
    }
    for (int t = 0; t < tensors_; ++t) {
      gates.factor[t] =
          -ScaleOf(e) *
          (args_.tensor_rates.empty() ? 1.0f : args_.tensor_rates.as<float>()[at * tensors_ + t]);
    }
    gates.mix[gates.orders] = 1;
    if (args_.momentum_mix.empty()) return gates;
    gates.mixes = true;
    const auto logits = static_cast<int>(args_.momentum_mix.shape[1] / heads_);
    const float* from = args_.momentum_mix.as<float>() + at * logits;
    float* mix = gates.mix + gates.orders + 1 - logits;
    float most = from[0], sum = 0;
    for (int i = 1; i < logits; ++i) most = from[i] > most ? from[i] : most;
    for (int i = 0; i < logits; ++i) sum += mix[i] = __builtin_expf(from[i] - most);
    for (int i = 0; i < logits; ++i) mix[i] /= sum;
    return gates;
  }

  // The step of all tensors, whose G is `sums`; weights' U lies there, too, where it is made
  // orthogonal.
  void StepBy(const HeadTensors& sums, const StepGates& gates) {
    for (int t = 0; t < tensors_; ++t) {
      const Shape shape = args_.network.shape(t, dim_);
      const int64_t n = elements(t);
      float* gradient = sums.at[t];
      float factor = gates.factor[t];
      if (args_.max_grad_norm > 0) {
        const float norm = NormOf(gradient, n), x = static_cast<float>(args_.max_grad_norm) / 2;
        if (norm > 0) factor *= x * (__builtin_tanhf(norm / x) + 1) / norm;
      }
      const bool orthogonal = args_.spectral_norm && shape.rank == 2;
      WithMomenta(gates.kind(), [&]<Momenta kKind>() {
        StepVector<kKind>(gates, factor, MomentaOfTensor(t), n,
                          orthogonal ? nullptr : weights_.at[t], gradient,
                          [&](int64_t i, int lanes) { return LoadUpTo(gradient + i, lanes); });
      });
      if (!orthogonal) continue;
      Orthogonalise(gradient, shape[0], shape[1], orthogonal_);
      ForVectors(n, [&](int64_t i, int lanes) {
        float* w = weights_.at[t] + i;
        const Vec u = LoadUpTo(gradient + i, lanes);
        StoreUpTo(w, MulAdd(Set1(gates.keep), LoadUpTo(w, lanes), u), lanes);
      });
    }
  }

  void StepAndRead(int64_t e, const StepGates& gates, int rows, bool reads) {
    WithMomenta(gates.kind(), [&]<Momenta kKind>() {
      net_.ForEachVector([&](int t, Rows gradients) {
        StepVector<kKind>(gates, gates.factor[t], MomentaOfTensor(t), elements(t), weights_.at[t],
                          nullptr, [&](int64_t i, int lanes) {
                            Vec sum = LoadUpTo(gradients[0] + i, lanes);
                            for (int r = 1; r < rows; ++r) {
                              sum = sum + LoadUpTo(gradients[r] + i, lanes);
                            }
                            return sum;
                          });
      });
      const auto multiply = [&](int l, Rows x, const float* bias, Rows y) {
        const int64_t in = args_.network.in(l, dim_), out = args_.network.out(l, dim_);
        const Rows z = net_.z(l), delta = net_.delta(l);
        const Vec factor = Set1(gates.factor[l - 1]);
        for (int r = 0; r < rows; ++r) {
          ForVectors(in, [&](int64_t i, int lanes) {
            StoreUpTo(z[r] + i, factor * LoadUpTo(z[r] + i, lanes), lanes);
          });
        }
        if (rows == 1) {
          StepAndMultiply<kKind, true>(gates, MomentaOfTensor(l - 1), z, delta, rows, x[0],
                                       weights_.at[l - 1], in, out, bias, y[0]);
        } else {
          StepAndMultiply<kKind, false>(gates, MomentaOfTensor(l - 1), z, delta, rows, x[0],
                                        weights_.at[l - 1], in, out, bias, y[0]);
        }
      };
      const Rows q = RowsOf(args_.q, e);
      if (reads) {
        net_.Read(weights_, q, 1, RowsOf(args_.out, e), multiply);
      } else {
        net_.Pass(weights_, q, 1, multiply);
      }
    });
  }

  // A + mix P, in scratch.
  HeadTensors Mixed(int64_t e) const {
    const Vec mix = Set1(Gate(args_.residual_mix, e, 0.0f));
    const HeadTensors residual = Of(args_.residual);
    for (int t = 0; t < tensors_; ++t) {
      ForVectors(elements(t), [&](int64_t i, int lanes) {
        StoreUpTo(
            mixed_.at[t] + i,
            MulAdd(mix, LoadUpTo(residual.at[t] + i, lanes), LoadUpTo(anchor_.at[t] + i, lanes)),
            lanes);
      });
    }
    return mixed_;
  }
  void Refresh() {
    if (!args_.transition.empty()) {
      const Vec gate = Sigmoid(Set1(args_.transition.as<float>()[0]));
      for (int t = 0; t < tensors_; ++t) {
        ForVectors(elements(t), [&](int64_t i, int lanes) {
          const Vec w = LoadUpTo(weights_.at[t] + i, lanes), a = LoadUpTo(anchor_.at[t] + i, lanes);
          StoreUpTo(weights_.at[t] + i, MulAdd(gate, w - a, a), lanes);
        });
      }
    }
    Copy(weights_, anchor_);
  }

  HeadNetwork net_;
  HeadTensors sums_;  // of gradients: in scratch, or in the slab where it is read ahead
  HeadTensors mixed_;
  float* orthogonal_;
};

}  // namespace

int64_t NeuralMemoryScratch(const NeuralMemoryArgs& args) {
  return HeadOfSegment::ScratchFloats(args);
}

void NeuralMemory(const NeuralMemoryArgs& args, int segment, int head, float* scratch) {
  HeadOfSegment(args, segment, head, scratch).Run();
}

}  // namespace mneme::MNEME_ISA
