// The network of a language model: an embedding, blocks on one residual stream, a norm, logits.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/block.h"
#include "models/layer_builder.h"
#include "models/network.h"
#include "models/norm.h"

namespace mneme {

//   h = embeddings[token] (+ positions[position]);  h = Block_i(h) for each layer;
//   logits = head Norm(h; norm)
struct LanguageModelParts {
  NetworkInfo info;
  float norm_eps = 1e-6f;
  // Tensors that are missing are refused, but for the head: without one the embedding serves.
  std::string embeddings = "model.embeddings.weight";
  std::string positions;                       // the table of info.positions, where there is one
  std::string layer_prefix = "model.layers.";  // then "3."
  NormTensor norm = {"model.norm.weight"};
  std::string head = "lm_head.weight";
  bool says_tied = false;   // by the configuration; the checkpoint decides,
  bool obeys_tied = false;  // unless this is set: then a tied network has no use for a head
  int first_values = 0;     // channels of ForwardContext::first_values
  // Rows of `prefix_rows`, which go through the blocks before a session's first token. They are the
  // same for all sessions, and do so once.
  int prefix = 0;
  std::string prefix_rows = "model.persistent_memory";
  BlockMaker block;  // called for each layer in turn
};

// The head: that of `parts`, or the embeddings.
absl::StatusOr<PackedMatrix> TakeHead(const NetworkBuilder& builder,
                                      const LanguageModelParts& parts);

absl::StatusOr<std::unique_ptr<Network>> MakeLanguageModel(const NetworkBuilder& builder,
                                                           const LanguageModelParts& parts);

}  // namespace mneme
