// Norms of a residual stream, as blocks and networks hold them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernels.h"
#include "kernels/tensor_view.h"
#include "models/weights.h"

namespace mneme {

enum class NormKind : uint8_t {
  kRms,    // RmsNorm
  kLayer,  // LayerNorm
};

struct Norm {
  TensorView weight;  // [dim] f32
  float eps = 1e-6f;
  NormKind kind = NormKind::kRms;
  TensorView bias = {};  // [dim] f32 of kLayer, or empty
};

// y = Norm(x), [tokens, dim]; y as RmsNormArgs::y.
inline void ApplyNorm(Kernels& kernels, const Norm& norm, const TensorView& x,
                      const TensorView& y) {
  if (norm.kind == NormKind::kRms) {
    kernels.RmsNorm({.x = x, .weight = norm.weight, .eps = norm.eps, .y = y});
  } else {
    kernels.LayerNorm({.x = x, .weight = norm.weight, .bias = norm.bias, .eps = norm.eps, .y = y});
  }
}

// The names of a norm's tensors, and its kind.
struct NormTensor {
  std::string weight;                       // "attn_norm.weight"
  std::optional<float> eps = std::nullopt;  // unset: that of the network
  NormKind kind = NormKind::kRms;
  std::string bias = {};  // empty: there is none
};

// Takes them, their names behind `prefix`.
absl::StatusOr<Norm> TakeNorm(Weights& weights, absl::string_view prefix, const NormTensor& tensor,
                              int dim, float eps);

// LayerNorm of each head by itself, which is a group norm: "<name>.weight" and "<name>.bias" of all
// heads, [heads * dim], are taken as [heads, dim].
absl::StatusOr<Norm> TakeNormOfHeads(Weights& weights, const std::string& name, int heads, int dim,
                                     float eps);

}  // namespace mneme
