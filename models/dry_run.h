// A backend without memory whose operations do nothing: running a step on it, with a measuring
// workspace, tells exactly how much scratch memory the real step takes.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace mneme {

std::unique_ptr<Backend> MakeDryRunBackend(DType activation_dtype);

}  // namespace mneme
