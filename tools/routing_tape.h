// Records, or dictates, which memories the tokens of one session go to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "models/forward_context.h"
#include "models/model.h"

namespace mneme {

// Saved as a safetensors file with `routing` i32 and `weights` f32, both [tokens, layers, top_k],
// in the router's order: largest weight first, unless the choice was forced. Layers without a
// router, which have attention, are all -1.
class RoutingTape final : public RoutingObserver {
 public:
  // FAILED_PRECONDITION for an architecture without a router.
  static absl::StatusOr<RoutingTape> Create(Backend& backend, const ModelInfo& model,
                                            int max_step_tokens);

  // From now on the choices come from a saved tape. INVALID_ARGUMENT unless it holds at least
  // `tokens` tokens of this model's shape, with memories that exist and differ. Layers of which it
  // has none, -1 for every token, choose for themselves.
  absl::Status LoadForced(const std::string& path, int64_t tokens);

  // Before each step: which of its tokens are the session's next ones.
  void BeginStep(int first_token, int count);

  TensorView Forced(int layer, int tokens, int top_k) override;
  void OnRouted(int layer, const TensorView& indices, const TensorView& weights) override;

  absl::Status Save(const std::string& path) const;

  int64_t tokens() const { return tokens_; }
  int layers() const { return layers_; }
  int memories() const { return memories_; }
  int top_k() const { return top_k_; }
  // Whether the layer has a router; of a tape with tokens.
  bool routed(int layer) const { return tokens_ > 0 && memory(0, layer, 0) >= 0; }
  int32_t memory(int64_t token, int layer, int choice) const {
    return indices_[At(token, layer) + choice];
  }
  // The share of the tokens that each memory got in a routed layer; together top_k.
  std::vector<double> Shares(int layer) const;
  float weight(int64_t token, int layer, int choice) const {
    return weights_[At(token, layer) + choice];
  }

 private:
  explicit RoutingTape(Backend& backend) : backend_(&backend) {}
  size_t At(int64_t token, int layer) const {
    return static_cast<size_t>((token * layers_ + layer) * top_k_);
  }

  Backend* backend_;
  int layers_ = 0, memories_ = 0, top_k_ = 0;
  int64_t tokens_ = 0;  // recorded so far
  int step_first_ = 0, step_count_ = 0;
  std::vector<int32_t> indices_;  // [tokens, layers, top_k]
  std::vector<float> weights_;    // the same
  std::vector<int32_t> forced_;   // the same, of the loaded tape; empty: free choice
  Tensor forced_step_;            // [max_step_tokens, top_k] i32
};

}  // namespace mneme
