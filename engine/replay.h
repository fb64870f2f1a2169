// A session that comes from the store and is fed the turns of its log behind its snapshot.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/sessions/session.h"
#include "engine/sessions/stored_states.h"
#include "engine/sessions/token_history.h"

namespace mneme {

struct SessionReplay {
  SessionReplay(Session& fed, StoredState state);

  // The next event of the log that is not done yet; null where all are. Its tokens are fed, or its
  // range forgotten, when the one behind it is asked for.
  const Event* Next();

  Session& session;
  // What is in its slab so far: the session itself says where it will be.
  Session fed;
  const StoredState from;
  int64_t replayed = 0;  // tokens

 private:
  size_t turn_ = 0, event_ = 0;
};

// The history of a session at the end of its log. DATA_LOSS where the log does not lead there.
absl::StatusOr<TokenHistory> RestoreHistory(const StoredState& state, int capacity);

}  // namespace mneme
