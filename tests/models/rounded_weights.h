// What rounding a checkpoint's matrices to bf16 does to its logits.
#pragma once

#include <string>

#include "tests/models/test_folder.h"

namespace mneme {

// Makes `folder` the golden checkpoint `name` with its matrices in bf16: backends round what meets
// such weights only.
void WriteRounded(const std::string& name, const TestFolder& folder);

// How far the reference's logits of the golden's tokens move by that, at equal routing.
//
// A memory that learns from its own errors amplifies whatever is rounded before it. Activations are
// rounded as often as weights are and as much: what that does to the logits is in proportion to
// what rounding the weights does, in norm and, with the longer tail of single positions, in the
// worst.
struct Sensitivity {
  double norm = 0, worst = 0;

  double norm_bound() const { return 3 * norm; }
  double worst_bound() const { return 6 * worst; }
};
Sensitivity MeasureSensitivity(const std::string& name);

}  // namespace mneme
