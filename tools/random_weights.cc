#include "tools/random_weights.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "models/weight_scan.h"

namespace mneme {
namespace {

// The 65536 quantiles of the standard normal distribution at (i + 1/2) / 65536: one is drawn with
// 16 random bits, eight with one call of the generator. The largest is 4.4; bf16 could not tell it
// from finer grain.
std::vector<float> NormalQuantiles() {
  constexpr int kHalf = 1 << 15;
  std::vector<float> quantiles(2 * kHalf);
  double x = 0;
  for (int i = 0; i < kHalf; ++i) {
    const double p = 0.5 + (i + 0.5) / (2 * kHalf);
    // Newton's method, from the neighbour.
    for (int step = 0; step < 8; ++step) {
      const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
      x += (p - (1 - std::erfc(x / std::sqrt(2)) / 2)) / density;
    }
    quantiles[static_cast<size_t>(kHalf + i)] = static_cast<float>(x);
    quantiles[static_cast<size_t>(kHalf - 1 - i)] = static_cast<float>(-x);
  }
  return quantiles;
}

}  // namespace

RandomWeights::RandomWeights(const ModelSpec& spec) : spec_(spec), quantiles_(NormalQuantiles()) {}

void RandomWeights::Fill(const TensorSpec& tensor, int64_t begin, std::span<float> out) const {
  if (!tensor.values.empty()) {
    std::copy_n(tensor.values.begin() + begin, out.size(), out.begin());
    return;
  }
  const uint64_t stream = HashText(tensor.name);
  switch (tensor.init) {
    case WeightInit::kNormal:
      return Normal(stream, begin, spec_.initializer_range, out);
    case WeightInit::kConvolution:
      return Normal(stream, begin,
                    spec_.convolution_range > 0 ? spec_.convolution_range : spec_.initializer_range,
                    out);
    case WeightInit::kOnes:
      return std::fill(out.begin(), out.end(), 1.0f);
    case WeightInit::kZeros:
      return std::fill(out.begin(), out.end(), 0.0f);
    case WeightInit::kDecay:
      for (size_t i = 0; i < out.size(); ++i) {
        // log of U(0, 16); the generator may give 0, whose logarithm is no weight.
        const double u = UniformDouble(spec_.seed, stream, static_cast<uint64_t>(begin) + i);
        out[i] = static_cast<float>(std::log(std::max(16 * u, 1e-4)));
      }
      return;
    case WeightInit::kTimeStep:
      for (size_t i = 0; i < out.size(); ++i) {
        // Inverse softplus of a time step that is log-uniform in [0.001, 0.1].
        const double u = UniformDouble(spec_.seed, stream, static_cast<uint64_t>(begin) + i);
        const double dt = std::exp(std::log(0.001) + u * (std::log(0.1) - std::log(0.001)));
        out[i] = static_cast<float>(dt + std::log(-std::expm1(-dt)));
      }
      return;
  }
}

void RandomWeights::Normal(uint64_t stream, int64_t begin, double range,
                           std::span<float> out) const {
  const float scale = static_cast<float>(range);
  for (size_t i = 0; i < out.size(); i += 8) {
    const PhiloxCounter bits =
        RandomBits(spec_.seed, stream, (static_cast<uint64_t>(begin) + i) / 8);
    for (size_t j = 0; j < std::min<size_t>(8, out.size() - i); ++j) {
      out[i + j] = scale * quantiles_[bits[j / 2] >> (16 * (j % 2)) & 0xffff];
    }
  }
}

}  // namespace mneme
