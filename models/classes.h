// The classes that a network puts texts into.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mneme {

// A text goes through such a network segment by segment, each of them whole: a row of a step has
// the tokens of one, up to `segment` of them, and no step has two of a session. The logits of a row
// are those of the text up to its end, whichever of its tokens they are asked for.
struct Classes {
  // How the numbers of a text's classes follow from its logits.
  enum class Scores : uint8_t {
    kSoftmax,   // one class is right
    kSigmoid,   // each is by itself
    kIdentity,  // they are no probabilities (regression)
  };

  std::vector<std::string> labels;  // columns of the logits; none: a language model
  Scores scores = Scores::kSoftmax;
  int segment = 0;
  bool one_segment = false;  // a text has no more than one
  // A text's last segment is filled up with `padding`, which no token sees, and which memories do.
  bool fills_up = false;
  int32_t padding = 0;
  int types = 1;  // texts of a pair that are told from each other

  bool exist() const { return !labels.empty(); }
};

// The numbers of a text's classes, one for each logit.
std::vector<double> ClassScores(Classes::Scores scores, std::span<const float> logits);

// The tokens of a text as they are fed: `types` has the text of a pair that each is of, and -1 for
// those that fill up the last segment.
struct SegmentedText {
  std::vector<int32_t> tokens;
  std::vector<int32_t> types;
};
SegmentedText FillUp(const Classes& classes, std::span<const int32_t> tokens,
                     std::span<const int32_t> types);

}  // namespace mneme
