// Problems of the matrix product for tests of it.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/bounds.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {

inline constexpr DType kWeightTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

struct LinearProblem {
  LinearProblem(uint64_t seed, int rows, int in_features, int out_features, DType dtype)
      : rows(rows), in_features(in_features), out_features(out_features), dtype(dtype) {
    SeededRandom random(seed);
    x = random.NormalValues(static_cast<int64_t>(rows) * in_features);
    w = random.NormalValues(static_cast<int64_t>(out_features) * in_features,
                            1 / std::sqrt(in_features), dtype);
    y = random.NormalValues(static_cast<int64_t>(rows) * out_features);
  }

  // The product of rows [first, first + count).
  std::vector<double> Run(Backend& backend, int first, int count, bool accumulate = false) const {
    Workbench bench(backend);
    const PackedMatrix weights[] = {bench.Pack(w, out_features, in_features, dtype)};
    LinearArgs args;
    args.x = bench.Activations(Rows(x, in_features, first, count), {count, in_features});
    args.weights = weights;
    args.y = accumulate
                 ? bench.Activations(Rows(y, out_features, first, count), {count, out_features})
                 : bench.NewActivations({count, out_features});
    args.accumulate = accumulate;
    bench.kernels().Linear({&args, 1});
    return bench.Read(args.y);
  }
  std::vector<double> Run(Backend& backend, bool accumulate = false) const {
    return Run(backend, 0, rows, accumulate);
  }

  // sum |w x| per output: what the error of a sum scales with.
  std::vector<double> Scale() const {
    std::vector<double> scale;
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < out_features; ++o) {
        double sum = 0;
        for (int i = 0; i < in_features; ++i) {
          sum += std::abs(x[r * in_features + i] * w[o * in_features + i]);
        }
        scale.push_back(sum);
      }
    }
    return scale;
  }
  std::vector<double> Bound(double relative) const {
    std::vector<double> bound = Scale();
    for (double& value : bound) value *= relative;
    return bound;
  }

  static std::vector<double> Rows(const std::vector<double>& values, int width, int first,
                                  int count) {
    return {values.begin() + first * width, values.begin() + (first + count) * width};
  }

  int rows, in_features, out_features;
  DType dtype;
  std::vector<double> x, w, y;
};

// Entries of several groups; some groups are empty, rows repeat and come in any order.
struct GroupedProblem {
  GroupedProblem(uint64_t seed, int in_features, int out_features, DType dtype,
                 std::vector<int> sizes)
      : in_features(in_features), out_features(out_features), dtype(dtype) {
    SeededRandom random(seed);
    x = random.NormalValues(static_cast<int64_t>(kRows) * in_features);
    offsets = {0};
    for (const int size : sizes) {
      offsets.push_back(offsets.back() + size);
      weights.push_back(random.NormalValues(static_cast<int64_t>(out_features) * in_features,
                                            1 / std::sqrt(in_features), dtype));
    }
    for (int e = 0; e < offsets.back(); ++e) entry_rows.push_back(random.Int(0, kRows - 1));
    y = random.NormalValues(static_cast<int64_t>(offsets.back()) * out_features);
  }

  std::vector<double> Run(Backend& backend, bool accumulate = false) const {
    Workbench bench(backend);
    std::vector<PackedMatrix> packed;
    for (const auto& w : weights) packed.push_back(bench.Pack(w, out_features, in_features, dtype));
    LinearArgs args;
    args.x = bench.Activations(x, {static_cast<int64_t>(x.size()) / in_features, in_features});
    args.weights = packed;
    if (!entry_rows.empty()) args.entry_rows = bench.Ints(entry_rows);
    args.group_offsets = bench.Ints(offsets);
    const Shape shape = {offsets.back(), out_features};
    args.y = accumulate ? bench.Activations(y, shape) : bench.NewActivations(shape);
    args.accumulate = accumulate;
    bench.kernels().Linear({&args, 1});
    return bench.Read(args.y);
  }

  // The same, one ungrouped product per entry.
  std::vector<double> RunOneByOne(Backend& backend, bool accumulate = false) const {
    return OfEntries([&](const LinearProblem& p) { return p.Run(backend, accumulate); });
  }

  std::vector<double> Bound() const { return Bound(SumError(in_features)); }
  std::vector<double> Bound(double relative) const {
    return OfEntries([&](const LinearProblem& p) { return p.Bound(relative); });
  }

  // One behind the other what of_entry(problem) gives for each entry's own product.
  template <typename OfEntry>
  std::vector<double> OfEntries(OfEntry of_entry) const {
    std::vector<double> all;
    for (size_t g = 0; g < weights.size(); ++g) {
      for (int e = offsets[g]; e < offsets[g + 1]; ++e) {
        LinearProblem p(0, 1, in_features, out_features, dtype);
        p.x = LinearProblem::Rows(x, in_features, entry_rows[e], 1);
        p.w = weights[g];
        p.y = LinearProblem::Rows(y, out_features, e, 1);
        const std::vector<double> row = of_entry(p);
        all.insert(all.end(), row.begin(), row.end());
      }
    }
    return all;
  }

  static constexpr int kRows = 23;
  int in_features, out_features;
  DType dtype;
  std::vector<double> x, y;
  std::vector<std::vector<double>> weights;
  std::vector<int> offsets, entry_rows;
};

// Relative to sum |w x| per output, whatever rows, shape and dtype of the weights.
inline double RelativeBound(DType compute_dtype, int in_features) {
  const double sum = SumError(in_features);
  return compute_dtype == DType::kF32 ? sum : kUnitBF16 + (1 + kUnitBF16) * sum;
}

}  // namespace mneme
