#include "models/mixer_registry.h"

#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

struct MixerEntry {
  const char* name;
  absl::StatusOr<std::unique_ptr<SequenceMixer>> (*make)(const LayerBuilder& builder);
};

// Explicit rather than self-registering: the list is one screen, and a static library keeps every
// entry. `name` is the mixer that model_config.cc derives from config.json's model_type.
constexpr MixerEntry kMixers[] = {
    {"mixture_of_memories", MakeMixtureOfMemories},
    {"gated_delta_net", MakeGatedDeltaNet},
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMixer(const LayerBuilder& builder) {
  for (const MixerEntry& entry : kMixers) {
    if (builder.config.mixer == entry.name) return entry.make(builder);
  }
  return absl::InternalError(absl::StrCat("no mixer is called \"", builder.config.mixer, "\""));
}

}  // namespace mneme
