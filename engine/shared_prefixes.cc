// EngineLoop: states behind the beginnings of prompts, and behind answers, that requests share.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"

namespace mneme {

// A prompt that begins a session may begin where another one of the same space has been; one that
// goes on with a session may leave states for others.
void EngineLoop::BeginPrefix(Generation& g) {
  const PrefixCacheParams& params = g.request.prefix_cache;
  if (prefixes_ == nullptr || params.bypass || !g.request.remember || g.needs_whole_prompt()) {
    return;
  }
  // The cache goes by tokens from the first one on.
  if (g.search != nullptr && !g.search->found()->from_the_start) return;
  const Session& session = *g.choices[0].session;
  std::vector<PrefixCut> cuts;
  for (const int64_t end : g.message_ends) {
    cuts.push_back({session.fed_tokens + end, PrefixMark::kWanted});
  }
  const absl::string_view owner = prefixes_->OwnerOf(g.request.session);
  // States of one space draw from one seed.
  const std::optional<uint64_t> own = session.memory_seed;
  const std::string seed =
      own.has_value() && own != parts_.model.info().memory_seed ? absl::StrCat(*own) : "";
  constexpr absl::string_view kNul("\0", 1);
  const std::string space = absl::StrCat(owner, kNul, seed, kNul, params.salt);
  if (session.fed_tokens > 0) {
    g.prefix = prefixes_->Continue(space, session.path, session.fed_tokens, g.feed, std::move(cuts),
                                   session.slot);
    return;
  }
  if (g.feeds_pending) return;
  for (const int64_t mark : params.marks) cuts.push_back({mark, PrefixMark::kAsked});
  g.prefix = prefixes_->Begin(space, g.feed, std::move(cuts), session.slot);
}

// Requests that run and wait for what they share begin where they may by now.
void EngineLoop::StartPrefixes() {
  for (const auto& g : running_) {
    if (g->prefix != nullptr) PrefixCache::SetPaused(*g->prefix, g->stream->full());
  }
  for (const auto& g : running_) {
    if (g->prefix == nullptr || g->prefix->started() || g->load != nullptr) continue;
    const auto beginning = prefixes_->Start(*g->prefix);
    if (!beginning.has_value()) continue;
    TakeOver(*g, *beginning);
    SendStart(*g);
    if (g->must_fork()) Fork(*g);
  }
}

// The session becomes what another was that had been fed the beginning of the prompt.
void EngineLoop::TakeOver(Generation& g, const PrefixCache::Beginning& beginning) {
  if (beginning.position == 0) return;
  Choice& first = g.choices[0];
  Session& session = *first.session;
  const PrefixFacts& facts = *beginning.facts;
  session.fed_tokens = beginning.position;
  session.fed = facts.fed;
  session.has_text = facts.has_text;
  session.history = facts.history;
  session.evictions = facts.evictions;
  g.memory_evicted = session.evictions > 0;
  first.cursor = beginning.position;
  g.usage.cached_tokens = beginning.position;
  g.usage.prompt_tokens -= beginning.position;
  if (log_ != nullptr && g.named()) {  // the log says what a session was fed, whoever fed it
    g.turn.tokens.assign(g.feed.begin(), g.feed.begin() + beginning.position);
  }
}

// For a request that ends before its prompt was fed. One that waits for its prompt's beginning
// starts now; what its slab holds by then counts as fed.
void EngineLoop::EndPrefix(Generation& g) {
  if (g.prefix == nullptr) return;
  if (!g.prefix->started()) {
    TakeOver(g, prefixes_->StartNow(*g.prefix));
    SendStart(g);
  }
  if (g.named()) g.choices[0].session->path = prefixes_->PathOf(*g.prefix);
  g.prefix.reset();
}

// Its first choice was fed; nothing writes its slab now.
void EngineLoop::AdvancePrefix(Generation& g) {
  const Choice& first = g.choices[0];
  prefixes_->Advance(*g.prefix, first.session->fed_tokens, *first.session);
  if (first.cursor < g.feed_tokens()) return;
  if (g.keeps_end()) g.trail = prefixes_->Follow(*g.prefix, g.feed.back());
  g.prefix.reset();
  g.next_cut = kNoCut;
}

// Where the next row of its prompt has to end.
void EngineLoop::FindCut(Generation& g) const {
  const int64_t cut = prefixes_->NextCut(*g.prefix);
  const Choice& first = g.choices[0];
  g.next_cut = cut == kNoCut ? cut : cut - (first.session->fed_tokens - first.cursor);
}

// All that it was fed has a place among the prompts, and the state there may serve others.
void EngineLoop::KeepEnd(Generation& g) {
  if (g.trail == nullptr) return;
  Session& session = *g.choices[0].session;
  session.path = g.spoilt ? 0 : prefixes_->KeepEnd(*g.trail, session);
  if (!g.trail->saving()) g.trail.reset();
}

// Its slab is nobody's before it was copied.
void EngineLoop::FinishWhenKept(Generation& g, TokenEvent last) {
  if (g.trail == nullptr) return Finish(g, std::move(last));
  g.ended = true;
  queue_.Leave(g);
  g.kept_last = std::move(last);
}

void EngineLoop::FinishKept(bool wait) {
  const auto finish = [&](Generation& g) {
    if (!g.kept_last.has_value() || (!wait && g.trail->saving())) return;
    g.trail.reset();
    Finish(g, *std::exchange(g.kept_last, std::nullopt));
  };
  for (const auto& g : running_) finish(*g);
  for (const auto& g : logging_) finish(*g);
}

}  // namespace mneme
