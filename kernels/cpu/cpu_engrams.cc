// Engrams on the CPU: checks, and how what tokens and distances cost is divided.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/engrams_on_host.h"
#include "kernels/ops/checks.h"

namespace mneme {
namespace {

// Rows of a step that have tokens and are no padding.
template <typename Visit>
void ForEachRow(const TensorView& row_offsets, const TensorView& slots, const Visit& visit) {
  const int32_t* offsets = row_offsets.as<int32_t>();
  for (int row = 0; row < static_cast<int>(slots.shape[0]); ++row) {
    const int tokens = offsets[row + 1] - offsets[row];
    if (slots.as<int32_t>()[row] >= 0 && tokens > 0) visit(row, tokens);
  }
}

}  // namespace

void CpuKernels::FindCrossings(const FindCrossingsArgs& args) {
  Check(args, kCpuActivations);
  FindCrossingsOnHost(args);
}

void CpuKernels::CommitEngrams(const CommitEngramsArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  CommitEngramsOnHost<float>(args);
}

void CpuKernels::ReadEncoder(const ReadEncoderArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  ReadEncoderOnHost<float>(args);
}

void CpuKernels::WriteEngrams(const WriteEngramsArgs& args) {
  Check(args, kCpuActivations);
  WriteEngramsOnHost<float>(args);
}

void CpuKernels::RetrieveEngrams(const RetrieveEngramsArgs& args) {
  Check(args, kCpuActivations);
  RetrieveEngramsOnHost<float>(args);
}

void CpuKernels::GatherEngrams(const GatherEngramsArgs& args) {
  Check(args, kCpuActivations);
  GatherEngramsOnHost<float>(args);
}

void CpuKernels::StoreEngramContext(const StoreEngramContextArgs& args) {
  Check(args, kCpuActivations);
  StoreEngramContextOnHost<float>(args);
}

void CpuKernels::EncodeTokens(const EncodeTokensArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t dim = args.h.shape[1];
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  const auto position_of = [&](int row) { return args.positions.as<int64_t>()[row]; };
  if (args.queries.empty()) {
    ForEachRow(args.row_offsets, args.slots, [&](int row, int tokens) {
      float* const sums = args.sums.as<float>(args.slots.as<int32_t>()[row], 0);
      const int64_t place = position_of(row) % args.segment;
      if (place == 0) std::fill_n(sums, args.segment * dim, 0.0f);
      std::copy_n(args.h.as<float>() + offsets[row] * dim, tokens * dim, sums + place * dim);
    });
    return;
  }
  const int64_t working = args.queries.shape[0];
  ForEachRow(args.row_offsets, args.slots, [&](int row, int tokens) {
    For(working, 1, 0.2 * static_cast<double>(tokens * dim) + 20,
        [&](int64_t begin, int64_t end) { ops_.encode_tokens(args, row, begin, end); });
  });
}

void CpuKernels::ScoreEngrams(const ScoreEngramsArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t dim = args.store.dim, capacity = args.store.capacity;
  const bool exp_mean = args.rules.score == EngramRules::Score::kExpMean;
  for (int64_t c = 0; c < args.crossings.most(); ++c) {
    const int slot = args.crossings.slots.as<int32_t>()[c];
    if (slot < 0) continue;
    const Engrams<float> engrams(args.store, slot);
    std::vector<float> others;  // working engrams, or their mean
    const std::vector<int> working = engrams.OfType(EngramType::kWorking);
    for (const int w : working) {
      others.insert(others.end(), engrams.vector(w), engrams.vector(w) + dim);
    }
    double spread = 0;
    if (!exp_mean) {
      std::vector<float> mean(static_cast<size_t>(dim));
      for (int64_t i = 0; i < dim; ++i) {
        double sum = 0;
        for (size_t w = 0; w < working.size(); ++w) {
          sum += others[w * static_cast<size_t>(dim) + static_cast<size_t>(i)];
        }
        mean[static_cast<size_t>(i)] = static_cast<float>(sum / args.rules.working);
      }
      std::vector<double> distances(working.size());
      ops_.squared_distances(mean.data(), others.data(), args.rules.working, dim, distances.data());
      for (const double distance : distances) spread += distance / args.rules.working;
      others = std::move(mean);
    }
    const int64_t count = exp_mean ? args.rules.working : 1;
    const std::vector<float> zeros(static_cast<size_t>(dim));
    float* const scores = args.scores.as<float>() + c * (capacity + 1);
    For(capacity + 1, 8, static_cast<double>(count) * (0.1 * static_cast<double>(dim) + 20),
        [&](int64_t begin, int64_t end) {
          std::vector<double> distances(static_cast<size_t>(count));
          for (int64_t i = begin; i < end; ++i) {
            const bool is_null = i == capacity;
            if (!is_null && engrams.type(static_cast<int>(i)) == EngramType::kFree) continue;
            ops_.squared_distances(is_null ? zeros.data() : engrams.vector(static_cast<int>(i)),
                                   others.data(), count, dim, distances.data());
            scores[i] = static_cast<float>(exp_mean ? ExpMeanScore(distances)
                                                    : NegSquareScore(distances[0], spread));
          }
        });
  }
}

void CpuKernels::EngramAttention(const EngramAttentionArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t heads = args.q.shape[1], dim = args.q.shape[2];
  const auto seen_by = [&](int row) {
    if (args.positions.as<int64_t>()[row] < args.segment) return 0;
    return static_cast<int>(args.facts.as<int32_t>(args.slots.as<int32_t>()[row], 0)[args.counted]);
  };
  engram_rows_.clear();
  double nanoseconds = 0;
  ForEachRow(args.row_offsets, args.slots, [&](int row, int tokens) {
    engram_rows_.push_back({row, seen_by(row)});
    nanoseconds += 0.15 * tokens * static_cast<double>((seen_by(row) + 1) * heads * dim);
  });
  // A task is a head of a row: its tokens add to the same sums, in order.
  const auto run = [&](int64_t begin, int64_t end, int worker) {
    constexpr int64_t kPadding = 64;
    auto* scores = static_cast<float*>(workers_[static_cast<size_t>(worker)].attention.Reserve(
        (args.most + kPadding) * int64_t{sizeof(float)}));
    for (int64_t i = begin; i < end; ++i) {
      const EngramRow& row = engram_rows_[static_cast<size_t>(i / heads)];
      ops_.engram_attention(args, row.row, static_cast<int>(i % heads), row.seen, scores);
    }
  };
  const int64_t tasks = static_cast<int64_t>(engram_rows_.size()) * heads;
  if (nanoseconds < kWorthSharingNanoseconds) {
    run(0, tasks, 0);
  } else {
    pool_.ParallelForDynamic(tasks, 1, run);
  }
}

void CpuKernels::AddFrom(const AddFromArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.x.shape[0], 1, 0.1 * static_cast<double>(args.x.shape[1]),
      [&](int64_t begin, int64_t end) { ops_.add_from(args, begin, end); });
}

}  // namespace mneme
