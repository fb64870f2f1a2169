#include "engine/session_commands.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "engine/session_memory.h"
#include "engine/session_page.h"
#include "engine/status_payload.h"

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

absl::StatusOr<SessionInfo> SessionCommands::Create(const SessionKey& key,
                                                    const NewSession& options, Done done) {
  MNEME_RETURN_IF_ERROR(CheckKind(/*classify=*/false, bounds_.classes));
  MNEME_RETURN_IF_ERROR(CheckDurability(options.durability, bounds_.stores_sessions));
  MNEME_RETURN_IF_ERROR(CheckMemorySeed("memory_seed", options.memory_seed, bounds_.draws_memory));
  return parts_.sessions.Create(key, options, parts_.queue.slabs_awaited(), std::move(done));
}

absl::StatusOr<SessionInfo> SessionCommands::Get(const SessionKey& key) {
  return parts_.sessions.Get(key);
}

SessionsHere SessionCommands::ListHere(const SessionQuery& query) {
  return parts_.sessions.ListHere(query.owner, query.name_prefix);
}

SessionPage SessionCommands::PageOf(SessionsHere here, const SessionQuery& query) const {
  const SessionUsage usage = here.usage;
  SessionPage page = parts_.store == nullptr
                         ? mneme::PageOf(std::move(here.sessions), query)
                         : PageWithStored(std::move(here), *parts_.store, query,
                                          [this](const SessionRecord& record) {
                                            return parts_.sessions.Describe(record);
                                          });
  page.usage = usage;
  return page;
}

absl::StatusOr<SessionInfo> SessionCommands::Fork(const SessionKey& source,
                                                  const SessionKey& target, absl::Duration ttl,
                                                  Done done) {
  return parts_.sessions.Fork(source, target, ttl, parts_.queue.slabs_awaited(), std::move(done));
}

absl::Status SessionCommands::Delete(const SessionKey& key, Done done) {
  return parts_.sessions.Delete(key, std::move(done));
}

void SessionCommands::Rewind(const SessionKey& key, const RewindTarget& to,
                             SessionManager::InfoDone done) {
  parts_.sessions.Rewind(key, to,
                         [key, done = std::move(done)](const absl::StatusOr<SessionInfo>& info) {
                           if (info.ok()) {
                             LogFields("session_rewound")
                                 .Add("owner", key.owner)
                                 .Add("session", key.name)
                                 .Add("tokens", info->position)
                                 .Write(LogSeverity::kInfo);
                           }
                           done(info);
                         });
}

void SessionCommands::ForkAt(const SessionKey& source, const SessionKey& target, absl::Duration ttl,
                             const RewindTarget& at, SessionManager::InfoDone done) {
  parts_.sessions.ForkAt(source, target, ttl, at, std::move(done));
}

void SessionCommands::CreateCheckpoint(const SessionKey& key, const std::string& name,
                                       SessionManager::CheckpointDone done) {
  parts_.sessions.AddCheckpoint(key, name, std::move(done));
}

void SessionCommands::DeleteCheckpoint(const SessionKey& key, const std::string& name, Done done) {
  parts_.sessions.DropCheckpoint(key, name, std::move(done));
}

absl::Status SessionCommands::ReadState(const SessionKey& key, StateImage& image) {
  return parts_.sessions.ReadState(key, image);
}

absl::Status SessionCommands::Export(const SessionKey& key, SessionFacts& facts, StateCopy& state) {
  MNEME_ASSIGN_OR_RETURN(const Session* session, parts_.sessions.FindWithSlab(key));
  facts.fed_tokens = session->fed_tokens;
  facts.pending_token = session->pending_token;
  facts.fed = session->fed;
  facts.opening = session->opening;
  facts.has_text = session->has_text;
  facts.evictions = session->evictions;
  facts.history = session->history.Marks();
  facts.created = session->created;
  facts.exported = parts_.clock.Now();
  SeedMemory(parts_.model, parts_.pool, *session);
  MNEME_RETURN_IF_ERROR(
      state.Read(parts_.pool.backend(), parts_.pool.slab(session->slot), session->fed_tokens));
  LogFields("session_exported")
      .Add("owner", key.owner)
      .Add("session", key.name)
      .Add("tokens", session->position())
      .Write(LogSeverity::kInfo);
  return absl::OkStatus();
}

absl::Status SessionCommands::CheckNew(const SessionKey& key, absl::Duration ttl) {
  MNEME_RETURN_IF_ERROR(CheckKind(/*classify=*/false, bounds_.classes));
  return parts_.sessions.CheckNew(key, ttl);
}

absl::StatusOr<SessionInfo> SessionCommands::Import(const SessionKey& key, absl::Duration ttl,
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
  session.history = TokenHistory(history_tokens_);
  session.history.Restore(facts.history);
  MNEME_ASSIGN_OR_RETURN(SessionInfo info,
                         parts_.sessions.Import(key, ttl, parts_.queue.slabs_awaited(), session,
                                                state, std::move(done)));
  LogFields("session_imported")
      .Add("owner", key.owner)
      .Add("session", key.name)
      .Add("tokens", info.position)
      .Write(LogSeverity::kInfo);
  return info;
}

absl::StatusOr<ForgottenEngrams> SessionCommands::ForgetSegments(const SessionKey& key,
                                                                 int64_t first, int64_t end,
                                                                 Done done,
                                                                 std::span<const int32_t> logged) {
  const Model& model = parts_.model;
  MNEME_RETURN_IF_ERROR(CheckKind(/*classify=*/false, bounds_.classes));
  if (model.info().engrams == 0) {
    return WithReason(absl::UnimplementedError(absl::StrCat(
                          "the memory of a model of type ", model.info().architecture,
                          " is of one piece: expected a model that makes engrams (Memoria)")),
                      kReasonWrongKind);
  }
  if (first < 0) {
    return FieldError("first", absl::StrCat("is ", first, ", expected a segment from 0 on"));
  }
  if (end <= first) {
    return FieldError("end", absl::StrCat("is ", end, ", expected one above first, ", first));
  }
  MNEME_ASSIGN_OR_RETURN(Session * session, parts_.sessions.FindWithSlab(key));
  absl::StatusOr<ForgottenEngrams> forgotten =
      ForgetEngrams(parts_.model, parts_.pool, *session, first, end);
  if (absl::IsFailedPrecondition(forgotten.status())) {
    return WithPosition(WithReason(forgotten.status(), kReasonSegmentOpen), session->position());
  }
  MNEME_RETURN_IF_ERROR(forgotten.status());
  const int64_t segment = model.info().segment;
  // Nothing is left of what it forgot before, and a client may ask again whose answer was lost.
  if (forgotten->total() == 0 && session->forgotten.Has(first * segment, end * segment)) {
    done(absl::OkStatus());
    return forgotten;
  }
  ForgetBeside(*session, first * segment, logged);
  session->path = 0;  // what it holds is no longer what its tokens lead to
  parts_.sessions.LogForgetting(*session, first * segment, end * segment, std::move(done));
  return forgotten;
}

// Answers and states behind its prompt, kept elsewhere, go from that position on. Of the states all
// go: what it was fed is not known when something else of it is forgotten.
void SessionCommands::ForgetBeside(const Session& session, int64_t position,
                                   std::span<const int32_t> logged) {
  parts_.keys.ForgetAnswers(session.id, position);
  if (parts_.prefixes == nullptr) return;
  const std::vector<int32_t> fed = parts_.prefixes->TokensOf(session.path, session.fed_tokens);
  parts_.prefixes->ForgetPath(parts_.prefixes->OwnerOf(session.key),
                              fed.empty() ? logged : std::span(fed), 0);
}

}  // namespace mneme
