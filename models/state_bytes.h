// The bytes of a slab as they are, held-back writes included: which of them mean something, and a
// digest of those. For who keeps states on this device's terms; state_codec.h is for all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/state_layout.h"

namespace mneme {

// The bytes that a session of `tokens` tokens has written, or has from its birth on: ordered by
// where they lie in a slab. `fixed`: host memory with the first fixed_bytes() of the slab, for the
// flags that guard memories.
std::vector<ByteRange> WrittenBytes(const StateLayout& layout, const std::byte* fixed,
                                    int64_t tokens);

// A slab's ranges `filled` (StatePool::Filled), which `packed` holds one behind the other: zeros
// where a former owner's bytes may be.
void ClearUnwritten(const StateLayout& layout, std::span<const ByteRange> filled, int64_t tokens,
                    std::span<std::byte> packed);

// Parts of what such ranges hold, packed, of a session of `tokens` tokens: what any token may
// change;
std::vector<ByteRange> RewrittenBytes(const StateLayout& layout, int64_t tokens);
// and what is written once: blocks of rows that came from `since` to `until` tokens, one that was
// not full at `since` included. From 0 to `tokens` these are all that the former are not.
std::vector<ByteRange> AppendedBytes(const StateLayout& layout, int64_t tokens, int64_t since,
                                     int64_t until);

// Tells states apart that were fed otherwise, on one device with one arithmetic. It reads some
// lines of each memory, and of fields that grow the newest row alone, so that it costs little
// whatever the size of the state. What stands for the same has the same, however much room there is
// for more (StateRoom, and rows of fields that grow), where HashFormat is the same. `slab`: memory
// that the host reads. Never 0.
uint64_t DigestState(const StateLayout& layout, const std::byte* slab, int64_t tokens);

// A hash of how what DigestState reads is written: fields and their types, wherever they lie.
uint64_t HashFormat(const StateLayout& layout);

// A hash of what the bytes of a slab mean: fields, their types and places. The same with late
// fields as without them, which are zero where there were none.
uint64_t HashLayout(const StateLayout& layout);

}  // namespace mneme
