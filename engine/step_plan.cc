#include "engine/step_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace mneme {

void StepPlan::AddRow(int slot, std::span<const int32_t> tokens, int scored_tokens, bool samples,
                      int candidate) {
  const int32_t first = row_offsets.back();
  const int count = static_cast<int>(tokens.size());
  token_ids.insert(token_ids.end(), tokens.begin(), tokens.end());
  row_offsets.push_back(first + count);
  slots.push_back(slot);
  const int scored = std::min(scored_tokens, count);
  for (int i = 0; i < scored; ++i) logit_tokens.push_back(first + i);
  if (samples && scored < count) logit_tokens.push_back(first + count - 1);
  logit_offsets.push_back(logit_rows());
  candidates.push_back(candidate);
}

void StepPlan::Clear() {
  token_ids.clear();
  row_offsets.assign(1, 0);
  slots.clear();
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
    absl::StrAppend(&out, "\n  slot ", slots[row], ": ", fed.size(), " tokens [");
    for (size_t i = 0; i < std::min(fed.size(), kShown); ++i) {
      absl::StrAppend(&out, i == 0 ? "" : " ", fed[i]);
    }
    absl::StrAppend(&out, fed.size() > kShown ? " .." : "", "], logits after ",
                    logit_offsets[row + 1] - logit_offsets[row]);
  }
  return out;
}

}  // namespace mneme
