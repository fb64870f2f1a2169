// One step of the engine: a ragged batch as parallel arrays, in host memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mneme {

// A row, as it joins a plan.
struct StepRow {
  int slot = -1;                    // of its slab; -1: padding, no slab is read or written
  int64_t position = -1;            // tokens that the slab was fed before; there is no default
  std::span<const int32_t> tokens;  // to be fed; not empty
  // SegmentedText::types of the tokens, in steps of models that classify.
  std::span<const int32_t> types;
  // Logits are wanted after this many of the first tokens ...
  int scored_tokens = 0;
  // ... and after the last one.
  bool samples = false;
  int candidate = 0;  // StepPlan::candidates
};

// Row r feeds token_ids[row_offsets[r] .. row_offsets[r + 1]) to the slab slots[r], which was fed
// positions[r] tokens before, and wants the logits after the tokens that
// logit_tokens[logit_offsets[r] .. logit_offsets[r + 1]) name. The first `decode_rows` rows feed
// one token each.
struct StepPlan {
  std::vector<int32_t> token_ids;            // [tokens]
  std::vector<int32_t> token_types;          // [tokens], or empty
  std::vector<int32_t> row_offsets = {0};    // [rows + 1]
  std::vector<int32_t> slots;                // [rows]
  std::vector<int64_t> positions;            // [rows]
  std::vector<int32_t> logit_tokens;         // [logit_rows], indices into token_ids, ascending
  std::vector<int32_t> logit_offsets = {0};  // [rows + 1]
  std::vector<int> candidates;               // [rows], whose row it is: PlanStep's candidates
  int decode_rows = 0;

  bool empty() const { return slots.empty(); }
  int rows() const { return static_cast<int>(slots.size()); }
  int tokens() const { return static_cast<int>(token_ids.size()); }
  int logit_rows() const { return static_cast<int>(logit_tokens.size()); }
  int prefill_tokens() const { return tokens() - decode_rows; }
  std::span<const int32_t> row_tokens(int row) const {
    return std::span(token_ids).subspan(row_offsets[row], row_offsets[row + 1] - row_offsets[row]);
  }

  // Aborts if the row's position was not set.
  void AddRow(const StepRow& row);
  void Clear();

  // One line per row: "slot 3: 5 tokens at position 20 [17 4 9 ..], logits after 1".
  std::string ToString() const;
};

}  // namespace mneme
