// What layers say of the tokens of a step to whoever looks on (mneme-inspect).
#pragma once

#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/tensor_view.h"

namespace mneme {

// offset + scale * values is what `name` stands for, a row for each token of the step.
struct Observation {
  int layer = 0;
  absl::string_view name;  // "read"
  TensorView values;       // [entries, ...] act
  double scale = 1;
  double offset = 0;
  // [tokens] i32: the entry of each token; `entries` for one without, whose row comes in another
  // call. Empty: entry t is token t.
  TensorView places;
};

// Called between kernels, and reads what they make: on a device each call waits for it, and steps
// are neither fused nor replayed.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;

  // The tokens that follow are the next `tokens` of the sequence: of a step of one row, or of a
  // prefix that all sessions begin with. Positions that the network inserts count.
  virtual void OnStep(int tokens) = 0;
  virtual void OnLayer(Backend& backend, const Observation& observation) = 0;
  // Memory for a tensor that is made for the observer alone, until the next call.
  virtual TensorView Scratch(Backend& backend, const Shape& shape) = 0;  // act
};

}  // namespace mneme
