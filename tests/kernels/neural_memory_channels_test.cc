// Gates of channels, which the reference alone has, against a program of their own: Titans' linear
// memory as the paper's appendix writes it, y = M q with columns for vectors and diagonal matrices
// for gates.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/neural_memory_problem.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using SquareMatrix = std::vector<std::vector<double>>;
using Column = std::vector<double>;

// One head of one segment.
class DiagonalMemory {
 public:
  DiagonalMemory(const MemoryProblem& problem, int head)
      : p_(problem), head_(static_cast<size_t>(head)), dim_(static_cast<size_t>(problem.rule.dim)) {
    m_ = a_ = Stored("weights");
    s_ = g_ = SquareMatrix(dim_, Column(dim_));
    if (p_.segments[0].fresh) return;
    if (p_.rule.orders > 0) s_ = Stored("momenta");
    if (p_.rule.has_anchor()) a_ = Stored("anchors");
    if (!p_.rule.has_pairs()) return;
    for (int i = 0; i < p_.starts[0] % p_.rule.step; ++i) {
      const size_t row = head_ * (static_cast<size_t>(p_.rule.step) - 1) + static_cast<size_t>(i);
      Learn(Row(Before("keys"), row), Row(Before("values"), row), Row(Before("rates"), row));
    }
  }

  // The answer to the query of entry e.
  Column Feed(int e) {
    const size_t row = static_cast<size_t>(e * p_.rule.heads) + head_;
    const Column q = Row(p_.q, row);
    const Column of_anchor = Times(Anchor(), q);
    Learn(Row(p_.k, row), Row(p_.v, row), Row(p_.rate, row));
    const int done = p_.starts[0] + e + 1;
    if (done % p_.rule.step == 0) {
      for (size_t o = 0; o < dim_; ++o) {
        for (size_t i = 0; i < dim_; ++i) {
          const double eta = p_.rule.orders > 0 ? Row(p_.momentum, row)[o] : 0;
          s_[o][i] = eta * s_[o][i] - g_[o][i];
          m_[o][i] = (p_.rule.keep ? Row(p_.keep, row)[o] : 1) * m_[o][i] + s_[o][i];
          g_[o][i] = 0;
        }
      }
    }
    if (p_.rule.anchor_period > 0 && done % p_.rule.anchor_period == 0) a_ = m_;
    return p_.rule.read == MemoryRule::Read::kAnchor ? of_anchor : Times(m_, q);
  }

  // Transposed, as memories keep it.
  Column weights() const { return Flat(m_); }
  Column momentum() const { return Flat(s_); }
  Column anchor() const { return Flat(a_); }

 private:
  const SquareMatrix& Anchor() const { return p_.rule.anchor_period == p_.rule.step ? m_ : a_; }
  void Learn(const Column& k, const Column& v, const Column& theta) {
    const Column y = Times(Anchor(), k);
    for (size_t o = 0; o < dim_; ++o) {
      for (size_t i = 0; i < dim_; ++i) g_[o][i] += 2 * theta[o] * (y[o] - v[o]) * k[i];
    }
  }
  Column Row(const std::vector<double>& all, size_t row) const {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row * dim_);
    return Column(begin, begin + static_cast<std::ptrdiff_t>(dim_));
  }
  Column Times(const SquareMatrix& m, const Column& x) const {
    Column y(dim_);
    for (size_t o = 0; o < dim_; ++o) {
      for (size_t i = 0; i < dim_; ++i) y[o] += m[o][i] * x[i];
    }
    return y;
  }
  const MemoryProblem::Field& FieldOf(const char* name) const {
    return p_.fields[static_cast<size_t>(p_.FieldIndex(name))];
  }
  const std::vector<double>& Before(const char* name) const {
    return FieldOf(name).before[static_cast<size_t>(p_.segments[0].slot)];
  }
  SquareMatrix Stored(const char* name) const {
    const auto& all = p_.segments[0].fresh ? FieldOf(name).initial : Before(name);
    SquareMatrix m(dim_, Column(dim_));
    for (size_t o = 0; o < dim_; ++o) {
      for (size_t i = 0; i < dim_; ++i) m[o][i] = all[(head_ * dim_ + i) * dim_ + o];
    }
    return m;
  }
  Column Flat(const SquareMatrix& m) const {
    Column flat;
    for (size_t i = 0; i < dim_; ++i) {
      for (size_t o = 0; o < dim_; ++o) flat.push_back(m[o][i]);
    }
    return flat;
  }

  const MemoryProblem& p_;
  const size_t head_, dim_;
  SquareMatrix m_, s_, a_, g_;
};

std::vector<MemoryRule> ChannelRules() {
  const MemoryRule base = {.heads = 2, .dim = 5, .depth = 1, .channel_gates = true};
  std::vector<MemoryRule> rules;
  const auto add = [&](const char* name, auto change) {
    rules.push_back(base);
    rules.back().name = name;
    change(rules.back());
  };
  add("every token", [](MemoryRule&) {});
  add("steps", [](MemoryRule& r) { r.step = 3, r.anchor_period = 6; });
  add("steps from where the memory is", [](MemoryRule& r) { r.step = r.anchor_period = 2; });
  add("never another anchor", [](MemoryRule& r) { r.anchor_period = 0; });
  add("read at the anchor",
      [](MemoryRule& r) { r.anchor_period = 4, r.read = MemoryRule::Read::kAnchor; });
  add("no momentum", [](MemoryRule& r) { r.orders = 0; });
  add("no forgetting", [](MemoryRule& r) { r.keep = false; });
  return rules;
}

TEST(ChannelGatesTest, AreDiagonalMatricesBesideTheMemory) {
  const std::unique_ptr<Backend> reference = MakeReference();
  uint64_t seed = 3000;
  for (const MemoryRule& rule : ChannelRules()) {
    for (const bool fresh : {true, false}) {
      if (!fresh && rule.anchor_period == 0) continue;  // its anchor is the start's in any case
      SCOPED_TRACE(std::string(rule.name) + (fresh ? ", fresh" : ", goes on"));
      const MemoryProblem problem(++seed, rule, {{.length = 11, .slot = 1, .fresh = fresh}});
      std::vector<DiagonalMemory> plain;
      for (int head = 0; head < rule.heads; ++head) plain.emplace_back(problem, head);
      std::vector<double> out, states;
      for (int e = 0; e < 11; ++e) {
        for (DiagonalMemory& memory : plain) {
          const Column y = memory.Feed(e);
          out.insert(out.end(), y.begin(), y.end());
        }
      }
      const auto append = [&](bool wanted, auto part) {
        for (size_t head = 0; wanted && head < plain.size(); ++head) {
          const Column own = (plain[head].*part)();
          states.insert(states.end(), own.begin(), own.end());
        }
      };
      append(true, &DiagonalMemory::weights);
      append(rule.orders > 0, &DiagonalMemory::momentum);
      append(rule.has_anchor(), &DiagonalMemory::anchor);
      const auto got = problem.Run(*reference);
      EXPECT_LE(RelativeError(got.out, out), 1e-13);
      std::vector<double> copies = got.states;
      copies.resize(states.size());  // behind them, the open step
      EXPECT_LE(RelativeError(copies, states), 1e-13);
    }
  }
}

TEST(ChannelGatesTest, OfOneNumberAreGatesOfHeads) {
  const std::unique_ptr<Backend> reference = MakeReference();
  for (const MemoryRule& rule : ChannelRules()) {
    SCOPED_TRACE(rule.name);
    MemoryRule by_head = rule;
    by_head.channel_gates = false;
    const MemoryProblem heads(31, by_head, {{.length = 6, .slot = 0, .fresh = true}});
    MemoryProblem channels(31, rule, heads.segments);
    const auto repeat = [&](const std::vector<double>& from) {
      std::vector<double> to;
      for (const double gate : from) to.insert(to.end(), static_cast<size_t>(rule.dim), gate);
      return to;
    };
    channels.q = heads.q, channels.k = heads.k, channels.v = heads.v;
    channels.rate = repeat(heads.rate);
    channels.momentum = repeat(heads.momentum);
    channels.keep = repeat(heads.keep);
    channels.fields[0].initial = heads.fields[0].initial;
    EXPECT_THAT(channels.Run(*reference).out, HasSameBits(heads.Run(*reference).out));
  }
}

TEST(ChannelGatesDeathTest, AreRefusedWhereTheyHaveNoMeaning) {
  const std::vector<SegmentSpec> segments = {{.length = 2, .slot = 0, .fresh = true}};
  const MemoryRule rule = ChannelRules()[0];
  MemoryRule deep = rule, normed = rule;
  deep.depth = 2;
  normed.norm = MemoryRule::Norm::kRms;
  const std::unique_ptr<Backend> reference = MakeReference();
  for (const MemoryRule& wrong : {deep, normed}) {
    EXPECT_DEATH(MemoryProblem(1, wrong, segments).Run(*reference), "no single matrix");
  }
  for (const BackendUnderTest& backend : AvailableBackends()) {
    if (backend.device == "reference") continue;
    const auto device = backend.Make();
    EXPECT_DEATH(MemoryProblem(1, rule, segments).Run(*device), "the reference alone");
  }
}

}  // namespace
}  // namespace mneme
