// The part of a layer that moves information along time. Attention over a window, a linear memory
// and a gradient-trained memory all fit behind Forward().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "kernels/decode_step.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"

namespace mneme {

class SequenceMixer {
 public:
  virtual ~SequenceMixer() = default;

  // Computes what follows from weights alone, once these are there.
  virtual absl::Status Prepare(Backend&) const { return absl::OkStatus(); }

  // Fills this mixer's eagerly initialised fields of the initial slab, which is zeroed backend
  // memory. Mixers whose fields are zeros at first, or have a guard, have nothing to fill.
  virtual absl::Status InitState(Backend&, std::byte* /*slab*/) const { return absl::OkStatus(); }

  // Makes the state fields alone the state of the slabs `slots`, [n] i32: folds their pending
  // writes (PendingWrites), of mixers that have some.
  virtual void Settle(ForwardContext&, const TensorView& /*slots*/) const {}

  // Whether Forward() reads ForwardContext::row_index.
  virtual bool uses_row_index() const { return false; }

  // hidden += Mixer(Norm(hidden)); reads and updates the state of every row in `ctx.batch`.
  //   hidden  [tokens, model_dim] act
  // Must not allocate outside the workspace, synchronise or branch on device data: steps are
  // captured as graphs, and a dry run without memory (dry_run.h) measures the workspace.
  virtual void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const = 0;

  // The same, under an RmsNorm, as devices can fuse it in steps of one token for every row. Empty:
  // they know no such mixer.
  virtual std::optional<DeltaMixer> Fused(const Slabs&, const Norm&) const { return std::nullopt; }
};

}  // namespace mneme
