// Makes model folders with random weights, initialised as upstream initialises a network before it
// is trained: for benches and tests.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/tensor_view.h"
#include "models/weight_recorder.h"

namespace mneme {

struct ModelSpec {
  // config.json, but for what follows from the other fields here.
  nlohmann::ordered_json config;
  bool tied = false;  // no lm_head.weight
  // Tensors whose names end so are left out, where the family reads files without them.
  std::vector<std::string> absent;
  DType dtype = DType::kBF16;
  // Standard deviation of embeddings and projections. Upstream's 0.02 makes layers small next to
  // the residual; tests that compare arithmetic want more.
  double initializer_range = 0.02;
  // Standard deviation of the convolutions; 0: initializer_range.
  double convolution_range = 0;
  uint64_t seed = 0;
  int shards = 1;  // files; more than one come with an index
};

// Shapes by name: "mom-340m", "mom-1.3b" (the paper's), "gdn-340m", "gdn-1.3b" (upstream's
// configurations of Gated DeltaNet), "mom-tiny", "gdn-tiny", "<model_type>-340m" and
// "<model_type>-tiny" of families with an ExampleNetwork (models/architecture.h), "gpt2-124m",
// "gpt2-with-memoria-159m", "bert-110m", "roberta-125m", "memoria-bert-120m",
// "memoria-roberta-135m", "mom-hybrid-tiny", "gdn-hybrid-tiny". INVALID_ARGUMENT, with the list,
// for another.
absl::StatusOr<ModelSpec> SpecOfShape(absl::string_view shape);
std::vector<std::string> ShapeNames();

// The larger shapes that families give with their registrations.
struct ExampleShape {
  std::string name;
  std::string summary;  // for people
};
std::vector<ExampleShape> ExampleShapes();

// The tensors that the family asks for, in its order. Errors are those of ParseModelConfig.
absl::StatusOr<std::vector<TensorSpec>> TensorsOf(const ModelSpec& spec);

// A whole tensor's values, before they are rounded to the spec's element type.
std::vector<float> InitialValues(const ModelSpec& spec, const TensorSpec& tensor);

// The text of config.json.
std::string ConfigJson(const ModelSpec& spec);

// Writes config.json, generation_config.json and the weights into `folder`, which is made if it
// does not exist. Weights depend on the seed, names and shapes only. ALREADY_EXISTS if one
// of those is there, config.json or weights, unless `overwrite`. Errors are also those of
// TensorsOf.
//   progress  bytes written and in total; may be empty
absl::Status MakeModelFolder(const ModelSpec& spec, const std::string& folder, bool overwrite,
                             const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace mneme
