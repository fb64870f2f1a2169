// States of sessions in memory of the host: of idle ones, when others need their slabs, and behind
// the beginnings of prompts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/state_pool.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace mneme {

// A state is the bytes of its slab, as the device keeps them: what is held back is still held back
// when it returns. It lies in pages of pinned memory, all of which is taken at creation, so that
// sessions whose state grows take no more than what they have filled.
//
// Owned and called by one thread. Backend and pool must outlive it.
class HostStates {
 public:
  // What they are for: its name in messages, and how many states it takes at least.
  struct Purpose {
    absl::string_view option, least_text;
    int least_states;
  };
  // One of two states is room for those that change places.
  static constexpr Purpose kParking = {
      "--host-state-memory", "two states of this model: one is room for those that change places",
      2};
  static constexpr Purpose kPrefixes = {"--prefix-cache-memory", "a state of this model", 1};

  // INVALID_ARGUMENT where not even the least number of states fit; RESOURCE_EXHAUSTED where memory
  // lacks.
  static absl::StatusOr<std::unique_ptr<HostStates>> Create(Backend& backend, const StatePool& pool,
                                                            int64_t bytes,
                                                            int64_t max_tokens_a_session,
                                                            const Purpose& purpose = kParking);

  // Pages of the state of a session that was fed so many tokens; at least one.
  int64_t PagesOf(int64_t tokens) const;
  // Pages that newcomers leave, so that a state that comes back can change places with another one
  // when all else is full: those of the largest state.
  int64_t spare_pages() const { return spare_pages_; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t pages() const { return pages_; }
  int64_t page_bytes() const { return page_bytes_; }

  // Room for the state of a session that was fed so many tokens, as a number until Remove; so many
  // pages are free.
  int Add(int64_t tokens);
  void Remove(int state);
  // Another one that holds the same; so many pages are free.
  int Duplicate(int state);
  int64_t PagesHeld(int state) const;

  // The bytes of a state, one behind the other, where they lie until Remove. Of one that was fed
  // tokens.
  std::vector<std::span<const std::byte>> Spans(int state) const;

  // Copies from a slab, and to one. Slab, state and this stay until the transfer is done.
  std::unique_ptr<Transfer> Save(int slot, int state, std::function<void()> on_done);
  std::unique_ptr<Transfer> Load(int state, int slot, std::function<void()> on_done);

 private:
  struct State {
    int64_t tokens = 0;
    std::vector<int32_t> pages;
  };
  HostStates(Backend& backend, const StatePool& pool) : backend_(backend), pool_(pool) {}
  int64_t BytesOf(int64_t tokens) const;
  std::byte* page(int32_t index) const { return memory_.data() + index * page_bytes_; }
  // visit(bytes of the slab, bytes of a page, how many) for each piece of a state.
  template <typename Visitor>
  void ForEachPiece(int slot, const State& state, Visitor visit) const;

  Backend& backend_;
  const StatePool& pool_;
  Buffer memory_;
  int64_t page_bytes_ = 0, pages_ = 0, spare_pages_ = 0;
  std::vector<int32_t> free_;
  std::vector<State> states_;  // by number
  std::vector<int> unused_;    // numbers that are free again
};

}  // namespace mneme
