#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/reference/reference_kernels.h"
#include "kernels/surprise.h"

namespace mneme {
namespace {

using MemoryRead = NeuralMemoryArgs::Read;

using Numbers = std::vector<double>;

// An activation's value and derivative.
struct ActivatedNumber {
  double z, slope;
};

ActivatedNumber ActivateNumber(MemoryNetwork::Activation activation, double a) {
  switch (activation) {
    case MemoryNetwork::Activation::kGelu: {
      const double phi = 0.5 * (1 + std::erf(a / std::numbers::sqrt2));
      return {a * phi, phi + a * std::exp(-a * a / 2) / std::sqrt(2 * std::numbers::pi)};
    }
    case MemoryNetwork::Activation::kGeluTanh: {
      const double c = std::sqrt(2 / std::numbers::pi);
      const double t = std::tanh(c * (a + 0.044715 * a * a * a));
      return {0.5 * a * (1 + t),
              0.5 * (1 + t) + 0.5 * a * (1 - t * t) * c * (1 + 3 * 0.044715 * a * a)};
    }
    case MemoryNetwork::Activation::kSilu: {
      const double s = reference::Sigmoid(a);
      return {a * s, s * (1 + a * (1 - s))};
    }
  }
  return {0, 0};
}

// All tensors of one head, as a network or as sums of gradients.
using MemoryTensors = std::vector<Numbers>;

// Values that one pass through the network leaves behind for the way back.
struct NetworkPass {
  std::vector<Numbers> z, slope;  // z_0 to z_{depth-1}; of z_1 on
  Numbers n;                      // the normed y, or y
  double spread = 1;              // what y was divided by
  Numbers out;                    // M(x)
};

// One head of one segment.
class NeuralMemoryHead {
 public:
  NeuralMemoryHead(const NeuralMemoryArgs& args, int64_t slot, int64_t memory, int64_t head)
      : args_(args),
        network_(args.network),
        slot_(slot),
        memory_(memory),
        head_(head),
        dim_(args.q.shape[2]) {}

  void Run(int64_t begin, int64_t end) {
    const bool first = args_.positions.as<int64_t>()[begin] == args_.first_position;
    weights_ = first ? Initial(args_.initial_weights, {}) : Load(args_.weights);
    if (args_.frozen_period != 0) {
      frozen_ = first ? Initial(args_.initial_frozen, weights_) : Load(args_.frozen);
    }
    if (args_.stores_anchor()) {
      anchors_ = first ? Initial(args_.initial_anchors, weights_) : Load(args_.anchors);
    } else if (args_.anchor_period == 0) {
      anchors_ = Initial(args_.initial_anchor, {});
    }
    if (!args_.trains()) {
      const MemoryTensors& read = args_.read == MemoryRead::kFrozen   ? frozen_
                                  : args_.read == MemoryRead::kAnchor ? Anchor()
                                                                      : weights_;
      for (int64_t e = begin; e < end; ++e) Emit(e, read);
      return;
    }
    const MemoryTensors zeros = Zeros();
    if (!args_.momentum.empty()) {
      momenta_ = first ? Initial(args_.initial_momenta, zeros) : Load(args_.momenta);
    }
    gradients_ = zeros;
    if (args_.step > 1) {
      gradients_ = first ? Initial(args_.initial_gradients, zeros) : Load(args_.gradients);
    }
    for (int64_t e = begin; e < end; ++e) Token(e);
    Store(args_.weights, weights_);
    if (!args_.momentum.empty()) Store(args_.momenta, momenta_);
    if (args_.stores_anchor()) Store(args_.anchors, anchors_);
    if (args_.frozen_period != 0) Store(args_.frozen, frozen_);
    if (args_.step > 1) Store(args_.gradients, gradients_);
  }

 private:
  void Token(int64_t e) {
    const int64_t n = args_.positions.as<int64_t>()[e], done = n + 1;
    if (args_.read == MemoryRead::kAnchor) Emit(e, Anchor());
    if (args_.read == MemoryRead::kFrozen) Emit(e, frozen_);
    Learn(e);
    const double scale =
        args_.step_scale.empty() ? 1.0 : args_.step_scale.as<float>()[n % args_.step];
    if (done % args_.step == 0) {
      const double momentum = Gate(args_.momentum, e, 0), keep = Gate(args_.keep, e, 1);
      for (size_t t = 0; t < weights_.size(); ++t) {
        for (size_t i = 0; i < weights_[t].size(); ++i) {
          double step = -scale * gradients_[t][i];
          if (!momenta_.empty()) step = momenta_[t][i] = momentum * momenta_[t][i] + step;
          weights_[t][i] = keep * weights_[t][i] + step;
        }
      }
      gradients_ = Zeros();
    }
    if (args_.stores_anchor() && done % args_.anchor_period == 0) anchors_ = weights_;
    if (args_.frozen_period != 0 && done % args_.frozen_period == 0) frozen_ = weights_;
    if (args_.read == MemoryRead::kRunning) Emit(e, weights_);
    if (args_.read == MemoryRead::kAhead) {
      MemoryTensors ahead = weights_;
      for (size_t t = 0; t < ahead.size(); ++t) {
        for (size_t i = 0; i < ahead[t].size(); ++i) ahead[t][i] -= scale * gradients_[t][i];
      }
      Emit(e, ahead);
    }
  }

  const MemoryTensors& Anchor() const { return anchors_.empty() ? weights_ : anchors_; }
  double Gate(const TensorView& gate, int64_t e, double otherwise) const {
    return gate.empty() ? otherwise : gate.as<double>()[e * args_.q.shape[1] + head_];
  }
  const double* Vector(const TensorView& x, int64_t e) const {
    return x.as<double>() + (e * args_.q.shape[1] + head_) * dim_;
  }
  double Gain(const MemoryTensors& net, int64_t i) const {
    if (network_.trains_gain) return network_.gain_offset + net.back()[static_cast<size_t>(i)];
    return args_.gain.as<float>()[head_ * dim_ + i];
  }
  double Shift(int64_t i) const {
    return args_.shift.empty() ? 0 : args_.shift.as<float>()[head_ * dim_ + i];
  }

  NetworkPass Forward(const MemoryTensors& net, const double* x) const {
    NetworkPass pass;
    pass.z = {Numbers(x, x + dim_)};
    for (int l = 1; l <= network_.depth; ++l) {
      const auto in = static_cast<size_t>(network_.in(l, dim_));
      const auto out = static_cast<size_t>(network_.out(l, dim_));
      const Numbers& w = net[static_cast<size_t>(l - 1)];
      const Numbers& z = pass.z.back();
      Numbers a = network_.biases ? net[static_cast<size_t>(network_.depth + l - 1)] : Numbers(out);
      for (size_t i = 0; i < in; ++i) {
        for (size_t o = 0; o < out; ++o) a[o] += z[i] * w[i * out + o];
      }
      if (l == network_.depth) {
        pass.n = a;
        break;
      }
      Numbers next(out), slope(out);
      for (size_t o = 0; o < out; ++o) {
        const ActivatedNumber activated = ActivateNumber(network_.activation, a[o]);
        next[o] = activated.z;
        slope[o] = activated.slope;
      }
      pass.z.push_back(next);
      pass.slope.push_back(slope);
    }
    pass.out = pass.n;
    if (network_.norm == MemoryNetwork::Norm::kNone) return pass;
    double mean = 0, squares = 0;
    if (network_.norm == MemoryNetwork::Norm::kLayer) {
      for (const double y : pass.n) mean += y / static_cast<double>(dim_);
    }
    for (const double y : pass.n) squares += (y - mean) * (y - mean);
    pass.spread = std::sqrt(squares / static_cast<double>(dim_) + network_.eps);
    for (size_t i = 0; i < pass.n.size(); ++i) {
      pass.n[i] = (pass.n[i] - mean) / pass.spread;
      pass.out[i] =
          x[i] + pass.n[i] * Gain(net, static_cast<int64_t>(i)) + Shift(static_cast<int64_t>(i));
    }
    return pass;
  }

  // Adds the gradient of token e at the anchor.
  void Learn(int64_t e) {
    const MemoryTensors& net = Anchor();
    const NetworkPass pass = Forward(net, Vector(args_.k, e));
    const double* v = Vector(args_.v, e);
    const double rate = args_.rate_scale * Gate(args_.rate, e, 0);
    const auto dim = static_cast<size_t>(dim_);
    Numbers delta(dim);
    for (size_t i = 0; i < dim; ++i) delta[i] = rate * (pass.out[i] - v[i]);
    if (network_.norm != MemoryNetwork::Norm::kNone) {
      double mean = 0, along = 0;
      for (size_t i = 0; i < dim; ++i) {
        if (network_.trains_gain) gradients_.back()[i] += delta[i] * pass.n[i];
        delta[i] *= Gain(net, static_cast<int64_t>(i));
        if (network_.norm == MemoryNetwork::Norm::kLayer)
          mean += delta[i] / static_cast<double>(dim_);
        along += delta[i] * pass.n[i] / static_cast<double>(dim_);
      }
      for (size_t i = 0; i < dim; ++i) {
        delta[i] = (delta[i] - mean - pass.n[i] * along) / pass.spread;
      }
    }
    for (int l = network_.depth; l >= 1; --l) {
      const auto at = static_cast<size_t>(l - 1);
      const Numbers& z = pass.z[at];
      const size_t out = delta.size();
      Numbers before(z.size());
      for (size_t i = 0; i < z.size(); ++i) {
        for (size_t o = 0; o < out; ++o) {
          gradients_[at][i * out + o] += z[i] * delta[o];
          before[i] += net[at][i * out + o] * delta[o];
        }
      }
      if (network_.biases) {
        for (size_t o = 0; o < out; ++o) gradients_[at + network_.depth][o] += delta[o];
      }
      if (l == 1) break;
      for (size_t i = 0; i < z.size(); ++i) before[i] *= pass.slope[at - 1][i];
      delta = before;
    }
  }

  void Emit(int64_t e, const MemoryTensors& net) const {
    const NetworkPass pass = Forward(net, Vector(args_.q, e));
    std::copy(pass.out.begin(), pass.out.end(),
              args_.out.as<double>() + (e * args_.q.shape[1] + head_) * dim_);
  }

  size_t Elements(int t) const { return static_cast<size_t>(network_.shape(t, dim_).elements()); }
  MemoryTensors Zeros() const {
    MemoryTensors zeros;
    for (int t = 0; t < network_.tensors(); ++t) zeros.emplace_back(Elements(t));
    return zeros;
  }
  double* At(const MemoryCopy& copy, int t) const {
    return copy.at[t].as<double>(static_cast<int>(slot_), static_cast<int>(memory_)) +
           head_ * static_cast<int64_t>(Elements(t));
  }
  MemoryTensors Load(const MemoryCopy& copy) const {
    MemoryTensors all;
    for (int t = 0; t < network_.tensors(); ++t) {
      const double* from = At(copy, t);
      all.emplace_back(from, from + Elements(t));
    }
    return all;
  }
  void Store(const MemoryCopy& copy, const MemoryTensors& all) const {
    for (int t = 0; t < network_.tensors(); ++t) {
      std::copy(all[static_cast<size_t>(t)].begin(), all[static_cast<size_t>(t)].end(),
                At(copy, t));
    }
  }
  MemoryTensors Initial(const MemoryInitial& initial, const MemoryTensors& otherwise) const {
    if (initial.at[0].empty()) return otherwise;
    MemoryTensors all;
    for (int t = 0; t < network_.tensors(); ++t) {
      Numbers values(Elements(t));
      reference::Widen(initial.at[t].data, initial.at[t].dtype,
                       head_ * static_cast<int64_t>(values.size()),
                       static_cast<int64_t>(values.size()), values.data());
      all.push_back(std::move(values));
    }
    return all;
  }

  const NeuralMemoryArgs& args_;
  const MemoryNetwork& network_;
  const int64_t slot_, memory_, head_, dim_;
  MemoryTensors weights_, momenta_, anchors_, frozen_, gradients_;
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

void ReferenceKernels::KeepGate(const KeepGateArgs& args) {
  Check(args, reference::kTypes);
  const int64_t heads = args.x.shape[1];
  for (int64_t i = 0; i < args.x.shape.elements(); ++i) {
    const double x = args.x.as<double>()[i];
    double& y = args.y.as<double>()[i];
    if (args.a_log.empty()) {
      y = reference::Sigmoid(-x);
    } else {
      y = std::exp(-std::exp(double{args.a_log.as<float>()[i % heads]}) *
                   reference::ExactSoftplus(x + args.dt_bias.as<float>()[i % heads]));
    }
  }
}

void ReferenceKernels::ChunkMean(const ChunkMeanArgs& args) {
  Check(args, reference::kTypes);
  const int64_t dim = args.x.shape[1];
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  for (int s = 0; s < args.segments.count; ++s) {
    const int32_t slot = args.segments.slots.as<int32_t>()[s];
    if (slot < 0) continue;
    double* sums = args.sums.as<double>(slot, args.segments.memories.as<int32_t>()[s]);
    for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e) {
      if (args.positions.as<int64_t>()[e] % args.chunk == 0) std::fill_n(sums, dim, 0.0);
      for (int64_t i = 0; i < dim; ++i) {
        sums[i] += args.x.as<double>()[e * dim + i];
        args.y.as<double>()[e * dim + i] = sums[i] / static_cast<double>(args.chunk);
      }
    }
  }
}

void ReferenceKernels::Surprise(const SurpriseArgs& args) {
  Check(args, reference::kTypes);
  SurpriseOnHost<double>(args, 0, args.surprise.shape[0]);
}

}  // namespace mneme
