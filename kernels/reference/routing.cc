#include <algorithm>
#include <vector>

#include "base/log.h"
#include "kernels/cut_rows.h"
#include "kernels/float16.h"
#include "kernels/reference/reference_kernels.h"

namespace mneme {

void ReferenceKernels::RouteTopK(const RouteTopKArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.logits.shape[0], memories = args.logits.shape[1];
  const int64_t top_k = args.indices.shape[1];

  std::vector<double> logits(static_cast<size_t>(memories));
  std::vector<bool> taken(static_cast<size_t>(memories));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t m = 0; m < memories; ++m) {
      const double logit = args.logits.as<double>()[t * memories + m];
      logits[m] =
          args.round_logits == DType::kBF16 ? RoundToBF16(static_cast<float>(logit)) : logit;
    }
    int32_t* indices = args.indices.as<int32_t>() + t * top_k;
    double* weights = args.weights.as<double>() + t * top_k;

    std::fill(taken.begin(), taken.end(), false);
    for (int64_t j = 0; j < top_k; ++j) {
      int32_t best = -1;
      if (!args.forced.empty()) {
        best = args.forced.as<int32_t>()[t * top_k + j];
        CHECK(best >= 0 && best < memories) << "forced memory " << best;
      } else {
        for (int32_t m = 0; m < memories; ++m) {
          if (!taken[m] && (best < 0 || logits[m] > logits[best])) best = m;
        }
      }
      taken[best] = true;
      indices[j] = best;
    }

    double largest = logits[indices[0]];
    for (int64_t j = 1; j < top_k; ++j) largest = std::max(largest, logits[indices[j]]);
    double sum = 0;
    for (int64_t j = 0; j < top_k; ++j) sum += std::exp(logits[indices[j]] - largest);
    for (int64_t j = 0; j < top_k; ++j) weights[j] = std::exp(logits[indices[j]] - largest) / sum;
  }
}

void ReferenceKernels::Dispatch(const DispatchArgs& args) {
  Check(args, reference::kTypes);
  const int64_t rows = args.slots.shape[0];
  const int64_t tokens = args.token_entries.shape[0], choices = args.token_entries.shape[1];
  const int64_t top_k = choices - (args.shared ? 1 : 0);
  const int64_t groups = args.memories + (args.shared ? 1 : 0);
  const int64_t entries = tokens * choices;
  CHECK_EQ(args.row_offsets.as<int32_t>()[rows], tokens);

  // Entry by entry in the order they are to have: memory, row, token, choice.
  int32_t entry = 0;
  for (int32_t memory = 0; memory < groups; ++memory) {
    args.group_offsets.as<int32_t>()[memory] = entry;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t segment = memory * rows + row;
      const int32_t first = entry;
      args.segments.offsets.as<int32_t>()[segment] = first;
      for (int32_t t = args.row_offsets.as<int32_t>()[row];
           t < args.row_offsets.as<int32_t>()[row + 1]; ++t) {
        for (int64_t j = 0; j < choices; ++j) {
          const int32_t chosen =
              j < top_k ? args.indices.as<int32_t>()[t * top_k + j] : args.memories;
          if (chosen != memory) continue;
          args.entry_tokens.as<int32_t>()[entry] = t;
          args.token_entries.as<int32_t>()[t * choices + j] = entry;
          ++entry;
        }
      }
      const int32_t slot = args.slots.as<int32_t>()[row];
      int32_t fresh = 0;
      if (slot >= 0 && entry > first) {
        uint8_t* written = args.written.as<uint8_t>(slot, memory);
        fresh = *written == 0 ? 1 : 0;
        *written = 1;
      }
      args.segments.slots.as<int32_t>()[segment] = slot;
      args.segments.memories.as<int32_t>()[segment] = memory;
      args.segments.fresh.as<int32_t>()[segment] = fresh;
    }
  }
  args.group_offsets.as<int32_t>()[groups] = entry;
  args.segments.offsets.as<int32_t>()[groups * rows] = entry;
  CHECK_EQ(entry, entries) << "a routed memory is outside [0, " << args.memories << ")";
}

void ReferenceKernels::IndexRows(const IndexRowsArgs& args) {
  Check(args, reference::kTypes);
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  for (int64_t row = 0; row < args.slots.shape[0]; ++row) {
    const int64_t position = args.prefix + args.positions.as<int64_t>()[row];
    for (int32_t t = offsets[row]; t < offsets[row + 1]; ++t) {
      args.token_positions.as<int64_t>()[t] = std::max<int64_t>(position, 0) + t - offsets[row];
    }
    args.segments.memories.as<int32_t>()[row] = 0;
    args.segments.fresh.as<int32_t>()[row] =
        position == 0 && offsets[row] < offsets[row + 1] ? 1 : 0;
  }
}

void ReferenceKernels::CutRows(const CutRowsArgs& args) {
  Check(args, reference::kTypes);
  CutRowsOnHost(args);
}

void ReferenceKernels::ExpandRows(const ExpandRowsArgs& args) {
  Check(args, reference::kTypes);
  ExpandRowsOnHost(args);
}

void ReferenceKernels::MixMemories(const MixMemoriesArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.y.shape[0];
  const int64_t top_k = args.weights.empty() ? 0 : args.weights.shape[1];
  const int64_t choices = args.token_entries.shape[1], dim = args.x.shape[1];
  for (int64_t t = 0; t < tokens; ++t) {
    double* y = args.y.as<double>() + t * dim;
    std::fill_n(y, dim, 0.0);
    for (int64_t j = 0; j < choices; ++j) {
      const double weight = j < top_k ? args.weights.as<double>()[t * top_k + j] : 1.0;
      const double* x =
          args.x.as<double>() + args.token_entries.as<int32_t>()[t * choices + j] * dim;
      for (int64_t i = 0; i < dim; ++i) y[i] += weight * x[i];
    }
  }
}

}  // namespace mneme
