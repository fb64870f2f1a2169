// The least that a step has to read, update and multiply, given where its tokens were routed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/step_plan.h"
#include "kernels/backend.h"
#include "models/forward_context.h"
#include "models/model.h"

namespace mneme {

// Counts weights as bytes of the file's tensors, each once a step: those of a routed memory only if
// a token goes there, the head only if logits are wanted, of the embedding the tokens' rows. Counts
// the state as bytes of the memories and windows that a row's tokens go to, and of the keys and
// values that attention reads and writes of a row's context. Activations, a few megabytes that stay
// in caches, are not counted.
class StepTraffic final : public RoutingObserver {
 public:
  static absl::StatusOr<StepTraffic> Create(const std::string& folder, const Model& model,
                                            Backend& backend);

  // Before each step. `plan` must stay until the step is done; it has no empty or padding rows.
  void BeginStep(const StepPlan& plan);

  TensorView Forced(int, int, int) override { return {}; }
  void OnRouted(int layer, const TensorView& indices, const TensorView& weights) override;

  // The step's bytes and operations.
  double weight_bytes() const { return weight_bytes_; }
  // Read and written, so moved twice; of a context half of what is read or written once.
  double state_bytes() const { return state_bytes_; }
  double flops() const { return flops_; }  // of matrix products

  // Bytes of a step in which each of `rows` sessions, or so many on average, decodes a token: the
  // state's exactly, but for contexts, which are as long as the sessions; the weights' as a router
  // that spreads tokens evenly needs them, those of a memory as likely as a row goes there.
  double DecodeStateBytes(double rows) const;  // one way, as state_bytes()
  double DecodeWeightBytes(double rows) const;
  // The state's bytes, read and written, that a step moves on average if C writes to a memory are
  // held back, as keys, updates and decays, and folded every C + 1 tokens (PendingWrites). Where
  // the backend holds nothing back: twice DecodeStateBytes().
  double DeferredStateBytes(double rows) const;
  // Weights and state, by the way that moves less.
  double LeastDecodeBytes(double rows) const;

  // Prompts read from new sessions: their products, and the least bytes that steps of at most
  // `step_tokens` move, which is all weights once a step, and each session's state once.
  double PromptFlops(int prompts, int tokens) const;
  double PromptBytes(int prompts, int tokens, int step_tokens) const;

  // Matrix products of the network but for the head, equal ones counted together.
  struct Product {
    int out_features = 0;
    int in_features = 0;
    double share = 1;  // of the tokens, if the router spreads them evenly
    int count = 0;
  };
  const std::vector<Product>& products() const { return products_; }

 private:
  struct Memory {  // weights that only tokens of one routed memory need
    double bytes = 0;
    double elements = 0;
  };
  struct Layer {
    std::vector<Memory> memories;
    double state_bytes = 0;    // of one memory
    double matrix_bytes = 0;   // of these, what holding a write back spares
    double pending_bytes = 0;  // of one pending write
  };

  explicit StepTraffic(Backend& backend) : backend_(&backend) {}
  void AddProduct(int64_t out, int64_t in, double share);

  Backend* backend_;
  int top_k_ = 0;
  int unrouted_memories_ = 0;  // of each layer, that all tokens go to: 0 or 1
  int pending_writes_ = 0;     // StateField::writes
  std::vector<Layer> layers_;
  std::vector<StateField> contexts_;               // of all layers with attention
  double common_bytes_ = 0, common_elements_ = 0;  // weights that every token needs
  double head_bytes_ = 0, head_elements_ = 0;
  double embedding_row_bytes_ = 0;
  std::vector<Product> products_;

  const StepPlan* plan_ = nullptr;
  double weight_bytes_ = 0, state_bytes_ = 0, flops_ = 0;
  std::vector<int32_t> indices_;        // [tokens, top_k] of a layer
  std::vector<int64_t> memory_tokens_;  // [memories]
};

}  // namespace mneme
