// A linear map of low rank with an activation inside, as RWKV's gates are made.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernels.h"
#include "kernels/tensor_view.h"
#include "models/layer_builder.h"

namespace mneme {

//   y = up activation( down x )
struct LowRank {
  PackedMatrix down;  // [rank, in]
  PackedMatrix up;    // [out, rank]
  Activation activation = Activation::kIdentity;

  int rank() const { return down.out_features; }
};

// The tensors "<name>.lora.0.weight" and "<name>.lora.2.weight", of the rank that the file has, or,
// where there is no file, of `rank`.
absl::StatusOr<LowRank> TakeLowRank(const LayerBuilder& builder, absl::string_view name, int out,
                                    int rank, Activation activation);

// The bias behind it, "<name>.lora.2.bias", [out] f32.
absl::StatusOr<TensorView> TakeLowRankBias(const LayerBuilder& builder, absl::string_view name,
                                           int out);

}  // namespace mneme
