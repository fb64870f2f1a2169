#include "engine/sessions/token_history.h"

#include <algorithm>

namespace mneme {

void TokenHistory::Push(int32_t token, bool generated) {
  if (capacity_ == 0) return;
  const int32_t mark = generated ? ~token : token;
  if (size() < capacity_) {
    ring_.push_back(mark);
  } else {
    if (counts_.has_value()) Add(ring_[oldest_], -1);
    ring_[oldest_] = mark;
    oldest_ = (oldest_ + 1) % ring_.size();
  }
  if (counts_.has_value()) Add(mark, 1);
}

void TokenHistory::PopLast() {
  if (ring_.empty()) return;
  std::rotate(ring_.begin(), ring_.begin() + static_cast<int64_t>(oldest_), ring_.end());
  oldest_ = 0;
  if (counts_.has_value()) Add(ring_.back(), -1);
  ring_.pop_back();
}

void TokenHistory::Forget(int64_t begin, int64_t end) {
  std::vector<int32_t> marks = Marks();
  const auto place = [&](int64_t at) { return std::clamp<int64_t>(size() + at, 0, size()); };
  for (int64_t i = place(begin); i < place(end); ++i) {
    marks[static_cast<size_t>(i)] = kForgotten;
  }
  Restore(marks);
}

void TokenHistory::TakeAsPrompt() {
  for (int32_t& mark : ring_) {
    if (mark < 0 && mark != kForgotten) mark = ~mark;
  }
  counts_.reset();
}

std::vector<int32_t> TokenHistory::Marks() const {
  std::vector<int32_t> marks(ring_.size());
  std::rotate_copy(ring_.begin(), ring_.begin() + static_cast<int64_t>(oldest_), ring_.end(),
                   marks.begin());
  return marks;
}

void TokenHistory::Restore(std::span<const int32_t> marks) {
  *this = TokenHistory(capacity_);
  for (const int32_t mark : marks) Push(mark < 0 ? ~mark : mark, /*generated=*/mark < 0);
}

void TokenHistory::AppendDistinct(std::vector<HistoryToken>& out) {
  if (!counts_.has_value()) {
    counts_.emplace();
    for (const int32_t mark : ring_) Add(mark, 1);
  }
  for (const auto& [token, count] : *counts_) out.push_back({token, count.generated});
}

void TokenHistory::Add(int32_t mark, int by) {
  if (mark == kForgotten) return;
  const int32_t token = mark < 0 ? ~mark : mark;
  const auto it = counts_->try_emplace(token).first;
  it->second.seen += by;
  if (mark < 0) it->second.generated += by;
  if (it->second.seen == 0) counts_->erase(it);
}

}  // namespace mneme
