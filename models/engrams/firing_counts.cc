#include "models/engrams/firing_counts.h"

namespace mneme {

FiringCounts FiringCounts::Read(const CanonicalState& state) {
  FiringCounts counts;
  const StateTensor& tensor = state.Get("engrams.counts");
  counts.capacity_ = static_cast<size_t>(tensor.shape[0]);
  counts.counts_ = tensor.Elements<uint16_t>();
  return counts;
}

}  // namespace mneme
