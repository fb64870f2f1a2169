#include "models/state_bytes.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/weight_scan.h"

namespace mneme {
namespace {

// visit(begin, end) of each memory of a field of a fixed size that was written.
template <typename Visit>
void ForEachWrittenMemory(const StateLayout& layout, const StateField& field,
                          const std::byte* fixed, int64_t tokens, const Visit& visit) {
  if (field.guard == StateGuard::kFed && tokens == 0) return;
  const int64_t bytes = field.memory_bytes();
  for (int64_t m = 0; m < field.memories(); ++m) {
    if (field.guard == StateGuard::kFlags) {
      const int64_t flags = layout.fields()[static_cast<size_t>(field.flags)].offset;
      if (fixed[flags + m] == std::byte{0}) continue;
    }
    visit(field.offset + m * bytes, field.offset + (m + 1) * bytes);
  }
}

// Whether a digest of a state reads the field.
bool IsDigested(const StateField& field) {
  return field.role != StateRole::kDerived && field.role != StateRole::kHeldBack &&
         field.initial != StateInitial::kPhase && field.room != StateRoom::kOfChosen &&
         !field.is_late && field.bytes() > 0;
}

uint64_t HashLines(uint64_t hash, const std::byte* bytes, int64_t count) {
  constexpr int64_t kLine = 64;
  constexpr int64_t kLines = 16;
  if (count <= kLine * kLines) {
    return CombineHashes(hash, HashBytes({bytes, static_cast<size_t>(count)}));
  }
  for (int64_t i = 0; i < kLines; ++i) {
    const int64_t at = (count - kLine) * i / (kLines - 1);
    hash = CombineHashes(hash, HashBytes({bytes + at, static_cast<size_t>(kLine)}));
  }
  return hash;
}

bool IsZero(const std::byte* bytes, int64_t count) {
  return std::all_of(bytes, bytes + count, [](std::byte byte) { return byte == std::byte{0}; });
}

// visit(group, its first byte in a packed state of `tokens` tokens, whether its rows are written
// once) of each context group.
template <typename Visit>
void ForEachPackedGroup(const StateLayout& layout, int64_t tokens, const Visit& visit) {
  int64_t at = layout.fixed_bytes();
  for (size_t g = 0; g < layout.groups().size(); ++g) {
    const ContextGroup& group = layout.groups()[g];
    const bool once =
        group.guard == StateGuard::kFirstRows &&
        std::all_of(layout.fields().begin(), layout.fields().end(), [&](const StateField& field) {
          return field.group != static_cast<int>(g) || field.role == StateRole::kAppendOnly;
        });
    visit(group, at, once);
    at += group.filled_blocks(tokens) * group.block_bytes;
  }
}

}  // namespace

std::vector<ByteRange> RewrittenBytes(const StateLayout& layout, int64_t tokens) {
  std::vector<ByteRange> ranges = {{0, layout.fixed_bytes()}};
  ForEachPackedGroup(layout, tokens, [&](const ContextGroup& group, int64_t begin, bool once) {
    const int64_t end = begin + group.filled_blocks(tokens) * group.block_bytes;
    if (once || end == begin) return;
    if (ranges.back().end == begin) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end});
    }
  });
  return ranges;
}

std::vector<ByteRange> AppendedBytes(const StateLayout& layout, int64_t tokens, int64_t since,
                                     int64_t until) {
  std::vector<ByteRange> ranges;
  ForEachPackedGroup(layout, tokens, [&](const ContextGroup& group, int64_t begin, bool once) {
    if (!once) return;
    const int64_t end = group.filled_blocks(until);
    const int64_t full = since == 0 ? 0 : std::min(group.inserted.Of(since) / kContextBlock, end);
    if (full == end) return;
    ranges.push_back({begin + full * group.block_bytes, begin + end * group.block_bytes});
  });
  return ranges;
}

std::vector<ByteRange> WrittenBytes(const StateLayout& layout, const std::byte* fixed,
                                    int64_t tokens) {
  std::vector<ByteRange> written;
  for (const StateField& field : layout.fields()) {
    if (field.bytes() == 0) continue;
    if (!field.grows()) {
      ForEachWrittenMemory(layout, field, fixed, tokens, [&](int64_t begin, int64_t end) {
        written.push_back({begin, end});
      });
      continue;
    }
    const PositionRange held = field.held(tokens);
    for (int64_t m = 0; m < field.memories(); ++m) {
      for (int64_t position = held.begin; position < held.end; ++position) {
        const int64_t begin = layout.RowOffset(field, m, position);
        written.push_back({begin, begin + field.row_bytes()});
      }
    }
  }
  std::sort(written.begin(), written.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  return written;
}

void ClearUnwritten(const StateLayout& layout, std::span<const ByteRange> filled, int64_t tokens,
                    std::span<std::byte> packed) {
  const std::vector<ByteRange> written = WrittenBytes(layout, packed.data(), tokens);
  std::byte* out = packed.data();
  auto next = written.begin();
  for (const ByteRange& range : filled) {
    int64_t at = range.begin;
    const auto clear_to = [&](int64_t end) {
      if (end > at) std::memset(out + (at - range.begin), 0, static_cast<size_t>(end - at));
    };
    while (next != written.end() && next->begin < range.end) {
      clear_to(next->begin);
      at = std::max(at, next->end);
      ++next;
    }
    clear_to(range.end);
    out += range.end - range.begin;
  }
}

uint64_t DigestState(const StateLayout& layout, const std::byte* slab, int64_t tokens) {
  uint64_t hash = HashText("state");
  for (const StateField& field : layout.fields()) {
    if (!IsDigested(field)) continue;
    if (!field.grows()) {
      ForEachWrittenMemory(layout, field, slab, tokens, [&](int64_t begin, int64_t end) {
        if (field.room == StateRoom::kChosen) {
          if (IsZero(slab + begin, end - begin)) return;  // as what there is no room for
          hash = CombineHashes(hash, static_cast<uint64_t>(begin - field.offset));
        }
        hash = HashLines(hash, slab + begin, end - begin);
      });
    } else if (const PositionRange held = field.held(tokens); held.count() > 0) {
      for (int64_t m = 0; m < field.memories(); ++m) {
        hash = HashLines(hash, slab + layout.RowOffset(field, m, held.end - 1), field.row_bytes());
      }
    }
  }
  return hash == 0 ? 1 : hash;
}

uint64_t HashFormat(const StateLayout& layout) {
  std::string text = "2";  // of DigestState
  for (const StateField& field : layout.fields()) {
    if (!IsDigested(field)) continue;
    const int64_t memories = field.room == StateRoom::kChosen ? 0 : field.memories();
    absl::StrAppend(&text, "\n", field.name, " ", Name(field.dtype), " ", memories, " ",
                    field.grows() ? field.row_bytes() : field.memory_bytes(), " ",
                    static_cast<int>(field.guard), " ", field.row_values);
  }
  return HashText(text);
}

uint64_t HashLayout(const StateLayout& layout) {
  std::string text = absl::StrCat(layout.slab_bytes(), " ", layout.fixed_bytes());
  for (const StateField& field : layout.fields()) {
    if (field.is_late) continue;
    absl::StrAppend(&text, "\n", field.name, " ", Name(field.dtype), " ",
                    ShapeToString(field.shape), " ", static_cast<int>(field.guard), " ",
                    field.row_values, " ", field.phases, " ", field.writes, " ", field.offset);
  }
  return HashText(text);
}

}  // namespace mneme
