#include "models/norm.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {

absl::StatusOr<Norm> TakeNorm(Weights& weights, absl::string_view prefix, const NormTensor& tensor,
                              int dim, float eps) {
  Norm norm{.eps = tensor.eps.value_or(eps), .kind = tensor.kind};
  MNEME_ASSIGN_OR_RETURN(
      norm.weight, weights.Floats(absl::StrCat(prefix, tensor.weight), {dim}, WeightInit::kOnes));
  if (!tensor.bias.empty()) {
    MNEME_ASSIGN_OR_RETURN(
        norm.bias, weights.Floats(absl::StrCat(prefix, tensor.bias), {dim}, WeightInit::kZeros));
  }
  return norm;
}

absl::StatusOr<Norm> TakeNormOfHeads(Weights& weights, const std::string& name, int heads, int dim,
                                     float eps) {
  MNEME_ASSIGN_OR_RETURN(
      Norm norm,
      TakeNorm(weights, name, {.weight = ".weight", .kind = NormKind::kLayer, .bias = ".bias"},
               heads * dim, eps));
  norm.weight.shape = norm.bias.shape = {heads, dim};
  return norm;
}

}  // namespace mneme
