// Rules that HoldsBack(), with writes pending, against float64 token by token: on backends that
// hold writes back.
#include "kernels/held_rules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"
#include "gtest/gtest.h"
#include "kernels/recurrent_steps.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

struct HeldCase {
  std::string name;
  MatrixRule rule;
  int heads, key_dim, value_dim;
  int slots;  // so many that all at once are worth holding back for
  int most_writes = kHeldWrites;
  int groups = 0;  // of heads that share keys and queries; 0: none do

  int key_heads() const { return groups > 0 ? groups : heads; }
};

std::vector<HeldCase> Cases() {
  using Decay = MatrixRule::Decay;
  using Correction = MatrixRule::Correction;
  const auto rule = [](Decay decay, Correction correction) {
    return MatrixRule{.decay = decay, .correction = correction};
  };
  return {{"kda", rule(Decay::kKey, Correction::kDelta), 4, 128, 128, 44},
          {"gla", rule(Decay::kKey, Correction::kNone), 3, 128, 200, 50},
          {"gla, keys of 64", rule(Decay::kKey, Correction::kNone), 4, 64, 324, 36},
          {"kda, keys of 256", rule(Decay::kKey, Correction::kDelta), 2, 256, 260, 30},
          {"delta_net", rule(Decay::kNone, Correction::kDelta), 4, 128, 128, 44, 16},
          {"delta_net, keys of 64", rule(Decay::kNone, Correction::kDelta), 4, 64, 256, 44, 16},
          {"linear_attn", rule(Decay::kNone, Correction::kNone), 2, 256, 256, 24},
          {"mamba2", rule(Decay::kHead, Correction::kNone), 8, 128, 64, 40, kHeldWrites, 2},
          {"retnet", rule(Decay::kConstant, Correction::kNone), 2, 256, 512, 20}};
}

// The memories of some sessions, on a backend and in float64.
class HeldMemories {
 public:
  static constexpr int kMemories = 2;

  HeldMemories(Backend& backend, uint64_t seed, const HeldCase& held)
      : held_(held),
        capacity_(std::min<int>(backend.state_format().pending_writes, held.most_writes)),
        decay_width_(held.rule.decay == MatrixRule::Decay::kKey ? held.key_dim : 1),
        random_(seed),
        bench_(backend),
        written_(bench_, held.slots, kMemories, 1, DType::kU8),
        states_(bench_, held.slots, kMemories, StateElements(), DType::kF32),
        phase_(bench_, held.slots, 1, 1, DType::kI32),
        range_(bench_, held.slots, kMemories, 2, DType::kI32),
        keys_(NewPending(held.key_heads(), held.key_dim)),
        updates_(NewPending(held.heads, held.value_dim)),
        decays_(NewPending(held.heads, decay_width_)),
        rows_(static_cast<size_t>(held.slots) * kMemories) {
    for (int slot = 0; slot < held.slots; ++slot) {
      const int32_t phase = 5 * slot % (capacity_ + 1);
      backend.CopyFromHost(phase_.view().At(slot, 0), &phase, sizeof(phase));
      for (int memory = 0; memory < kMemories; ++memory) written_.Write(slot, memory, {0});
    }
    for (int head = 0; head < held.heads; ++head) constant_.push_back(-0.02 * (head + 1));
    for (double& decay : constant_) decay = RoundTo(decay, DType::kF32);
  }

  // A token of some memories of the first `slots` slots, or up to `longest`. Compares the outputs.
  void Step(int slots, double chance, int longest) {
    std::vector<SegmentSpec> list;
    for (int memory = 0; memory < kMemories; ++memory) {
      for (int slot = 0; slot < slots; ++slot) {
        const int length = random_.Chance(chance) ? random_.Int(1, longest) : 0;
        const bool padding = random_.Chance(0.05);
        const bool fresh = Rows(slot, memory).empty();
        list.push_back({length, padding ? -1 : slot, memory, !padding && length > 0 && fresh});
        if (!list.back().fresh) continue;
        Rows(slot, memory).assign(StateElements(), 0.0);
        written_.Write(slot, memory, {1});
      }
    }
    const std::vector<std::byte> before = states_.Bytes(), keys_before = keys_.Bytes(),
                                 updates_before = updates_.Bytes(), decays_before = decays_.Bytes(),
                                 range_before = range_.Bytes();
    const int n = Entries(list), heads = held_.heads;
    Workbench bench(bench_.backend());
    const int key_heads = held_.key_heads(), heads_of_key = heads / key_heads;
    const std::vector<double> q = UnitVectors(n * key_heads), k = UnitVectors(n * key_heads);
    std::vector<double> v = random_.NormalValues(int64_t{n} * heads * held_.value_dim);
    const std::vector<double> beta = random_.UniformValues(n * heads, 0, 1);
    std::vector<double> decay;
    for (int i = 0; i < n * heads * decay_width_; ++i) {
      const bool forgets = random_.Chance(0.002);
      decay.push_back(forgets ? -INFINITY
                              : RoundTo(-std::exp(random_.Uniform(-9, 0)), DType::kF32));
    }
    MatrixMemoryArgs args = {.rule = held_.rule,
                             .q = bench.Activations(q, {n, key_heads, held_.key_dim}),
                             .k = bench.Activations(k, {n, key_heads, held_.key_dim}),
                             .v = bench.Activations(v, {n, heads, held_.value_dim}),
                             .scale = 0.5f,
                             .segments = Upload(bench, list),
                             .state = states_.view(),
                             .pending = Pending(),
                             .out = bench.NewActivations({n, heads, held_.value_dim})};
    for (const SegmentSpec& segment : list) {
      args.segments.longest = std::max(args.segments.longest, segment.length);
    }
    if (held_.rule.decay == MatrixRule::Decay::kKey) {
      args.log_decay = bench.Activations(decay, {n, heads, held_.key_dim});
    } else if (held_.rule.decay == MatrixRule::Decay::kHead) {
      args.log_decay = bench.Activations(decay, {n, heads});
    } else if (held_.rule.decay == MatrixRule::Decay::kConstant) {
      args.log_decay = bench.Floats(constant_, {heads});
    }
    if (held_.rule.correction == MatrixRule::Correction::kDelta) {
      args.beta = bench.Activations(beta, {n, heads});
    }
    std::vector<double> skipped(v.size());
    RecurrentSteps* const steps = RecurrentStepsOf(bench.kernels());
    if (held_.rule.decay == MatrixRule::Decay::kHead && args.segments.longest == 1 &&
        steps != nullptr) {
      TakeLayerStep(bench, *steps, args, v, decay, skipped);
    } else {
      bench.kernels().MatrixMemory(args);
    }

    std::vector<double> want;
    std::vector<int> active;
    const std::vector<int> offsets = Offsets(list);
    for (size_t s = 0; s < list.size(); ++s) {
      if (!list[s].active()) continue;
      active.push_back(static_cast<int>(s));
      for (int e = offsets[s]; e < offsets[s + 1]; ++e) {
        for (int head = 0; head < heads; ++head) {
          const int64_t at = int64_t{e} * heads + head;
          TakeToken(
              &Rows(list[s].slot, list[s].memory)[int64_t{head} * held_.value_dim * held_.key_dim],
              head, &q[at / heads_of_key * held_.key_dim], &k[at / heads_of_key * held_.key_dim],
              &v[at * held_.value_dim], &decay[at * decay_width_], beta[at],
              &skipped[at * held_.value_dim], want);
        }
      }
    }
    const std::vector<double> got =
        PickEntries(bench.Read(args.out), heads * held_.value_dim, list, active);
    EXPECT_LE(RelativeError(got, want), kBound);
    const auto touched = [&list](int slot, int memory) { return IsActive(list, slot, memory); };
    EXPECT_TRUE(states_.OnlyTouched(before, touched)) << "another matrix was written";
    EXPECT_TRUE(keys_.OnlyTouched(keys_before, touched)) << "another memory's keys";
    EXPECT_TRUE(updates_.OnlyTouched(updates_before, touched)) << "another memory's updates";
    EXPECT_TRUE(decays_.OnlyTouched(decays_before, touched)) << "another memory's decays";
    EXPECT_TRUE(range_.OnlyTouched(range_before, touched)) << "another memory's range";
    for (const SegmentSpec& segment : list) {
      held_back_ = held_back_ || (segment.active() && Pends(segment.slot, segment.memory));
    }
  }

  void Settle() {
    std::vector<int> slots;
    for (int slot = 0; slot < held_.slots; ++slot) slots.push_back(slot);
    bench_.kernels().SettleMemories({.slots = bench_.Ints(slots),
                                     .memories = kMemories,
                                     .written = written_.view(),
                                     .heads = held_.key_heads(),
                                     .key_dim = held_.key_dim,
                                     .value_heads = held_.heads,
                                     .value_dim = held_.value_dim,
                                     .state = states_.view(),
                                     .pending = Pending()});
    std::vector<double> got, want;
    for (int slot = 0; slot < held_.slots; ++slot) {
      for (int memory = 0; memory < kMemories; ++memory) {
        const std::vector<double>& rows = Rows(slot, memory);
        if (rows.empty()) continue;
        EXPECT_FALSE(Pends(slot, memory)) << "slot " << slot << ", memory " << memory;
        const std::vector<double> state = states_.Read(slot, memory);
        got.insert(got.end(), state.begin(), state.end());
        want.insert(want.end(), rows.begin(), rows.end());
      }
    }
    EXPECT_LE(RelativeError(got, want), kBound);
  }

  bool held_back() const { return held_back_; }
  SeededRandom& random() { return random_; }

 private:
  // Some twenty roundings of every number before it has faded.
  static constexpr double kBound = 1e-5;

  int64_t StateElements() const { return int64_t{held_.heads} * held_.value_dim * held_.key_dim; }
  SlabPool NewPending(int heads, int width) {
    return SlabPool(bench_, held_.slots, kMemories, int64_t{capacity_} * heads * width,
                    DType::kF32);
  }
  PendingWrites Pending() {
    return {.capacity = capacity_,
            .phase = phase_.view(),
            .range = range_.view(),
            .keys = keys_.view(),
            .updates = updates_.view(),
            .log_decay = decays_.view()};
  }
  std::vector<double>& Rows(int slot, int memory) { return rows_[slot * kMemories + memory]; }
  bool Pends(int slot, int memory) {
    int32_t range[2];
    bench_.backend().CopyToHost(range, range_.view().At(slot, memory), sizeof(range));
    return range[0] != range[1];
  }
  std::vector<double> UnitVectors(int count) {
    std::vector<double> values = random_.NormalValues(int64_t{count} * held_.key_dim);
    for (double& value : values) {
      value = RoundTo(value / std::sqrt(static_cast<double>(held_.key_dim)), DType::kF32);
    }
    return values;
  }

  // Mamba2LayerStep, and what v, decays and outputs are by it.
  void TakeLayerStep(Workbench& bench, RecurrentSteps& steps, const MatrixMemoryArgs& memory,
                     std::vector<double>& v, std::vector<double>& decay,
                     std::vector<double>& skipped) {
    const int heads = held_.heads, dim = held_.value_dim;
    const auto n = static_cast<int>(decay.size()) / heads;
    const auto rounded = [](std::vector<double> values) {
      for (double& value : values) value = RoundTo(value, DType::kF32);
      return values;
    };
    const std::vector<double> dt = rounded(random_.UniformValues(n * heads, -4, 2));
    const std::vector<double> bias = rounded(random_.UniformValues(heads, -1, 1));
    const std::vector<double> rates = rounded(random_.UniformValues(heads, -2, -0.01));
    const std::vector<double> skip = rounded(random_.UniformValues(heads * dim, -1, 1));
    const TensorView u = memory.v;
    Mamba2StepArgs args = {
        .discretize = {.u = u,
                       .dt = bench.Activations(dt, {n, heads}),
                       .dt_bias = bench.Floats(bias, {heads}),
                       .a = bench.Floats(rates, {heads}),
                       .least_step = 0.05f,
                       .most_step = 1.5f,
                       .log_decay = memory.log_decay,
                       .v = bench.NewActivations({n, heads, dim})},
        .memory = memory,
        .skip = {.x = u, .scale = bench.Floats(skip, {heads * dim}), .y = memory.out}};
    args.memory.v = args.discretize.v;
    args.skip.x.shape = args.skip.y.shape = {n, heads * dim};
    ASSERT_TRUE(steps.Mamba2LayerStep({.convolutions = {}, .step = args, .norm = nullptr}));
    for (int i = 0; i < n * heads; ++i) {
      const double z = dt[i] + bias[i % heads];
      const double step = std::min(1.5, std::max(double{0.05f}, std::log1p(std::exp(z))));
      decay[i] = step * rates[i % heads];
      for (int j = 0; j < dim; ++j) {
        const size_t at = static_cast<size_t>(i) * dim + j;
        skipped[at] = skip[i % heads * dim + j] * v[at];
        v[at] *= step;
      }
    }
  }

  // One head's matrix `s`; appends the outputs.
  void TakeToken(double* s, int head, const double* q, const double* k, const double* v,
                 const double* log_decay, double beta, const double* skipped,
                 std::vector<double>& out) const {
    const int n = held_.key_dim;
    std::vector<double> decay(static_cast<size_t>(n), 1.0);
    for (int j = 0; j < n; ++j) {
      if (held_.rule.decay == MatrixRule::Decay::kKey) decay[j] = std::exp(log_decay[j]);
      if (held_.rule.decay == MatrixRule::Decay::kConstant) decay[j] = std::exp(constant_[head]);
      if (held_.rule.decay == MatrixRule::Decay::kHead) decay[j] = std::exp(*log_decay);
    }
    for (int i = 0; i < held_.value_dim; ++i, s += n) {
      double recall = 0, read = 0;
      for (int j = 0; j < n; ++j) recall += (s[j] *= decay[j]) * k[j];
      const bool delta = held_.rule.correction == MatrixRule::Correction::kDelta;
      const double u = delta ? beta * (v[i] - recall) : v[i];
      for (int j = 0; j < n; ++j) read += (s[j] += u * k[j]) * q[j];
      out.push_back(0.5 * read + skipped[i]);
    }
  }

  const HeldCase held_;
  const int capacity_, decay_width_;
  SeededRandom random_;
  Workbench bench_;
  SlabPool written_, states_, phase_, range_, keys_, updates_, decays_;
  std::vector<double> constant_;
  std::vector<std::vector<double>> rows_;
  bool held_back_ = false;
};

class HeldRulesTest : public testing::TestWithParam<std::tuple<HeldCase, BackendUnderTest>> {
 protected:
  std::unique_ptr<Backend> backend_ = std::get<1>(GetParam()).Make(2, DType::kF32);
};

// Few tokens are written at once, many held back, longer segments find writes pending: a memory
// sees all of it, in any order.
TEST_P(HeldRulesTest, BatchesOfEverySizeShareMemories) {
  if (backend_->state_format().pending_writes == 0) GTEST_SKIP() << "holds nothing back";
  const HeldCase& held = std::get<0>(GetParam());
  ASSERT_TRUE(HoldsBack(held.rule, held.key_dim, held.value_dim, DType::kF32));
  HeldMemories memories(*backend_, /*seed=*/41, held);
  memories.Step(held.slots, 1, 1);
  for (int step = 0; step < 40; ++step) {
    // All at once, some of them, or few.
    const int some = memories.random().Int(held.slots / 3, held.slots / 2);
    const int slots = memories.random().Chance(0.5)   ? held.slots
                      : memories.random().Chance(0.6) ? some
                                                      : memories.random().Int(1, 4);
    const int longest = memories.random().Chance(0.1) ? 5 : 1;
    memories.Step(slots, 0.97, longest);
    if (HasFailure()) return;
  }
  memories.Settle();
  for (int step = 0; step < 3; ++step) memories.Step(held.slots, 0.9, 1);
  memories.Settle();
  EXPECT_TRUE(memories.held_back()) << "nothing was ever pending";
}

INSTANTIATE_TEST_SUITE_P(Backends, HeldRulesTest,
                         testing::Combine(testing::ValuesIn(Cases()),
                                          testing::ValuesIn(AvailableBackends())),
                         [](const testing::TestParamInfo<HeldRulesTest::ParamType>& info) {
                           std::string name = std::get<0>(info.param).name;
                           for (char& c : name)
                             c = absl::ascii_isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name + "_" +
                                  BackendName(testing::TestParamInfo<BackendUnderTest>(
                                      std::get<1>(info.param), 0));
                         });

}  // namespace
}  // namespace mneme
