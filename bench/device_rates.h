// The highest rates of a device, measured. Benches report which share of them is reached.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace mneme {

// Bytes read and written per second by copies of a block that no cache holds; the median of some.
absl::StatusOr<double> CopyBandwidth(Backend& backend);

// Floating-point operations per second of products that are large enough for the device to be busy
// with nothing else, of random values: a GPU's clock depends on them.
absl::StatusOr<double> ProductRate(Backend& backend);

}  // namespace mneme
