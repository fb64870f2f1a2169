// The engrams of every session, and how the tokens of a segment become the next ones: Memoria's
// memory, which all layers of a network share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/ops/engrams.h"
#include "models/engrams.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/projection.h"

namespace mneme {

struct EngramConfig {
  EngramRules rules;
  int capacity = 0;           // of a store, at least rules.least_capacity()
  int segment = 1;            // positions of one
  int layers = 1, heads = 1;  // that attend to engrams
  // Tokens become engrams through attention of learned queries; else each is one as it is.
  bool encodes = true;
  std::string encoder = "abs.";  // of its tensors' names, behind the builder's prefix
  int encoder_dim = 0;           // of its feed-forward network; 0: four times the model's
  // The layer whose attention is the first of `layers`.
  int first_layer = 0;
};

// The segment that a session is in which was fed so many tokens: a full one until the next one's
// first token is fed.
inline int64_t OpenSegment(const EngramConfig& config, int64_t tokens) {
  return tokens > 0 ? (tokens - 1) / config.segment : 0;
}

// The engrams of sessions that begin a segment, one session's behind the other's, as entries of
// products.
struct AttendedEngrams {
  Crossings crossings;
  TensorView x;        // [most * attended, model_dim] as LinearArgs::x
  TensorView offsets;  // [2] i32: 0 and the number of entries, as LinearArgs::group_offsets

  // y = W x (+ bias) of those that there are.
  static void Project(Kernels& kernels, const Projection& projection, const TensorView& x,
                      const TensorView& offsets, const TensorView& y);
};

class EngramMemory {
 public:
  // Adds the fields of the store, and takes the encoder's tensors:
  //   p_w = softmax over the segment's tokens of q_w . (Wk h_t + bk)
  //   engram_w = Wo (Wf (Wv a_w + bv) + bf) + bo,   a_w = sum_t p_wt h_t
  // q_w . bk is the same for all tokens and has no part in p_w, and q_w Wk is one query, folded in
  // float64. What comes behind the sum is affine, and done to a_w.
  static absl::StatusOr<EngramMemory> Make(const LayerBuilder& builder, const EngramConfig& config);

  const EngramConfig& config() const { return config_; }

  // For rows whose tokens are each of one segment, before anything else is done with them: commits,
  // encodes and retrieves for those that begin a segment. Calls `project` for some of them at a
  // time, until that is done for StepBatch::crossings; `readers` are all that it multiplies them
  // by.
  void Cross(ForwardContext& ctx, std::span<const std::span<const PackedMatrix>> readers,
             absl::FunctionRef<void(const AttendedEngrams& engrams)> project) const;
  // Adds tokens to what becomes the next segment's engrams. h  [tokens, model_dim] act
  void Encode(ForwardContext& ctx, const TensorView& h) const;

  // The recalled engrams of a session, oldest first, whose state is in `slab`, backend memory.
  // Waits for the device.
  absl::StatusOr<std::vector<RecalledEngram>> ReadRecalled(Backend& backend,
                                                           const std::byte* slab) const;

  // Sets what a session draws from in place of the rules' seed, from its first segment on. `slab`:
  // backend memory of one that was fed nothing yet. In stream order.
  void Seed(Backend& backend, std::byte* slab, uint64_t seed) const;

  EngramStore Store(const ForwardContext& ctx) const;
  // What the layers' attention adds up: [layers, heads, rules.recalled()].
  StateView Weights(const ForwardContext& ctx) const { return ctx.State(weights_); }

 private:
  absl::Status TakeEncoder(const LayerBuilder& builder);
  void AddFields(const LayerBuilder& builder);

  EngramConfig config_;
  int model_dim_ = 0, crossings_at_once_ = 1;
  TensorView queries_;                    // [working, model_dim] f32, or empty
  Projection value_, expand_, contract_;  // Wv, Wf, Wo
  StateField types_, vectors_, lifespans_, gains_, births_, counts_, fired_, recalled_, facts_,
      seed_, weights_;
  StateField largest_, total_, sums_;  // EncodeTokens
};

}  // namespace mneme
