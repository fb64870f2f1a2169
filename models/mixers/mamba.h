// Mamba (Gu and Dao, arXiv:2312.00752): a selective scan with a few states for each channel.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct MambaConfig {
  int channels = 0;  // of the scan
  int states = 0;    // of each channel
  int rank = 0;      // of the steps' projection
  int conv_width = 0;
  bool conv_bias = true;
  bool bias = false;  // of the projections in and out
  // Falcon-Mamba: what the steps, inputs and outputs are made of is normed, by this epsilon.
  std::optional<float> inner_norm_eps;
};

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMamba(const LayerBuilder& builder,
                                                         const MambaConfig& config);

}  // namespace mneme
