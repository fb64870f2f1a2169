#include <vector>

#include "base/log.h"
#include "kernels/reference/reference_kernels.h"

namespace mneme {

void ReferenceKernels::TokenShift(const TokenShiftArgs& args) {
  Check(args, reference::kTypes);
  CHECK(args.last.dtype == DType::kF64);
  const int64_t entries = args.x.shape[0], dim = args.x.shape[1], mixes = args.mix.shape[0];
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  for (int s = 0; s < args.segments.count; ++s) {
    const int32_t slot = args.segments.slots.as<int32_t>()[s];
    if (slot < 0 || offsets[s] == offsets[s + 1]) continue;
    double* last = args.last.as<double>(slot, args.segments.memories.as<int32_t>()[s]);
    const bool fresh = args.segments.fresh.as<int32_t>()[s] != 0;
    for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e) {
      const double* x = args.x.as<double>() + e * dim;
      for (int64_t i = 0; i < dim; ++i) {
        double before = fresh ? 0.0 : last[i];
        if (e > offsets[s]) before = x[i - dim];
        for (int64_t m = 0; m < mixes; ++m) {
          const int64_t at = (m * entries + e) * dim + i;
          double mix = args.mix.as<float>()[m * dim + i];
          if (!args.token_mix.empty()) mix += args.token_mix.as<double>()[at];
          args.y.as<double>()[at] = x[i] + mix * (before - x[i]);
        }
      }
    }
    if (!args.advance) continue;
    std::copy_n(args.x.as<double>() + (offsets[s + 1] - 1) * dim, dim, last);
  }
}

void ReferenceKernels::Rwkv7Gates(const Rwkv7GatesArgs& args) {
  Check(args, reference::kTypes);
  const int64_t entries = args.k.shape[0], heads = args.k.shape[1], dim = args.k.shape[2];
  for (int64_t row = 0; row < entries * heads; ++row) {
    const int64_t channels = row % heads * dim;
    double squares = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const double z = args.k.as<double>()[row * dim + i] * args.k_k.as<float>()[channels + i];
      squares += z * z;
    }
    const double norm = std::max(std::sqrt(squares + args.eps), double{args.least});
    for (int64_t i = 0; i < dim; ++i) {
      const int64_t at = row * dim + i;
      const double decay = args.decay.as<double>()[at] + args.decay_bias.as<float>()[channels + i];
      const double a =
          reference::Sigmoid(args.rate.as<double>()[at] + args.rate_bias.as<float>()[channels + i]);
      const double k = args.k.as<double>()[at];
      const double c = k * args.k_k.as<float>()[channels + i] / norm;
      args.log_decay.as<double>()[at] = -std::exp(-0.5) * reference::Sigmoid(decay);
      args.c.as<double>()[at] = c;
      args.e.as<double>()[at] = -a * c;
      args.k.as<double>()[at] = k * (1 + (a - 1) * args.k_a.as<float>()[channels + i]);
    }
  }
}

void ReferenceKernels::ValueResidual(const ValueResidualArgs& args) {
  Check(args, reference::kTypes);
  const int64_t dim = args.v.shape[1], gates = args.gate.shape[1];
  for (int64_t i = 0; i < args.v.shape.elements(); ++i) {
    double& v = args.v.as<double>()[i];
    const int64_t g = i / (dim / gates);
    const double gate = args.gate.as<double>()[g] + args.bias.as<float>()[g % gates];
    v += (args.first.as<double>()[i] - v) * reference::Sigmoid(gate);
  }
}

void ReferenceKernels::Rwkv7Output(const Rwkv7OutputArgs& args) {
  Check(args, reference::kTypes);
  const int64_t entries = args.x.shape[0], heads = args.x.shape[1], value_dim = args.x.shape[2];
  const int64_t key_dim = args.r.shape[2];
  std::vector<double> gate(args.gate.as<double>(),
                           args.gate.as<double>() + args.gate.shape.elements());
  LayerNorm({.x = args.x, .weight = args.weight, .bias = args.bias, .eps = args.eps, .y = args.y});
  for (int64_t row = 0; row < entries * heads; ++row) {
    double bonus = 0;
    for (int64_t j = 0; j < key_dim; ++j) {
      bonus += args.r.as<double>()[row * key_dim + j] * args.k.as<double>()[row * key_dim + j] *
               args.r_k.as<float>()[row % heads * key_dim + j];
    }
    for (int64_t at = row * value_dim; at < (row + 1) * value_dim; ++at) {
      double& y = args.y.as<double>()[at];
      y = (y + bonus * args.v.as<double>()[at]) * gate[static_cast<size_t>(at)];
    }
  }
}

}  // namespace mneme
