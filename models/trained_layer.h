// Facts about a layer whose memory is trained at test time.
#pragma once

#include <cstdint>

namespace mneme {

struct TrainedLayer {
  int layer = 0;
  int heads = 1;
  int64_t step = 1;           // tokens of a step (NeuralMemoryArgs::step)
  int64_t anchor_period = 1;  // NeuralMemoryArgs::anchor_period
  // Its loss of a token is `loss_scale` |error|^2, and its surprise the mean of that over heads.
  double loss_scale = 1;
  int64_t prefix = 0;  // tokens that it was fed before a session's first one

  // Steps that it takes while a session is fed its positions [begin, end).
  int64_t Steps(int64_t begin, int64_t end) const {
    return (prefix + end) / step - (prefix + begin) / step;
  }
};

}  // namespace mneme
