// A seeded problem for GatedDeltaRule, with the running error bound of its f32 evaluation.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {

struct DeltaDims {
  int heads = 1, value_heads = 1, key_dim = 16, value_dim = 16;

  int64_t state_elements() const { return static_cast<int64_t>(value_heads) * value_dim * key_dim; }
  std::string Describe() const {
    return std::to_string(heads) + " heads, " + std::to_string(value_heads) + " value heads, " +
           std::to_string(key_dim) + " keys, " + std::to_string(value_dim) + " values";
  }
};

struct DeltaResult {
  std::vector<double> out;     // entries of active segments, in order
  std::vector<double> states;  // of every slot and memory
};

struct DeltaProblem {
  DeltaProblem(uint64_t seed, DeltaDims dims, std::vector<SegmentSpec> list, double max_beta = 1,
               int slots = kSlots, int memories = kMemories)
      : dims(dims), slots(slots), memories(memories), segments(std::move(list)) {
    SeededRandom random(seed);
    const int entries = Entries(segments);
    q = UnitVectors(random, entries * dims.heads, dims.key_dim, 1 / std::sqrt(dims.key_dim));
    k = UnitVectors(random, entries * dims.heads, dims.key_dim, 1);
    v = random.NormalValues(static_cast<int64_t>(entries) * dims.value_heads * dims.value_dim);
    beta = random.UniformValues(entries * dims.value_heads, 0, max_beta);
    // From memories that forget at once to those that never do.
    for (int i = 0; i < entries * dims.value_heads; ++i) {
      log_decay.push_back(RoundTo(-std::exp(random.Uniform(-9, 2)), DType::kF32));
      if (random.Chance(0.1)) log_decay.back() = 0;
    }
    for (int i = 0; i < slots * memories; ++i) {
      states.push_back(random.NormalValues(dims.state_elements()));
    }
  }

  static std::vector<double> UnitVectors(SeededRandom& random, int n, int dim, double length) {
    std::vector<double> values;
    for (int i = 0; i < n; ++i) {
      std::vector<double> one = random.NormalValues(dim);
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
    const auto pick = [&entries](const std::vector<double>& values, int width) {
      std::vector<double> picked;
      for (const int e : entries) {
        picked.insert(picked.end(), values.begin() + static_cast<int64_t>(e) * width,
                      values.begin() + static_cast<int64_t>(e + 1) * width);
      }
      return picked;
    };
    const int n = static_cast<int>(entries.size());
    const DeltaDims& d = dims;
    MatrixMemoryArgs args;
    args.q = bench.Activations(pick(q, d.heads * d.key_dim), {n, d.heads, d.key_dim});
    args.k = bench.Activations(pick(k, d.heads * d.key_dim), {n, d.heads, d.key_dim});
    args.v =
        bench.Activations(pick(v, d.value_heads * d.value_dim), {n, d.value_heads, d.value_dim});
    args.log_decay = bench.Activations(pick(log_decay, d.value_heads), {n, d.value_heads});
    args.beta = bench.Activations(pick(beta, d.value_heads), {n, d.value_heads});
    args.segments = Upload(bench, list);
    args.state = slabs.view();
    args.out = in_place ? args.v : bench.NewActivations({n, d.value_heads, d.value_dim});
    bench.kernels().MatrixMemory(args);
    return bench.Read(args.out);
  }

  DeltaResult Run(Backend& backend, bool in_place = false) const {
    Workbench bench(backend);
    SlabPool slabs = NewSlabs(bench);
    LoadStates(slabs);
    const std::vector<std::byte> before = slabs.Bytes();
    std::vector<int> entries, active;
    for (int e = 0; e < Entries(segments); ++e) entries.push_back(e);
    const std::vector<double> out = Step(bench, slabs, segments, entries, in_place);
    EXPECT_TRUE(slabs.OnlyTouched(before, [this](int slot, int memory) {
      return IsActive(segments, slot, memory);
    })) << "state outside the segments' memories was written";
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].active()) active.push_back(static_cast<int>(s));
    }
    return {PickEntries(out, dims.value_heads * dims.value_dim, segments, active),
            ReadStates(slabs)};
  }

  // A bound of f32's error, computed along with the answer in float64 (a running error analysis).
  //
  // Rows of S do not mix. Let E bound the 2-norm of the error of one row s. A step maps the error
  // through a (I - beta k k^T), whose norm is at most a * max(1, |1 - beta |k|^2|), and adds
  //   decay    a s:                 (exp's error, one rounding) * |a s|
  //   recall   r = s . k:           SumError(key_dim) * |s||k|, which moves s by beta |k| of that
  //   write    u = beta (v - r):    3 roundings of |u|, |k| each;  s + u k: two of |s| + |u||k|
  // all norms of the f32 values, for which those of float64 stand in: they differ by O(u). The
  // output is s . q, or (a s_old) . q + u (k . q), and so has error |q| E + SumError(key_dim) |q|
  // (|a s_old|
  // + |u||k|). A state element's error is at most E.
  DeltaResult Bound() const {
    DeltaResult bound;
    std::vector<std::vector<double>> state_bounds(static_cast<size_t>(slots * memories),
                                                  std::vector<double>(dims.state_elements(), 0.0));
    const std::vector<int> offsets = Offsets(segments);
    const double sum_error = SumError(dims.key_dim);
    for (size_t n = 0; n < segments.size(); ++n) {
      const SegmentSpec& segment = segments[n];
      if (!segment.active()) continue;
      const int index = segment.slot * memories + segment.memory;
      std::vector<double> state = states[index];
      if (segment.fresh) state.assign(state.size(), 0.0);
      std::vector<double> error(static_cast<size_t>(dims.value_heads) * dims.value_dim, 0.0);
      for (int e = offsets[n]; e < offsets[n + 1]; ++e) {
        for (int j = 0; j < dims.value_heads; ++j) {
          const int head = j / (dims.value_heads / dims.heads);
          const double* qe = &q[(static_cast<int64_t>(e) * dims.heads + head) * dims.key_dim];
          const double* ke = &k[(static_cast<int64_t>(e) * dims.heads + head) * dims.key_dim];
          const double a = std::exp(log_decay[e * dims.value_heads + j]);
          const double b = beta[e * dims.value_heads + j];
          const double q_norm = Norm(qe), k_norm = Norm(ke);
          const double contraction = a * std::max(1.0, std::abs(1 - b * k_norm * k_norm));
          for (int i = 0; i < dims.value_dim; ++i) {
            double* s = &state[(static_cast<int64_t>(j) * dims.value_dim + i) * dims.key_dim];
            double r = 0;
            for (int d = 0; d < dims.key_dim; ++d) {
              s[d] *= a;
              r += s[d] * ke[d];
            }
            const double decayed = Norm(s);
            const double u =
                b * (v[(static_cast<int64_t>(e) * dims.value_heads + j) * dims.value_dim + i] - r);
            for (int d = 0; d < dims.key_dim; ++d) s[d] += u * ke[d];
            double& row_error = error[j * dims.value_dim + i];
            row_error = contraction * row_error + (kFunctionError + kUnitF32) * decayed +
                        b * k_norm * k_norm * (sum_error + 2 * kUnitF32) * decayed +
                        3 * kUnitF32 * std::abs(u) * k_norm +
                        2 * kUnitF32 * (Norm(s) + std::abs(u) * k_norm);
            const double parts = decayed + std::abs(u) * k_norm;
            bound.out.push_back(q_norm * (row_error + (sum_error + 2 * kUnitF32) * parts) +
                                kTinyF32);
          }
        }
      }
      for (size_t d = 0; d < state.size(); ++d) {
        state_bounds[index][d] = error[d / dims.key_dim] + kTinyF32;
      }
    }
    for (const auto& b : state_bounds) bound.states.insert(bound.states.end(), b.begin(), b.end());
    return bound;
  }

  double Norm(const double* x) const {
    double sum = 0;
    for (int d = 0; d < dims.key_dim; ++d) sum += x[d] * x[d];
    return std::sqrt(sum);
  }

  static constexpr int kSlots = 4, kMemories = 2;
  DeltaDims dims;
  int slots, memories;
  std::vector<SegmentSpec> segments;
  std::vector<double> q, k, v, log_decay, beta;
  std::vector<std::vector<double>> states;
};

}  // namespace mneme
