#include <algorithm>
#include <cmath>

#include "kernels/reference/reference_kernels.h"

namespace mneme {

void ReferenceKernels::SelectiveScan(const SelectiveScanArgs& args) {
  Check(args, reference::kTypes);
  const int64_t channels = args.u.shape[1], states = args.a.shape[0];
  const Segments& segments = args.segments;
  const int32_t* offsets = segments.offsets.as<int32_t>();
  for (int s = 0; s < segments.count; ++s) {
    const int32_t slot = segments.slots.as<int32_t>()[s];
    if (slot < 0 || offsets[s] == offsets[s + 1]) continue;
    double* memory = args.state.as<double>(slot, segments.memories.as<int32_t>()[s]);
    if (segments.fresh.as<int32_t>()[s] != 0) std::fill_n(memory, states * channels, 0.0);
    for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e) {
      const double* b = args.b.as<double>() + e * states;
      const double* c = args.c.as<double>() + e * states;
      for (int64_t i = 0; i < channels; ++i) {
        const int64_t at = e * channels + i;
        const double u = args.u.as<double>()[at];
        const double gate = args.gate.as<double>()[at];
        const double step =
            reference::Softplus(args.dt.as<double>()[at] + args.dt_bias.as<float>()[i]);
        double y = args.skip.as<float>()[i] * u;
        for (int64_t n = 0; n < states; ++n) {
          double& h = memory[n * channels + i];
          h = std::exp(step * args.a.as<float>()[n * channels + i]) * h + step * u * b[n];
          y += c[n] * h;
        }
        args.y.as<double>()[at] = y * reference::Silu(gate);
      }
    }
  }
}

void ReferenceKernels::Discretize(const DiscretizeArgs& args) {
  Check(args, reference::kTypes);
  const int64_t entries = args.u.shape[0], heads = args.u.shape[1], dim = args.u.shape[2];
  for (int64_t row = 0; row < entries * heads; ++row) {
    const int64_t head = row % heads;
    const double step = std::min<double>(
        args.most_step,
        std::max<double>(args.least_step, reference::Softplus(args.dt.as<double>()[row] +
                                                              args.dt_bias.as<float>()[head])));
    args.log_decay.as<double>()[row] = step * args.a.as<float>()[head];
    for (int64_t i = row * dim; i < (row + 1) * dim; ++i) {
      args.v.as<double>()[i] = step * args.u.as<double>()[i];
    }
  }
}

}  // namespace mneme
