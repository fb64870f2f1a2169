// SessionLog: checkpoints, and sessions that go back.
#include <algorithm>
#include <utility>
#include <variant>

#include "base/status_macros.h"
#include "engine/generation.h"
#include "engine/sessions/session_log.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// FactsAfter. Of engrams that were evicted within the turn only a replay can tell.
absl::StatusOr<std::string> FactsWithin(const Tokenizer* tokenizer, absl::string_view before,
                                        const Turn& part) {
  MNEME_ASSIGN_OR_RETURN(LoggedFacts facts, LoggedFacts::Decode(before));
  MNEME_ASSIGN_OR_RETURN(const LoggedFacts whole, LoggedFacts::Decode(part.facts));
  int64_t fed = 0;
  for (const Event& event : part.events) {
    const auto* tokens = std::get_if<TokensFed>(&event);
    if (tokens == nullptr) continue;
    fed += static_cast<int64_t>(tokens->tokens.size());
    for (const int32_t token : tokens->tokens) {
      facts.fed.Add(tokenizer, token);
      facts.has_text = facts.has_text || IsText(tokenizer, token);
    }
  }
  if (facts.opening.bytes == 0 && facts.fed.bytes >= whole.opening.bytes) {
    facts.opening = whole.opening;
  }
  facts.engram_capacity = whole.engram_capacity;
  facts.may_have_evicted = facts.may_have_evicted || whole.evictions > facts.evictions;
  facts.fed_pending = whole.fed_pending;
  facts.sent_before = whole.sent_before;
  facts.dropped_pending = whole.dropped_pending || part.events.empty();
  facts.prompted = std::min(whole.prompted, fed - (whole.fed_pending ? 1 : 0));
  return facts.Encode();
}

FactsAfter FactsWithin(const Tokenizer* tokenizer) {
  return [tokenizer](absl::string_view before, const Turn& part) {
    return FactsWithin(tokenizer, before, part);
  };
}

}  // namespace

absl::Status NoStore() {
  return WithReason(
      absl::FailedPreconditionError("this server keeps no log of sessions, without which they "
                                    "cannot go back: expected --session-dir"),
      kReasonNoStore);
}

void SessionLog::Rewind(int64_t id, RewindTarget to, Done done) {
  Submit({RewindSession{.session = static_cast<uint64_t>(id),
                        .to = std::move(to),
                        .facts = FactsWithin(options_.tokenizer),
                        .when = clock_.Now()}},
         ExpectCounted(std::move(done), /*may_refuse=*/true), /*may_wait=*/false);
}

std::shared_ptr<const CutSearch> SessionLog::FindCut(const Session& session,
                                                     std::vector<int32_t> prompt) const {
  auto search = std::make_shared<CutSearch>();
  options_.states->Look([search, &store = store_, id = static_cast<uint64_t>(session.id),
                         sent = std::move(prompt), tokenizer = options_.tokenizer] {
    search->Finish(mneme::FindCut(store, id, sent, tokenizer, FactsWithin(tokenizer)));
  });
  return search;
}

std::shared_ptr<const CutSearch> SessionLog::FindTokens(const Session& session) const {
  auto search = std::make_shared<CutSearch>();
  options_.states->Look([search, &store = store_, id = static_cast<uint64_t>(session.id)] {
    search->Finish(ReadTokens(store, id));
  });
  return search;
}

void SessionLog::ForkAt(int64_t parent, Session& child, RewindTarget at, Done done) {
  std::vector<Change> changes;
  AppendBeginning(child, changes);
  changes.push_back(ForkSession{.parent = static_cast<uint64_t>(parent),
                                .session = NewRecord(child),
                                .at = std::move(at),
                                .facts = FactsWithin(options_.tokenizer)});
  Submit(std::move(changes), ExpectCounted(std::move(done), /*may_refuse=*/true),
         /*may_wait=*/false);
}

void SessionLog::AddCheckpoint(const Session& session, const std::string& name, absl::Time created,
                               Done done) {
  Submit({mneme::AddCheckpoint{
             .session = static_cast<uint64_t>(session.id),
             .checkpoint = {.name = name,
                            .position = session.fed_tokens,
                            .created = created,
                            .turns = session.turns,
                            .has_pending_token = session.pending_token.has_value()}}},
         ExpectCounted(std::move(done), /*may_refuse=*/true), /*may_wait=*/false);
}

void SessionLog::DropCheckpoint(int64_t id, const std::string& name, Done done) {
  Submit({mneme::DropCheckpoint{.session = static_cast<uint64_t>(id), .name = name}},
         ExpectCounted(std::move(done), /*may_refuse=*/true), /*may_wait=*/false);
}

}  // namespace mneme
