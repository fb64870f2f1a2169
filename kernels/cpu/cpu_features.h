// Which instruction sets the CPU backend was built with and this host can run.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cpu/isa_ops.h"

namespace mneme {

struct Isa {
  absl::string_view name;  // "baseline", "avx2", "avx512", "avx512_bf16", "amx"
  const IsaOps* ops = nullptr;
};

// "auto" is the best the host has. INVALID_ARGUMENT for an unknown name, FAILED_PRECONDITION for
// one that the host or the operating system does not support.
absl::StatusOr<Isa> ChooseIsa(absl::string_view name);

}  // namespace mneme
