#include "engine/sessions/log_cut.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/status_macros.h"
#include "engine/sessions/conversation_digest.h"
#include "engine/sessions/logged_facts.h"

namespace mneme {
namespace {

constexpr size_t kTurnsOfAPiece = 256;

absl::StatusOr<std::vector<Turn>> TurnsOf(SessionStore& store, const SessionRecord& record) {
  std::vector<Turn> all;
  for (int64_t next = record.first_turn; next < record.turns;) {
    MNEME_ASSIGN_OR_RETURN(std::vector<Turn> turns,
                           store.ReadTurns(record.id, next, kTurnsOfAPiece));
    next += static_cast<int64_t>(turns.size());
    std::move(turns.begin(), turns.end(), std::back_inserter(all));
  }
  return all;
}

// All that was fed; nothing where that was not tokens alone.
std::optional<std::vector<int32_t>> TokensOf(std::span<const Turn> turns) {
  std::vector<int32_t> all;
  for (const Turn& turn : turns) {
    for (const Event& event : turn.events) {
      if (std::holds_alternative<MemorySeeded>(event)) continue;
      const auto* fed = std::get_if<TokensFed>(&event);
      if (fed == nullptr) return std::nullopt;
      all.insert(all.end(), fed->tokens.begin(), fed->tokens.end());
    }
  }
  return all;
}

// What the log begins with: nothing, or a snapshot.
struct Beginning {
  int64_t fed = 0;
  int64_t of_prompt = 0;  // its tokens that are the same text
};

absl::StatusOr<std::optional<Beginning>> BeginningOf(const SessionRecord& record,
                                                     std::span<const SnapshotRecord> snapshots,
                                                     std::span<const int32_t> prompt,
                                                     const Tokenizer* tokenizer) {
  if (record.first_turn == 0) return Beginning();
  for (const SnapshotRecord& snapshot : snapshots) {
    if (snapshot.turn != record.first_turn || !snapshot.has_facts) continue;
    MNEME_ASSIGN_OR_RETURN(const LoggedFacts facts, LoggedFacts::Decode(snapshot.facts));
    const HistoryMatch match = MatchHistory(tokenizer, prompt, facts.fed);
    if (!match.matches || match.cuts_token) break;
    return Beginning{snapshot.position, match.tokens};
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<LogCut> ReadTokens(SessionStore& store, uint64_t session) {
  LogCut cut;
  const std::optional<SessionRecord> record = store.Find(session);
  if (!record.has_value() || record->first_turn > 0) return cut;
  MNEME_ASSIGN_OR_RETURN(const std::vector<Turn> turns, TurnsOf(store, *record));
  if (std::optional<std::vector<int32_t>> tokens = TokensOf(turns)) cut.tokens = *std::move(tokens);
  return cut;
}

absl::StatusOr<LogCut> FindCut(SessionStore& store, uint64_t session,
                               std::span<const int32_t> prompt, const Tokenizer* tokenizer,
                               const FactsAfter& facts) {
  LogCut cut;
  const std::optional<SessionRecord> record = store.Find(session);
  if (!record.has_value() || prompt.empty()) return cut;
  prompt = prompt.first(prompt.size() - 1);
  MNEME_ASSIGN_OR_RETURN(const std::vector<Turn> turns, TurnsOf(store, *record));
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots, store.ReadSnapshots(session));
  MNEME_ASSIGN_OR_RETURN(const std::optional<Beginning> beginning,
                         BeginningOf(*record, snapshots, prompt, tokenizer));
  const std::optional<std::vector<int32_t>> logged = TokensOf(turns);
  if (!beginning.has_value() || !logged.has_value()) return cut;
  const auto sent = static_cast<size_t>(beginning->of_prompt);
  const CommonText common = MatchTexts(tokenizer, *logged, prompt.subspan(sent));
  const int64_t fed = beginning->fed + common.a;
  if (fed == 0) return cut;
  absl::StatusOr<RewindPoint> point = FindFed(*record, turns, snapshots, fed, facts);
  if (absl::IsOutOfRange(point.status())) return cut;
  MNEME_RETURN_IF_ERROR(point.status());
  cut.from_the_start = record->first_turn == 0;
  cut.replaced = beginning->of_prompt + common.b;
  cut.tokens.assign(prompt.begin(), prompt.begin() + beginning->of_prompt);
  cut.tokens.insert(cut.tokens.end(), logged->begin(), logged->begin() + common.a);
  for (const SnapshotRecord& snapshot : snapshots) {
    const bool is_kept = snapshot.has_facts && point->Keeps(snapshot);
    if (is_kept) cut.snapshot = std::max(cut.snapshot, snapshot.position);
  }
  cut.point = std::make_shared<const RewindPoint>(*std::move(point));
  return cut;
}

}  // namespace mneme
