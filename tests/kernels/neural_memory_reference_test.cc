// The reference of NeuralMemory: its gradients against finite differences, and its steps against a
// program of their own, which differentiates by carrying derivatives along.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/neural_memory_problem.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using NeuralRead = NeuralMemoryArgs::Read;
using Norm = MemoryNetwork::Norm;
using MemoryActivation = MemoryNetwork::Activation;

// What a step takes off each weight is the derivative of the loss.
TEST(NeuralMemoryReferenceTest, GradientIsThatOfFiniteDifferences) {
  const std::unique_ptr<Backend> reference = MakeReference();
  uint64_t seed = 100;
  for (const MemoryActivation activation :
       {MemoryActivation::kGelu, MemoryActivation::kGeluTanh, MemoryActivation::kSilu}) {
    for (const Norm norm : {Norm::kNone, Norm::kLayer, Norm::kRms}) {
      for (int depth = 1; depth <= kMaxMemoryDepth; ++depth) {
        const bool odd = ++seed % 2 == 1;
        const MemoryRule rule = {.heads = 1,
                                 .dim = 6,
                                 .depth = depth,
                                 .hidden = 5,
                                 .biases = odd,
                                 .activation = activation,
                                 .norm = norm,
                                 .trains_gain = norm != Norm::kNone && !odd,
                                 .gain_offset = 1,
                                 .orders = 0,
                                 .keep = false,
                                 .loss = false};
        MemoryProblem problem(seed, rule, {{.length = 1, .slot = 0}});
        problem.rate = {1};
        problem.q = problem.k;
        Workbench bench(*reference);
        MemoryProblem::Loaded loaded = problem.Load(bench);
        bench.kernels().NeuralMemory(loaded.args);
        const auto loss = [&](MemoryProblem::Loaded& at) {
          at.args.k = {};  // read only
          bench.kernels().NeuralMemory(at.args);
          const std::vector<double> out = bench.Read(at.args.out);
          double sum = 0;
          for (size_t i = 0; i < out.size(); ++i) {
            sum += (out[i] - problem.v[i]) * (out[i] - problem.v[i]);
          }
          return sum;
        };
        for (size_t t = 0; t < problem.fields.size(); ++t) {
          const std::vector<double>& before = problem.fields[t].before[0];
          const std::vector<double> after = loaded.pools[t]->Read(0, 0);
          for (size_t i = 0; i < after.size(); i += 3) {
            constexpr double kStep = 1e-4;
            double sides[2];
            for (const int side : {0, 1}) {
              MemoryProblem::Loaded moved = problem.Load(bench);
              std::vector<double> values = before;
              values[i] += side == 0 ? -kStep : kStep;
              moved.pools[t]->Write(0, 0, values);
              sides[side] = loss(moved);
            }
            const double want = (sides[1] - sides[0]) / (2 * kStep);
            // Third derivatives times the step squared, and roundings over the step.
            EXPECT_NEAR(before[i] - after[i], want, 1e-5 * (1 + std::abs(want)))
                << "seed " << seed << ", tensor " << t << ", element " << i;
          }
        }
      }
    }
  }
}

// A number, and its derivative by one weight.
struct Dual {
  double value = 0, slope = 0;
  Dual(double v = 0, double s = 0) : value(v), slope(s) {}
};
Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.slope + b.slope}; }
Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.slope - b.slope}; }
Dual operator*(Dual a, Dual b) {
  return {a.value * b.value, a.slope * b.value + a.value * b.slope};
}
Dual operator/(Dual a, Dual b) {
  return {a.value / b.value, (a.slope * b.value - a.value * b.slope) / (b.value * b.value)};
}
Dual SquareRoot(Dual a) { return {std::sqrt(a.value), a.slope / (2 * std::sqrt(a.value))}; }
Dual Gelu(Dual a) {
  const Dual phi{0.5 * std::erfc(-a.value / std::numbers::sqrt2),
                 a.slope * std::exp(-a.value * a.value / 2) / std::sqrt(2 * std::numbers::pi)};
  return a * phi;
}

using Matrix = std::vector<std::vector<double>>;

Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b[0].size(); ++j) {
      for (size_t l = 0; l < b.size(); ++l) c[i][j] += a[i][l] * b[l][j];
    }
  }
  return c;
}

// One head of gelu's networks with a trained gain, token by token, with all options of a step.
class PlainMemory {
 public:
  using Tensors = std::vector<std::vector<double>>;

  explicit PlainMemory(const MemoryProblem& problem) : p_(problem), rule_(problem.rule) {
    for (int t = 0; t < rule_.network().tensors(); ++t) {
      w_.push_back(problem.fields[static_cast<size_t>(t)].initial);
    }
    anchor_ = w_;
    before_ = Zeros();
    momenta_.assign(static_cast<size_t>(rule_.orders), Zeros());
    if (rule_.residual) {
      for (int t = 0; t < rule_.network().tensors(); ++t) {
        residual_.push_back(
            problem.fields[static_cast<size_t>(problem.FieldIndex("residual", t))].before[0]);
      }
    }
  }

  void Run() {
    const int tokens = Entries(p_.segments);
    for (int first = 0; first < tokens; first += rule_.step) {
      const bool whole = first + rule_.step <= tokens;
      const int last = std::min(first + rule_.step, tokens) - 1;
      for (int e = first; e < last + (whole ? 0 : 1); ++e) Ask(e);
      if (whole) {
        if (rule_.read == NeuralRead::kAnchor) Ask(last);
        Step(first, last);
        if (rule_.anchor_period > 0 && (last + 1) % rule_.anchor_period == 0) Refresh();
        if (rule_.read == NeuralRead::kRunning) Ask(last);
      } else {
        for (int i = first * rule_.keys; i < tokens * rule_.keys; ++i)
          loss.push_back(Loss(anchor_, i));
      }
    }
  }

  std::vector<double> out, loss;
  // As MemoryProblem::States has them.
  std::vector<double> States() const {
    std::vector<double> all;
    const auto append = [&](const std::vector<double>& values) {
      all.insert(all.end(), values.begin(), values.end());
    };
    for (const auto& tensor : w_) append(tensor);
    for (size_t t = 0; rule_.orders > 0 && t < w_.size(); ++t) {
      for (const Tensors& order : momenta_) append(order[t]);
    }
    if (rule_.has_anchor()) {
      for (const auto& tensor : anchor_) append(tensor);
    }
    if (rule_.before) {
      for (const auto& tensor : before_) append(tensor);
    }
    for (const auto& tensor : residual_) append(tensor);
    return all;
  }

 private:
  Tensors Zeros() const {
    Tensors zeros;
    for (const auto& tensor : w_) zeros.emplace_back(tensor.size());
    return zeros;
  }

  // M(x), with the derivative by element `i` of tensor `t`.
  std::vector<Dual> Answer(const Tensors& net, const double* x, size_t t, size_t i) const {
    const auto dim = static_cast<size_t>(rule_.dim);
    std::vector<Dual> z(x, x + dim);
    for (int l = 0; l < rule_.depth; ++l) {
      const auto& w = net[static_cast<size_t>(l)];
      std::vector<Dual> a(w.size() / z.size());
      for (size_t at = 0; at < w.size(); ++at) {
        const Dual own{w[at], t == static_cast<size_t>(l) && i == at ? 1.0 : 0.0};
        a[at % a.size()] = a[at % a.size()] + z[at / a.size()] * own;
      }
      z = a;
      if (l + 1 == rule_.depth) break;
      for (Dual& value : z) value = Gelu(value);
    }
    Dual mean, variance;
    for (const Dual& y : z) mean = mean + y / Dual(rule_.dim);
    for (const Dual& y : z) variance = variance + (y - mean) * (y - mean) / Dual(rule_.dim);
    const Dual spread = SquareRoot(variance + Dual(rule_.network().eps));
    for (size_t c = 0; c < dim; ++c) {
      const Dual g{net.back()[c], t + 1 == net.size() && i == c ? 1.0 : 0.0};
      z[c] = Dual(x[c]) + (z[c] - mean) / spread * (Dual(1) + g);
    }
    return z;
  }
  std::vector<Dual> Answer(const Tensors& net, const double* x) const {
    return Answer(net, x, net.size(), 0);
  }
  void Ask(int e) {
    for (const Dual& y :
         Answer(rule_.read == NeuralRead::kAnchor ? anchor_ : w_, &p_.q[e * rule_.dim])) {
      out.push_back(y.value);
    }
  }
  // |M(k) - v|^2, of pair i.
  double Loss(const Tensors& net, int i) const {
    const std::vector<Dual> answer = Answer(net, &p_.k[i * rule_.dim]);
    double sum = 0;
    for (int c = 0; c < rule_.dim; ++c) {
      const double off = answer[static_cast<size_t>(c)].value - p_.v[i * rule_.dim + c];
      sum += off * off;
    }
    return sum;
  }

  void Step(int first, int last) {
    Tensors net = rule_.anchor_period == rule_.step && !rule_.transition ? w_ : anchor_;
    for (size_t t = 0; rule_.residual && t < net.size(); ++t) {
      for (size_t i = 0; i < net[t].size(); ++i)
        net[t][i] += p_.residual_mix[last] * residual_[t][i];
    }
    const int begin = first * rule_.keys, end = (last + 1) * rule_.keys;
    for (int i = begin; i < end; ++i) loss.push_back(Loss(net, i));
    const Tensors old = w_;
    for (size_t t = 0; t < net.size(); ++t) {
      std::vector<double> g(net[t].size());
      for (size_t i = 0; i < g.size(); ++i) {
        for (int pair = begin; pair < end; ++pair) {
          const std::vector<Dual> answer = Answer(net, &p_.k[pair * rule_.dim], t, i);
          for (int c = 0; c < rule_.dim; ++c) {
            const Dual& y = answer[static_cast<size_t>(c)];
            g[i] += 2 * p_.rate[pair] * (y.value - p_.v[pair * rule_.dim + c]) * y.slope;
          }
        }
      }
      const std::vector<double> u = Update(t, g, last);
      for (size_t i = 0; i < g.size(); ++i) {
        w_[t][i] = (rule_.keep ? p_.keep[last] : 1) * w_[t][i] + u[i];
      }
    }
    before_ = old;
  }

  std::vector<double> Update(size_t t, std::vector<double> g, int e) {
    const double limit = rule_.max_grad_norm;
    if (limit > 0) {
      double norm = 0;
      for (const double x : g) norm = std::hypot(norm, x);
      const double clamped = limit / 2 * std::tanh(norm / (limit / 2)) + limit / 2;
      for (double& x : g) x *= clamped / norm;
    }
    const double rate = rule_.tensor_rates ? p_.tensor_rates[e * w_.size() + t] : 1;
    const double scale = rule_.scaled ? p_.scale[rule_.step - 1] : 1;
    std::vector<double> chain(static_cast<size_t>(rule_.orders) + 1), u = g;
    double weights = 0;
    for (int j = 0; j < rule_.mix; ++j) weights += std::exp(p_.mix[e * rule_.mix + j]);
    for (size_t i = 0; i < g.size(); ++i) {
      chain[0] = -g[i] * rate * scale;
      for (int o = 1; o <= rule_.orders; ++o) {
        double& s = momenta_[static_cast<size_t>(o - 1)][t][i];
        chain[o] = s = p_.momentum[e * rule_.orders + o - 1] * s + chain[o - 1];
      }
      u[i] = chain.back();
      if (rule_.mix == 0) continue;
      u[i] = 0;
      for (int j = 0; j < rule_.mix; ++j) {
        u[i] += std::exp(p_.mix[e * rule_.mix + j]) / weights *
                chain[static_cast<size_t>(j + rule_.orders + 1 - rule_.mix)];
      }
    }
    const Shape shape = rule_.network().shape(static_cast<int>(t), rule_.dim);
    return rule_.spectral_norm && shape.rank == 2 ? Orthogonal(u, shape) : u;
  }
  // As X (a + b X^T X + c (X^T X)^2), which is the same on either side.
  static std::vector<double> Orthogonal(const std::vector<double>& u, const Shape& shape) {
    const auto rows = static_cast<size_t>(shape[0]), cols = static_cast<size_t>(shape[1]);
    double norm = 0;
    for (const double x : u) norm = std::hypot(norm, x);
    Matrix x(rows, std::vector<double>(cols)), turned(cols, std::vector<double>(rows));
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < cols; ++j) x[i][j] = u[i * cols + j] / std::max(norm, 1e-7);
    }
    for (int step = 0; step < 5; ++step) {
      for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < cols; ++j) turned[j][i] = x[i][j];
      }
      const Matrix third = Product(x, Product(turned, x));
      const Matrix fifth = Product(third, Product(turned, x));
      for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < cols; ++j) {
          x[i][j] = 3.4445 * x[i][j] - 4.7750 * third[i][j] + 2.0315 * fifth[i][j];
        }
      }
    }
    std::vector<double> flat;
    for (const auto& row : x) flat.insert(flat.end(), row.begin(), row.end());
    return flat;
  }
  void Refresh() {
    const double gate = rule_.transition ? 1 / (1 + std::exp(-p_.transition)) : 1;
    for (size_t t = 0; t < w_.size(); ++t) {
      for (size_t i = 0; i < w_[t].size(); ++i) {
        w_[t][i] = (1 - gate) * anchor_[t][i] + gate * w_[t][i];
      }
    }
    anchor_ = w_;
  }

  const MemoryProblem& p_;
  const MemoryRule& rule_;
  Tensors w_, anchor_, before_, residual_;
  std::vector<Tensors> momenta_;
};

TEST(NeuralMemoryReferenceTest, TakesTheStepsOfAPlainProgram) {
  const std::unique_ptr<Backend> reference = MakeReference();
  const MemoryRule base = {.heads = 1,
                           .dim = 4,
                           .hidden = 6,
                           .norm = Norm::kLayer,
                           .trains_gain = true,
                           .gain_offset = 1};
  std::vector<MemoryRule> rules;
  const auto add = [&](const char* name, auto change) {
    MemoryRule rule = base;
    rule.name = name;
    change(rule);
    rules.push_back(rule);
  };
  add("every token", [](MemoryRule&) {});
  add("one matrix", [](MemoryRule& r) { r.depth = 1, r.step = 2, r.anchor_period = 4; });
  add("never another anchor", [](MemoryRule& r) { r.step = 4, r.anchor_period = 0; });
  add("pairs", [](MemoryRule& r) { r.keys = 3, r.step = 2, r.anchor_period = 2; });
  add("no momentum",
      [](MemoryRule& r) { r.orders = 0, r.read = NeuralRead::kAnchor, r.anchor_period = 3; });
  add("orders", [](MemoryRule& r) { r.orders = 3, r.anchor_period = 5; });
  add("a mix", [](MemoryRule& r) { r.orders = 2, r.mix = 2, r.step = 2, r.anchor_period = 4; });
  add("a mix with the gradient", [](MemoryRule& r) { r.orders = 2, r.mix = 3; });
  add("rates", [](MemoryRule& r) { r.tensor_rates = r.scaled = true; });
  add("clamped", [](MemoryRule& r) { r.max_grad_norm = 0.2, r.step = 3, r.anchor_period = 6; });
  add("a residual",
      [](MemoryRule& r) { r.residual = r.before = true, r.step = 3, r.anchor_period = 6; });
  add("gated", [](MemoryRule& r) { r.transition = true, r.step = 2, r.anchor_period = 4; });
  add("gated at each step", [](MemoryRule& r) { r.transition = true; });
  add("orthogonal", [](MemoryRule& r) { r.spectral_norm = true, r.anchor_period = 3; });
  add("all", [](MemoryRule& r) {
    r.depth = 3, r.keys = 2, r.step = 2, r.anchor_period = 4, r.orders = 2, r.mix = 3;
    r.tensor_rates = r.residual = r.before = r.transition = r.spectral_norm = true;
    r.max_grad_norm = 0.5;
  });
  uint64_t seed = 900;
  for (const MemoryRule& rule : rules) {
    const MemoryProblem problem(++seed, rule, {{.length = 11, .slot = 0, .fresh = true}});
    PlainMemory plain(problem);
    plain.Run();
    const auto got = problem.Run(*reference);
    SCOPED_TRACE(rule.name);
    // Directions that orthogonal updates amplify, roundings included, at each of up to 11 steps.
    const double bound = rule.spectral_norm ? 1e-8 : 1e-12;
    EXPECT_LE(RelativeError(got.out, plain.out), bound);
    EXPECT_LE(RelativeError(got.loss, plain.loss), bound);
    std::vector<double> states = got.states;
    if (rule.has_pairs()) states.resize(plain.States().size());  // behind all copies
    EXPECT_LE(RelativeError(states, plain.States()), bound);
  }
}

}  // namespace
}  // namespace mneme
