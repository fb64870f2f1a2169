// The network of a neural memory and its gradient, in double.
#pragma once

#include <vector>

#include "kernels/ops/neural_memory.h"

namespace mneme::reference {

using Numbers = std::vector<double>;
// All tensors of one head, as a network or as sums of gradients.
using MemoryTensors = std::vector<Numbers>;

// Values that one pass through the network leaves behind for the way back.
struct NetworkPass {
  std::vector<Numbers> z, slope;  // z_0 to z_{depth-1}; of z_1 on
  Numbers n;                      // the normed y, or y
  double spread = 1;              // what y was divided by
  Numbers out;                    // M(x)
};

// MemoryNetwork of one head, with the norm's gain and shift where they are not trained.
class HeadNetwork {
 public:
  HeadNetwork(const NeuralMemoryArgs& args, int64_t head)
      : network_(args.network),
        gain_(args.gain),
        shift_(args.shift),
        head_(head),
        dim_(args.q.shape[2]) {}

  NetworkPass Forward(const MemoryTensors& net, const double* x) const;
  // sums += d(1/2 sum_i rate_i (M(k)_i - v_i)^2), where `pass` was that of k; a rate of one number
  // is that of all channels.
  void AddGradient(const MemoryTensors& net, const NetworkPass& pass, const double* v,
                   const Numbers& rate, MemoryTensors& sums) const;

 private:
  double Gain(const MemoryTensors& net, int64_t i) const;
  double Shift(int64_t i) const;

  const MemoryNetwork& network_;
  const TensorView& gain_;
  const TensorView& shift_;
  const int64_t head_, dim_;
};

}  // namespace mneme::reference
