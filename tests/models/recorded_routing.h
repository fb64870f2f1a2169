// Takes down which memories each token went to, or dictates it: so that a router's near-tie, which
// rounding may decide either way, neither hides nor fakes an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kernels/tensor.h"
#include "models/forward_context.h"

namespace mneme {

// One entry per call of a layer's router, in order: [tokens, top_k].
using RoutingChoices = std::vector<std::vector<int32_t>>;

class RecordedRouting final : public RoutingObserver {
 public:
  explicit RecordedRouting(Backend& backend) : backend_(backend) {}
  // Dictates what another recorded.
  RecordedRouting(Backend& backend, RoutingChoices choices)
      : backend_(backend), forced_(std::move(choices)) {}

  const RoutingChoices& recorded() const { return recorded_; }

  TensorView Forced(int, int tokens, int top_k) override {
    if (forced_.empty()) return {};
    const std::vector<int32_t>& next = forced_.at(recorded_.size());
    CHECK_EQ(next.size(), static_cast<size_t>(tokens) * top_k);
    // Work that reads the last upload may still be under way.
    CHECK_OK(backend_.Synchronize());
    absl::StatusOr<Tensor> tensor = Tensor::Allocate(backend_, DType::kI32, {tokens, top_k});
    CHECK_OK(tensor.status());
    upload_ = *std::move(tensor);
    backend_.CopyFromHost(upload_.view().data, next.data(), upload_.view().bytes());
    return upload_.view();
  }

  void OnRouted(int, const TensorView& indices, const TensorView&) override {
    std::vector<int32_t> values(static_cast<size_t>(indices.shape.elements()));
    backend_.CopyToHost(values.data(), indices.data, indices.bytes());
    recorded_.push_back(std::move(values));
  }

 private:
  Backend& backend_;
  const RoutingChoices forced_;
  Tensor upload_;
  RoutingChoices recorded_;
};

// The recorded choices of one sequence, in the order in which they are asked for when it is fed in
// steps of so many tokens, by `rows` rows that all feed the same.
inline RoutingChoices Recut(const RoutingChoices& choices, int layers, int top_k,
                            std::span<const int> step_tokens, int rows = 1) {
  if (choices.empty()) return {};  // no router
  std::vector<std::vector<int32_t>> of_layer(static_cast<size_t>(layers));
  for (size_t i = 0; i < choices.size(); ++i) {
    std::vector<int32_t>& all = of_layer[i % of_layer.size()];
    all.insert(all.end(), choices[i].begin(), choices[i].end());
  }
  RoutingChoices cut;
  int64_t at = 0;
  for (const int tokens : step_tokens) {
    const int64_t end = at + int64_t{tokens} * top_k;
    for (const std::vector<int32_t>& all : of_layer) {
      std::vector<int32_t>& step = cut.emplace_back();
      for (int row = 0; row < rows; ++row) {
        step.insert(step.end(), all.begin() + at, all.begin() + end);
      }
    }
    at = end;
  }
  return cut;
}

// Choices for the same tokens fed in the same steps: those that `got` has and `want` lacks, of all.
struct FlippedChoices {
  int64_t flipped = 0, all = 0;
  double share() const { return all == 0 ? 0 : static_cast<double>(flipped) / all; }
};

inline FlippedChoices CompareChoices(const RoutingChoices& got, const RoutingChoices& want,
                                     int top_k) {
  CHECK_EQ(got.size(), want.size());
  FlippedChoices result;
  for (size_t call = 0; call < got.size(); ++call) {
    CHECK_EQ(got[call].size(), want[call].size());
    for (size_t i = 0; i < got[call].size(); ++i) {
      const auto of_token = want[call].begin() + i / top_k * top_k;
      result.flipped += std::count(of_token, of_token + top_k, got[call][i]) == 0;
      ++result.all;
    }
  }
  return result;
}

}  // namespace mneme
