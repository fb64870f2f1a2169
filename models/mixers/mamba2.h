// Mamba-2 (Dao and Gu, arXiv:2405.21060): a matrix memory that forgets by one number for each head.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct Mamba2Config {
  // How what is read of the memory meets the gate z.
  enum class Output : uint8_t {
    kGateThenNorm,  // RmsNorm(y * silu(z))
    kNormThenGate,  // RmsNorm(y) * silu(z)
    kGate,          // y * silu(z)
  };

  int heads = 0;
  int head_dim = 0;
  int groups = 1;  // of heads that share inputs and outputs; divides heads
  int states = 0;  // columns of a head's matrix
  int conv_width = 0;
  bool conv_bias = true;
  bool bias = false;  // of the projections in and out
  float least_step = 0.0f;
  float most_step = std::numeric_limits<float>::infinity();
  bool skip_by_channel = false;  // else by head
  Output output = Output::kGateThenNorm;
  int norm_groups = 1;  // parts of the channels that are normed each by itself

  int channels() const { return heads * head_dim; }
};

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMamba2(const LayerBuilder& builder,
                                                          const Mamba2Config& config);

}  // namespace mneme
