#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cut_rows.h"
#include "kernels/reference/reference_kernels.h"

namespace mneme {

void ReferenceKernels::IndexWholeSegments(const IndexWholeSegmentsArgs& args) {
  Check(args, reference::kTypes);
  IndexWholeSegmentsOnHost(args);
}

void ReferenceKernels::SegmentAttention(const SegmentAttentionArgs& args) {
  Check(args, reference::kTypes);
  const int64_t heads = args.q.shape[1], dim = args.q.shape[2];
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  for (int64_t row = 0; row < args.slots.shape[0]; ++row) {
    if (args.slots.as<int32_t>()[row] < 0) continue;
    const int seen = args.seen.as<int32_t>()[row];
    for (int64_t token = offsets[row]; token < offsets[row + 1]; ++token) {
      for (int64_t head = 0; head < heads; ++head) {
        const auto at = [&](const TensorView& x, int64_t t) {
          return x.as<double>() + (t * heads + head) * dim;
        };
        double* const out = at(args.out, token);
        std::fill_n(out, dim, 0.0);
        if (seen == 0) continue;
        std::vector<double> weights;
        for (int64_t j = 0; j < seen; ++j) {
          double score = 0;
          for (int64_t i = 0; i < dim; ++i) {
            score += at(args.q, token)[i] * at(args.k, offsets[row] + j)[i];
          }
          weights.push_back(args.scale * score);
        }
        const double largest = *std::max_element(weights.begin(), weights.end());
        double total = 0;
        for (double& weight : weights) total += weight = std::exp(weight - largest);
        for (int64_t j = 0; j < seen; ++j) {
          const double* value = at(args.v, offsets[row] + j);
          for (int64_t i = 0; i < dim; ++i) {
            out[i] += weights[static_cast<size_t>(j)] / total * value[i];
          }
        }
      }
    }
  }
}

}  // namespace mneme
