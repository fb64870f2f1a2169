// Attention of one query to keys and values that lie side by side. Built once per instruction set.
#pragma once

#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {

MNEME_INLINE float Dot(const float* a, const float* b, int64_t n) {
  Vec sum = Zero();
  ForVectors(n, [&](int64_t i, int lanes) {
    sum = MulAdd(LoadUpTo(a + i, lanes), LoadUpTo(b + i, lanes), sum);
  });
  return Sum(sum);
}

// out = sum_i w_i v_i, w_i = softmax_i(scale q . k_i), i < count, of vectors of `dim` whose
// neighbours are `pitch` apart; 0 where there are none. sums_i += w_i, unless it is null.
// `scores`: working memory of `count` floats, and the next fifteen.
inline void Attend(const float* q, const float* keys, const float* values, int64_t pitch, int count,
                   int64_t dim, float scale, float* scores, float* sums, float* out) {
  constexpr float kMinusInfinity = -__builtin_inff();
  for (int64_t i = 0; i < dim; ++i) out[i] = 0;
  if (count == 0) return;
  const int padded = (count + kLanes - 1) / kLanes * kLanes;
  Vec most = Set1(kMinusInfinity);
  for (int i = 0; i < padded; ++i) {
    scores[i] = i < count ? scale * Dot(q, keys + i * pitch, dim) : kMinusInfinity;
  }
  for (int i = 0; i < padded; i += kLanes) most = Max(most, Load(scores + i));
  const Vec largest = Set1(MaxLane(most));
  Vec total = Zero();
  for (int i = 0; i < padded; i += kLanes) {
    const Vec weights = Exp(Load(scores + i) - largest);
    Store(scores + i, weights);
    total = total + weights;
  }
  const float sum = Sum(total);
  for (int i = 0; i < count; ++i) {
    const float weight = scores[i] / sum;
    const float* value = values + i * pitch;
    const Vec by = Set1(weight);
    ForVectors(dim, [&](int64_t j, int lanes) {
      StoreUpTo(out + j, MulAdd(by, LoadUpTo(value + j, lanes), LoadUpTo(out + j, lanes)), lanes);
    });
    if (sums != nullptr) sums[i] += weight;
  }
}

}  // namespace mneme::MNEME_ISA
