// Numbers for the weights of random models.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/weight_recorder.h"
#include "tools/model_maker.h"

namespace mneme {

// Fills tensors with numbers that depend on (seed, tensor name, index) only.
class RandomWeights {
 public:
  explicit RandomWeights(const ModelSpec& spec);

  // The next `out.size()` values of a tensor, from element `begin`, a multiple of 8.
  void Fill(const TensorSpec& tensor, int64_t begin, std::span<float> out) const;

 private:
  void Normal(uint64_t stream, int64_t begin, double range, std::span<float> out) const;

  const ModelSpec& spec_;
  const std::vector<float> quantiles_;  // of the standard normal distribution
};

}  // namespace mneme
