#include "kernels/cuda/operations.h"

namespace mneme::cuda {

void RouteTopK(Device& device, const RouteTopKArgs&) {
  device.Check(cudaErrorNotSupported, "RouteTopK");
}
void Dispatch(Device& device, const DispatchArgs&) {
  device.Check(cudaErrorNotSupported, "Dispatch");
}

}  // namespace mneme::cuda
