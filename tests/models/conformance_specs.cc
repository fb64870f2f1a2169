#include "tests/models/conformance_specs.h"

#include "tests/models/gated_delta_spec.h"

namespace mneme {

std::vector<ModelSpec> ConformanceSpecs(absl::string_view model_type) {
  std::vector<ModelSpec> specs;
  if (model_type == "mom" || model_type == "mom_gated_deltanet") {
    GatedDeltaSpec spec = TinySpec("mom-tiny");
    spec.config.model_type = std::string(model_type);
    specs.push_back(spec.ToModelSpec());
    spec.config.delta.single_kv_proj = true;
    specs.push_back(spec.ToModelSpec());
    spec.config.delta.single_kv_proj = false;
    spec.config.delta.shared_memory = false;
    specs.push_back(spec.ToModelSpec());
  } else if (model_type == "gated_deltanet") {
    GatedDeltaSpec spec = TinySpec("gdn-tiny");
    specs.push_back(spec.ToModelSpec());
    spec.config.delta.value_heads = 4;
    spec.config.delta.conv_width = 0;
    specs.push_back(spec.ToModelSpec());
  }
  return specs;
}

}  // namespace mneme
