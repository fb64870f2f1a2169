// Memory of the host: how much is left, and blocks of it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace mneme {

// The memory that this process could still get: the machine's, or, where that is less, as much as
// its control group or its limits on address space and data (ulimit -v, -d) leave.
absl::StatusOr<int64_t> AvailableHostBytes();

// Aligned to 64 bytes; large blocks to 2 MiB and with huge pages, which save a third of the time of
// random access to session state. Null when there is none. Freed with std::free.
void* AllocateHost(int64_t bytes);

}  // namespace mneme
