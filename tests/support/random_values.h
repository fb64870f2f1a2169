// Seeded inputs, the same on every host: the standard distributions are not.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/tensor_view.h"

namespace mneme {

// `value` rounded to the nearest one that `dtype` (f64, f32, bf16 or f16) can hold.
double RoundTo(double value, DType dtype);

class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : engine_(seed) {}

  double Uniform();  // [0, 1), a multiple of 2^-53
  double Uniform(double low, double high);
  double Normal();             // mean 0, variance 1
  int Int(int low, int high);  // both included
  bool Chance(double probability) { return Uniform() < probability; }

  // n values rounded to `dtype`, so that every backend is given the same numbers.
  std::vector<double> NormalValues(int64_t n, double scale = 1, DType dtype = DType::kF32);
  std::vector<double> UniformValues(int64_t n, double low, double high, DType dtype = DType::kF32);
  std::vector<int> Permutation(int n);

 private:
  std::mt19937_64 engine_;
};

}  // namespace mneme
