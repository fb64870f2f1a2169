// The memory of a layer whose memory is a network that is trained at test time
// (kernels/ops/neural_memory.h): its learned initial value, and its copies in every slab.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/held_steps.h"
#include "kernels/kernels.h"
#include "kernels/stream_steps.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/memory_streams.h"
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
  // The loss that this is the rate of, as a multiple of |error|^2; for those who look on.
  double loss_scale = 0.5;
  int keys = 1;
  int orders = 1;  // of momentum
  double max_grad_norm = 0;
  bool spectral_norm = false;
  TensorView transition;
  // Whether a step's forgetting comes before its gradient, which is then taken at keep W: of a
  // network of one matrix without norm and biases, in steps of one pair whose anchor is W.
  bool decays_first = false;
  // Whether Before() is wanted.
  bool keeps_before = false;
  // Whether the device may hold steps back, of a memory that has a HeldCapacity(): nobody but Run()
  // reads W or G.
  bool may_hold_back = false;
  // Tokens of a prefix that has been through the memory before a session begins: all its copies
  // then begin as that left them, not as weights and zeros.
  int prefix = 0;
};

// A tensor of the memory, in the order of MemoryNetwork: where its initial value is stored, and as
// what.
struct MemoryTensorName {
  std::string weight;  // behind the layer's prefix; empty: nothing is stored, it begins at zeros
  Shape stored;        // of all heads, or of one: then all begin alike
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

  // Makes the state fields alone the memory of the slabs `slots`, [n] i32.
  void Settle(ForwardContext& ctx, const TensorView& slots) const;

  // W as it was before the last step, for another memory's NeuralMemoryArgs::residual.
  MemoryCopy Before(const ForwardContext& ctx) const;

  // The operation, which trains, behind what is left of the streams. Whoever watches hears of the
  // tokens' losses and rates, in the caller's workspace scope. Returns what is still to do with the
  // answer: Surprise, if its `surprise` is not empty.
  [[nodiscard]] SurpriseArgs Run(ForwardContext& ctx, const MemoryStreams& streams,
                                 NeuralMemoryArgs args) const;
  // The same with the answer's way out, whose surprise it sets, and the product behind it, or null.
  // True: all of that is done.
  [[nodiscard]] bool Run(ForwardContext& ctx, const MemoryStreams& streams, NeuralMemoryArgs args,
                         NeuralMemoryOutputArgs& output, const LinearArgs* product) const;
  // All of that, without streams.
  void Train(ForwardContext& ctx, const NeuralMemoryArgs& args) const;
  // All of that, without streams, as one operation with what makes the gates and the answer's gate,
  // where the backend has it and nobody looks on. False: nothing was done.
  bool TrainGated(ForwardContext& ctx, GatedMemoryArgs args) const;
  // Tells whoever looks on of gates, as offset + scale * values, and of what a projection of the
  // memory's answer is, x  [entries, dim] as LinearArgs::x.
  void Tell(const ForwardContext& ctx, absl::string_view name, const TensorView& values,
            double scale = 1, double offset = 0) const {
    ctx.Observe(layer_, name, values, scale, offset);
  }
  void TellProduct(ForwardContext& ctx, absl::string_view name, const TensorView& x,
                   std::span<const PackedMatrix> weights) const;

 private:
  // What of NeuralMemoryArgs the configuration says.
  NeuralMemoryArgs Rule() const;
  HeldSteps Held(const ForwardContext& ctx) const;
  // The rule of `decays_first` in terms of the operation's, and its losses in terms of the rule's.
  NeuralMemoryArgs DecayFirst(ForwardContext& ctx, const NeuralMemoryArgs& args) const;
  void UndoDecay(ForwardContext& ctx, const NeuralMemoryArgs& args) const;
  // Room for losses, if anybody wants to know them, and what is to be made of them.
  void AddLoss(ForwardContext& ctx, NeuralMemoryArgs& args) const;
  SurpriseArgs SurpriseOf(const ForwardContext& ctx, const NeuralMemoryArgs& args) const;

  // [1, heads, ...] of each tensor, of momenta [1, orders * heads, ...].
  using Copy = std::vector<StateField>;

  TrainedMemoryConfig config_;
  int layer_ = 0;
  int place_ = 0;  // in ModelInfo::trained
  MemoryInitial learned_;
  TensorView least_keep_;  // [heads] f32, with decays_first
  // Without tensors where the memory has no such copy.
  Copy weights_, momenta_, anchors_, frozen_, gradients_, before_;
  std::optional<StateField> pending_keys_, pending_values_, pending_rates_;
  int held_steps_ = 0;  // HeldSteps::capacity
  std::optional<StateField> held_numbers_, held_vectors_;
};

}  // namespace mneme
