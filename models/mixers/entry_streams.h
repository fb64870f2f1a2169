// The memories of a layer read these of each entry: projections of its token, each through a short
// convolution and an activation where the rule has them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernels.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/memory_streams.h"
#include "models/projection.h"
#include "models/step_entries.h"

namespace mneme {

struct StreamOptions {
  // Names the convolution: its weight is attn.<name>_conv1d.weight, its window <name>_window.
  const char* name = "";
  int conv_width = 0;  // 0: no convolution
  Activation conv_activation = Activation::kSilu;
  Activation activation = Activation::kIdentity;  // of what comes out of that
  float scale = 1.0f;                             // and a factor
  // What the projection gives for each token is wanted, not for each entry, and nothing is done to
  // it: an output gate.
  bool by_token = false;
  // The matrices of the product, where nothing else is made of the stream; it is by token, too.
  std::span<const PackedMatrix> factor_of = {};
};

// A stream whose one activation is done by the convolution, where there is one that can.
constexpr StreamOptions Convolved(const char* name, int conv_width, Activation activation) {
  const bool inside = conv_width > 0 && activation == Activation::kSilu;
  return {.name = name,
          .conv_width = conv_width,
          .conv_activation = inside ? Activation::kSilu : Activation::kIdentity,
          .activation = inside ? Activation::kIdentity : activation};
}

class EntryStreams {
 public:
  // Passes on the error of taking the projection.
  absl::Status Add(const MemoryFields& fields, absl::StatusOr<Projection> projection,
                   const StreamOptions& options = {});

  // The matrices of all projections, for the tensor that they multiply.
  std::vector<std::span<const PackedMatrix>> products() const;

  // Projects the entries' tokens. The streams are in the order of adding; convolutions and
  // activations are left to do. In the caller's workspace scope.
  MemoryStreams Project(ForwardContext& ctx, const StepEntries& entries) const;

 private:
  struct Stream {
    Projection projection;
    StreamOptions options;
    TensorView conv;  // [channels, width] f32
    StateField window;
  };
  // What a stream's projection is written to; `processed`: something is done to it.
  static TensorView TempOf(ForwardContext& ctx, const StepEntries& entries, const Stream& stream,
                           Shape shape, bool processed);

  std::vector<Stream> streams_;
};

// The same number for each token of a step, where a rule has a constant in place of a projection.
class TokenConstant {
 public:
  static absl::StatusOr<TokenConstant> Make(const LayerBuilder& builder, float value);
  // [tokens, 1] act, in the caller's workspace scope.
  TensorView Read(ForwardContext& ctx) const;

 private:
  TensorView value_;  // [1, 1] f32
};

}  // namespace mneme
