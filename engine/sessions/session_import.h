// A session's file on its way to a new session: what is checked before the loop hears of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/sessions/session_file.h"
#include "models/model.h"
#include "models/state_codec.h"

namespace mneme {

// Tokens that a session of the model can be fed; without a limit, as many as change what it keeps.
int64_t MostTokens(const ModelInfo& info);

struct SessionImport {
  SessionFacts facts;
  std::unique_ptr<StateCopy> state;
  int engram_capacity = 0;  // that the session had where it comes from; 0: it has no engrams

  // On any thread. `own`: what the session's model has to be. Errors, in this order: of Engine::
  // ImportSession; INVALID_ARGUMENT has the reason BAD_FILE. Takes memory for the file and the
  // state's tensors, then for those and a slab.
  static absl::StatusOr<SessionImport> Read(const Model& model, const SessionModel& own,
                                            int64_t max_bytes, std::string file);
};

}  // namespace mneme
