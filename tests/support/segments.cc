#include "tests/support/segments.h"

#include <algorithm>

#include "tests/support/random_values.h"

namespace mneme {

int Entries(const std::vector<SegmentSpec>& segments) {
  int entries = 0;
  for (const SegmentSpec& segment : segments) entries += segment.length;
  return entries;
}

std::vector<int> Offsets(const std::vector<SegmentSpec>& segments) {
  std::vector<int> offsets = {0};
  for (const SegmentSpec& segment : segments) offsets.push_back(offsets.back() + segment.length);
  return offsets;
}

Segments Upload(Workbench& bench, const std::vector<SegmentSpec>& segments) {
  std::vector<int> slots, memories, fresh;
  for (const SegmentSpec& segment : segments) {
    slots.push_back(segment.slot);
    memories.push_back(segment.memory);
    fresh.push_back(segment.fresh ? 1 : 0);
  }
  Segments uploaded;
  uploaded.count = static_cast<int>(segments.size());
  uploaded.offsets = bench.Ints(Offsets(segments));
  uploaded.slots = bench.Ints(slots);
  uploaded.memories = bench.Ints(memories);
  uploaded.fresh = bench.Ints(fresh);
  return uploaded;
}

std::vector<SegmentSpec> RandomSegments(uint64_t seed, int slots, int memories, int longest) {
  SeededRandom random(seed);
  const std::vector<int> order = random.Permutation(slots);
  std::vector<bool> padding;
  for (int row = 0; row < slots; ++row) padding.push_back(random.Chance(0.15));
  std::vector<SegmentSpec> segments;
  for (int memory = 0; memory < memories; ++memory) {
    for (int row = 0; row < slots; ++row) {
      SegmentSpec segment;
      segment.slot = padding[row] ? -1 : order[row];
      segment.memory = memory;
      segment.length = random.Chance(0.2) ? 0 : random.Int(1, longest);
      segment.fresh = segment.active() && random.Chance(0.4);
      segments.push_back(segment);
    }
  }
  return segments;
}

bool IsActive(const std::vector<SegmentSpec>& segments, int slot, int memory) {
  return std::any_of(segments.begin(), segments.end(), [&](const SegmentSpec& s) {
    return s.active() && s.slot == slot && s.memory == memory;
  });
}
bool IsFresh(const std::vector<SegmentSpec>& segments, int slot, int memory) {
  return std::any_of(segments.begin(), segments.end(), [&](const SegmentSpec& s) {
    return s.active() && s.fresh && s.slot == slot && s.memory == memory;
  });
}
std::vector<double> ActiveStates(const std::vector<SegmentSpec>& segments, int memories,
                                 int64_t elements, const std::vector<double>& states) {
  std::vector<double> active;
  const int count = static_cast<int>(static_cast<int64_t>(states.size()) / elements);
  for (int i = 0; i < count; ++i) {
    if (!IsActive(segments, i / memories, i % memories)) continue;
    active.insert(active.end(), states.begin() + i * elements, states.begin() + (i + 1) * elements);
  }
  return active;
}

std::vector<double> PickEntries(const std::vector<double>& values, int width,
                                const std::vector<SegmentSpec>& segments,
                                const std::vector<int>& picked) {
  const std::vector<int> offsets = Offsets(segments);
  std::vector<double> result;
  for (const int s : picked) {
    result.insert(result.end(), values.begin() + offsets[s] * width,
                  values.begin() + offsets[s + 1] * width);
  }
  return result;
}

}  // namespace mneme
