// Networks that read a text in both directions and classify it: BERT (arXiv:1810.04805), RoBERTa
// (arXiv:1907.11692), and both with Memoria's engrams.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops/dense.h"
#include "models/layer_builder.h"
#include "models/mixers/engram_memory.h"
#include "models/network.h"

namespace mneme {

// A text goes through the network segment by segment (Classes). Of each of them
//   h = LayerNorm(words[token] + positions[position] + types[type]);   of each layer:
//   h = LayerNorm(h + Attention(h))     all tokens see all tokens of the segment
//   h = LayerNorm(h + Mlp(h))
//   logits = head(h of the first token)
// With engrams, h behind layer `memory_layer` becomes new ones, which recall others, and in the
// layers above it the two lines have two between them:
//   h = LayerNorm(h + MemoryAttention(h; working engrams))
//   h = LayerNorm(h + MemoryAttention(h; recalled engrams))
struct BertClassifierParts {
  NetworkInfo info;
  float norm_eps = 1e-12f;
  std::string prefix = "bert.";
  int positions = 1;  // that were learned
  int types = 1;      // likewise, at least Classes::types
  // As of IndexWholeSegmentsArgs.
  int first_position = 0;
  int32_t skipped = -1;
  int heads = 1;
  int mlp_dim = 1;
  Activation activation = Activation::kGelu;
  enum class Head : uint8_t {
    kPooler,      // classifier tanh(pooler.dense h)
    kClassifier,  // classifier.out_proj tanh(classifier.dense h)
  };
  Head head = Head::kPooler;
  std::optional<EngramConfig> engrams;  // its capacity is 0: that of EngramCapacity
  int memory_layer = 0;
};

// INVALID_ARGUMENT where the head has other classes than the configuration. Refuses what
// EngramCapacity does.
absl::StatusOr<std::unique_ptr<Network>> MakeBertClassifier(const NetworkBuilder& builder,
                                                            const BertClassifierParts& parts);

}  // namespace mneme
