// What the formats of Titans checkpoints share.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>

#include "absl/status/statusor.h"
#include "base/config_reader.h"
#include "models/architecture.h"
#include "models/families/stack_keys.h"
#include "models/layer_builder.h"
#include "models/sequence_mixer.h"

namespace mneme {

// What periods of a memory, and persistent tokens, are at most.
inline constexpr int kMaxMemoryPeriod = 1 << 24;
inline constexpr int kMaxPersistentTokens = 1 << 16;

// One of several names, as its place among them; the first one where the key is missing.
int ReadChoice(ConfigReader& reader, const char* key, std::initializer_list<const char*> names);

// The part of a block along time, and what its keys ask for.
using MixerMaker =
    std::function<absl::StatusOr<std::unique_ptr<SequenceMixer>>(const LayerBuilder& builder)>;

// Blocks of the mixer and a gated MLP, each behind a norm. The first `prefix` positions of every
// session are those of model.persistent_memory.
NetworkMaker TitansNetwork(const StackKeys& stack, int prefix, const MixerMaker& mixer);

}  // namespace mneme
