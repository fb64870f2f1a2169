// How the CPU backend lays out a weight matrix [out_features, in_features].
//
// Panels of 16 outputs, one after the other, each running along in_features:
//   f32         [out/16][in][16]
//   bf16, f16   [out/16][in/2][16][2]: pairs of neighbouring inputs stay together
// So one vector holds 16 outputs, and a product needs no sum over lanes. Pairs are what the bf16
// dot product and AMX tiles (16 pairs by 16 outputs are 1 KB in a row) take as they are; exact f32
// arithmetic splits them with a shift and a mask. Both dimensions are padded with zeros: outputs to
// 16, inputs to 2 or, for the 16-bit types, to 32, the depth of a tile.
#pragma once

#include <cstdint>

#include "kernels/tensor_view.h"

namespace mneme {

constexpr int kPanelOutputs = 16;
constexpr int kTileDepth = 32;

constexpr int Panels(int out_features) {
  return (out_features + kPanelOutputs - 1) / kPanelOutputs;
}

constexpr int PaddedInputs(DType dtype, int in_features) {
  const int multiple = dtype == DType::kF32 ? 2 : kTileDepth;
  return (in_features + multiple - 1) / multiple * multiple;
}

constexpr int64_t PanelBytes(DType dtype, int in_features) {
  return int64_t{kPanelOutputs} * PaddedInputs(dtype, in_features) * SizeOf(dtype);
}

constexpr int64_t PackedMatrixBytes(DType dtype, int out_features, int in_features) {
  return Panels(out_features) * PanelBytes(dtype, in_features);
}

}  // namespace mneme
