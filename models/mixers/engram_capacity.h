// The room that a session has for engrams.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/ops/engrams.h"
#include "models/layer_builder.h"

namespace mneme {

// As asked for, or else one that leaves room for what is likely. UNIMPLEMENTED for more engrams
// than counts are kept of, INVALID_ARGUMENT for too few; both name --engram-capacity. A session of
// a short life may do with fewer than are likely in the long run: then more than counts are kept of
// are refused only where they are asked for.
enum class SessionLife : bool { kLong, kShort };
absl::StatusOr<int> EngramCapacity(const NetworkBuilder& builder, const EngramRules& rules,
                                   SessionLife life);

}  // namespace mneme
