// How GPT-2's files, and those of models that grew from it, name their tensors.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/layer_builder.h"
#include "models/norm.h"

namespace mneme {

// "<name>.weight" and "<name>.bias".
inline NormTensor LayerNormOf(const std::string& name) {
  return {.weight = name + ".weight", .kind = NormKind::kLayer, .bias = name + ".bias"};
}

// Buffers of old files, which hold masks: of the modules `names` of a layer.
inline void IgnoreMasks(const LayerBuilder& builder, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    for (const char* mask : {".bias", ".masked_bias"}) {
      builder.weights().Ignore(builder.Weight(absl::StrCat(name, mask)));
    }
  }
}

}  // namespace mneme
