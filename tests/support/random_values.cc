#include "tests/support/random_values.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "kernels/float16.h"

namespace mneme {

double RoundTo(double value, DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return value;
    case DType::kF32:
      return static_cast<float>(value);
    case DType::kBF16:
      return RoundToBF16(static_cast<float>(value));
    case DType::kF16:
      return F32FromF16(F16FromF32(static_cast<float>(value)));
    default:
      CHECK(false) << "no values of " << Name(dtype);
      return 0;
  }
}

double SeededRandom::Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

double SeededRandom::Uniform(double low, double high) { return low + (high - low) * Uniform(); }

double SeededRandom::Normal() {
  const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

int SeededRandom::Int(int low, int high) {
  return low + static_cast<int>(engine_() % static_cast<uint64_t>(high - low + 1));
}

std::vector<double> SeededRandom::NormalValues(int64_t n, double scale, DType dtype) {
  std::vector<double> values(static_cast<size_t>(n));
  for (double& value : values) value = RoundTo(scale * Normal(), dtype);
  return values;
}

std::vector<double> SeededRandom::UniformValues(int64_t n, double low, double high, DType dtype) {
  std::vector<double> values(static_cast<size_t>(n));
  for (double& value : values) value = RoundTo(Uniform(low, high), dtype);
  return values;
}

std::vector<int> SeededRandom::Permutation(int n) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (int i = n - 1; i > 0; --i) std::swap(order[i], order[Int(0, i)]);
  return order;
}

}  // namespace mneme
