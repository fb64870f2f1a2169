// Host memory, a pool of workers, and the kernels of the chosen instruction set. Everything is done
// when a call returns.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace mneme {

// Errors as MakeBackend. PackMatrix shares its work among the pool's threads.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(BackendOptions options);

}  // namespace mneme
