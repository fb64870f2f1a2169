// HGRN2 (Qin et al., arXiv:2404.07904): a matrix memory whose keys are what its forget gates let
// go.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct Hgrn2Config {
  int heads = 0;
  int key_dim = 0;  // of a head
  int value_dim = 0;
  int conv_width = 0;  // 0: no short convolutions
  bool norm_affine = true;
  float norm_eps = 1e-5f;  // of the output norm
  // The least that the forget gates of the layer let pass, heads * key_dim numbers from 0 to 1;
  // empty: 0.
  std::vector<float> lower_bounds;
};

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeHgrn2(const LayerBuilder& builder,
                                                         const Hgrn2Config& config);

}  // namespace mneme
