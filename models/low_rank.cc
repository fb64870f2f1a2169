#include "models/low_rank.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {

absl::StatusOr<LowRank> TakeLowRank(const LayerBuilder& builder, absl::string_view name, int out,
                                    int rank, Activation activation) {
  Weights& weights = builder.weights();
  const std::string down = builder.Weight(absl::StrCat(name, ".lora.0.weight"));
  const std::string up = builder.Weight(absl::StrCat(name, ".lora.2.weight"));
  const int stored = weights.Rows(down, /*otherwise=*/rank);
  LowRank map{.activation = activation};
  MNEME_ASSIGN_OR_RETURN(map.down, weights.Matrix(down, stored, builder.model_dim));
  MNEME_ASSIGN_OR_RETURN(map.up, weights.Matrix(up, out, stored));
  return map;
}

absl::StatusOr<TensorView> TakeLowRankBias(const LayerBuilder& builder, absl::string_view name,
                                           int out) {
  return builder.weights().Floats(builder.Weight(absl::StrCat(name, ".lora.2.bias")), {out},
                                  WeightInit::kZeros);
}

}  // namespace mneme
