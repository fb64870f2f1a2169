// EngineLoop: whole conversations that part from what their session was fed. A session whose log
// leads there goes back to where they part: from the nearest state that there is, of the prefix
// cache or in the store, it is fed the rest. Its log is cut with the turn that follows; until that
// is durable, the store has the session as it was.
#include "engine/edits.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/engine_loop.h"

namespace mneme {

// For a request that has just claimed its session, or work that needs to know what that was fed.
void EngineLoop::SearchCut(Generation& g) {
  if (log_ == nullptr || !g.claims_session) return;
  const Session* session = sessions_.Find(g.request.session);
  if (session == nullptr || !session->logged || session->durability != Durability::kTurn) return;
  if (g.goes_back) g.search = log_->FindCut(*session, g.request.prompt.at_start);
  if (g.reads_log) g.search = log_->FindTokens(*session);
}

// The session forgets what it was fed. What the prompt begins with is what it is fed next.
void EngineLoop::BeginEdit(Generation& g, Session& session) {
  g.usage.rewound_from = session.position();
  g.opening = OpeningOf(g.request.prompt, parts_.tokenizer);
  std::shared_ptr<const RewindPoint> point;
  if (g.search != nullptr && TakeCut(g)) {
    point = g.search->found()->point;
    g.parts_at = point->fed_tokens;
  } else {
    g.search.reset();
    KeepCut(g, session);
  }
  sessions_.BeginAnew(session, std::move(point));
}

// False: its log leads nowhere.
bool EngineLoop::TakeCut(Generation& g) const {
  const absl::StatusOr<LogCut>& found = g.search->found();
  if (!found.ok()) LOG(ERROR) << "a session's log cannot be read: " << found.status().message();
  if (!found.ok() || found->point == nullptr) return false;
  // Tokens that are not known are not fed again, and their number counts where room is short.
  const bool counts = parts_.model.state_layout().max_tokens().has_value();
  if (!found->from_the_start && (counts || g.needs_whole_prompt())) return false;
  if (!Recut(g.request.prompt, found->tokens, found->replaced)) return false;
  g.turn.known = static_cast<int64_t>(found->tokens.size());
  g.turn.sent_before = true;
  return true;
}

// Puts tokens of a session in the place of the first ones of the prompt that are the same text, as
// a model need not cut an answer as the tokenizer would. False: there is no room for so many.
bool EngineLoop::Recut(Prompt& prompt, std::span<const int32_t> fed, int64_t replaced) const {
  const int64_t longer = static_cast<int64_t>(fed.size()) - replaced;
  const auto size = static_cast<int64_t>(prompt.at_start.size()) + longer;
  const auto most = parts_.model.state_layout().max_tokens();
  if (most.has_value() && size > *most) return false;
  std::vector<int32_t> cut(fed.begin(), fed.end());
  cut.insert(cut.end(), prompt.at_start.begin() + replaced, prompt.at_start.end());
  prompt.at_start = std::move(cut);
  std::erase_if(prompt.message_ends, [&](int64_t end) { return end < replaced; });
  for (int64_t& end : prompt.message_ends) end += longer;
  return true;
}

// Without a log it goes back to that part of what it was fed which the prefix cache knows.
// How far that is where neither knows what it was fed, nobody knows: then it is its beginning.
void EngineLoop::KeepCut(Generation& g, const Session& session) const {
  if (prefixes_ == nullptr) return;
  Prompt& prompt = g.request.prompt;
  const std::vector<int32_t> fed = prefixes_->TokensOf(session.path, session.fed_tokens);
  const CommonText common = MatchTexts(parts_.tokenizer, fed, prompt.at_start);
  if (Recut(prompt, std::span(fed).first(static_cast<size_t>(common.a)), common.b)) {
    g.parts_at = common.a;
  }
}

// Whether a snapshot of the store leads further than the prefix cache does: it is on its way then.
bool EngineLoop::BeginLoad(Generation& g) {
  if (g.search == nullptr || g.needs_whole_prompt()) return false;
  const LogCut& cut = *g.search->found();
  const int64_t cached = g.prefix == nullptr ? 0 : prefixes_->Reach(*g.prefix);
  if (cut.snapshot <= cached) return false;
  g.load = std::make_unique<EditLoad>();
  parts_.states->ReadKept(*g.choices[0].session, cut.point);
  return true;
}

// Requests that run and whose snapshot is in their slab go on from it.
void EngineLoop::FinishLoads() {
  for (const auto& g : running_) {
    if (g->load == nullptr) continue;
    EditLoad& load = *g->load;
    const Session& session = *g->choices[0].session;
    if (!load.read.has_value()) {
      load.read = parts_.states->TakeRead(session);
      if (!load.read.has_value()) continue;
      if (load.read->status.ok()) {
        load.transfer = parts_.states->Load(load.read->buffer, session.slot, load.read->tokens,
                                            [this] { mailbox_.Wake(); });
      }
    }
    if (load.transfer != nullptr && !load.transfer->done()) continue;
    load.transfer.reset();
    parts_.states->ReturnBuffer(load.read->buffer);
    const StoredState read = *std::move(load.read);
    g->load.reset();
    StandAt(*g, read);
    if (g->prefix != nullptr && !g->prefix->started()) continue;  // StartPrefixes
    SendStart(*g);
    if (g->must_fork()) Fork(*g);
  }
}

// What was read is in its slab. Where that failed, the session is fed all of the prompt.
void EngineLoop::StandAt(Generation& g, const StoredState& read) {
  const LogCut& cut = *g.search->found();
  Session& session = *g.choices[0].session;
  const absl::StatusOr<LoggedFacts> facts = LoggedFacts::Decode(read.facts);
  if (!read.status.ok() || !facts.ok()) {
    if (cut.from_the_start) return;
    session.cut = std::make_shared<const RewindPoint>();
    g.turn.known = g.parts_at = 0;
    return;
  }
  session.fed_tokens = session.snapshot = read.tokens;
  session.snapshot_turn = read.turn;
  session.fed = facts->fed;
  session.has_text = facts->has_text;
  session.evictions = facts->evictions;
  session.forgotten = facts->forgotten;
  session.history.Restore(read.marks);
  if (read.has_pending) session.history.PopLast();
  session.history.TakeAsPrompt();
  g.memory_evicted = session.evictions > 0;
  const int64_t skipped = g.turn.known - (cut.point->fed_tokens - read.tokens);
  g.feed.erase(g.feed.begin(), g.feed.begin() + skipped);
  g.turn.known -= skipped;
  g.usage.resumed_tokens = read.tokens;
  g.usage.prompt_tokens -= skipped;
  if (g.prefix != nullptr) prefixes_->StartAt(*g.prefix, read.tokens);
}

// For a request that ends before its snapshot came: it stands at nothing.
void EngineLoop::EndLoad(Generation& g) {
  if (g.load == nullptr) return;
  EditLoad& load = *g.load;
  load.transfer.reset();  // waits
  if (load.read.has_value()) {
    parts_.states->ReturnBuffer(load.read->buffer);
  } else {
    parts_.states->LeaveRead(*g.choices[0].session);
  }
  g.load.reset();
  if (g.prefix == nullptr || g.prefix->started()) SendStart(g);
}

}  // namespace mneme
