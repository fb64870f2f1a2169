#include <algorithm>
#include <cmath>
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
        double sum = args.bias.empty() ? 0.0 : args.bias.as<float>()[c];
        for (int64_t j = 0; j < width - 1; ++j) sum += weight[j] * window[j * channels + c];
        sum += weight[width - 1] * x[c];
        y[c] = reference::Activate(args.activation, sum);
      }
      // The window moves up by one: the oldest row out, this input in.
      if (width > 1) {
        std::copy(window + channels, window + (width - 1) * channels, window);
        std::copy_n(x, channels, window + (width - 2) * channels);
      }
    }
  }
}

struct Gate {
  double log_decay, complement;
};

// The gate of x, element i of all heads.
Gate GateOf(const DecayGatesArgs& args, double x, int64_t head, int64_t i) {
  switch (args.gate) {
    case DecayGate::kLogSigmoid: {
      const double g = std::max(-reference::ExactSoftplus(-x) / args.normalizer,
                                static_cast<double>(args.least));
      return {g, -std::expm1(g)};
    }
    case DecayGate::kForget: {
      const double lower = args.lower.empty() ? 0.0 : args.lower.as<float>()[i];
      const double f = lower + (1 - lower) * reference::Sigmoid(x);
      const double complement = (1 - lower) * reference::Sigmoid(-x);
      // The two make 1: the smaller one has the digits.
      const double g = lower == 0 ? -reference::ExactSoftplus(-x)
                       : f < 0.5  ? std::log(f)
                                  : std::log1p(-complement);
      return {std::max(g, static_cast<double>(kLeastLogDecay)), complement};
    }
    case DecayGate::kSoftplus: {
      const double g = -std::exp(static_cast<double>(args.a_log.as<float>()[head])) *
                       reference::Softplus(x + args.dt_bias.as<float>()[i]);
      return {g, -std::expm1(g)};
    }
    case DecayGate::kBounded: {
      const double rate = std::exp(static_cast<double>(args.a_log.as<float>()[head]));
      const double g =
          args.lower_bound * reference::Sigmoid(rate * (x + args.dt_bias.as<float>()[i]));
      return {g, -std::expm1(g)};
    }
    case DecayGate::kExponential: {
      const double g = std::max(-std::exp(x), static_cast<double>(kLeastLogDecay));
      return {g, -std::expm1(g)};
    }
  }
  LOG(FATAL) << "a gate of no kind";
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

void ReferenceKernels::DecayGates(const DecayGatesArgs& args) {
  Check(args, reference::kTypes);
  const int64_t entries = args.log_decay.shape[0], heads = args.x.shape[1], dim = args.x.shape[2];
  // A row is read whole before it is written, as x may be an output.
  std::vector<double> row(static_cast<size_t>(heads * dim));
  for (int64_t e = 0; e < entries; ++e) {
    const int64_t from = args.entry_rows.empty() ? e : args.entry_rows.as<int32_t>()[e];
    std::copy_n(args.x.as<double>() + from * heads * dim, heads * dim, row.begin());
    for (int64_t i = 0; i < heads * dim; ++i) {
      const Gate gate = GateOf(args, row[static_cast<size_t>(i)], i / dim, i);
      args.log_decay.as<double>()[e * heads * dim + i] = gate.log_decay;
      if (!args.complement.empty()) {
        args.complement.as<double>()[e * heads * dim + i] = gate.complement;
      }
    }
  }
}

void ReferenceKernels::MatrixMemory(const MatrixMemoryArgs& args) {
  Check(args, reference::kTypes);
  using Rule = MatrixRule;
  const int64_t heads = args.out.shape[1], value_dim = args.out.shape[2];
  const int64_t key_dim = args.k.shape[2];

  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  for (int s = 0; s < args.segments.count; ++s) {
    if (args.segments.slots.as<int32_t>()[s] < 0 || offsets[s] == offsets[s + 1]) continue;
    double* memory = Open(args.state, args.segments, s, heads * value_dim * key_dim);
    for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e) {
      for (int64_t h = 0; h < heads; ++h) {
        // The part of a tensor, `width` numbers, that this entry's head reads.
        const auto part = [&](const TensorView& tensor, int64_t width) -> const double* {
          if (tensor.empty()) return nullptr;
          const int64_t n = tensor.shape[1];
          return tensor.as<double>() + (e * n + h / (heads / n)) * width;
        };
        const double* q = part(args.q, key_dim);
        const double* k = part(args.k, key_dim);
        const double* v = part(args.v, value_dim);
        const double* beta = part(args.beta, 1);
        const double* c = part(args.c, key_dim);
        const double* erase = part(args.e, key_dim);
        double* out = args.out.as<double>() + (e * heads + h) * value_dim;
        const double* log_decay = nullptr;
        double constant = 1;
        switch (args.rule.decay) {
          case Rule::Decay::kNone:
            break;
          case Rule::Decay::kConstant:
            constant = std::exp(static_cast<double>(args.log_decay.as<float>()[h]));
            break;
          case Rule::Decay::kHead:
            constant = std::exp(*part(args.log_decay, 1));
            break;
          case Rule::Decay::kKey:
            log_decay = part(args.log_decay, key_dim);
            break;
          case Rule::Decay::kValue:
            log_decay = part(args.log_decay, value_dim);
            break;
        }
        double through = 0;  // q . (bonus * k)
        if (args.rule.read == Rule::Read::kBeforeWithBonus) {
          const float* bonus = args.bonus.as<float>() + h * key_dim;
          for (int64_t j = 0; j < key_dim; ++j) through += q[j] * bonus[j] * k[j];
        }
        // The rows of S do not see each other, so each goes through all equations at once.
        for (int64_t i = 0; i < value_dim; ++i) {
          double* row = memory + (h * value_dim + i) * key_dim;
          const double value = v[i];  // which out may replace
          double read = 0, recalled = 0;
          if (args.rule.read == Rule::Read::kBeforeWithBonus) {
            for (int64_t j = 0; j < key_dim; ++j) read += row[j] * q[j];
            read += through * value;
          }
          if (c != nullptr) {
            for (int64_t j = 0; j < key_dim; ++j) recalled += row[j] * c[j];
          }
          for (int64_t j = 0; j < key_dim; ++j) {
            row[j] *= args.rule.decay == Rule::Decay::kKey     ? std::exp(log_decay[j])
                      : args.rule.decay == Rule::Decay::kValue ? std::exp(log_decay[i])
                                                               : constant;
          }
          double u = value;
          if (beta != nullptr) {
            for (int64_t j = 0; j < key_dim; ++j) recalled += row[j] * k[j];
            u = *beta * (value - recalled);
          }
          for (int64_t j = 0; j < key_dim; ++j) {
            row[j] += u * k[j] + (erase != nullptr ? recalled * erase[j] : 0.0);
          }
          if (args.rule.read == Rule::Read::kAfter) {
            for (int64_t j = 0; j < key_dim; ++j) read += row[j] * q[j];
          }
          out[i] = args.scale * read;
        }
      }
    }
  }
}

}  // namespace mneme
