// What a model made of a sequence, as a safetensors file: a session's state, and what layers said
// of each token.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "models/model.h"
#include "models/state_codec.h"
#include "tools/layer_tape.h"

namespace mneme {

// Tensors, numbers as f32:
//   input_ids                i32 [tokens]
//   layers.N.<field>         the fields of the state, as state_codec.h has them
//   layers.N.<track>         [prefix and tokens, ...]: hidden, the residual stream behind a layer
// Of memories that are trained, in place of their fields, with one memory's dimension left out:
//   layers.N.final.<tensor>, final_momentum, final_anchor, final_frozen, final_gradient;
//   of TTT  layers.N.<tensor>_states and <tensor>_grad, as its reference calls them
//   of titans-pytorch  <tensor> is a number, momenta are [orders, heads, ...], and loss and theta
//   [heads, positions * pairs] of the steps that are done
// and the tracks read, loss, theta, eta and alpha. An anchor that is the weights is written as
// such.
absl::Status WriteStateDump(const ModelInfo& model, std::span<const int32_t> ids,
                            const CanonicalState& state, const LayerTape& tape,
                            const std::string& path);

}  // namespace mneme
