#include "engine/session_memory.h"

#include <cstddef>

#include "base/status_macros.h"
#include "models/state_codec.h"

namespace mneme {

void SeedMemory(const Model& model, StatePool& pool, const Session& session) {
  if (session.fed_tokens > 0 || !session.memory_seed.has_value()) return;
  model.SeedMemory(pool.backend(), pool.slab(session.slot), *session.memory_seed);
}

absl::StatusOr<ForgottenEngrams> ForgetEngrams(const Model& model, StatePool& pool,
                                               const Session& session, int64_t first, int64_t end) {
  Backend& backend = pool.backend();
  std::byte* const slab = pool.slab(session.slot);
  MNEME_ASSIGN_OR_RETURN(CanonicalState state,
                         DecodeState(backend, model, slab, session.fed_tokens));
  MNEME_ASSIGN_OR_RETURN(ForgottenEngrams forgotten, model.ForgetSegments(state, first, end));
  if (forgotten.total() > 0) MNEME_RETURN_IF_ERROR(EncodeState(backend, model, state, slab));
  return forgotten;
}

}  // namespace mneme
