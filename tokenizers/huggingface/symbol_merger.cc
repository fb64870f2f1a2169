#include "tokenizers/huggingface/symbol_merger.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "base/status_macros.h"

namespace mneme {
namespace {

using Merge = MergeTable::Merge;
constexpr uint32_t kNoRank = MergeTable::kNoRank;

// A symbol among many, in a list of those that are left.
struct Node {
  int32_t id = 0;
  int32_t previous = -1, next = -1;
  Merge merge;  // with the next
};

// Ranks are looked at by so many, side by side.
constexpr size_t kLanes = 8;

// The lowest of `count` ranks, behind which there is none up to the next multiple of kLanes.
uint32_t LowestRank(const uint32_t* ranks, size_t count) {
  std::array<uint32_t, kLanes> lowest;
  lowest.fill(kNoRank);
  for (size_t i = 0; i < count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lowest[lane] = std::min(lowest[lane], ranks[i + lane]);
    }
  }
  return *std::min_element(lowest.begin(), lowest.end());
}

}  // namespace

size_t MergeFewSymbols(const MergeTable& merges, std::span<int32_t> symbols) {
  size_t count = symbols.size();
  // The merge of each symbol with the next one.
  std::array<uint32_t, kFewSymbols + kLanes> ranks;
  std::fill_n(ranks.begin(), count + kLanes, kNoRank);
  std::array<int32_t, kFewSymbols> merged;
  const auto look_up = [&](size_t at) {
    const Merge merge = merges.Find(symbols[at], symbols[at + 1]);
    ranks[at] = merge.rank;
    merged[at] = merge.id;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    const uint32_t lowest = LowestRank(ranks.data(), count - 1);
    if (lowest == kNoRank) break;
    const auto best =
        static_cast<size_t>(std::find(ranks.begin(), ranks.end(), lowest) - ranks.begin());
    symbols[best] = merged[best];
    --count;
    const size_t behind = count - best - 1;
    std::memmove(&symbols[best] + 1, &symbols[best] + 2, behind * sizeof(int32_t));
    std::memmove(ranks.data() + best, ranks.data() + best + 1, (behind + 1) * sizeof(uint32_t));
    std::memmove(merged.data() + best, merged.data() + best + 1, behind * sizeof(int32_t));
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  return count;
}

absl::Status MergeManySymbols(const MergeTable& merges, WorkMeter& meter, SymbolBuffer& symbols) {
  const auto count = static_cast<int32_t>(symbols.size());
  MNEME_RETURN_IF_ERROR(meter.Add(count));
  std::vector<Node> nodes(count);
  // Ranks above places, so that the least is the leftmost of the lowest rank. What a merge made
  // obsolete stays, and is known by its rank, which is another one by then: a symbol only ever gets
  // longer, so no two merges that begin at one place have the same rank.
  std::vector<uint64_t> queue;
  const auto look_up = [&](int32_t at) {
    Node& node = nodes[at];
    node.merge = node.next < 0 ? Merge() : merges.Find(node.id, nodes[node.next].id);
    if (node.merge.rank != kNoRank) {
      queue.push_back(static_cast<uint64_t>(node.merge.rank) << 32 | static_cast<uint32_t>(at));
    }
    return node.merge.rank != kNoRank;
  };
  for (int32_t i = 0; i < count; ++i) {
    nodes[i] = {.id = symbols[i], .previous = i - 1, .next = i + 1 < count ? i + 1 : -1};
  }
  for (int32_t i = 0; i < count; ++i) look_up(i);
  const std::greater<> least_first;
  std::make_heap(queue.begin(), queue.end(), least_first);
  while (!queue.empty()) {
    MNEME_RETURN_IF_ERROR(meter.Add(1));
    std::pop_heap(queue.begin(), queue.end(), least_first);
    const uint64_t entry = queue.back();
    queue.pop_back();
    const auto at = static_cast<int32_t>(entry & UINT32_MAX);
    Node& node = nodes[at];
    if (node.merge.rank != static_cast<uint32_t>(entry >> 32)) continue;
    node.id = node.merge.id;
    Node& gone = nodes[node.next];
    gone.merge = Merge();
    gone.id = -1;
    node.next = gone.next;
    if (node.next >= 0) nodes[node.next].previous = at;
    if (look_up(at)) std::push_heap(queue.begin(), queue.end(), least_first);
    if (node.previous >= 0 && look_up(node.previous)) {
      std::push_heap(queue.begin(), queue.end(), least_first);
    }
  }
  size_t left = 0;
  for (int32_t at = 0; at >= 0; at = nodes[at].next) symbols[left++] = nodes[at].id;
  symbols.resize(left);
  return absl::OkStatus();
}

absl::Status MergeSymbols(const MergeTable& merges, WorkMeter& meter, SymbolBuffer& symbols) {
  if (symbols.size() > kFewSymbols) return MergeManySymbols(merges, meter, symbols);
  MNEME_RETURN_IF_ERROR(meter.Add(static_cast<int64_t>(symbols.size())));
  symbols.resize(MergeFewSymbols(merges, {symbols.data(), symbols.size()}));
  return absl::OkStatus();
}

}  // namespace mneme
