#include "models/classes.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"

namespace mneme {

std::vector<double> ClassScores(Classes::Scores scores, std::span<const float> logits) {
  std::vector<double> values(logits.begin(), logits.end());
  switch (scores) {
    case Classes::Scores::kSoftmax: {
      const double largest = *std::max_element(values.begin(), values.end());
      double sum = 0;
      for (double& value : values) sum += value = std::exp(value - largest);
      for (double& value : values) value /= sum;
      break;
    }
    case Classes::Scores::kSigmoid:
      for (double& value : values) value = 1 / (1 + std::exp(-value));
      break;
    case Classes::Scores::kIdentity:
      break;
  }
  return values;
}

SegmentedText FillUp(const Classes& classes, std::span<const int32_t> tokens,
                     std::span<const int32_t> types) {
  CHECK(types.empty() || types.size() == tokens.size()) << types.size() << " types";
  SegmentedText text = {.tokens = {tokens.begin(), tokens.end()},
                        .types = {types.begin(), types.end()}};
  text.types.resize(tokens.size(), 0);
  if (!classes.fills_up) return text;
  const auto segment = static_cast<size_t>(classes.segment);
  const size_t whole = (tokens.size() + segment - 1) / segment * segment;
  text.tokens.resize(whole, classes.padding);
  text.types.resize(whole, -1);
  return text;
}

}  // namespace mneme
