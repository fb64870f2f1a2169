// The third implementation of Backend and Kernels: float64, one token at a time, in the order of
// the equations in kernels/kernels.h. It is what the others are compared with, and is never fast.
// Linked by tests and tools only.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace mneme {

// Activations, matrix memories and windows are f64; weights keep their dtype and are widened,
// exactly, where they are used. With compute dtype kBF16 activations are rounded to bf16 before
// every matrix product and nothing else changes. `threads` and `isa` are ignored. Memory is the
// host's.
std::unique_ptr<Backend> MakeReferenceBackend(const BackendOptions& options);

}  // namespace mneme
