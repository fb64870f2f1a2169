// TTT (Sun et al., arXiv:2407.04620), as ttt-lm-pytorch has it: a memory that is a linear map or an
// MLP for each head, trained in mini-batches.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

struct TestTimeTrainingConfig {
  int heads = 1;  // head_dim = model_dim / heads, even
  bool mlp = false;
  int mini_batch = 16;
  double base_rate = 1;
  double rope_theta = 10000;
  bool gate = false;
  bool share_qk = false;
  bool pre_conv = false;
  int conv_width = 4;
};

// Weights conv.norm, conv.conv (pre_conv) and seq_modeling_block.*. State: the network at the
// mini-batch's start, the sum of gradients since, and windows of the convolutions.
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeTestTimeTraining(
    const LayerBuilder& builder, const TestTimeTrainingConfig& config);

}  // namespace mneme
