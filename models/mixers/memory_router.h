// The way of a step's tokens to the memories of a layer: a router that chooses some of several
// memories for each token (Du et al., arXiv:2502.13685), or nothing, where there is one memory.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernels.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/projection.h"
#include "models/step_entries.h"

namespace mneme {

struct RoutingConfig {
  int memories = 0;     // that the router chooses from; 0: no router, one memory for all tokens
  int top_k = 0;        // of them for each token
  bool shared = false;  // one more memory, which every token goes to
  bool single_projection = false;  // all memories read what the shared one's projections give

  bool routed() const { return memories > 0; }
  int all_memories() const { return routed() ? memories + (shared ? 1 : 0) : 1; }
};

// How the projections of a layer's memories are called: "<list>.0<end>" and so on, and that of the
// shared memory "<shared>", or, where that is empty, as the last of the list. Without a router
// there is "<list><end>".
struct MemoryNames {
  absl::string_view list;
  absl::string_view shared = "";
  absl::string_view end = "";
};
// Takes them: one for each memory, or, without a router and with single_projection, one for all.
absl::StatusOr<Projection> TakeForMemories(const LayerBuilder& builder,
                                           const RoutingConfig& routing, const MemoryNames& names,
                                           int out, int in, Bias bias = Bias::kNone);

class MemoryRouter {
 public:
  // Takes attn.gate.weight, if there is a router.
  static absl::StatusOr<MemoryRouter> Make(const LayerBuilder& builder,
                                           const RoutingConfig& config);

  const RoutingConfig& config() const { return config_; }

  // Norms the step's tokens for `products` and sends them to their memories. `written`: the flags
  // of the layer's memories (DispatchArgs), where there is a router. Temporaries are of the
  // caller's workspace scope.
  StepEntries Enter(ForwardContext& ctx, const Norm& norm, const TensorView& hidden,
                    std::vector<std::span<const PackedMatrix>> products,
                    const StateView& written) const;

  // The parts of that, with a router, for a mixer whose device may do some of them as one.
  RoutingChoice NewChoice(ForwardContext& ctx) const {
    return ctx.NewChoice(layer_, config_.top_k);
  }
  // Norms and chooses; tells the observer.
  void Route(ForwardContext& ctx, const RmsNormArgs& norm, const RoutingChoice& choice) const;
  void Tell(ForwardContext& ctx, const RoutingChoice& choice) const { ctx.Tell(layer_, choice); }
  StepEntries Dispatch(ForwardContext& ctx, const TensorView& x, const RoutingChoice& choice,
                       const StateView& written) const;
  const PackedMatrix& matrix() const { return matrix_; }
  DType round_logits() const { return round_logits_; }

 private:
  int layer_ = 0;
  RoutingConfig config_;
  PackedMatrix matrix_;  // [memories, model_dim]
  DType round_logits_ = DType::kF32;
};

}  // namespace mneme
