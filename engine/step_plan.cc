#include "engine/step_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace mneme {

void StepPlan::AddRow(const StepRow& row) {
  CHECK_GE(row.position, 0) << "slot " << row.slot << ": a row says how much its slab was fed";
  const int32_t first = row_offsets.back();
  const int count = static_cast<int>(row.tokens.size());
  token_ids.insert(token_ids.end(), row.tokens.begin(), row.tokens.end());
  token_types.insert(token_types.end(), row.types.begin(), row.types.end());
  CHECK(token_types.empty() || token_types.size() == token_ids.size()) << "types of some rows";
  row_offsets.push_back(first + count);
  slots.push_back(row.slot);
  positions.push_back(row.position);
  const int scored = std::min(row.scored_tokens, count);
  for (int i = 0; i < scored; ++i) logit_tokens.push_back(first + i);
  if (row.samples && scored < count) logit_tokens.push_back(first + count - 1);
  logit_offsets.push_back(logit_rows());
  candidates.push_back(row.candidate);
}

void StepPlan::Clear() {
  token_ids.clear();
  token_types.clear();
  row_offsets.assign(1, 0);
  slots.clear();
  positions.clear();
  logit_tokens.clear();
  logit_offsets.assign(1, 0);
  candidates.clear();
  decode_rows = 0;
}

std::string StepPlan::ToString() const {
  constexpr size_t kShown = 8;
  std::string out = absl::StrCat(rows(), " rows (", decode_rows, " decoding), ", tokens(),
                                 " tokens, ", logit_rows(), " logit rows");
  for (int row = 0; row < rows(); ++row) {
    const std::span<const int32_t> fed = row_tokens(row);
    absl::StrAppend(&out, "\n  slot ", slots[row], ": ", fed.size(), " tokens at position ",
                    positions[row], " [");
    for (size_t i = 0; i < std::min(fed.size(), kShown); ++i) {
      absl::StrAppend(&out, i == 0 ? "" : " ", fed[i]);
    }
    absl::StrAppend(&out, fed.size() > kShown ? " .." : "", "], logits after ",
                    logit_offsets[row + 1] - logit_offsets[row]);
  }
  return out;
}

}  // namespace mneme
