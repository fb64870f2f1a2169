// The ingredients that the parts of one layer are made from.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "models/model_config.h"
#include "models/state_layout.h"
#include "models/weight_store.h"

namespace mneme {

struct LayerBuilder {
  const ModelConfig& config;
  int layer = 0;
  WeightStore& weights;
  StateLayout& state;
  StateFormat state_format;
  DType compute_dtype = DType::kF32;

  // "model.layers.3.attn.q_proj.weight"
  std::string Weight(absl::string_view name) const {
    return absl::StrCat("model.layers.", layer, ".", name);
  }
  // A field of the slab; all but the eagerly cleared flags are read as zeros until written.
  StateField AddState(absl::string_view name, DType dtype, Shape shape,
                      bool lazily_initialized) const {
    return state.Add(absl::StrCat("layers.", layer, ".", name), dtype, shape, lazily_initialized);
  }
};

}  // namespace mneme
