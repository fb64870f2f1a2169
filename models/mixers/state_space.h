// Parts that the layers of Mamba and of Mamba-2 share: convolutions, decay rates.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernels.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/memory_fields.h"
#include "models/projection.h"

namespace mneme {

// The short convolution of one stream, followed by silu: its rows of a tensor that several share.
class StreamConvolution {
 public:
  // Takes the convolutions of `streams`, which lie one behind the other in mixer.conv1d, and adds
  // their windows to the state as `names`.
  static absl::StatusOr<std::vector<StreamConvolution>> Take(
      const MemoryFields& fields, std::span<const Projection* const> streams,
      std::span<const char* const> names, int width, bool bias);

  // The operation from x, [tokens, channels] as LinearArgs::y, to y of the same shape.
  ShortConvArgs Args(const ForwardContext& ctx, TensorView x, const Segments& segments,
                     TensorView y) const {
    return {.x = x,
            .weight = weight_,
            .bias = bias_,
            .segments = segments,
            .window = ctx.State(window_),
            .y = y};
  }

 private:
  TensorView weight_;  // [channels, width] f32
  TensorView bias_;    // [channels] f32, or empty
  StateField window_;
};

// Rates -exp(A_log) of mixer.A_log, [channels, states], as [states, channels]; states 0:
// [channels].
absl::StatusOr<TensorView> TakeRates(const LayerBuilder& builder, int channels, int states);

// A temporary for a product of x with a projection that a convolution reads.
TensorView TempOfProjection(const ForwardContext& ctx, const TensorView& x,
                            const Projection& projection);

}  // namespace mneme
