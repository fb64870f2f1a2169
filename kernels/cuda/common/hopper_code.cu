#include "kernels/cuda/common/device.h"

namespace mneme::cuda {
namespace {

__global__ void Probe() {}

}  // namespace

bool HasHopperCode(const Device& device) {
  static const bool native = [] {
    cudaFuncAttributes attributes = {};
    return cudaFuncGetAttributes(&attributes, Probe) == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  return native && device.properties().major == 9;
}

}  // namespace mneme::cuda
