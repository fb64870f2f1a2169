#include "server/requests/lanes.h"

#include <algorithm>
#include <utility>

namespace mneme {
namespace {

// How many times the free places one owner may have taken.
constexpr size_t kShare = 3;

}  // namespace

Lanes::Lanes(int threads, size_t capacity)
    : capacity_(capacity), most_running_(std::max(1, threads - 1)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

Lanes::~Lanes() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

bool Lanes::TryPost(absl::string_view owner, std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  const auto known = owners_.find(owner);
  const size_t own = known == owners_.end() ? 0 : known->second.waiting.size();
  if (own >= kShare * (capacity_ - waiting_)) return false;
  const std::string name(owner);
  if (own == 0) turns_.push_back(name);
  owners_[name].waiting.push_back(std::move(task));
  ++waiting_;
  return true;
}

size_t Lanes::NextTurn() const {
  size_t turn = 0;
  while (turn < turns_.size() && !MayStart(owners_.at(turns_[turn]))) ++turn;
  return turn;
}

bool Lanes::HasWork() const { return (closed_ && turns_.empty()) || NextTurn() < turns_.size(); }

void Lanes::Work() {
  while (true) {
    std::function<void()> task;
    std::string name;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Lanes::HasWork));
      if (turns_.empty()) return;
      const auto turn = turns_.begin() + static_cast<std::ptrdiff_t>(NextTurn());
      name = std::move(*turn);
      turns_.erase(turn);
      Owner& owner = owners_[name];
      task = std::move(owner.waiting.front());
      owner.waiting.pop_front();
      ++owner.running;
      --waiting_;
      if (!owner.waiting.empty()) turns_.push_back(name);
    }
    task();
    task = nullptr;  // what it held goes while it still counts as running
    absl::MutexLock lock(&mu_);
    const auto owner = owners_.find(name);
    if (--owner->second.running == 0 && owner->second.waiting.empty()) owners_.erase(owner);
  }
}

}  // namespace mneme
