// RWKV's token shift, as mixers and feed-forwards hold it: mixes of each token with the one before.
#pragma once

#include <span>

#include "absl/strings/string_view.h"
#include "kernels/kernels.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/norm.h"

namespace mneme {

struct TokenShift {
  TensorView mix;   // [mixes, model_dim] f32
  StateField last;  // [model_dim]: the session's last token
};

// Adds the field `name`.
TokenShift MakeTokenShift(const LayerBuilder& builder, absl::string_view name,
                          const TensorView& mix);

// All mixes of x = norm(hidden), [tokens, model_dim] act, of the step's rows: [mixes, tokens,
// model_dim], to be multiplied by `weights`. x is memory for that; with `keep` it is there
// afterwards. `shift.last` is then each row's last token. Needs ForwardContext::row_index; in the
// caller's workspace scope.
TensorView NormedAndShifted(ForwardContext& ctx, const Norm& norm, const TensorView& hidden,
                            const TensorView& x, bool keep, const TokenShift& shift,
                            std::span<const std::span<const PackedMatrix>> weights);
// The same with the mixes as `shift` says, shift.x being x.
void NormAndShift(Kernels& kernels, const Norm& norm, const TensorView& hidden, const TensorView& x,
                  bool keep, const TokenShiftArgs& shift);

// Part i of a tensor, by its outermost dimension.
TensorView Part(const TensorView& tensor, int64_t i);

}  // namespace mneme
