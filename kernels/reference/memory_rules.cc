#include <algorithm>
#include <vector>

#include "base/log.h"
#include "kernels/reference/reference_kernels.h"

namespace mneme {
namespace {

// A memory's f64 values at `slot`, set to zero first if it is fresh.
double* Open(const StateView& state, const Segments& segments, int s, int64_t elements) {
  CHECK(state.dtype == DType::kF64) << "state of " << Name(state.dtype);
  double* memory =
      state.as<double>(segments.slots.as<int32_t>()[s], segments.memories.as<int32_t>()[s]);
  if (segments.fresh.as<int32_t>()[s] != 0) std::fill_n(memory, elements, 0.0);
  return memory;
}

void Convolve(const ShortConvArgs& args) {
  const int64_t channels = args.x.shape[1], width = args.weight.shape[1];
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  const int32_t* entry_rows = args.entry_rows.as<int32_t>();
  for (int s = 0; s < args.segments.count; ++s) {
    if (args.segments.slots.as<int32_t>()[s] < 0 || offsets[s] == offsets[s + 1]) continue;
    double* window = Open(args.window, args.segments, s, (width - 1) * channels);
    for (int32_t e = offsets[s]; e < offsets[s + 1]; ++e) {
      const double* x = args.x.as<double>() + (entry_rows ? entry_rows[e] : e) * channels;
      double* y = args.y.as<double>() + e * channels;
      for (int64_t c = 0; c < channels; ++c) {
        const float* weight = args.weight.as<float>() + c * width;
        double sum = 0;
        for (int64_t j = 0; j < width - 1; ++j) sum += weight[j] * window[j * channels + c];
        sum += weight[width - 1] * x[c];
        y[c] = reference::Silu(sum);
      }
      // The window moves up by one: the oldest row out, this input in.
      if (width > 1) {
        std::copy(window + channels, window + (width - 1) * channels, window);
        std::copy_n(x, channels, window + (width - 2) * channels);
      }
    }
  }
}

}  // namespace

void ReferenceKernels::ShortConv(std::span<const ShortConvArgs> convolutions) {
  CheckAll(convolutions, reference::kTypes);
  for (const ShortConvArgs& args : convolutions) Convolve(args);
}

void ReferenceKernels::DeltaGates(const DeltaGatesArgs& args) {
  Check(args, reference::kTypes);
  const int64_t heads = args.a.shape[1];
  const int64_t entries = args.log_decay.shape[0];
  for (int64_t e = 0; e < entries; ++e) {
    const int64_t row = args.entry_rows.empty() ? e : args.entry_rows.as<int32_t>()[e];
    for (int64_t h = 0; h < heads; ++h) {
      const double a = args.a.as<double>()[row * heads + h];
      const double b = args.b.as<double>()[row * heads + h];
      const double rate = std::exp(static_cast<double>(args.a_log.as<float>()[h]));
      args.log_decay.as<double>()[e * heads + h] =
          -rate * reference::Softplus(a + args.dt_bias.as<float>()[h]);
      args.beta.as<double>()[e * heads + h] = args.beta_scale * reference::Sigmoid(b);
    }
  }
}

void ReferenceKernels::GatedDeltaRule(const GatedDeltaRuleArgs& args) {
  Check(args, reference::kTypes);
  const int64_t heads = args.q.shape[1], key_dim = args.q.shape[2];
  const int64_t value_heads = args.v.shape[1], value_dim = args.v.shape[2];

  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  for (int s = 0; s < args.segments.count; ++s) {
    if (args.segments.slots.as<int32_t>()[s] < 0 || offsets[s] == offsets[s + 1]) continue;
    double* memory = Open(args.state, args.segments, s, value_heads * value_dim * key_dim);
    for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e) {
      for (int64_t j = 0; j < value_heads; ++j) {
        const int64_t head = j / (value_heads / heads);
        const double* q = args.q.as<double>() + (e * heads + head) * key_dim;
        const double* k = args.k.as<double>() + (e * heads + head) * key_dim;
        const double* v = args.v.as<double>() + (e * value_heads + j) * value_dim;
        double* out = args.out.as<double>() + (e * value_heads + j) * value_dim;
        const double decay = std::exp(args.log_decay.as<double>()[e * value_heads + j]);
        const double beta = args.beta.as<double>()[e * value_heads + j];
        // The rows of S do not see each other, so each goes through all four equations at once.
        for (int64_t i = 0; i < value_dim; ++i) {
          double* row = memory + (j * value_dim + i) * key_dim;
          for (int64_t d = 0; d < key_dim; ++d) row[d] *= decay;
          double recalled = 0;
          for (int64_t d = 0; d < key_dim; ++d) recalled += row[d] * k[d];
          const double u = beta * (v[i] - recalled);
          for (int64_t d = 0; d < key_dim; ++d) row[d] += u * k[d];
          double read = 0;
          for (int64_t d = 0; d < key_dim; ++d) read += row[d] * q[d];
          out[i] = read;
        }
      }
    }
  }
}

}  // namespace mneme
