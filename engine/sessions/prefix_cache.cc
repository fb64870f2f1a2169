#include "engine/sessions/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/log.h"

namespace mneme {
namespace {

// The most states that are kept of one prompt, but for those that clients ask for.
constexpr int64_t kMostOfOnePrompt = 32;
// Copies on their way to the host beside which another is begun.
constexpr size_t kMostGuessesSaved = 1;
constexpr size_t kMostSaved = 8;

// A conversation of many messages has no more ends than states are kept of one prompt: nodes are
// work, for this prompt and for others that go through them.
void DropCloseEnds(std::vector<PrefixCut>& cuts, int64_t gap) {
  int64_t last = 0;
  std::erase_if(cuts, [&](const PrefixCut& cut) {
    if (cut.mark == PrefixMark::kAsked) return false;
    if (cut.position < last + gap) return true;
    last = cut.position;
    return false;
  });
}

}  // namespace

PrefixRun::~PrefixRun() { cache_.End(*this); }

PrefixTrail::~PrefixTrail() {
  cache_.AwaitSaving(saving_);
  --node_->users;
}

PrefixCache::PrefixCache(StatePool& pool, HostStates& states, EngineStats& stats,
                         std::function<void()> wake, const Options& options)
    : pool_(pool),
      states_(states),
      stats_(stats),
      wake_(std::move(wake)),
      options_(options),
      tree_(options.max_tree_bytes, [this](PrefixNode& node) { Forget(*node.snapshot); }) {
  stats_.prefix.bytes_total.Set(states_.pages() * states_.page_bytes());
}

PrefixCache::~PrefixCache() { CHECK(runs_.empty()) << runs_.size() << " prompts are on their way"; }

std::unique_ptr<PrefixRun> PrefixCache::Begin(absl::string_view space,
                                              std::span<const int32_t> prompt,
                                              std::vector<PrefixCut> cuts, int slot) {
  if (prompt.empty()) return nullptr;
  // Something has to be left to be fed, as nothing else says what comes next.
  const std::span<const int32_t> prefix = prompt.first(prompt.size() - 1);
  DropCloseEnds(cuts, LeastGap(static_cast<int64_t>(prefix.size())));
  for (int64_t power = 1; power <= static_cast<int64_t>(prefix.size()); power *= 2) {
    if (power >= 2 * options_.least_tokens) cuts.push_back({power, PrefixMark::kGuess});
  }
  PrefixNode* const leaf = tree_.Insert(space, prefix, cuts);
  if (leaf == nullptr) return nullptr;
  auto run = std::unique_ptr<PrefixRun>(new PrefixRun(*this));
  AddRun(*run, *leaf, slot);
  return run;
}

void PrefixCache::AddRun(PrefixRun& run, PrefixNode& leaf, int slot) {
  run.number_ = begun_++;
  run.slot_ = slot;
  run.leaf_ = &leaf;
  ++leaf.users;
  runs_.push_back(&run);
}

std::unique_ptr<PrefixRun> PrefixCache::Continue(absl::string_view space, uint64_t path,
                                                 int64_t position, std::span<const int32_t> feed,
                                                 std::vector<PrefixCut> cuts, int slot) {
  PrefixNode* const node = tree_.Find(path);
  if (node == nullptr || node->end != position || feed.empty()) return nullptr;
  if (*PrefixTree::Root(node)->space != space) return nullptr;
  const std::span<const int32_t> prefix = feed.first(feed.size() - 1);
  const int64_t end = position + static_cast<int64_t>(prefix.size());
  std::erase_if(cuts, [&](const PrefixCut& cut) { return cut.position <= position; });
  DropCloseEnds(cuts, LeastGap(end));
  ++node->users;
  PrefixNode* const leaf = tree_.Extend(*node, prefix, cuts);
  --node->users;
  if (leaf == nullptr) return nullptr;
  auto run = std::unique_ptr<PrefixRun>(new PrefixRun(*this));
  AddRun(*run, *leaf, slot);
  run->started_ = true;
  run->position_ = run->begun_at_ = position;
  return run;
}

std::vector<int32_t> PrefixCache::TokensOf(uint64_t path, int64_t count) const {
  const PrefixNode* node = tree_.Find(path);
  if (node == nullptr || node->end != count) return {};
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (; node->parent != nullptr; node = node->parent) {
    std::copy(node->tokens.begin(), node->tokens.end(), tokens.begin() + node->parent->end);
  }
  return tokens;
}

std::unique_ptr<PrefixTrail> PrefixCache::Follow(const PrefixRun& run, int32_t last) {
  auto trail = std::unique_ptr<PrefixTrail>(new PrefixTrail(*this, *run.leaf_));
  ++run.leaf_->users;
  trail->fed_.push_back(last);
  return trail;
}

uint64_t PrefixCache::PathOf(const PrefixRun& run) {
  if (run.position_ == 0 || run.position_ > run.leaf_->end) return 0;
  return tree_.NameOf(*tree_.Cut(run.leaf_, run.position_));
}

uint64_t PrefixCache::KeepEnd(PrefixTrail& trail, const Session& session) {
  PrefixNode* const node = tree_.Extend(*trail.node_, trail.fed_, {});
  if (node == nullptr || node->end != session.fed_tokens) return 0;
  --trail.node_->users;
  trail.node_ = node;
  trail.fed_.clear();
  ++node->users;
  const PrefixNode* before = node->parent;
  while (before->parent != nullptr && before->snapshot == nullptr) before = before->parent;
  if (node->snapshot == nullptr && node->end - before->end >= LeastGap(node->end)) {
    node->mark = std::max(node->mark, PrefixMark::kWanted);
    PrefixFacts facts = {session.fed, session.has_text, session.history, session.evictions};
    if (session.pending_token.has_value()) facts.history.PopLast();
    // Whoever begins here was sent all of it.
    facts.history.TakeAsPrompt();
    Keep(session.slot, *node, facts, trail.saving_);
    if (node->snapshot != nullptr) node->snapshot->behind_answer = true;
  }
  return tree_.NameOf(*node);
}

void PrefixCache::End(PrefixRun& run) {
  if (!run.started_) StartNow(run);
  AwaitSaving(run.saving_);
  for (PrefixRun* other : runs_) {
    if (other->producer_ == &run) StopWaiting(*other);
  }
  --run.leaf_->users;
  runs_.erase(std::find(runs_.begin(), runs_.end(), &run));
}

void PrefixCache::AwaitSaving(const bool& goes_on) {
  const auto saving = std::find_if(savings_.begin(), savings_.end(),
                                   [&](const Saving& s) { return s.goes_on == &goes_on; });
  if (saving == savings_.end()) return;
  saving->transfer.reset();  // waits
  Finish(*saving);
  savings_.erase(saving);
}

std::optional<PrefixCache::Beginning> PrefixCache::Start(PrefixRun& run) {
  CHECK(!run.started_);
  if (run.source_ != nullptr && run.transfer_->done()) Arrive(run);
  if (run.source_ != nullptr) return std::nullopt;
  if (!run.facts_.has_value()) {
    if (StillAwaits(run)) return std::nullopt;
    StopWaiting(run);
    if (FindSource(run)) return std::nullopt;
  }
  return StartNow(run);
}

PrefixCache::Beginning PrefixCache::StartNow(PrefixRun& run) {
  if (run.source_ != nullptr) Arrive(run);
  StopWaiting(run);
  run.started_ = true;
  run.begun_at_ = run.position_;
  PrefixStats& stats = stats_.prefix;
  (run.position_ > 0 ? stats.hits : stats.misses).Add();
  stats.queried_tokens.Add(run.leaf_->end + 1);
  stats.hit_tokens.Add(run.position_);
  return {run.position_, std::exchange(run.facts_, std::nullopt)};
}

int64_t PrefixCache::Reach(const PrefixRun& run) const {
  const PrefixSnapshot* const snapshot = DeepestSnapshot(run);
  return snapshot == nullptr ? 0 : snapshot->node->end;
}

void PrefixCache::StartAt(PrefixRun& run, int64_t position) {
  CHECK(!run.started_ && run.source_ == nullptr && run.awaited_ == nullptr);
  run.started_ = true;
  run.position_ = run.begun_at_ = position;
}

bool PrefixCache::StillAwaits(const PrefixRun& run) const {
  return run.awaited_ != nullptr && run.producer_ != nullptr && !run.producer_->paused_ &&
         run.producer_->position_ < run.awaited_->end;
}

void PrefixCache::Await(PrefixRun& run, PrefixNode& node) {
  run.awaited_ = &node;
  ++node.awaited;
  ++node.users;
}

void PrefixCache::StopWaiting(PrefixRun& run) {
  if (run.awaited_ == nullptr) return;
  --run.awaited_->awaited;
  --run.awaited_->users;
  run.awaited_ = nullptr;
  run.producer_ = nullptr;
}

PrefixSnapshot* PrefixCache::DeepestSnapshot(const PrefixRun& run) const {
  PrefixNode* node = run.leaf_;
  while (node != nullptr && node->snapshot == nullptr) node = node->parent;
  return node == nullptr ? nullptr : node->snapshot.get();
}

bool PrefixCache::FindSource(PrefixRun& run) {
  PrefixSnapshot* const snapshot = DeepestSnapshot(run);
  const int64_t kept = snapshot == nullptr ? 0 : snapshot->node->end;
  PrefixNode* deepest = nullptr;
  for (const PrefixRun* other : runs_) {
    if (other->number_ >= run.number_) break;
    if (other->paused_) continue;
    PrefixNode* const common = PrefixTree::Common(run.leaf_, other->leaf_);
    if (common == nullptr || other->position_ >= common->end) continue;
    if (common->end < kept + options_.least_tokens) continue;
    if (deepest != nullptr && common->end <= deepest->end) continue;
    deepest = common;
    run.producer_ = other;
  }
  if (deepest != nullptr) {
    Await(run, *deepest);
    stats_.prefix.waits.Add();
    return true;
  }
  if (snapshot == nullptr) return false;
  if (!snapshot->ready) return true;  // it is looked at again when it is
  snapshots_.splice(snapshots_.begin(), snapshots_, snapshot->place);
  // A copy from slab to slab takes a fraction of what the bus takes.
  const auto bringing = std::find_if(runs_.begin(), runs_.end(), [&](const PrefixRun* other) {
    return other->source_ == snapshot && !other->paused_;
  });
  if (bringing != runs_.end()) {
    run.producer_ = *bringing;
    Await(run, *snapshot->node);
    return true;
  }
  ++snapshot->readers;
  stats_.prefix.loads.Add();
  run.source_ = snapshot;
  run.transfer_ = states_.Load(snapshot->state, run.slot_, wake_);
  if (!run.transfer_->done()) return true;
  Arrive(run);
  return false;
}

void PrefixCache::Arrive(PrefixRun& run) {
  run.transfer_.reset();
  PrefixSnapshot& source = *std::exchange(run.source_, nullptr);
  const auto stand_there = [&](PrefixRun& who) {
    who.position_ = source.node->end;
    who.facts_ = source.facts;
    if (source.behind_answer) stats_.prefix.answer_hits.Add();
  };
  stand_there(run);
  for (PrefixRun* other : runs_) {
    if (other->producer_ != &run || other->awaited_ != source.node) continue;
    pool_.Copy(run.slot_, other->slot_, source.node->end);
    StopWaiting(*other);
    stand_there(*other);
  }
  --source.readers;
}

int64_t PrefixCache::LeastGap(int64_t tokens) const {
  return std::max(options_.least_tokens, tokens / kMostOfOnePrompt);
}

int64_t PrefixCache::NextCut(const PrefixRun& run) const {
  absl::InlinedVector<const PrefixNode*, 32> ahead;  // the last one first
  const PrefixNode* node = run.leaf_;
  for (; node->end > run.position_; node = node->parent) ahead.push_back(node);
  int64_t before = run.begun_at_;
  for (; node != nullptr && node->end > before; node = node->parent) {
    if (node->snapshot != nullptr) before = node->end;
  }
  const int64_t gap = LeastGap(run.leaf_->end);
  for (auto next = ahead.rbegin(); next != ahead.rend(); ++next) {
    const PrefixNode& at = **next;
    if (at.awaited > 0) return at.end;
    if (at.snapshot != nullptr) {
      before = at.end;
    } else if (at.mark == PrefixMark::kAsked ||
               (at.mark != PrefixMark::kNone && at.end - before >= gap && MayKeep(at))) {
      return at.end;
    }
  }
  return kNoCut;
}

void PrefixCache::Advance(PrefixRun& run, int64_t position, const Session& session) {
  const bool is_next = NextCut(run) == position;
  run.position_ = position;
  PrefixNode* const ended = PrefixTree::EndingAt(run.leaf_, position);
  if (ended == nullptr || !(is_next || ended->awaited > 0)) return;
  PrefixNode& node = *ended;
  PrefixFacts facts = {session.fed, session.has_text, session.history, session.evictions};
  facts.history.TakeAsPrompt();
  if (node.snapshot == nullptr) Keep(run.slot_, node, facts, run.saving_);
  for (PrefixRun* other : runs_) {
    if (other->awaited_ != &node) continue;
    pool_.Copy(run.slot_, other->slot_, position);
    StopWaiting(*other);
    other->position_ = position;
    other->facts_ = facts;
  }
}

// A session waits while its state is copied, and for the copies ahead of that: where the bus has
// enough to do, nothing is kept that nobody has asked for.
bool PrefixCache::MayKeep(const PrefixNode& node) const {
  if (node.mark == PrefixMark::kAsked || node.awaited > 0) return true;
  const size_t most = node.mark == PrefixMark::kGuess ? kMostGuessesSaved : kMostSaved;
  return savings_.size() < most;
}

void PrefixCache::Keep(int slot, PrefixNode& node, const PrefixFacts& facts, bool& goes_on) {
  if (!MayKeep(node) || !MakeRoom(states_.PagesOf(node.end))) return;
  node.snapshot = std::make_unique<PrefixSnapshot>();
  PrefixSnapshot& snapshot = *node.snapshot;
  snapshot.node = &node;
  snapshot.state = states_.Add(node.end);
  snapshot.facts = facts;
  // A guess makes room before anything that was asked for or used.
  const bool guess = node.mark == PrefixMark::kGuess && node.awaited == 0;
  snapshot.place = snapshots_.insert(guess ? snapshots_.end() : snapshots_.begin(), &snapshot);
  ++node.users;
  stats_.prefix.snapshots.Add();
  goes_on = true;
  Saving saving = {&goes_on, &snapshot, states_.Save(slot, snapshot.state, wake_)};
  if (saving.transfer->done()) return Finish(saving);
  savings_.push_back(std::move(saving));
}

void PrefixCache::Finish(const Saving& saving) {
  *saving.goes_on = false;
  saving.snapshot->ready = true;
  --saving.snapshot->node->users;
}

void PrefixCache::Settle() {
  std::erase_if(savings_, [this](const Saving& saving) {
    if (!saving.transfer->done()) return false;
    Finish(saving);
    return true;
  });
}

bool PrefixCache::MakeRoom(int64_t pages) {
  if (pages > states_.pages()) return false;
  for (auto at = snapshots_.end(); pages > states_.free_pages() && at != snapshots_.begin();) {
    PrefixSnapshot& oldest = **--at;
    if (!oldest.ready || oldest.readers > 0) continue;
    ++at;  // survives
    Forget(oldest);
  }
  return pages <= states_.free_pages();
}

void PrefixCache::ForgetPath(absl::string_view owner, std::span<const int32_t> tokens,
                             int64_t position) {
  const std::vector<PrefixNode*> path = tree_.OnPath(owner, tokens);
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    PrefixNode& node = **at;
    if (node.end <= position) continue;
    PrefixSnapshot* const snapshot = node.snapshot.get();
    if (snapshot != nullptr && (!snapshot->ready || snapshot->readers > 0)) continue;
    if (snapshot != nullptr) Forget(*snapshot);
    tree_.RemoveUnused(node);
  }
}

void PrefixCache::Forget(PrefixSnapshot& snapshot) {
  snapshots_.erase(snapshot.place);
  states_.Remove(snapshot.state);
  stats_.prefix.evictions.Add();
  snapshot.node->snapshot.reset();
}

void PrefixCache::PublishGauges() const {
  stats_.prefix.bytes_used.Set((states_.pages() - states_.free_pages()) * states_.page_bytes());
}

}  // namespace mneme
