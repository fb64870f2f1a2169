// Kernels that start while the one before them still runs (programmatic dependent launch).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/device.h"

namespace mneme::cuda {

// Kernels launched by LaunchOverlapping may start before the kernel ahead of them has ended: until
// this returns they may read weights, which nobody writes, and nothing else.
__device__ inline void WaitForPreviousKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets such a kernel start once all blocks of this one have come here.
__device__ inline void LetNextKernelStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

template <typename... Parameters, typename... Arguments>
void LaunchOverlapping(Device& device, const char* name, void (*kernel)(Parameters...), int blocks,
                       int threads, int64_t shared_bytes, int cluster, Arguments... arguments) {
  // The 48 KB that need no asking are for static memory, too.
  if (shared_bytes > 40 * 1024) {
    device.Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared_bytes)),
                 name);
  }
  // A multiprocessor changes what it divides into cache and shared memory only when nothing runs on
  // it: kernels that overlap have to agree.
  device.Check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared),
               name);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = device.stream();
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  if (HasHopperCode(device)) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  device.Check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace mneme::cuda
