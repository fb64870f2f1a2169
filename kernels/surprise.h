// Surprise for backends whose memory the host reads.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/ops/neural_memory.h"

namespace mneme {

// Computes that of tokens [begin, end). Act: float or double.
template <typename Act>
void SurpriseOnHost(const SurpriseArgs& args, int64_t begin, int64_t end) {
  const int64_t entries = args.loss.shape[0], pairs = args.loss.shape[1];
  const int64_t width = args.read.shape[1] * args.read.shape[2];
  for (int64_t t = begin; t < end; ++t) {
    const int64_t p = args.outer.empty() ? t : args.outer.as<int32_t>()[t];
    const int64_t e = args.places.empty() ? p : args.places.as<int32_t>()[p];
    if (e >= entries) continue;
    const Act* const loss = args.loss.as<Act>() + e * pairs;
    const Act* const read = args.read.as<Act>() + e * width;
    Act sum = 0, nothing = 0;  // 0 times what is not finite is NaN, and stays it
    for (int64_t i = 0; i < pairs; ++i) sum += loss[i];
    for (int64_t i = 0; i < width; ++i) nothing += read[i] * 0;
    const auto mean = static_cast<float>(sum / static_cast<Act>(pairs) + nothing);
    args.surprise.as<float>()[t] =
        std::isfinite(mean) ? mean : std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace mneme
