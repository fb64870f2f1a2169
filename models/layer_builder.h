// The ingredients that the parts of a network are made from.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "models/state_layout.h"
#include "models/trained_layer.h"
#include "models/weights.h"

namespace mneme {

// The most tokens that sessions of models with a growing state are fed, where nobody says
// otherwise.
inline constexpr int kDefaultMaxContext = 8192;

struct NetworkBuilder {
  Weights& weights;
  StateLayout& state;
  StateFormat state_format;
  DType compute_dtype = DType::kF32;
  int max_context = kDefaultMaxContext;  // rows of state that grows with each token
  int engram_capacity = 0;               // ModelOptions::engram_capacity
  // Whether calls of the device that is to run it return before the work is done.
  bool asynchronous = false;
  std::vector<std::string>& warnings;  // for the log: facts that are accepted, and may be mistakes
  std::vector<TrainedLayer>* trained = nullptr;  // filled in the order of layers, or null
};

// One layer of a residual stream of `model_dim` channels.
struct LayerBuilder {
  const NetworkBuilder& network;
  int layer = 0;
  int model_dim = 0;
  float norm_eps = 1e-6f;
  std::string prefix;  // "model.layers.3."

  Weights& weights() const { return network.weights; }
  // "model.layers.3.attn.q_proj.weight"
  std::string Weight(absl::string_view name) const { return absl::StrCat(prefix, name); }
  // Adds a field whose name gets the layer in front: "layers.3.memory".
  StateField AddState(StateField field) const {
    field.layer = layer;
    return network.state.Add(std::move(field));
  }
};

}  // namespace mneme
