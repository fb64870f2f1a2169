#include "engine/sessions/host_states.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/human_bytes.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// Large enough for a link's full rate, small enough that a state that grows wastes little.
constexpr int64_t kLargestPage = int64_t{4} << 20;
constexpr int64_t kPageAlignment = 4096;

int64_t Pieces(int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; }

}  // namespace

absl::StatusOr<std::unique_ptr<HostStates>> HostStates::Create(Backend& backend,
                                                               const StatePool& pool, int64_t bytes,
                                                               int64_t max_tokens_a_session,
                                                               const Purpose& purpose) {
  auto states = absl::WrapUnique(new HostStates(backend, pool));
  // States that do not grow fill their pages.
  const int64_t least = std::max<int64_t>(1, states->BytesOf(1));
  const int64_t page = Pieces(least, Pieces(least, kLargestPage));
  states->page_bytes_ = Pieces(page, kPageAlignment) * kPageAlignment;
  states->spare_pages_ = states->PagesOf(std::max<int64_t>(1, max_tokens_a_session));
  states->pages_ = bytes / states->page_bytes_;
  const int64_t needed = purpose.least_states * states->spare_pages_ * states->page_bytes_;
  if (states->pages_ * states->page_bytes_ < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat(purpose.option, " is ", bytes, ", expected 0 or at least ", needed, " (",
                     HumanBytes(needed), ", ", purpose.least_text, ")"));
  }
  MNEME_ASSIGN_OR_RETURN(states->memory_,
                         Buffer::AllocatePinned(backend, states->pages_ * states->page_bytes_));
  for (int64_t i = states->pages_ - 1; i >= 0; --i) {
    states->free_.push_back(static_cast<int32_t>(i));
  }
  return states;
}

int64_t HostStates::BytesOf(int64_t tokens) const {
  if (tokens == 0) return 0;  // what every session has from its birth on
  int64_t bytes = 0;
  for (const ByteRange& range : pool_.Filled(/*slot=*/0, tokens)) bytes += range.end - range.begin;
  return bytes;
}

int64_t HostStates::PagesOf(int64_t tokens) const {
  return std::max<int64_t>(1, Pieces(BytesOf(tokens), page_bytes_));
}

int HostStates::Add(int64_t tokens) {
  const int64_t count = PagesOf(tokens);
  CHECK_LE(count, free_pages());
  State state = {.tokens = tokens};
  state.pages.assign(free_.end() - count, free_.end());
  free_.resize(free_.size() - static_cast<size_t>(count));
  if (unused_.empty()) {
    states_.push_back(std::move(state));
    return static_cast<int>(states_.size()) - 1;
  }
  const int number = unused_.back();
  unused_.pop_back();
  states_[static_cast<size_t>(number)] = std::move(state);
  return number;
}

void HostStates::Remove(int state) {
  State& removed = states_.at(static_cast<size_t>(state));
  CHECK(!removed.pages.empty()) << "state " << state << " is not there";
  free_.insert(free_.end(), removed.pages.begin(), removed.pages.end());
  removed.pages.clear();
  unused_.push_back(state);
}

int HostStates::Duplicate(int state) {
  const int copy = Add(states_.at(static_cast<size_t>(state)).tokens);
  const State& from = states_[static_cast<size_t>(state)];
  const State& to = states_[static_cast<size_t>(copy)];
  for (size_t i = 0; i < from.pages.size(); ++i) {
    std::memcpy(page(to.pages[i]), page(from.pages[i]), static_cast<size_t>(page_bytes_));
  }
  return copy;
}

int64_t HostStates::PagesHeld(int state) const {
  return static_cast<int64_t>(states_.at(static_cast<size_t>(state)).pages.size());
}

std::vector<std::span<const std::byte>> HostStates::Spans(int state) const {
  const State& held = states_.at(static_cast<size_t>(state));
  int64_t left = BytesOf(held.tokens);
  std::vector<std::span<const std::byte>> pieces;
  for (const int32_t index : held.pages) {
    const int64_t bytes = std::min(left, page_bytes_);
    pieces.emplace_back(page(index), static_cast<size_t>(bytes));
    left -= bytes;
  }
  return pieces;
}

template <typename Visitor>
void HostStates::ForEachPiece(int slot, const State& state, Visitor visit) const {
  if (state.tokens == 0) return;
  int64_t done = 0;  // bytes of the state
  for (const ByteRange& range : pool_.Filled(slot, state.tokens)) {
    for (int64_t at = range.begin; at < range.end;) {
      const int64_t in_page = done % page_bytes_;
      const int64_t bytes = std::min(range.end - at, page_bytes_ - in_page);
      std::byte* const host = page(state.pages[static_cast<size_t>(done / page_bytes_)]) + in_page;
      visit(pool_.slab(slot) + at, host, bytes);
      at += bytes;
      done += bytes;
    }
  }
}

std::unique_ptr<Transfer> HostStates::Save(int slot, int state, std::function<void()> on_done) {
  std::vector<TransferPiece> pieces;
  ForEachPiece(slot, states_.at(static_cast<size_t>(state)),
               [&](std::byte* slab, std::byte* host, int64_t bytes) {
                 pieces.push_back({.dst = host, .src = slab, .bytes = bytes});
               });
  return backend_.BeginTransfer(pieces, TransferDirection::kToHost, std::move(on_done));
}

std::unique_ptr<Transfer> HostStates::Load(int state, int slot, std::function<void()> on_done) {
  std::vector<TransferPiece> pieces;
  ForEachPiece(slot, states_.at(static_cast<size_t>(state)),
               [&](std::byte* slab, std::byte* host, int64_t bytes) {
                 pieces.push_back({.dst = slab, .src = host, .bytes = bytes});
               });
  return backend_.BeginTransfer(pieces, TransferDirection::kToDevice, std::move(on_done));
}

}  // namespace mneme
