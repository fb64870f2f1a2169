// The network of Memoria's language model: GPT-2 on segments, whose layers also attend to engrams.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/feed_forwards/mlp.h"
#include "models/layer_builder.h"
#include "models/mixers/attention.h"
#include "models/mixers/engram_memory.h"
#include "models/network.h"
#include "models/networks/language_model.h"

namespace mneme {

// A token's position t is that within its segment, and attention sees nothing of other segments.
//   h = embeddings[token] + positions[t];   of each layer:
//   h += Attention(LayerNorm(h; ln_1))
//   h += MemoryAttention(LayerNorm(h; ln_working_memory_attn); working engrams)
//   h += MemoryAttention(LayerNorm(h; ln_memory_attn); recalled engrams)
//   h += Mlp(LayerNorm(h; ln_2))
//   f = LayerNorm(h; ln_f);   logits = head f;   f goes into the next segment's engrams
// The two lines of engrams are there from the second segment on.
struct MemoriaModelParts {
  LanguageModelParts model;  // without its block
  int positions = 1;         // that were learned
  AttentionConfig attention;
  EngramConfig engrams;  // its capacity may be 0: one that leaves room for what is likely
  MlpConfig mlp;
};

// Refuses what EngramCapacity does.
absl::StatusOr<std::unique_ptr<Network>> MakeMemoriaModel(const NetworkBuilder& builder,
                                                          const MemoriaModelParts& parts);

}  // namespace mneme
