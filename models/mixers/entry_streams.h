// What the memories of a layer read of each entry: projections of its token, each through a short
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
#include "models/projection.h"
#include "models/step_entries.h"

namespace mneme {

struct StreamOptions {
  // Of the convolution: its weight is attn.<name>_conv1d.weight, its window <name>_window.
  const char* name = "";
  int conv_width = 0;  // 0: no convolution
  Activation conv_activation = Activation::kSilu;
  Activation activation = Activation::kIdentity;  // of what comes out of that
  // What the projection gives for each token is wanted, not for each entry, and nothing is done to
  // it: an output gate.
  bool by_token = false;
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

  // The streams in the order of adding, each [entries, channels] act; by_token: [tokens, channels]
  // as LinearArgs::y. In the caller's workspace scope.
  std::vector<TensorView> Read(ForwardContext& ctx, const StepEntries& entries) const;

 private:
  struct Stream {
    Projection projection;
    StreamOptions options;
    TensorView conv;  // [channels, width] f32
    StateField window;
  };
  std::vector<Stream> streams_;
};

// The same number for each token of a step, where a rule has a constant in place of a projection.
class TokenConstant {
 public:
  static absl::StatusOr<TokenConstant> Make(const LayerBuilder& builder, float value);
  // [tokens, 1] act, in the caller's workspace scope.
  TensorView Read(ForwardContext& ctx) const;

 private:
  TensorView table_;  // [vocab, 1] f32: looked up by token, whatever that is
};

// `view` as [rows, heads, channels / heads], and back.
TensorView ByHead(TensorView view, int64_t heads);
TensorView Flat(TensorView view);

}  // namespace mneme
