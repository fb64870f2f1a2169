// EngineLoop: sessions that are written to files, and come from them.
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "engine/engine_loop.h"

namespace mneme {
namespace {

// The seed of a state's session, where that is not the model's.
std::optional<uint64_t> SeedIn(const StateCopy& state, std::optional<uint64_t> of_model) {
  const std::vector<StateTensorSpec> tensors = state.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name != kEngramSeed) continue;
    const std::vector<uint32_t> words = state.Decode(i).Elements<uint32_t>();
    return of_model.value_or(0) ^ (words[0] | uint64_t{words[1]} << 32);
  }
  return std::nullopt;
}

}  // namespace

absl::Status EngineLoop::ExportSession(const SessionKey& key, SessionFacts& facts,
                                       StateCopy& state) {
  MNEME_ASSIGN_OR_RETURN(const Session* session, sessions_.FindWithSlab(key));
  facts.fed_tokens = session->fed_tokens;
  facts.pending_token = session->pending_token;
  facts.fed = session->fed;
  facts.opening = session->opening;
  facts.has_text = session->has_text;
  facts.evictions = session->evictions;
  facts.history = session->history.Marks();
  facts.created = session->created;
  facts.exported = parts_.clock.Now();
  SeedMemory(*session);
  MNEME_RETURN_IF_ERROR(state.Read(parts_.pool.backend(), SlabOf(*session), session->fed_tokens));
  LogFields("session_exported")
      .Add("owner", key.owner)
      .Add("session", key.name)
      .Add("tokens", session->position())
      .Write(LogSeverity::kInfo);
  return absl::OkStatus();
}

absl::Status EngineLoop::CheckNewSession(const SessionKey& key, absl::Duration ttl) {
  MNEME_RETURN_IF_ERROR(CheckKind(/*classify=*/false, bounds_.classes));
  return sessions_.CheckNew(key, ttl);
}

absl::StatusOr<SessionInfo> EngineLoop::ImportSession(const SessionKey& key, absl::Duration ttl,
                                                      const SessionFacts& facts, StateCopy& state,
                                                      Done done) {
  Session session;
  session.fed_tokens = facts.fed_tokens;
  session.fed = facts.fed;
  session.opening = facts.opening;
  session.pending_token = facts.pending_token;
  session.has_text = facts.has_text;
  session.evictions = facts.evictions;
  session.memory_seed = SeedIn(state, parts_.model.info().memory_seed);
  session.history = TokenHistory(options_.history_tokens);
  session.history.Restore(facts.history);
  MNEME_ASSIGN_OR_RETURN(SessionInfo info, sessions_.Import(key, ttl, queue_.slabs_awaited(),
                                                            session, state, std::move(done)));
  LogFields("session_imported")
      .Add("owner", key.owner)
      .Add("session", key.name)
      .Add("tokens", info.position)
      .Write(LogSeverity::kInfo);
  return info;
}

}  // namespace mneme
