// Takes down which memories each token went to, or dictates it: so that a router's near-tie, which
// rounding may decide either way, neither hides nor fakes an error.
#pragma once

#include <cstdint>
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

}  // namespace mneme
