// The tiny checkpoints of tests/golden and what upstream's code computes with them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mneme {

// golden.safetensors of one folder; its metadata says how it was made. Logits are [tokens, vocab].
struct Golden {
  std::vector<int32_t> input_ids;
  std::vector<double> logits;  // after each token, in one forward
  int step_begin = 0;
  std::vector<double> step_logits;  // the same from position step_begin on, token by token
  // Logits of a longer text; of the same where the reference was asked for no other.
  std::vector<int32_t> long_input_ids;
  std::vector<double> long_logits_last16;
  int greedy_begin = 16;
  std::vector<int32_t> greedy;  // continuation of the first greedy_begin ids
  int vocab = 0;
  // What upstream's code, run in float32, was off by, of the largest logit; 0: not known.
  double float32_error = 0;
  // Whether upstream's code computed in float64, so that a value is off by half a bit of f32.
  bool float64 = false;
};

// <repository>/tests/golden/<name>, or $MNEME_GOLDEN/<name> where that is not there; tests run in
// the repository's root.
std::string GoldenFolder(const std::string& name);

// Aborts where a file is missing or is not what it should be.
Golden ReadGolden(const std::string& name);

// The folders of tests/golden, and those of $MNEME_GOLDEN that Mneme reads.
std::vector<std::string> GoldenNames();

// Those under the gated delta rule alone.
std::vector<std::string> GatedDeltaGoldens();

}  // namespace mneme
