// A seeded problem for MatrixMemory under any rule, with the running error bound of its f32
// evaluation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {

inline std::vector<MatrixRule> AllMatrixRules() {
  std::vector<MatrixRule> rules;
  for (const auto decay :
       {MatrixRule::Decay::kNone, MatrixRule::Decay::kConstant, MatrixRule::Decay::kHead,
        MatrixRule::Decay::kKey, MatrixRule::Decay::kValue}) {
    for (const auto correction : {MatrixRule::Correction::kNone, MatrixRule::Correction::kDelta,
                                  MatrixRule::Correction::kGeneral}) {
      for (const auto read : {MatrixRule::Read::kAfter, MatrixRule::Read::kBeforeWithBonus}) {
        rules.push_back({decay, correction, read});
      }
    }
  }
  return rules;
}

inline std::string Describe(MatrixRule rule) {
  constexpr const char* kDecays[] = {"no decay", "constant decay", "decay of heads",
                                     "decay of keys", "decay of values"};
  constexpr const char* kCorrections[] = {"no correction", "delta", "general correction"};
  return std::string(kDecays[static_cast<int>(rule.decay)]) + ", " +
         kCorrections[static_cast<int>(rule.correction)] + ", read " +
         (rule.read == MatrixRule::Read::kAfter ? "after" : "before");
}

struct MatrixDims {
  int heads = 1, key_dim = 16, value_dim = 16;
  // Heads of q, of k, of v, and of log_decay, beta, c and e; 0: as many as the memory has.
  int q_heads = 0, k_heads = 0, v_heads = 0, gate_heads = 0;

  int64_t state_elements() const { return static_cast<int64_t>(heads) * value_dim * key_dim; }
  std::string Describe() const {
    std::string text = std::to_string(heads) + " heads, " + std::to_string(key_dim) + " keys, " +
                       std::to_string(value_dim) + " values";
    for (const int n : {q_heads, k_heads, v_heads, gate_heads}) text += ", " + std::to_string(n);
    return text;
  }
};

struct MatrixResult {
  std::vector<double> out;     // entries of active segments, in order
  std::vector<double> states;  // of every slot and memory
};

struct MatrixProblem {
  // An argument: `heads` times `width` numbers for each entry. Not used by the rule: no heads.
  struct Input {
    int heads = 0, width = 0;
    std::vector<double> values;

    const double* At(int64_t entry, int head, int all_heads) const {
      return heads == 0 ? nullptr
                        : &values[static_cast<size_t>((entry * heads + head / (all_heads / heads)) *
                                                      width)];
    }
  };

  MatrixProblem(uint64_t seed, MatrixRule rule, MatrixDims dims, std::vector<SegmentSpec> list,
                int slots = kSlots, int memories = kMemories)
      : rule(rule), dims(dims), slots(slots), memories(memories), segments(std::move(list)) {
    SeededRandom random(seed);
    const int entries = Entries(segments);
    const auto heads = [&dims](int n) { return n == 0 ? dims.heads : n; };
    const auto vectors = [&](int n, double length) {
      return Input{n, dims.key_dim, UnitVectors(random, entries * n, dims.key_dim, length)};
    };
    q = vectors(heads(dims.q_heads), 0.5);
    k = vectors(heads(dims.k_heads), 1);
    v = {heads(dims.v_heads), dims.value_dim, {}};
    v.values = random.NormalValues(int64_t{entries} * v.heads * v.width);
    const int gate_heads = heads(dims.gate_heads);
    switch (rule.decay) {
      case MatrixRule::Decay::kNone:
        break;
      case MatrixRule::Decay::kConstant:
        log_decay = {dims.heads, 1, Decays(random, dims.heads)};
        break;
      case MatrixRule::Decay::kHead:
        log_decay = {gate_heads, 1, Decays(random, entries * gate_heads)};
        break;
      case MatrixRule::Decay::kKey:
        log_decay = {gate_heads, dims.key_dim, Decays(random, entries * gate_heads * dims.key_dim)};
        break;
      case MatrixRule::Decay::kValue:
        log_decay = {gate_heads, dims.value_dim,
                     Decays(random, entries * gate_heads * dims.value_dim)};
        break;
    }
    if (rule.correction == MatrixRule::Correction::kDelta) {
      beta = {gate_heads, 1, random.UniformValues(entries * gate_heads, 0, 2)};
    }
    if (rule.correction == MatrixRule::Correction::kGeneral) {
      c = vectors(gate_heads, 0.5);
      e = vectors(gate_heads, 0.6);
    }
    if (rule.read == MatrixRule::Read::kBeforeWithBonus) {
      bonus = random.NormalValues(int64_t{dims.heads} * dims.key_dim);
    }
    for (int i = 0; i < slots * memories; ++i) {
      states.push_back(random.NormalValues(dims.state_elements()));
    }
  }

  // From memories that forget all at once to those that never do.
  static std::vector<double> Decays(SeededRandom& random, int n) {
    std::vector<double> decays;
    for (int i = 0; i < n; ++i) {
      decays.push_back(RoundTo(-std::exp(random.Uniform(-9, 2)), DType::kF32));
      if (random.Chance(0.1)) decays.back() = 0;
      if (random.Chance(0.05)) decays.back() = -std::numeric_limits<double>::infinity();
    }
    return decays;
  }

  static std::vector<double> UnitVectors(SeededRandom& random, int n, int dim, double length) {
    std::vector<double> values;
    for (int i = 0; i < n; ++i) {
      const std::vector<double> one = random.NormalValues(dim);
      double sum = 0;
      for (const double value : one) sum += value * value;
      for (const double value : one) {
        values.push_back(RoundTo(length * value / std::sqrt(sum + 1e-6), DType::kF32));
      }
    }
    return values;
  }

  // A memory that is fresh holds what its slab happened to hold: NaN, here.
  void LoadStates(SlabPool& slabs) const {
    for (int i = 0; i < slots * memories; ++i) {
      const int slot = i / memories, memory = i % memories;
      if (!IsFresh(segments, slot, memory)) slabs.Write(slot, memory, states[i]);
    }
  }
  SlabPool NewSlabs(Workbench& bench) const {
    return SlabPool(bench, slots, memories, dims.state_elements(),
                    bench.backend().state_format().memory_dtype);
  }
  std::vector<double> ReadStates(SlabPool& slabs) const {
    std::vector<double> all;
    for (int i = 0; i < slots * memories; ++i) {
      const std::vector<double> state = slabs.Read(i / memories, i % memories);
      all.insert(all.end(), state.begin(), state.end());
    }
    return all;
  }

  // The entries listed, in that order, through `list`; outputs of all of them.
  std::vector<double> Step(Workbench& bench, SlabPool& slabs, const std::vector<SegmentSpec>& list,
                           const std::vector<int>& entries, bool in_place = false) const {
    const auto n = static_cast<int64_t>(entries.size());
    const auto upload = [&](const Input& input, bool of_heads = false) {
      if (input.heads == 0) return TensorView();
      const int64_t width = int64_t{input.heads} * input.width;
      std::vector<double> picked;
      for (const int entry : entries) {
        const auto first = input.values.begin() + entry * width;
        picked.insert(picked.end(), first, first + width);
      }
      return bench.Activations(
          picked, of_heads ? Shape{n, input.heads} : Shape{n, input.heads, input.width});
    };
    MatrixMemoryArgs args;
    args.rule = rule;
    args.q = upload(q);
    args.k = upload(k);
    args.v = upload(v);
    args.log_decay = rule.decay == MatrixRule::Decay::kConstant
                         ? bench.Floats(log_decay.values, {dims.heads})
                         : upload(log_decay, rule.decay == MatrixRule::Decay::kHead);
    args.beta = upload(beta, true);
    args.c = upload(c);
    args.e = upload(e);
    if (!bonus.empty()) args.bonus = bench.Floats(bonus, {dims.heads, dims.key_dim});
    args.scale = static_cast<float>(scale);
    args.long_keys = long_keys;
    args.segments = Upload(bench, list);
    args.state = slabs.view();
    args.out = in_place ? args.v : bench.NewActivations({n, dims.heads, dims.value_dim});
    bench.kernels().MatrixMemory(args);
    return bench.Read(args.out);
  }

  MatrixResult Run(Backend& backend, bool in_place = false) const {
    Workbench bench(backend);
    SlabPool slabs = NewSlabs(bench);
    LoadStates(slabs);
    const std::vector<std::byte> before = slabs.Bytes();
    std::vector<int> entries, active;
    for (int entry = 0; entry < Entries(segments); ++entry) entries.push_back(entry);
    const std::vector<double> out = Step(bench, slabs, segments, entries, in_place);
    EXPECT_TRUE(slabs.OnlyTouched(before, [this](int slot, int memory) {
      return IsActive(segments, slot, memory);
    })) << "state outside the segments' memories was written";
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].active()) active.push_back(static_cast<int>(s));
    }
    return {PickEntries(out, dims.heads * dims.value_dim, segments, active), ReadStates(slabs)};
  }

  // A bound of f32's error, computed along with the answer in float64 (a running error analysis).
  //
  // Rows of S do not mix. Let E bound the 2-norm of the error of one row s, D be the decays of its
  // keys, all at most 1, d the largest, r what is recalled, and
  //   s' = D s + u k + w e;   kNone: u = v.  kDelta: r = D s . k, u = beta (v - r).
  //   kGeneral: r = s . c, u = v, w = r.
  // A step maps the error through D, (I - beta k k^T) D, or D + c e^T, of norm at most d,
  // d max(1, |1 - beta |k|^2|), and d + |c||e|, and adds
  //   decay    D s:      (exp's error, one rounding) * |D s|
  //   recall   r:        eta = (SumError(key_dim), exp, two roundings) * |s||D k| or |s||c|,
  //                      which moves s' by beta |k|, or |e|, of that
  //   update   u:        3 roundings of |u||k|
  //   write    s':       3 roundings of |D s| + |u||k| + |w||e|
  // all norms of the f32 values, for which those of float64 stand in: they differ by O(u). The
  // output is scale s' . q, or scale (D s . q + u (k . q) + w (e . q)), and so has error
  // |q| E' + (SumError(key_dim) + 5 u) |q| (|D s| + |u||k| + |w||e|); read before, scale s . q + v
  // p with p = q . (bonus k), |q| E + (SumError(key_dim) + 4 u) (|q||s| + |v| sum |q bonus k|).
  MatrixResult Bound() const {
    MatrixResult bound;
    std::vector<std::vector<double>> state_bounds(static_cast<size_t>(slots * memories),
                                                  std::vector<double>(dims.state_elements(), 0.0));
    const std::vector<int> offsets = Offsets(segments);
    const int n = dims.key_dim;
    const double sum_error = SumError(n);
    std::vector<double> d(static_cast<size_t>(n)), decayed_key(static_cast<size_t>(n));
    for (size_t index = 0; index < segments.size(); ++index) {
      const SegmentSpec& segment = segments[index];
      if (!segment.active()) continue;
      const int at = segment.slot * memories + segment.memory;
      std::vector<double> state = states[at];
      if (segment.fresh) state.assign(state.size(), 0.0);
      std::vector<double> errors(static_cast<size_t>(dims.heads) * dims.value_dim, 0.0);
      for (int entry = offsets[index]; entry < offsets[index + 1]; ++entry) {
        for (int h = 0; h < dims.heads; ++h) {
          const double* key = k.At(entry, h, dims.heads);
          const double* query = q.At(entry, h, dims.heads);
          const double* recall = c.At(entry, h, dims.heads);
          const double* erase = e.At(entry, h, dims.heads);
          const double* gate =
              log_decay.At(rule.decay == MatrixRule::Decay::kConstant ? 0 : entry, h, dims.heads);
          const double b = beta.heads == 0 ? 0 : *beta.At(entry, h, dims.heads);
          double pass = 0;
          for (int j = 0; j < n && !bonus.empty(); ++j) {
            pass += std::abs(query[j] * bonus[static_cast<size_t>(h) * n + j] * key[j]);
          }
          const double k_norm = Norm(key), q_norm = Norm(query);
          const double e_norm = erase == nullptr ? 0 : Norm(erase);
          for (int i = 0; i < dims.value_dim; ++i) {
            double* s = &state[(static_cast<int64_t>(h) * dims.value_dim + i) * n];
            double& error = errors[static_cast<size_t>(h) * dims.value_dim + i];
            const double value = v.At(entry, h, dims.heads)[i];
            const double before = Norm(s), before_error = error;
            double largest = 0, r = 0;
            for (int j = 0; j < n; ++j) {
              d[j] = gate == nullptr
                         ? 1
                         : std::exp(rule.decay == MatrixRule::Decay::kKey     ? gate[j]
                                    : rule.decay == MatrixRule::Decay::kValue ? gate[i]
                                                                              : gate[0]);
              largest = std::max(largest, d[j]);
              decayed_key[j] = d[j] * key[j];
              if (recall != nullptr) r += s[j] * recall[j];
              if (beta.heads > 0) r += s[j] * decayed_key[j];
              s[j] *= d[j];
            }
            const double decayed = Norm(s);
            const double u = beta.heads > 0 ? b * (value - r) : value;
            const double w = recall != nullptr ? r : 0;
            for (int j = 0; j < n; ++j) s[j] += u * key[j] + (recall ? w * erase[j] : 0);
            const double parts = decayed + std::abs(u) * k_norm + std::abs(w) * e_norm;
            double growth = largest;
            double moved = 0;
            const double eta = (sum_error + kFunctionError + 2 * kUnitF32) * before;
            if (beta.heads > 0) {
              growth *= std::max(1.0, std::abs(1 - b * k_norm * k_norm));
              moved =
                  b * k_norm * eta * Norm(decayed_key.data()) + 3 * kUnitF32 * std::abs(u) * k_norm;
            }
            if (recall != nullptr) {
              growth += Norm(recall) * e_norm;
              moved = eta * Norm(recall) * e_norm;
            }
            error = growth * error + (kFunctionError + kUnitF32) * decayed + moved +
                    3 * kUnitF32 * parts;
            const double read =
                bonus.empty()
                    ? q_norm * (error + (sum_error + 5 * kUnitF32) * parts)
                    : q_norm * before_error +
                          (sum_error + 4 * kUnitF32) * (q_norm * before + std::abs(value) * pass);
            bound.out.push_back(scale * read + kTinyF32);
          }
        }
      }
      for (size_t j = 0; j < state.size(); ++j) {
        state_bounds[at][j] = errors[j / static_cast<size_t>(n)] + kTinyF32;
      }
    }
    for (const auto& b : state_bounds) bound.states.insert(bound.states.end(), b.begin(), b.end());
    return bound;
  }

  double Norm(const double* x) const {
    double sum = 0;
    for (int j = 0; j < dims.key_dim; ++j) sum += x[j] * x[j];
    return std::sqrt(sum);
  }

  static constexpr int kSlots = 4, kMemories = 2;
  MatrixRule rule;
  MatrixDims dims;
  int slots, memories;
  std::vector<SegmentSpec> segments;
  double scale = 0.75;
  bool long_keys = false;
  Input q, k, v, log_decay, beta, c, e;
  std::vector<double> bonus;
  std::vector<std::vector<double>> states;
};

}  // namespace mneme
