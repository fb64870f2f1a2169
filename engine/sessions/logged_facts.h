// The facts of a session that the log has beside its tokens.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/sessions/conversation_digest.h"
#include "engine/sessions/session.h"

namespace mneme {

// SessionRecord::facts and Turn::facts: what a session has beside its tokens, and how its history
// (TokenHistory) follows from them.
struct LoggedFacts {
  ConversationDigest fed;
  ConversationDigest opening;  // Session::opening
  bool has_text = false;
  int32_t evictions = 0;
  uint64_t arithmetic = 0;  // whose bits state_digest is of
  int engram_capacity = 0;  // ModelInfo::engrams of the server; 0: nobody knows, or there are none
  bool may_have_evicted = false;  // more than `evictions`
  ForgottenRange forgotten;       // Session::forgotten
  int64_t prompted = 0;           // FedTurn
  bool fed_pending = false;
  bool dropped_pending = false;
  bool sent_before = false;

  std::string Encode() const;
  // DATA_LOSS where they are none.
  static absl::StatusOr<LoggedFacts> Decode(absl::string_view facts);
};

}  // namespace mneme
