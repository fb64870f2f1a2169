#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/reference/memory_network.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/surprise.h"

namespace mneme {
namespace {

using MemoryRead = NeuralMemoryArgs::Read;
using reference::MemoryTensors;
using reference::NetworkPass;
using reference::Numbers;

double Norm(const Numbers& values) {
  double squares = 0;
  for (const double x : values) squares += x * x;
  return std::sqrt(squares);
}

// a + factor b
MemoryTensors Sum(const MemoryTensors& a, double factor, const MemoryTensors& b) {
  MemoryTensors sum = a;
  for (size_t t = 0; t < sum.size(); ++t) {
    for (size_t i = 0; i < sum[t].size(); ++i) sum[t][i] += factor * b[t][i];
  }
  return sum;
}

// x [rows, cols] times y, [cols, n], or [n, cols] with `transposed`
Numbers Times(const Numbers& x, const Numbers& y, int64_t rows, int64_t cols, int64_t n,
              bool transposed = false) {
  Numbers product(static_cast<size_t>(rows * n));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t i = 0; i < cols; ++i) {
        product[r * n + c] += x[r * cols + i] * (transposed ? y[c * cols + i] : y[i * n + c]);
      }
    }
  }
  return product;
}

Numbers Transposed(const Numbers& x, int64_t rows, int64_t cols) {
  Numbers y(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) y[c * rows + r] = x[r * cols + c];
  }
  return y;
}

// Orthogonal(u), of [rows, cols].
Numbers Orthogonal(const Numbers& u, int64_t rows, int64_t cols) {
  if (rows > cols) {
    return Transposed(Orthogonal(Transposed(u, rows, cols), cols, rows), cols, rows);
  }
  Numbers x = u;
  const double norm = std::max(Norm(u), 1e-7);
  for (double& value : x) value /= norm;
  for (int step = 0; step < 5; ++step) {
    const Numbers y = Times(x, x, rows, cols, rows, /*transposed=*/true);
    Numbers polynomial = Times(y, y, rows, rows, rows);
    for (size_t i = 0; i < y.size(); ++i) polynomial[i] = -4.7750 * y[i] + 2.0315 * polynomial[i];
    const Numbers more = Times(polynomial, x, rows, rows, cols);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + more[i];
  }
  return x;
}

struct Pair {
  Numbers k, v;
  Numbers rate;            // one, or of each channel
  double* loss = nullptr;  // where it goes, or nowhere
};

// One head of one segment.
class NeuralMemoryHead {
 public:
  NeuralMemoryHead(const NeuralMemoryArgs& args, int64_t slot, int64_t memory, int64_t head)
      : args_(args),
        network_(args.network),
        net_(args, head),
        slot_(slot),
        memory_(memory),
        head_(head),
        heads_(args.q.shape[1]),
        dim_(args.q.shape[2]) {}

  void Run(int64_t begin, int64_t end) {
    first_ = args_.positions.as<int64_t>()[begin] == args_.first_position;
    weights_ = Begin(args_.weights, args_.initial_weights, {});
    if (args_.frozen_period != 0) {
      frozen_ = Begin(args_.frozen, args_.initial_frozen, weights_);
    }
    if (args_.stores_anchor()) {
      anchors_ = Begin(args_.anchors, args_.initial_anchors, weights_);
    } else if (args_.anchor_period == 0) {
      anchors_ = Initial(args_.initial_anchor, 0, {});
    }
    if (!args_.trains()) {
      const MemoryTensors& read = args_.read == MemoryRead::kFrozen   ? frozen_
                                  : args_.read == MemoryRead::kAnchor ? Anchor()
                                                                      : weights_;
      for (int64_t e = begin; e < end; ++e) Emit(e, read);
      return;
    }
    for (int i = 0; i < args_.orders(); ++i) {
      momenta_.push_back(Begin(args_.momenta, args_.initial_momenta, Zeros(), i));
    }
    const bool ahead = args_.read == MemoryRead::kAhead;
    gradients_ = ahead ? Begin(args_.gradients, args_.initial_gradients, Zeros()) : Zeros();
    if (args_.stores_pairs()) LoadPairs(args_.positions.as<int64_t>()[begin]);
    for (int64_t e = begin; e < end; ++e) Token(e);
    for (Pair& pair : pairs_) Loss(Anchor(), pair);
    Store(args_.weights, weights_);
    for (size_t i = 0; i < momenta_.size(); ++i) {
      Store(args_.momenta, momenta_[i], static_cast<int>(i));
    }
    if (args_.stores_anchor()) Store(args_.anchors, anchors_);
    if (args_.frozen_period != 0) Store(args_.frozen, frozen_);
    if (ahead) Store(args_.gradients, gradients_);
    if (args_.stores_pairs()) StorePairs();
  }

 private:
  void Token(int64_t e) {
    const int64_t n = args_.positions.as<int64_t>()[e], done = n + 1;
    if (args_.read == MemoryRead::kAnchor) Emit(e, Anchor());
    if (args_.read == MemoryRead::kFrozen) Emit(e, frozen_);
    for (int64_t i = 0; i < args_.keys; ++i) {
      const int64_t row = (e * heads_ + head_) * args_.keys + i;
      const double *k = args_.k.as<double>() + row * dim_, *v = args_.v.as<double>() + row * dim_;
      const double* rate = args_.rate.as<double>() + row * args_.gate_width();
      pairs_.push_back({Numbers(k, k + dim_), Numbers(v, v + dim_),
                        Numbers(rate, rate + args_.gate_width()),
                        args_.loss.empty() ? nullptr : args_.loss.as<double>() + row});
    }
    const bool ends = done % args_.step == 0;
    if (ends || args_.read == MemoryRead::kAhead) Learn(e);
    const double scale =
        args_.step_scale.empty() ? 1.0 : args_.step_scale.as<float>()[n % args_.step];
    if (ends) Step(e, scale);
    if (args_.stores_anchor() && done % args_.anchor_period == 0) {
      if (!args_.transition.empty()) {
        const double gate = reference::Sigmoid(double{args_.transition.as<float>()[0]});
        weights_ = Sum(anchors_, gate, Sum(weights_, -1, anchors_));
      }
      anchors_ = weights_;
    }
    if (args_.frozen_period != 0 && done % args_.frozen_period == 0) frozen_ = weights_;
    if (args_.read == MemoryRead::kRunning) Emit(e, weights_);
    if (args_.read == MemoryRead::kAhead) Emit(e, Sum(weights_, -scale, gradients_));
  }

  // G of the pairs, which are then done with.
  void Learn(int64_t e) {
    MemoryTensors net = Anchor();
    if (args_.has_residual()) net = Sum(net, Gate(args_.residual_mix, e, 0), Load(args_.residual));
    for (Pair& pair : pairs_) {
      const NetworkPass pass = Loss(net, pair);
      Numbers rate = pair.rate;
      for (double& r : rate) r *= args_.rate_scale;
      net_.AddGradient(net, pass, pair.v.data(), rate, gradients_);
    }
    pairs_.clear();
  }
  NetworkPass Loss(const MemoryTensors& net, Pair& pair) const {
    NetworkPass pass = net_.Forward(net, pair.k.data());
    if (pair.loss != nullptr) {
      *pair.loss = 0;
      for (size_t i = 0; i < pair.v.size(); ++i) {
        *pair.loss += (pass.out[i] - pair.v[i]) * (pass.out[i] - pair.v[i]);
      }
    }
    return pass;
  }

  void Step(int64_t e, double scale) {
    if (args_.before.at[0].base != nullptr) Store(args_.before, weights_);
    const std::vector<double> mix = Mix(e);
    for (size_t t = 0; t < weights_.size(); ++t) {
      const double rate =
          args_.tensor_rates.empty()
              ? 1
              : args_.tensor_rates.as<double>()[(e * heads_ + head_) * network_.tensors() +
                                                static_cast<int64_t>(t)];
      const double clamp = ClampOf(gradients_[t]);
      std::vector<Numbers> chain(1, Numbers(gradients_[t].size()));  // S_0, S_1, ..
      for (size_t i = 0; i < gradients_[t].size(); ++i) {
        chain[0][i] = -scale * rate * clamp * gradients_[t][i];
      }
      for (size_t order = 0; order < momenta_.size(); ++order) {
        Numbers& s = momenta_[order][t];
        const int64_t row = (e * heads_ + head_) * args_.orders() + static_cast<int64_t>(order);
        for (size_t i = 0; i < s.size(); ++i) {
          s[i] = GateOf(args_.momentum, row, i) * s[i] + chain[order][i];
        }
        chain.push_back(s);
      }
      Numbers update(chain[0].size());
      for (size_t j = 0; j < chain.size(); ++j) {
        for (size_t i = 0; i < update.size(); ++i) update[i] += mix[j] * chain[j][i];
      }
      const Shape shape = network_.shape(static_cast<int>(t), dim_);
      if (args_.spectral_norm && shape.rank == 2) update = Orthogonal(update, shape[0], shape[1]);
      for (size_t i = 0; i < update.size(); ++i) {
        const double keep = args_.keep.empty() ? 1 : GateOf(args_.keep, e * heads_ + head_, i);
        weights_[t][i] = keep * weights_[t][i] + update[i];
      }
    }
    gradients_ = Zeros();
  }
  // The share of S_0, S_1, .. in U.
  std::vector<double> Mix(int64_t e) const {
    const auto orders = static_cast<size_t>(args_.orders());
    std::vector<double> mix(orders + 1);
    if (args_.momentum_mix.empty()) {
      mix[orders] = 1;
      return mix;
    }
    const auto logits = static_cast<size_t>(args_.momentum_mix.shape[1] / heads_);
    const double* from =
        args_.momentum_mix.as<double>() + (e * heads_ + head_) * static_cast<int64_t>(logits);
    const double most = *std::max_element(from, from + logits);
    double sum = 0;
    for (size_t i = 0; i < logits; ++i) sum += std::exp(from[i] - most);
    for (size_t i = 0; i < logits; ++i) {
      mix[orders + 1 - logits + i] = std::exp(from[i] - most) / sum;
    }
    return mix;
  }
  double ClampOf(const Numbers& gradient) const {
    const double norm = Norm(gradient), x = args_.max_grad_norm / 2;
    return x == 0 || norm == 0 ? 1 : x * (std::tanh(norm / x) + 1) / norm;
  }

  // The number of a gate's `row` that element i of a tensor goes by: that of all, or of its
  // channel.
  double GateOf(const TensorView& gate, int64_t row, size_t i) const {
    const int64_t width = args_.gate_width();
    return gate.as<double>()[row * width + static_cast<int64_t>(i) % width];
  }
  const MemoryTensors& Anchor() const { return anchors_.empty() ? weights_ : anchors_; }
  double Gate(const TensorView& gate, int64_t e, double otherwise) const {
    return gate.empty() ? otherwise : gate.as<double>()[e * heads_ + head_];
  }
  void Emit(int64_t e, const MemoryTensors& net) const {
    const int64_t at = (e * heads_ + head_) * dim_;
    const NetworkPass pass = net_.Forward(net, args_.q.as<double>() + at);
    std::copy(pass.out.begin(), pass.out.end(), args_.out.as<double>() + at);
  }

  size_t Elements(int t) const { return static_cast<size_t>(network_.shape(t, dim_).elements()); }
  MemoryTensors Zeros() const {
    MemoryTensors zeros;
    for (int t = 0; t < network_.tensors(); ++t) zeros.emplace_back(Elements(t));
    return zeros;
  }
  // The head's part of a tensor in the slab; of momenta, of an order.
  double* At(const MemoryCopy& copy, int t, int order) const {
    return Own(copy.at[t]) + (order * heads_ + head_) * static_cast<int64_t>(Elements(t));
  }
  double* Own(const StateView& view) const {
    return view.as<double>(static_cast<int>(slot_), static_cast<int>(memory_));
  }
  MemoryTensors Load(const MemoryCopy& copy, int order = 0) const {
    MemoryTensors all;
    for (int t = 0; t < network_.tensors(); ++t) {
      const double* from = At(copy, t, order);
      all.emplace_back(from, from + Elements(t));
    }
    return all;
  }
  void Store(const MemoryCopy& copy, const MemoryTensors& all, int order = 0) const {
    for (int t = 0; t < network_.tensors(); ++t) {
      const Numbers& values = all[static_cast<size_t>(t)];
      std::copy(values.begin(), values.end(), At(copy, t, order));
    }
  }
  MemoryTensors Begin(const MemoryCopy& copy, const MemoryInitial& initial,
                      const MemoryTensors& otherwise, int order = 0) const {
    return first_ ? Initial(initial, order, otherwise) : Load(copy, order);
  }
  MemoryTensors Initial(const MemoryInitial& initial, int order,
                        const MemoryTensors& otherwise) const {
    if (initial.at[0].empty()) return otherwise;
    MemoryTensors all;
    for (int t = 0; t < network_.tensors(); ++t) {
      const auto n = static_cast<int64_t>(Elements(t));
      all.push_back(Widened(initial.at[t], (order * heads_ + head_) * n, n));
    }
    return all;
  }
  static Numbers Widened(const TensorView& from, int64_t at, int64_t n) {
    Numbers values(static_cast<size_t>(n));
    if (!from.empty()) reference::Widen(from.data, from.dtype, at, n, values.data());
    return values;
  }

  // Reads a field [heads, rows, width].
  Numbers Field(const StateView& view, const TensorView& initial, int64_t row,
                int64_t width) const {
    const int64_t at = (head_ * HeldPairs() + row) * width;
    if (first_) return Widened(initial, at, width);
    const double* from = Own(view) + at;
    return Numbers(from, from + width);
  }
  int64_t HeldPairs() const { return (args_.step - 1) * args_.keys; }
  void LoadPairs(int64_t position) {
    const int64_t rows = position % args_.step * args_.keys;
    for (int64_t row = 0; row < rows; ++row) {
      pairs_.push_back(
          {Field(args_.pending.k, args_.initial_pending.k, row, dim_),
           Field(args_.pending.v, args_.initial_pending.v, row, dim_),
           Field(args_.pending.rate, args_.initial_pending.rate, row, args_.gate_width())});
    }
  }
  void StorePairs() const {
    for (int64_t row = 0; row < HeldPairs(); ++row) {
      const bool there = row < static_cast<int64_t>(pairs_.size());
      const auto width = args_.gate_width();
      const Pair pair =
          there ? pairs_[static_cast<size_t>(row)]
                : Pair{Numbers(static_cast<size_t>(dim_)), Numbers(static_cast<size_t>(dim_)),
                       Numbers(static_cast<size_t>(width))};
      const int64_t at = head_ * HeldPairs() + row;
      std::copy(pair.k.begin(), pair.k.end(), Own(args_.pending.k) + at * dim_);
      std::copy(pair.v.begin(), pair.v.end(), Own(args_.pending.v) + at * dim_);
      std::copy(pair.rate.begin(), pair.rate.end(), Own(args_.pending.rate) + at * width);
    }
  }

  const NeuralMemoryArgs& args_;
  const MemoryNetwork& network_;
  const reference::HeadNetwork net_;
  const int64_t slot_, memory_, head_, heads_, dim_;
  bool first_ = false;
  MemoryTensors weights_, anchors_, frozen_, gradients_;
  std::vector<MemoryTensors> momenta_;  // by order
  std::vector<Pair> pairs_;             // of the open step, but for those that are in gradients_
};

}  // namespace

void ReferenceKernels::NeuralMemory(const NeuralMemoryArgs& args) {
  Check(args, reference::kTypes);
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  for (int s = 0; s < args.segments.count; ++s) {
    const int32_t slot = args.segments.slots.as<int32_t>()[s];
    if (slot < 0 || offsets[s] == offsets[s + 1]) continue;
    for (int64_t head = 0; head < args.q.shape[1]; ++head) {
      NeuralMemoryHead(args, slot, args.segments.memories.as<int32_t>()[s], head)
          .Run(offsets[s], offsets[s + 1]);
    }
  }
}

void ReferenceKernels::Surprise(const SurpriseArgs& args) {
  Check(args, reference::kTypes);
  SurpriseOnHost<double>(args, 0, args.surprise.shape[0]);
}

}  // namespace mneme
