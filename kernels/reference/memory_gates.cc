// The gates of a step of a neural memory, made of its tokens: KeepGate, ChunkMean, ChunkPool.
#include <algorithm>
#include <cmath>

#include "kernels/reference/reference_kernels.h"

namespace mneme {

void ReferenceKernels::KeepGate(const KeepGateArgs& args) {
  Check(args, reference::kTypes);
  const int64_t heads = args.x.shape[1];
  for (int64_t i = 0; i < args.x.shape.elements(); ++i) {
    const double x = args.x.as<double>()[i];
    double& y = args.y.as<double>()[i];
    if (args.a_log.empty()) {
      y = reference::Sigmoid(-x);
    } else {
      y = std::exp(-std::exp(double{args.a_log.as<float>()[i % heads]}) *
                   reference::ExactSoftplus(x + args.dt_bias.as<float>()[i % heads]));
    }
  }
}

void ReferenceKernels::ChunkMean(const ChunkMeanArgs& args) {
  Check(args, reference::kTypes);
  const int64_t dim = args.x.shape[1];
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  for (int s = 0; s < args.segments.count; ++s) {
    const int32_t slot = args.segments.slots.as<int32_t>()[s];
    if (slot < 0) continue;
    double* sums = args.sums.as<double>(slot, args.segments.memories.as<int32_t>()[s]);
    for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e) {
      if (args.positions.as<int64_t>()[e] % args.chunk == 0) std::fill_n(sums, dim, 0.0);
      for (int64_t i = 0; i < dim; ++i) {
        sums[i] += args.x.as<double>()[e * dim + i];
        args.y.as<double>()[e * dim + i] = sums[i] / static_cast<double>(args.chunk);
      }
    }
  }
}

void ReferenceKernels::ChunkPool(const ChunkPoolArgs& args) {
  Check(args, reference::kTypes);
  const int64_t dim = args.x.shape[1];
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  for (int s = 0; s < args.segments.count; ++s) {
    const int32_t slot = args.segments.slots.as<int32_t>()[s];
    if (slot < 0) continue;
    double* sums = args.sums.as<double>(slot, args.segments.memories.as<int32_t>()[s]);
    double *largest = sums, *total = sums + dim, *weighted = sums + 2 * dim;
    for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e) {
      const bool first = args.positions.as<int64_t>()[e] % args.chunk == 0;
      for (int64_t i = 0; i < dim; ++i) {
        const double logit = args.logits.as<double>()[e * dim + i];
        const double x = args.x.as<double>()[e * dim + i];
        const double most = first ? logit : std::max(largest[i], logit);
        const double old = first ? 0 : std::exp(largest[i] - most), own = std::exp(logit - most);
        total[i] = (first ? 0 : total[i] * old) + own;
        weighted[i] = (first ? 0 : weighted[i] * old) + own * x;
        largest[i] = most;
        args.y.as<double>()[e * dim + i] = weighted[i] / total[i];
      }
    }
  }
}

}  // namespace mneme
