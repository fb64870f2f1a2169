// The parts that the formats of Titans checkpoints share.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "models/architecture.h"
#include "models/families/stack_keys.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

// What periods of a memory, and persistent tokens, are at most.
inline constexpr int kMaxMemoryPeriod = 1 << 24;
inline constexpr int kMaxPersistentTokens = 1 << 16;

// The part of a block along time, and what its keys ask for.
using MixerMaker =
    std::function<absl::StatusOr<std::unique_ptr<SequenceMixer>>(const LayerBuilder& builder)>;

// Blocks of the mixer and a gated MLP, each behind a norm. The first `prefix` positions of every
// session are those of model.persistent_memory.
NetworkMaker TitansNetwork(const StackKeys& stack, int prefix, const MixerMaker& mixer);

}  // namespace mneme
