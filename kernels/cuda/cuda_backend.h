// One NVIDIA GPU: a stream, device memory, pinned staging, graphs, and the kernels of
// cuda_kernels.h.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace mneme {

// True if there is a driver and a GPU that this build has code for.
bool HasCudaDevice();

// The first visible GPU (CUDA_VISIBLE_DEVICES chooses). FAILED_PRECONDITION where there is none,
// INVALID_ARGUMENT for an option that CUDA does not have.
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(BackendOptions options);

}  // namespace mneme
