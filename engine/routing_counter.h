// Counts where tokens are routed, on a backend whose memory is the host's and whose operations are
// done when they return: the CPU's. Watching costs a synchronisation and the fused decode step on a
// device, and so is left out there.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/engine_stats.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"

namespace mneme {

class RoutingCounter final : public RoutingObserver {
 public:
  // `counts` must outlive it, and is sized for the model.
  explicit RoutingCounter(RoutingCounts& counts) : counts_(counts), tokens_(counts.memories()) {}

  TensorView Forced(int, int, int) override { return {}; }
  void OnRouted(int layer, const TensorView& indices, const TensorView&) override {
    const auto* const memory = indices.as<int32_t>();
    for (int64_t i = 0; i < indices.shape.elements(); ++i) ++tokens_[memory[i]];
    for (int m = 0; m < counts_.memories(); ++m) {
      if (tokens_[m] > 0) counts_.Add(layer, m, std::exchange(tokens_[m], 0));
    }
  }

 private:
  RoutingCounts& counts_;
  std::vector<int64_t> tokens_;  // of the layer, by memory; zeros between calls
};

}  // namespace mneme
