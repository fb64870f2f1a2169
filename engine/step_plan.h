// One step of the engine: a ragged batch as parallel arrays, in host memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mneme {

// Row r feeds token_ids[row_offsets[r] .. row_offsets[r + 1]) to the slab slots[r], and wants the
// logits after the tokens that logit_tokens[logit_offsets[r] .. logit_offsets[r + 1]) name. The
// first `decode_rows` rows feed one token each.
struct StepPlan {
  std::vector<int32_t> token_ids;            // [tokens]
  std::vector<int32_t> row_offsets = {0};    // [rows + 1]
  std::vector<int32_t> slots;                // [rows]
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

  // Appends a row. Logits are wanted after its first `scored_tokens` tokens, and after its last one
  // if `samples`.
  void AddRow(int slot, std::span<const int32_t> tokens, int scored_tokens, bool samples,
              int candidate);
  void Clear();

  // One line per row: "slot 3: 5 tokens [17 4 9 ..], logits after 1".
  std::string ToString() const;
};

}  // namespace mneme
