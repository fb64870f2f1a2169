// The network that a memory is, in plain double: what the tests of trained memories compare with.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/models/plain_network.h"

namespace mneme::plain {

inline void Add(Vec& to, const Vec& from, double factor = 1) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += factor * from[i];
}
inline Vec Times(const Vec& a, const Vec& b) {
  Vec y = a;
  for (size_t i = 0; i < y.size(); ++i) y[i] *= b[i];
  return y;
}
// x W of a row x and W [in, out].
inline Vec RowTimes(const Vec& x, const Vec& w) {
  Vec y(w.size() / x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t o = 0; o < y.size(); ++o) y[o] += x[i] * w[i * y.size() + o];
  }
  return y;
}

// The network that a memory is, with its gradient by the chain rule.
struct Net {
  enum { kGelu, kSilu, kGeluTanh } activation = kGelu;
  enum { kNone, kLayer, kRms } norm = kNone;
  double eps = 0, offset = 0;
  bool trains_gain = false;
  Vec gain, shift;        // of a norm whose gain is not trained
  std::vector<Vec> w, b;  // by layer; no biases: empty
  Vec g;                  // the trained gain

  double Activated(double a) const {
    if (activation == kSilu) return Silu(a);
    if (activation == kGelu) return a / 2 * std::erfc(-a / std::sqrt(2.0));
    return a / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a)));
  }
  double Slope(double a) const {
    const double h = 1e-5;  // fourth order: wrong by some 1e-13
    return (8 * (Activated(a + h) - Activated(a - h)) -
            (Activated(a + 2 * h) - Activated(a - 2 * h))) /
           (12 * h);
  }
  double Gain(size_t i) const { return trains_gain ? offset + g[i] : gain[i]; }
  // M(x); and, with `wanted`, rate d/dtheta (1/2 |M(x) - target|^2) added to `sums`.
  Vec Run(const Vec& x, const Vec* target = nullptr, double rate = 0, Net* sums = nullptr) const {
    std::vector<Vec> z = {x}, a;
    for (size_t l = 0; l < w.size(); ++l) {
      Vec sum = RowTimes(z.back(), w[l]);
      if (!b.empty()) Add(sum, b[l]);
      a.push_back(sum);
      if (l + 1 < w.size()) {
        for (double& value : sum) value = Activated(value);
      }
      z.push_back(sum);
    }
    Vec out = z.back(), n = z.back();
    const double width = static_cast<double>(x.size());
    double mean = 0, squares = 0, spread = 1;
    if (norm != kNone) {
      for (const double y : n) mean += norm == kLayer ? y / width : 0;
      for (const double y : n) squares += (y - mean) * (y - mean) / width;
      spread = std::sqrt(squares + AsF32(eps));
      for (size_t i = 0; i < n.size(); ++i) {
        n[i] = (n[i] - mean) / spread;
        out[i] = x[i] + n[i] * Gain(i) + (shift.empty() ? 0 : shift[i]);
      }
    }
    if (target == nullptr) return out;
    Vec delta = out;
    Add(delta, *target, -1);
    for (double& value : delta) value *= rate;
    if (norm != kNone) {
      if (trains_gain) Add(sums->g, Times(delta, n));
      for (size_t i = 0; i < n.size(); ++i) delta[i] *= Gain(i);
      double all = 0;
      for (const double value : delta) all += norm == kLayer ? value / width : 0;
      const double along = Dot(delta, n) / width;
      for (size_t i = 0; i < n.size(); ++i) delta[i] = (delta[i] - all - n[i] * along) / spread;
    }
    for (size_t l = w.size(); l-- > 0;) {
      const size_t columns = delta.size();
      Vec before(z[l].size());
      for (size_t i = 0; i < before.size(); ++i) {
        for (size_t o = 0; o < columns; ++o) {
          sums->w[l][i * columns + o] += z[l][i] * delta[o];
          before[i] += w[l][i * columns + o] * delta[o];
        }
        if (l > 0) before[i] *= Slope(a[l - 1][i]);
      }
      if (!b.empty()) Add(sums->b[l], delta);
      delta = before;
    }
    return out;
  }
  // this = factor * this + by * other, all that is trained.
  void Blend(double factor, double by, const Net& other) {
    const auto blend = [&](Vec& to, const Vec& from) {
      for (size_t i = 0; i < to.size(); ++i) to[i] = factor * to[i] + by * from[i];
    };
    for (size_t l = 0; l < w.size(); ++l) blend(w[l], other.w[l]);
    for (size_t l = 0; l < b.size(); ++l) blend(b[l], other.b[l]);
    blend(g, other.g);
  }
};

}  // namespace mneme::plain
