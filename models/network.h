// The function that a model computes, as its family builds it from a configuration and weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/tensor_view.h"
#include "models/classes.h"
#include "models/engrams.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/layer_observer.h"

namespace mneme {

struct CanonicalState;  // models/state_codec.h

struct NetworkInfo {
  int vocab = 0;
  int model_dim = 0;
  int layers = 0;
  int memories = 0;   // that a layer's router chooses from; 0: there is no router
  int top_k = 0;      // that it chooses for a token
  int positions = 0;  // that were learned: no session can be fed more tokens; 0: any number
  int engrams = 0;    // that a session has room for; 0: the network makes none
  int segment = 0;    // positions after which engrams are made of them; 0: the network makes none
  int working_engrams = 0;   // that are made of a segment
  int recalled_engrams = 0;  // that a segment's tokens attend to beside those, at most
  // Segments whose firings are counted: of a session that has more some may be lost.
  int64_t counted_segments = 0;
  std::optional<uint64_t> memory_seed = {};  // as of ModelInfo
  InsertedPositions inserted = {};
  Classes classes = {};

  // Columns of the logits.
  int outputs() const { return classes.exist() ? static_cast<int>(classes.labels.size()) : vocab; }
};

// Holds handles to weights and to fields of the slab, neither weights nor state. Its state fields
// were added to the builder's layout.
class Network {
 public:
  virtual ~Network() = default;

  virtual const NetworkInfo& info() const = 0;

  // Computes what sessions share and what follows from weights alone, once these are there: a
  // prefix that all sessions begin with. `workspace` is that of a step of one token; `observer`
  // may be null.
  virtual absl::Status Prepare(Backend&, const StateLayout&, Workspace& /*workspace*/,
                               LayerObserver* /*observer*/) const {
    return absl::OkStatus();
  }

  // As of Model.
  virtual absl::Status InitState(Backend& backend, std::byte* slab) const = 0;
  virtual void Settle(ForwardContext& ctx, const TensorView& slots) const = 0;
  virtual absl::Status CheckState(const CanonicalState&) const { return absl::OkStatus(); }
  virtual absl::Status FitEngrams(CanonicalState&) const { return absl::OkStatus(); }
  virtual absl::StatusOr<ForgottenEngrams> ForgetSegments(CanonicalState&, int64_t /*first*/,
                                                          int64_t /*end*/) const {
    return absl::UnimplementedError("the model makes no engrams");
  }
  virtual absl::StatusOr<std::vector<RecalledEngram>> ReadRecalled(Backend&,
                                                                   const std::byte*) const {
    return absl::UnimplementedError("the model makes no engrams");
  }
  virtual void SeedMemory(Backend&, std::byte* /*slab*/, uint64_t /*seed*/) const {}
  virtual DecodePlan CompileDecode(Backend&, const Slabs&) const { return {}; }
  virtual void Forward(ForwardContext& ctx, const TensorView& logit_tokens,
                       const TensorView& logits) const = 0;
};

// Takes all weights, in the same order each time, and lays out the state.
using NetworkMaker =
    std::function<absl::StatusOr<std::unique_ptr<Network>>(const NetworkBuilder& builder)>;

}  // namespace mneme
