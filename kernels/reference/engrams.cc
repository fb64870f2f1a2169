#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/engrams_on_host.h"
#include "kernels/reference/reference_kernels.h"

namespace mneme {
namespace {

double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

double SquaredDistance(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

// One query, and one token more.
void Encode(const EncodeTokensArgs& args, int slot, int64_t query, const double* h) {
  const int64_t dim = args.h.shape[1];
  const float* q = args.queries.as<float>() + query * dim;
  double& largest = args.largest.as<double>(slot, 0)[query];
  double& total = args.total.as<double>(slot, 0)[query];
  double* sums = args.sums.as<double>(slot, 0) + query * dim;
  double score = 0;
  for (int64_t i = 0; i < dim; ++i) score += q[i] * h[i];
  const double now = std::max(largest, score);
  const double keep = std::exp(largest - now), p = std::exp(score - now);
  for (int64_t i = 0; i < dim; ++i) sums[i] = keep * sums[i] + p * h[i];
  total = keep * total + p;
  largest = now;
}

}  // namespace

void ReferenceKernels::FindCrossings(const FindCrossingsArgs& args) {
  Check(args, reference::kTypes);
  FindCrossingsOnHost(args);
}
void ReferenceKernels::CommitEngrams(const CommitEngramsArgs& args) {
  Check(args, reference::kTypes);
  CommitEngramsOnHost<double>(args);
}
void ReferenceKernels::ReadEncoder(const ReadEncoderArgs& args) {
  Check(args, reference::kTypes);
  ReadEncoderOnHost<double>(args);
}
void ReferenceKernels::WriteEngrams(const WriteEngramsArgs& args) {
  Check(args, reference::kTypes);
  WriteEngramsOnHost<double>(args);
}
void ReferenceKernels::RetrieveEngrams(const RetrieveEngramsArgs& args) {
  Check(args, reference::kTypes);
  RetrieveEngramsOnHost<double>(args);
}
void ReferenceKernels::GatherEngrams(const GatherEngramsArgs& args) {
  Check(args, reference::kTypes);
  GatherEngramsOnHost<double>(args);
}
void ReferenceKernels::StoreEngramContext(const StoreEngramContextArgs& args) {
  Check(args, reference::kTypes);
  StoreEngramContextOnHost<double>(args);
}

void ReferenceKernels::EncodeTokens(const EncodeTokensArgs& args) {
  Check(args, reference::kTypes);
  const int64_t dim = args.h.shape[1];
  const int64_t working = args.queries.empty() ? args.segment : args.queries.shape[0];
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  for (int64_t row = 0; row < args.slots.shape[0]; ++row) {
    const int slot = args.slots.as<int32_t>()[row];
    if (slot < 0) continue;
    for (int32_t token = offsets[row]; token < offsets[row + 1]; ++token) {
      const int64_t place =
          (args.positions.as<int64_t>()[row] + token - offsets[row]) % args.segment;
      const double* h = args.h.as<double>() + token * dim;
      double* sums = args.sums.as<double>(slot, 0);
      if (place == 0) {
        std::fill_n(sums, working * dim, 0.0);
        if (!args.queries.empty()) {
          std::fill_n(args.largest.as<double>(slot, 0), working, -HUGE_VAL);
          std::fill_n(args.total.as<double>(slot, 0), working, 0.0);
        }
      }
      if (args.queries.empty()) {
        std::copy_n(h, dim, sums + place * dim);
      } else {
        for (int64_t query = 0; query < working; ++query) Encode(args, slot, query, h);
      }
    }
  }
}

void ReferenceKernels::ScoreEngrams(const ScoreEngramsArgs& args) {
  Check(args, reference::kTypes);
  const int64_t dim = args.store.dim, capacity = args.store.capacity;
  const std::vector<double> zeros(static_cast<size_t>(dim));
  for (int64_t c = 0; c < args.crossings.most(); ++c) {
    const int slot = args.crossings.slots.as<int32_t>()[c];
    if (slot < 0) continue;
    const Engrams<double> engrams(args.store, slot);
    const std::vector<int> working = engrams.OfType(EngramType::kWorking);
    for (int64_t i = 0; i <= capacity; ++i) {
      const double* x = i == capacity ? zeros.data() : engrams.vector(static_cast<int>(i));
      if (i < capacity && engrams.type(static_cast<int>(i)) == EngramType::kFree) continue;
      std::vector<double> distances;
      for (const int w : working) distances.push_back(SquaredDistance(x, engrams.vector(w), dim));
      double& score = args.scores.as<double>()[c * (capacity + 1) + i];
      if (args.rules.score == EngramRules::Score::kExpMean) {
        score = ExpMeanScore(distances);
      } else {
        double sum = 0;
        for (const double distance : distances) sum -= distance;
        score = sum / args.rules.working;
      }
    }
  }
}

void ReferenceKernels::EngramAttention(const EngramAttentionArgs& args) {
  Check(args, reference::kTypes);
  const int64_t heads = args.q.shape[1], dim = args.q.shape[2];
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  for (int64_t row = 0; row < args.slots.shape[0]; ++row) {
    const int slot = args.slots.as<int32_t>()[row];
    if (slot < 0) continue;
    const int count = args.positions.as<int64_t>()[row] < args.segment
                          ? 0
                          : args.facts.as<int32_t>(slot, 0)[args.counted];
    for (int64_t token = offsets[row]; token < offsets[row + 1]; ++token) {
      for (int64_t head = 0; head < heads; ++head) {
        const double* q = args.q.as<double>() + (token * heads + head) * dim;
        double* out = args.out.as<double>() + (token * heads + head) * dim;
        std::fill_n(out, dim, 0.0);
        const auto at = [&](const StateView& field, int i) {
          return field.as<double>(slot, 0) + ((args.first + i) * heads + head) * dim;
        };
        std::vector<double> weights;
        for (int i = 0; i < count; ++i) {
          weights.push_back(args.scale * Dot(q, at(args.keys, i), dim));
        }
        if (weights.empty()) continue;
        const double largest = *std::max_element(weights.begin(), weights.end());
        double total = 0;
        for (double& weight : weights) total += weight = std::exp(weight - largest);
        for (int i = 0; i < count; ++i) {
          const double weight = weights[static_cast<size_t>(i)] / total;
          for (int64_t j = 0; j < dim; ++j) out[j] += weight * at(args.values, i)[j];
          if (args.sums.base != nullptr) {
            args.sums.as<double>(slot, args.layer)[head * args.recalled + i] += weight;
          }
        }
      }
    }
  }
}

void ReferenceKernels::AddFrom(const AddFromArgs& args) {
  Check(args, reference::kTypes);
  const int64_t dim = args.x.shape[1];
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    if (args.positions.as<int64_t>()[t] < args.first) continue;
    for (int64_t i = t * dim; i < (t + 1) * dim; ++i) {
      args.y.as<double>()[i] += args.x.as<double>()[i];
    }
  }
}

}  // namespace mneme
