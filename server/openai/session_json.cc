#include "server/openai/session_json.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/requests/request_conversion.h"
#include "server/requests/session_listing.h"

namespace mneme {

namespace {

const char* ResidencyName(Residence residence) {
  switch (residence) {
    case Residence::kParked:
      return "host";
    case Residence::kStored:
      return "store";
    case Residence::kLost:
      return "lost";
    case Residence::kOtherModel:
      return "other_model";
    default:
      return "device";
  }
}

}  // namespace

Json SessionJson(const SessionInfo& info, const Engine& engine) {
  const int64_t max_context = MaxContext(info, engine);
  return {{"id", info.key.name},
          {"object", "session"},
          {"position", info.position},
          {"has_pending_token", info.has_pending_token},
          {"busy", info.busy},
          {"created_at", absl::ToUnixSeconds(info.created)},
          {"last_used_at", absl::ToUnixSeconds(info.last_used)},
          {"ttl_ms", TtlMs(info.ttl)},
          {"memory_seed", info.memory_seed.has_value() ? Json(*info.memory_seed) : Json()},
          // For readers whose numbers are doubles.
          {"memory_seed_text",
           info.memory_seed.has_value() ? Json(absl::StrCat(*info.memory_seed)) : Json()},
          {"state_bytes", info.state_bytes},
          {"stored_bytes", info.stored_bytes},
          {"max_context", max_context > 0 ? Json(max_context) : Json()},
          {"context_full", ContextFull(info, max_context)},
          {"residency", ResidencyName(info.residence)},
          {"durability", !info.durability.has_value()            ? Json()
                         : *info.durability == Durability::kTurn ? Json("turn")
                                                                 : Json("none")},
          {"may_have_been_at",
           info.may_have_been_at.has_value() ? Json(*info.may_have_been_at) : Json()}};
}

Json SessionUsageJson(const SessionUsage& usage) {
  const auto limit = [](int64_t most) { return most > 0 ? Json(most) : Json(); };
  return {{"sessions", usage.sessions},         {"max_sessions", limit(usage.max_sessions)},
          {"stored_bytes", usage.stored_bytes}, {"max_stored_bytes", limit(usage.max_stored_bytes)},
          {"checkpoints", usage.checkpoints},   {"max_checkpoints", limit(usage.max_checkpoints)}};
}

Json CheckpointJson(const std::string& session, const CheckpointInfo& info) {
  return {{"id", info.name},
          {"object", "session.checkpoint"},
          {"session_id", session},
          {"position", info.position},
          {"has_pending_token", info.has_pending_token},
          {"created_at", absl::ToUnixSeconds(info.created)}};
}

}  // namespace mneme
