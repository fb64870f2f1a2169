// How surprising each token was to trained memories, and their gates, for people and programs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/model.h"
#include "tools/layer_tape.h"

namespace mneme {

struct SurpriseView {
  std::string format = "table";  // table, csv, json or map
  std::string value = "loss";    // of a map: loss, theta, eta or alpha
  std::string colours = "auto";  // of a map: auto, 24bit, 256 or none
  std::vector<int> layers;       // of those with such a memory; empty: all
  bool by_head = false;          // otherwise the mean over heads
  int rows = 64;                 // of a table: tokens
  int columns = 96;              // of a map: tokens a line
};

// INVALID_ARGUMENT names the flag.
absl::Status CheckSurpriseView(const SurpriseView& view, const ModelInfo& model);
// The same of a value that is to be shown and that none of the memories on the tape has.
absl::Status CheckSurpriseValue(const SurpriseView& view, const ModelInfo& model,
                                const LayerTape& tape);

// On standard output. Of tokens, `texts` may be empty; a prefix has been recorded before them, and
// positions that the model inserts between them.
void PrintSurprise(const SurpriseView& view, const ModelInfo& model, const LayerTape& tape,
                   std::span<const int32_t> ids, std::span<const std::string> texts);

}  // namespace mneme
