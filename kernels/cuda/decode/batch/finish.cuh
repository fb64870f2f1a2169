// What becomes of the sums of a product of a decode step: ManyEpilogue.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/decode/batch/product.cuh"

namespace mneme::cuda::decode::batch {

__device__ inline float GeluTanh(float x) { return Activated(Activation::kGeluTanh, x); }
// Those that kStore ends with (StoresActivated).
__device__ inline float4 StoredActivation(Activation activation, const float4& x) {
  const auto all = [&]<Activation kOne>() -> float4 {
    return {Activated(kOne, x.x), Activated(kOne, x.y), Activated(kOne, x.z), Activated(kOne, x.w)};
  };
  switch (activation) {
    case Activation::kTanh:
      return all.template operator()<Activation::kTanh>();
    case Activation::kSigmoid:
      return all.template operator()<Activation::kSigmoid>();
    case Activation::kSquaredRelu:
      return all.template operator()<Activation::kSquaredRelu>();
    default:
      return x;
  }
}

// Four outputs of an entry, from o on. `sum_of(o)` has their sums, `old` what kAdd adds to.
template <ManyEpilogue kEpilogue, int kHalf, typename SumOf>
__device__ inline void Finish(const ManyProducts& p, const ManyProduct& product, const Unit& u,
                              int64_t entry, int o, const float4& old, SumOf sum_of) {
  float4 sum = sum_of(o);
  const int64_t row = entry * product.out_features + u.first;
  if constexpr (kEpilogue == ManyEpilogue::kSwiGlu) {
    const float4 up = sum_of(kHalf + o);
    *reinterpret_cast<uint2*>(p.rounded + row + o) =
        make_uint2(RoundPair(Silu(sum.x) * up.x, Silu(sum.y) * up.y, __nv_bfloat16()),
                   RoundPair(Silu(sum.z) * up.z, Silu(sum.w) * up.w, __nv_bfloat16()));
  } else if constexpr (kEpilogue == ManyEpilogue::kAdd) {
    if (product.bias != nullptr) AddSome(product.bias + u.first + o, 4, sum);
    SaveFour(static_cast<float*>(product.y) + row + o,
             {old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w});
  } else if constexpr (kEpilogue == ManyEpilogue::kActivate) {
    if (u.first + o >= product.out_features) return;
    if (product.bias != nullptr) AddSome(product.bias + u.first + o, 4, sum);
    float4 y = sum;
    if (product.activation != Activation::kIdentity) {
      y = {GeluTanh(sum.x), GeluTanh(sum.y), GeluTanh(sum.z), GeluTanh(sum.w)};
    }
    if (product.bf16_y) {
      SaveFour(static_cast<__nv_bfloat16*>(product.y) + row + o, y);
    } else {
      SaveFour(static_cast<float*>(product.y) + row + o, y);
    }
  } else {
    const bool second = u.pair && o >= kHalf;
    if (second) o -= kHalf;
    const int left = product.out_features - u.first - o;
    if (product.bias != nullptr) AddSome(product.bias + u.first + o, left, sum);
    sum = StoredActivation(product.activation, sum);
    if (product.bf16_y) {
      if (left >= 4) SaveFour(static_cast<__nv_bfloat16*>(product.y) + row + o, sum);
      return;
    }
    float* const y = (second ? product.second_y : static_cast<float*>(product.y)) + row + o;
    if (left >= 4 && product.out_features % 4 == 0) return SaveFour(y, sum);
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < left) y[i] = values[i];
    }
  }
}

}  // namespace mneme::cuda::decode::batch
