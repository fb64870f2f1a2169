// The room that a session has for engrams.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/ops/engrams.h"
#include "models/layer_builder.h"

namespace mneme {

// As asked for, or else one that leaves room for what is likely. UNIMPLEMENTED for more engrams
// than devices choose from, INVALID_ARGUMENT for too few; both name --engram-capacity.
absl::StatusOr<int> EngramCapacity(const NetworkBuilder& builder, const EngramRules& rules);

// EngramStore::steps of a store of such a capacity: up to 2,048 engrams are counted pair by pair,
// and of more there is a history.
int EngramHistorySteps(int capacity);

}  // namespace mneme
