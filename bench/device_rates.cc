#include "bench/device_rates.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/random.h"
#include "base/status_macros.h"
#include "bench/bench_stream.h"
#include "bench/sample_statistics.h"
#include "kernels/float16.h"
#include "kernels/tensor.h"

namespace mneme {
namespace {

// On a CPU gpu_bench is tried, not used, and measurements are short.
bool IsTrial(const Backend& backend) { return !backend.asynchronous(); }

// Operations per second, by several runs of `repeats`, each of so many: the median.
absl::StatusOr<double> Rate(Backend& backend, int repeats, double operations,
                            const std::function<void()>& run) {
  std::vector<double> rates;
  for (int round = 0; round < 7; ++round) {
    MNEME_RETURN_IF_ERROR(backend.Synchronize());
    const double start = BenchNow();
    for (int i = 0; i < repeats; ++i) run();
    MNEME_RETURN_IF_ERROR(backend.Synchronize());
    rates.push_back(repeats * operations / (BenchNow() - start));
  }
  return Median(rates);
}

}  // namespace

absl::StatusOr<double> CopyBandwidth(Backend& backend) {
  const int64_t bytes = int64_t{IsTrial(backend) ? 64 : 2048} << 20;
  MNEME_ASSIGN_OR_RETURN(const Buffer from, Buffer::Allocate(backend, bytes));
  MNEME_ASSIGN_OR_RETURN(const Buffer to, Buffer::Allocate(backend, bytes));
  backend.Zero(from.data(), bytes);
  return Rate(backend, /*repeats=*/4, 2.0 * static_cast<double>(bytes),
              [&] { backend.Copy(to.data(), from.data(), bytes); });
}

absl::StatusOr<double> ProductRate(Backend& backend) {
  constexpr int64_t kFeatures = 4096;
  const int64_t rows = IsTrial(backend) ? 64 : 8192;
  std::vector<float> floats(static_cast<size_t>(std::max(rows, kFeatures) * kFeatures));
  std::vector<uint16_t> rounded(floats.size());
  for (size_t i = 0; i < floats.size(); ++i) {
    floats[i] = UniformFloat(1, 0, i) - 0.5f;
    rounded[i] = BF16FromF32(floats[i]);
  }
  MNEME_ASSIGN_OR_RETURN(
      const Buffer packed,
      Buffer::Allocate(backend, backend.PackedBytes(DType::kBF16, kFeatures, kFeatures)));
  const PackedMatrix weights =
      backend.PackMatrix({rounded.data(), DType::kBF16, {kFeatures, kFeatures}}, packed.data());
  const DType x_dtype = backend.product_dtype(weights, rows);
  const DType y_dtype = backend.output_dtype({&weights, 1}, rows);
  MNEME_ASSIGN_OR_RETURN(const Tensor x, Tensor::Allocate(backend, x_dtype, {rows, kFeatures}));
  MNEME_ASSIGN_OR_RETURN(const Tensor y, Tensor::Allocate(backend, y_dtype, {rows, kFeatures}));
  const void* x_values = floats.data();
  if (x_dtype == DType::kBF16) x_values = rounded.data();
  backend.CopyFromHost(x.view().data, x_values, x.view().bytes());
  const LinearArgs product[] = {{.x = x.view(), .weights = {&weights, 1}, .y = y.view()}};
  return Rate(backend, /*repeats=*/IsTrial(backend) ? 1 : 20,
              2.0 * static_cast<double>(rows * kFeatures * kFeatures),
              [&] { backend.kernels().Linear(product); });
}

}  // namespace mneme
