// From what is known when a kernel is launched to what its template is made for.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "base/log.h"
#include "kernels/tensor_view.h"

namespace mneme::cuda {

// Calls launch.operator()<T>() with the type of the elements of matrix memories of `dtype`.
template <typename Launch>
void ForStateType(DType dtype, const Launch& launch) {
  switch (dtype) {
    case DType::kF32:
      return launch.template operator()<float>();
    case DType::kF16:
      return launch.template operator()<__half>();
    case DType::kI8:
      return launch.template operator()<int8_t>();
    default:
      CHECK(false) << "matrix memories of " << Name(dtype);
  }
}

// Calls launch.operator()<kKeyDim>() with a size that kernels are tuned for.
template <typename Launch>
void ForKeyDim(int key_dim, const Launch& launch) {
  switch (key_dim) {
    case 64:
      return launch.template operator()<64>();
    case 128:
      return launch.template operator()<128>();
    case 256:
      return launch.template operator()<256>();
    default:
      CHECK(false) << "keys of " << key_dim << ", for which there is no tuned kernel";
  }
}
constexpr bool HasTunedKernels(int key_dim) {
  return key_dim == 64 || key_dim == 128 || key_dim == 256;
}

// Both: launch.operator()<T, kKeyDim>().
template <typename Launch>
void ForState(DType dtype, int key_dim, const Launch& launch) {
  ForStateType(dtype, [&]<typename T>() {
    ForKeyDim(key_dim, [&]<int kKeyDim>() { launch.template operator()<T, kKeyDim>(); });
  });
}

}  // namespace mneme::cuda
