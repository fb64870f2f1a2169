// Counts where tokens are routed.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/engine_stats.h"
#include "kernels/backend.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"

namespace mneme {

class RoutingCounter final : public RoutingObserver {
 public:
  // On a device that computes beside the host, watching costs a wait in each layer, and decode rows
  // their graphs and fused steps. There one in so many steps is watched of those that read prompts
  // alone, which is enough for shares.
  static constexpr int kWatchedOneIn = 16;

  // Both must outlive it; `counts` is sized for the model.
  RoutingCounter(Backend& backend, RoutingCounts& counts)
      : backend_(backend), counts_(counts), tokens_(counts.memories()) {}

  // The observer of a step with so many decode rows: this one, or null.
  RoutingObserver* ForStep(int decode_rows) {
    if (!backend_.asynchronous()) return this;
    return decode_rows == 0 && prompt_steps_++ % kWatchedOneIn == 0 ? this : nullptr;
  }

  TensorView Forced(int, int, int) override { return {}; }
  void OnRouted(int layer, const TensorView& indices, const TensorView&) override {
    chosen_.resize(indices.shape.elements());
    backend_.CopyToHost(chosen_.data(), indices.data, indices.bytes());
    for (const int32_t memory : chosen_) ++tokens_[memory];
    for (int m = 0; m < counts_.memories(); ++m) {
      if (tokens_[m] > 0) counts_.Add(layer, m, std::exchange(tokens_[m], 0));
    }
  }

 private:
  Backend& backend_;
  RoutingCounts& counts_;
  std::vector<int32_t> chosen_;  // of the step in this layer
  std::vector<int64_t> tokens_;  // of the layer, by memory; zeros between calls
  int64_t prompt_steps_ = 0;
};

}  // namespace mneme
