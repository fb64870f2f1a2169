// Ragged work for the recurrent operations, as a test describes it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "tests/support/workbench.h"

namespace mneme {

// One run of entries through one memory of one slab.
struct SegmentSpec {
  int length = 0;
  int slot = 0;
  int memory = 0;
  bool fresh = false;

  bool active() const { return slot >= 0 && length > 0; }
};

int Entries(const std::vector<SegmentSpec>& segments);
// The first entry of every segment, and the number of entries.
std::vector<int> Offsets(const std::vector<SegmentSpec>& segments);
Segments Upload(Workbench& bench, const std::vector<SegmentSpec>& segments);

// Slots 0 .. slots-1 and memories 0 .. memories-1, every pair at most once, in the order that
// Dispatch gives. Lengths up to `longest`, some zero; some padding; some fresh. Depends on the seed
// only.
std::vector<SegmentSpec> RandomSegments(uint64_t seed, int slots, int memories, int longest);

// Whether a segment goes through a memory of a slot; whether one finds it fresh.
bool IsActive(const std::vector<SegmentSpec>& segments, int slot, int memory);
bool IsFresh(const std::vector<SegmentSpec>& segments, int slot, int memory);
// The parts of `states`, [slots, memories, elements], that segments go through: in a norm, the
// others would hide the errors of those.
std::vector<double> ActiveStates(const std::vector<SegmentSpec>& segments, int memories,
                                 int64_t elements, const std::vector<double>& states);

// values[e, :] of the listed segments only, in order, each entry `width` numbers wide.
std::vector<double> PickEntries(const std::vector<double>& values, int width,
                                const std::vector<SegmentSpec>& segments,
                                const std::vector<int>& picked);

}  // namespace mneme
