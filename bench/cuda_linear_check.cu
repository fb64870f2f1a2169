// Every path of Linear() against double loops: shapes, dtypes, groups, alignments, and calls of
// several products. Each runs twice and has to repeat its bits.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bench/cuda_linear_problem.cuh"

namespace mneme::cuda::linear {
namespace {

template <typename T>
__global__ void InDouble(const T* w, const float* x, const int32_t* entry_rows, int begin, int end,
                         int in, int out, double* y, double* scale) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= int64_t{end - begin} * out) return;
  const int entry = begin + static_cast<int>(i / out), o = static_cast<int>(i % out);
  const float* row = x + int64_t{entry_rows == nullptr ? entry : entry_rows[entry]} * in;
  double sum = 0, absolute = 0;
  for (int k = 0; k < in; ++k) {
    const double term = static_cast<double>(static_cast<float>(w[int64_t{o} * in + k])) * row[k];
    sum += term;
    absolute += fabs(term);
  }
  y[int64_t{entry} * out + o] = sum;
  scale[int64_t{entry} * out + o] = absolute;
}

struct CheckedProduct {
  LinearArgs args;
  std::vector<PackedMatrix> weights;
  std::vector<int32_t> offsets;
};

// Largest error over its bound, of `run` on fresh y; -1 if two runs differ.
double WorstError(Device& device, CheckedProduct& product, double relative,
                  const std::function<void(const LinearArgs&)>& run) {
  Arena arena(device);
  LinearArgs& args = product.args;
  args.weights = product.weights;
  const int64_t count = args.y.shape.elements();
  const int in = product.weights[0].in_features, out = product.weights[0].out_features;
  std::vector<float> before(count), got(count), again(count);
  const auto read = [&](std::vector<float>& to) {
    cudaMemcpyAsync(to.data(), args.y.data, count * 4, cudaMemcpyDeviceToHost, device.stream());
    Require(device, "check");
  };
  read(before);
  run(args);
  read(got);
  cudaMemcpyAsync(args.y.data, before.data(), count * 4, cudaMemcpyHostToDevice, device.stream());
  run(args);
  read(again);
  cudaMemcpyAsync(args.y.data, before.data(), count * 4, cudaMemcpyHostToDevice, device.stream());
  if (std::memcmp(got.data(), again.data(), count * 4) != 0) return -1;
  double* want = reinterpret_cast<double*>(arena.New(count * 16));
  for (size_t g = 0; g + 1 < product.offsets.size(); ++g) {
    const int begin = product.offsets[g], end = product.offsets[g + 1];
    if (begin == end) continue;
    const int blocks = static_cast<int>((int64_t{end - begin} * out + 127) / 128);
    const auto launch = [&](auto* w) {
      InDouble<<<blocks, 128, 0, device.stream()>>>(w, args.x.as<float>(),
                                                    args.entry_rows.as<int32_t>(), begin, end, in,
                                                    out, want, want + count);
    };
    const void* w = product.weights[g].data;
    if (product.weights[g].dtype == DType::kF32) launch(static_cast<const float*>(w));
    if (product.weights[g].dtype == DType::kBF16) launch(static_cast<const __nv_bfloat16*>(w));
    if (product.weights[g].dtype == DType::kF16) launch(static_cast<const __half*>(w));
  }
  std::vector<double> host(2 * count);
  cudaMemcpyAsync(host.data(), want, count * 16, cudaMemcpyDeviceToHost, device.stream());
  Require(device, "double loop");
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    double bound = relative * host[count + i] + 1e-35;
    double right = host[i];
    if (args.accumulate) {
      right += before[i];
      bound += 0x1p-23 * (std::abs(right) + std::abs(before[i]));
    }
    const double error = std::abs(got[i] - right) / bound;
    worst = std::max(worst, std::isnan(error) ? 1e30 : error);
  }
  return worst;
}

// Calls of several products of the same x, as a layer of memories makes them. Prints what is wrong;
// the number of it.
int CheckCalls(DType compute) {
  Device device(0, compute);
  int failures = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int tokens : {1, 2, 3, 5, 16, 40, 100, 200, 600}) {
      Arena arena(device);
      constexpr int kIn = 264;
      const Routing routing(tokens, 4, 2);
      const TensorView x = arena.Random({tokens, kIn}, DType::kF32, 1);
      const TensorView rows = arena.Ints(routing.rows), offsets = arena.Ints(routing.offsets);
      std::vector<CheckedProduct> products;
      for (const int out : {200, -136, -4, -200, 4, 40}) {  // negative: grouped
        CheckedProduct& product = products.emplace_back();
        for (int g = 0; g < (out < 0 ? 5 : 1); ++g) {
          const TensorView w = arena.Random({std::abs(out), kIn}, dtype, 0.06f);
          product.weights.push_back({w.data, dtype, std::abs(out), kIn});
        }
        product.args.x = x;
        product.offsets = {0, tokens};
        if (out < 0) {
          product.offsets = routing.offsets;
          product.args.entry_rows = rows;
          product.args.group_offsets = offsets;
        }
        product.args.y = arena.Random({product.offsets.back(), std::abs(out)}, DType::kF32, 1);
      }
      std::vector<LinearArgs> call;
      for (CheckedProduct& product : products) {
        product.args.weights = product.weights;
        call.push_back(product.args);
      }
      const double sum = 6 * std::sqrt(kIn + 1.0) * 0x1p-24;
      const double relative = compute == DType::kF32 ? sum : 0x1p-8 + (1 + 0x1p-8) * sum;
      for (size_t i = 0; i < products.size(); ++i) {
        const double error = WorstError(device, products[i], relative,
                                        [&](const LinearArgs&) { Linear(device, call); });
        if (error >= 0 && error <= 1) continue;
        ++failures;
        std::printf("BAD call: %s weights, compute %s, %d tokens, product %d: %g\n", Name(dtype),
                    Name(compute), tokens, static_cast<int>(i), error);
      }
    }
  }
  return failures;
}

}  // namespace

int CheckLinear() {
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  const std::vector<Variant> variants = Variants();
  int failures = 0, cases = 0, turn = 0;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    Device device(0, compute);
    Require(device, "device");
    std::map<std::string, double> worst;
    for (const DType dtype : kTypes) {
      for (const bool grouped : {false, true}) {
        for (const int in : {1, 7, 64, 72, 129, 500, 1024, 2056, 5632}) {
          for (const int out : {1, 4, 33, 40, 130, 264}) {
            for (const int tokens : {1, 2, 3, 4, 5, 8, 13, 16, 30, 64, 65, 130, 700}) {
              if (tokens > 64 && in > 2056) continue;
              if (turn++ % 3 != 0) continue;
              Arena arena(device);
              const int shift = (in + out + tokens) % 5 == 0;
              const Routing routing(tokens, 6, 2);
              CheckedProduct product;
              const int groups = grouped ? 7 : 1;
              for (int g = 0; g < groups; ++g) {
                const TensorView w =
                    arena.Random({out, in}, dtype, 1 / std::sqrt(float(in)), shift);
                product.weights.push_back({w.data, dtype, out, in});
              }
              const int entries = grouped ? static_cast<int>(routing.rows.size()) : tokens;
              product.args.x = arena.Random({tokens, in}, DType::kF32, 1);
              product.args.y = arena.Random({entries, out}, DType::kF32, 1);
              product.args.accumulate = (in / 2 + out + tokens) % 2 == 0;
              product.offsets = {0, tokens};
              if (grouped) {
                product.offsets = routing.offsets;
                product.args.entry_rows = arena.Ints(routing.rows);
                product.args.group_offsets = arena.Ints(routing.offsets);
              }
              const double sum = std::min(in + 1.0, 6 * std::sqrt(in + 1.0)) * 0x1p-24;
              const double relative = compute == DType::kF32 ? sum : 0x1p-8 + (1 + 0x1p-8) * sum;
              const bool aligned = in % 8 == 0 && shift == 0 && dtype != DType::kF32;
              for (const Variant& variant : variants) {
                const bool automatic = variant.terms == 0;
                if (!automatic && (!aligned || compute == DType::kF32)) continue;
                if (variant.terms == 3 && dtype == DType::kF16 && variant.name[0] != 'f') continue;
                if (variant.name == "blas" && grouped) continue;
                if (out % variant.pieces != 0) continue;
                const double allowed = variant.terms == 3 ? sum : relative;
                const double error =
                    WorstError(device, product, allowed,
                               [&](const LinearArgs& args) { variant.run(device, {args}); });
                ++cases;
                double& worst_of = worst[variant.name];
                worst_of = std::max(worst_of, error);
                if ((error < 0 || error > 1) && ++failures <= 25) {
                  std::printf("BAD %s: %s weights, compute %s, %s, %d x %d, %d tokens%s: %g\n",
                              variant.name.c_str(), Name(dtype), Name(compute),
                              grouped ? "grouped" : "one", out, in, tokens,
                              product.args.accumulate ? ", accumulate" : "", error);
                }
              }
            }
          }
        }
      }
    }
    for (const auto& [name, error] : worst) {
      std::printf("compute %s, %s: worst error / bound %.3f\n", Name(compute), name.c_str(), error);
    }
  }
  failures += CheckCalls(DType::kF32) + CheckCalls(DType::kBF16);
  std::printf("check: %d cases, %d failures\n", cases, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace mneme::cuda::linear
