#include "kernels/reference/memory_network.h"

#include <cmath>
#include <numbers>

#include "kernels/reference/reference_kernels.h"

namespace mneme::reference {
namespace {

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
      const double s = Sigmoid(a);
      return {a * s, s * (1 + a * (1 - s))};
    }
  }
  return {0, 0};
}

}  // namespace

double HeadNetwork::Gain(const MemoryTensors& net, int64_t i) const {
  if (network_.trains_gain) return network_.gain_offset + net.back()[static_cast<size_t>(i)];
  return gain_.as<float>()[head_ * dim_ + i];
}

double HeadNetwork::Shift(int64_t i) const {
  return shift_.empty() ? 0 : shift_.as<float>()[head_ * dim_ + i];
}

NetworkPass HeadNetwork::Forward(const MemoryTensors& net, const double* x) const {
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
    const auto at = static_cast<int64_t>(i);
    pass.n[i] = (pass.n[i] - mean) / pass.spread;
    pass.out[i] = x[i] + pass.n[i] * Gain(net, at) + Shift(at);
  }
  return pass;
}

void HeadNetwork::AddGradient(const MemoryTensors& net, const NetworkPass& pass, const double* v,
                              const Numbers& rate, MemoryTensors& sums) const {
  const auto dim = static_cast<size_t>(dim_);
  Numbers delta(dim);
  for (size_t i = 0; i < dim; ++i) delta[i] = rate[i % rate.size()] * (pass.out[i] - v[i]);
  if (network_.norm != MemoryNetwork::Norm::kNone) {
    double mean = 0, along = 0;
    for (size_t i = 0; i < dim; ++i) {
      if (network_.trains_gain) sums.back()[i] += delta[i] * pass.n[i];
      delta[i] *= Gain(net, static_cast<int64_t>(i));
      if (network_.norm == MemoryNetwork::Norm::kLayer) {
        mean += delta[i] / static_cast<double>(dim_);
      }
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
        sums[at][i * out + o] += z[i] * delta[o];
        before[i] += net[at][i * out + o] * delta[o];
      }
    }
    if (network_.biases) {
      for (size_t o = 0; o < out; ++o) sums[at + network_.depth][o] += delta[o];
    }
    if (l == 1) break;
    for (size_t i = 0; i < z.size(); ++i) before[i] *= pass.slope[at - 1][i];
    delta = before;
  }
}

}  // namespace mneme::reference
