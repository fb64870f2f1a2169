#include "tests/models/matrix_spec.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace mneme {

ModelSpec MatrixSpec(absl::string_view model_type, const nlohmann::ordered_json& changes) {
  const auto shape = SpecOfShape(absl::StrCat(model_type, "-tiny"));
  CHECK_OK(shape.status());
  ModelSpec spec = *shape;
  spec.dtype = DType::kF32;
  spec.initializer_range = 0.15;
  spec.convolution_range = 0.5;
  if (!changes.is_null()) spec.config.update(changes);
  return spec;
}

bool IsMatrixExample(const Architecture& architecture) {
  return architecture.example.keys != nullptr && architecture.coarsest_state != DType::kF32;
}

std::vector<const Architecture*> MatrixExamples() {
  std::vector<const Architecture*> all;
  for (const Architecture& architecture : Architectures()) {
    if (IsMatrixExample(architecture)) all.push_back(&architecture);
  }
  return all;
}

}  // namespace mneme
