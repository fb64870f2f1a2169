// Surprise of one token, by a warp.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/kernels.h"

namespace mneme::cuda::neural_memory {

struct SurpriseOfTokens {
  const float *loss, *read;
  const int32_t *places, *outer;
  int tokens, entries, pairs;
  int64_t width;
  float* surprise;

  SurpriseOfTokens() = default;
  explicit SurpriseOfTokens(const SurpriseArgs& args)
      : loss(args.loss.as<const float>()),
        read(args.read.as<const float>()),
        places(args.places.as<const int32_t>()),
        outer(args.outer.as<const int32_t>()),
        tokens(static_cast<int>(args.surprise.shape[0])),
        entries(static_cast<int>(args.loss.shape[0])),
        pairs(static_cast<int>(args.loss.shape[1])),
        width(args.read.shape[1] * args.read.shape[2]),
        surprise(args.surprise.as<float>()) {}

  __device__ void Find(int token) const {
    if (token >= tokens) return;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int place = outer == nullptr ? token : outer[token];
    const int entry = places == nullptr ? place : places[place];
    if (entry >= entries) return;
    float sum = 0, nothing = 0;  // 0 times what is not finite is NaN, and stays it
    for (int i = lane; i < pairs; i += kWarp) sum += loss[int64_t{entry} * pairs + i];
#pragma unroll 8
    for (int64_t i = lane; i < width; i += kWarp) nothing += read[entry * width + i] * 0.0f;
    sum = WarpSum(sum);
    nothing = WarpSum(nothing);
    const float mean = sum / static_cast<float>(pairs) + nothing;
    if (lane == 0) surprise[token] = isfinite(mean) ? mean : __int_as_float(0x7fffffff);
  }
};

}  // namespace mneme::cuda::neural_memory
