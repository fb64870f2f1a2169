#include "engine/state_pool.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace mneme {

absl::StatusOr<std::unique_ptr<StatePool>> StatePool::Create(Backend& backend, const Model& model,
                                                             int slots) {
  CHECK_GE(slots, 1);
  auto pool = absl::WrapUnique(new StatePool(backend));
  const StateLayout& layout = model.state_layout();
  pool->slab_bytes_ = layout.slab_bytes();
  pool->session_bytes_ = SessionBytes(layout);
  pool->fixed_bytes_ = layout.fixed_bytes();
  MNEME_ASSIGN_OR_RETURN(pool->slabs_, Buffer::Allocate(backend, slots * pool->slab_bytes_));
  MNEME_ASSIGN_OR_RETURN(pool->contexts_,
                         ContextTables::Create(backend, layout, pool->slabs_.data(), slots));

  // Fields lie in the order of their offsets; neighbours become one copy.
  int64_t eager_bytes = 0;
  for (const StateField& field : layout.fields()) {
    // Without a guard, zeros have to be there, too.
    const bool eager = field.initial == StateInitial::kEager ||
                       (field.initial == StateInitial::kZero && field.guard == StateGuard::kAlways);
    if (!eager || field.bytes() == 0) continue;
    std::vector<EagerRange>& ranges = pool->eager_;
    constexpr int64_t kPadding = 64;
    if (!ranges.empty() &&
        field.offset - (ranges.back().slab_offset + ranges.back().bytes) < kPadding) {
      const int64_t bytes = field.offset + field.bytes() - ranges.back().slab_offset;
      eager_bytes += bytes - ranges.back().bytes;
      ranges.back().bytes = bytes;
    } else {
      ranges.push_back({field.offset, eager_bytes, field.bytes()});
      eager_bytes += field.bytes();
    }
  }

  pool->JoinRanges();
  std::vector<int32_t> numbers;
  for (const StateField& field : layout.fields()) {
    if (field.initial != StateInitial::kPhase) continue;
    const int64_t first = eager_bytes + static_cast<int64_t>(numbers.size() * sizeof(int32_t));
    pool->phases_.push_back({field.offset, first, field.phases});
    for (int32_t phase = 0; phase < field.phases; ++phase) numbers.push_back(phase);
  }
  const auto number_bytes = static_cast<int64_t>(numbers.size() * sizeof(int32_t));

  // Slab 0 serves as the place where the initial one is made, so that it costs no memory of its
  // own.
  if (eager_bytes + number_bytes > 0) {
    MNEME_ASSIGN_OR_RETURN(pool->initial_, Buffer::Allocate(backend, eager_bytes + number_bytes));
    backend.Zero(pool->slab(0), pool->fixed_bytes_);
    MNEME_RETURN_IF_ERROR(model.InitState(backend, pool->slab(0)));
    for (const EagerRange& range : pool->eager_) {
      backend.CopyPieces(pool->initial_.data() + range.initial_offset, range.bytes,
                         pool->slab(0) + range.slab_offset, range.stride, range.bytes, range.count);
    }
    backend.CopyFromHost(pool->initial_.data() + eager_bytes, numbers.data(), number_bytes);
    MNEME_RETURN_IF_ERROR(backend.Synchronize());
  }

  MNEME_RETURN_IF_ERROR(pool->MakePieces(layout));
  pool->taken_.assign(slots, false);
  pool->free_.resize(slots);
  for (int i = 0; i < slots; ++i) pool->free_[i] = slots - 1 - i;
  return pool;
}

absl::Status StatePool::MakePieces(const StateLayout& layout) {
  // Long ones are cut, so that a device that takes them side by side has some for all of it.
  constexpr int64_t kLongest = int64_t{64} << 10;
  std::vector<GuardedPiece> pieces;
  int64_t taken = 0;  // bytes of the slab so far
  const auto add = [&](int64_t end, int64_t flag) {
    while (taken < end) {
      const int64_t bytes = std::min(end - taken, kLongest);
      pieces.push_back({taken, bytes, flag});
      taken += bytes;
    }
  };
  for (const StateField& field : layout.fields()) {
    if (field.guard != StateGuard::kFlags || field.bytes() == 0) continue;
    add(field.offset, GuardedPiece::kAlways);
    const int64_t flags = layout.fields()[static_cast<size_t>(field.flags)].offset;
    for (int64_t m = 0; m < field.memories(); ++m) {
      add(field.offset + (m + 1) * field.memory_bytes(), flags + m);
    }
  }
  if (pieces.empty()) return absl::OkStatus();
  add(fixed_bytes_, GuardedPiece::kAlways);
  piece_count_ = static_cast<int64_t>(pieces.size());
  const auto bytes = static_cast<int64_t>(pieces.size() * sizeof(GuardedPiece));
  MNEME_ASSIGN_OR_RETURN(pieces_, Buffer::Allocate(backend_, bytes));
  backend_.CopyFromHost(pieces_.data(), pieces.data(), bytes);
  return backend_.Synchronize();
}

void StatePool::JoinRanges() {
  std::vector<EagerRange> joined;
  for (const EagerRange& range : eager_) {
    if (!joined.empty() && joined.back().bytes == range.bytes) {
      EagerRange& last = joined.back();
      const int64_t stride = range.slab_offset - last.slab_offset - (last.count - 1) * last.stride;
      if (last.count == 1 || stride == last.stride) {
        last.stride = stride;
        ++last.count;
        continue;
      }
    }
    joined.push_back(range);
  }
  eager_ = std::move(joined);
}

std::optional<int> StatePool::Acquire() {
  if (free_.empty()) return std::nullopt;
  const int slot = free_.back();
  free_.pop_back();
  taken_[slot] = true;
  for (const EagerRange& range : eager_) {
    backend_.CopyPieces(slab(slot) + range.slab_offset, range.stride,
                        initial_.data() + range.initial_offset, range.bytes, range.bytes,
                        range.count);
    copied_bytes_ += range.bytes * range.count;
  }
  for (const PhaseField& field : phases_) {
    const int64_t number = field.initial_offset + births_ % field.phases * SizeOf(DType::kI32);
    backend_.Copy(slab(slot) + field.slab_offset, initial_.data() + number, sizeof(int32_t));
    copied_bytes_ += sizeof(int32_t);
  }
  ++births_;
  return slot;
}

void StatePool::Release(int slot) {
  CHECK(taken_.at(slot)) << "slot " << slot << " is not taken";
  taken_[slot] = false;
  free_.push_back(slot);
}

std::vector<ByteRange> StatePool::Filled(int slot, int64_t tokens) const {
  std::vector<ByteRange> ranges = {{0, fixed_bytes_}};
  for (const ByteRange& range : contexts_.Filled(slot, tokens)) {
    if (ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

void StatePool::Copy(int from, int to, int64_t tokens) {
  CHECK(taken_.at(from) && taken_.at(to)) << "slots " << from << " and " << to;
  if (from == to) return;
  copied_bytes_ += contexts_.CopyFilled(backend_, from, to, tokens);
  if (tokens == 0) {  // what every session has from its birth on
    for (const EagerRange& range : eager_) {
      backend_.CopyPieces(slab(to) + range.slab_offset, range.stride,
                          slab(from) + range.slab_offset, range.stride, range.bytes, range.count);
      copied_bytes_ += range.bytes * range.count;
    }
    for (const PhaseField& field : phases_) {
      backend_.Copy(slab(to) + field.slab_offset, slab(from) + field.slab_offset, sizeof(int32_t));
      copied_bytes_ += sizeof(int32_t);
    }
  } else if (piece_count_ > 0) {
    copied_bytes_ +=
        backend_
            .CopyGuarded(slab(to), slab(from),
                         reinterpret_cast<const GuardedPiece*>(pieces_.data()), piece_count_)
            .value_or(fixed_bytes_);
  } else {
    backend_.Copy(slab(to), slab(from), fixed_bytes_);
    copied_bytes_ += fixed_bytes_;
  }
}

}  // namespace mneme
