// One element of a row for each lane, or four where rows go in fours (InFours).
#pragma once

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"

namespace mneme::cuda {

template <int kWidth>
struct Lanes {
  float x[kWidth];
};

template <int kWidth>
__device__ inline Lanes<kWidth> LoadLanes(const float* p) {
  if constexpr (kWidth == 4) {
    const float4 four = LoadFour(p);
    return {{four.x, four.y, four.z, four.w}};
  } else {
    return {{*p}};
  }
}
template <int kWidth, typename T>
__device__ inline void SaveLanes(T* p, const Lanes<kWidth>& lanes) {
  if constexpr (kWidth == 4) {
    SaveFour(p, {lanes.x[0], lanes.x[1], lanes.x[2], lanes.x[3]});
  } else {
    *p = FromFloat<T>(lanes.x[0]);
  }
}

}  // namespace mneme::cuda
