// The memory of a layer whose memory is a network that is trained at test time
// (kernels/ops/neural_memory.h): its learned initial value, and its copies in every slab.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kernels.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/state_layout.h"

namespace mneme {

struct TrainedMemoryConfig {
  int heads = 1;
  int dim = 1;
  MemoryNetwork network;
  // As of NeuralMemoryArgs.
  int step = 1;
  int anchor_period = 1;
  int frozen_period = 0;
  NeuralMemoryArgs::Read read = NeuralMemoryArgs::Read::kRunning;
  double rate_scale = 1;
  int keys = 1;
  int orders = 1;  // of momentum
  double max_grad_norm = 0;
  bool spectral_norm = false;
  TensorView transition;
  // Whether Before() is wanted.
  bool keeps_before = false;
  // Where a prefix has been through the memory before a session begins, all its copies begin as
  // that left them, not as weights and zeros.
  bool prefix = false;
};

// A tensor of the memory, in the order of MemoryNetwork: where its initial value is stored, and as
// what.
struct MemoryTensorName {
  std::string weight;  // behind the layer's prefix
  Shape stored;        // of all heads
  std::string field;   // "mem_weights.0": of "memory.mem_weights.0", "momentum.mem_weights.0", ...
};

class TrainedMemory {
 public:
  static absl::StatusOr<TrainedMemory> Take(const LayerBuilder& builder,
                                            const TrainedMemoryConfig& config,
                                            std::span<const MemoryTensorName> tensors);

  // The operation on tokens of `rows`, but for what it reads, learns and writes: q, k, v, gates and
  // out.
  NeuralMemoryArgs Args(const ForwardContext& ctx, const RowIndex& rows) const;

  // W as it was before the last step, for another memory's NeuralMemoryArgs::residual.
  MemoryCopy Before(const ForwardContext& ctx) const;

 private:
  // What of NeuralMemoryArgs the configuration says.
  NeuralMemoryArgs Rule() const;

  // [1, heads, ...] of each tensor, of momenta [1, orders * heads, ...].
  using Copy = std::vector<StateField>;

  TrainedMemoryConfig config_;
  MemoryInitial learned_;
  // Without tensors where the memory has no such copy.
  Copy weights_, momenta_, anchors_, frozen_, gradients_, before_;
  std::optional<StateField> pending_keys_, pending_values_, pending_rates_;
};

}  // namespace mneme
