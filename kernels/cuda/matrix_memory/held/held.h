// Rules other than the gated delta rule, of memories that hold writes back: HoldsBack() in
// kernels/held_rules.h says which. kernels/pending_writes.h says what is stored.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::matrix_memory {
struct Problem;
}

namespace mneme::cuda::matrix_memory::held {

// Whether the writes that are pending beside a memory of so many heads are of such a rule: their
// decays are those of keys, or the gated delta rule's own kernels know nothing of it.
bool HaveKeyDecays(const PendingWrites& pending, int64_t heads, int64_t key_dim);

// Whether the matrices of a step are so few that holding back gains nothing.
bool AreFew(const Device& device, const MatrixMemoryArgs& args);
// The memories of a step and what is pending for them, for kernels that add every token, and what
// is pending, to their matrices. Tiles are theirs to set.
Problem ProblemOfWrites(const MatrixMemoryArgs& args);
// Whether all matrices of a step fit the registers of the device at once.
bool FitsAtOnce(const Device& device, const MatrixMemoryArgs& args);
// Segments of one entry. `early`: as MatrixMemory() has it. With `discretize`, log_decay and v are
// made of what it reads, and not written.
void LaunchDecode(Device& device, const MatrixMemoryArgs& args, bool early,
                  const DiscretizeArgs* discretize = nullptr);
// Folds what is pending for the memories of segments of more than one entry.
void SettleSegments(Device& device, const MatrixMemoryArgs& args);
// SettleMemories where HaveKeyDecays().
void SettleSlots(Device& device, const SettleArgs& args);

}  // namespace mneme::cuda::matrix_memory::held
