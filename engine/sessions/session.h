// One conversation.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "engine/request.h"
#include "engine/sessions/conversation_digest.h"
#include "engine/sessions/token_history.h"

namespace mneme {

// Everything that belongs to a session and is not in its slab; plain data, bounded. Copying it,
// with a copy of the slab, is a fork.
struct Session {
  SessionKey key;  // empty name: ephemeral
  int64_t id = 0;  // no other session has it, not a later one of the same key either
  int slot = -1;   // of its slab; -1: it has none
  int64_t fed_tokens = 0;
  ConversationDigest fed;  // of those tokens
  // Sampled, known to the client, and not yet fed: the first token that goes on from here.
  std::optional<int32_t> pending_token;
  bool has_text = false;  // something other than control tokens is in the conversation
  TokenHistory history;   // of all tokens, the pending one included
  int32_t evictions = 0;  // of engrams (kEngramsEvicted), up to the last crossing

  // Named sessions only.
  Residence residence = Residence::kResident;
  int host_state = -1;   // HostStates; -1: none
  int64_t rested = 0;    // Parking's, as the next one
  bool stays = false;    // it is wanted again while it leaves
  bool fetched = false;  // it came back for the request that has it now
  bool busy = false;     // a request for it waits or runs
  absl::Time created;
  absl::Time last_used;
  absl::Duration ttl = absl::InfiniteDuration();
  absl::Duration expires = absl::InfiniteDuration();  // on the monotonic clock, while idle

  // Tokens of the conversation, the pending one included.
  int64_t position() const { return fed_tokens + (pending_token.has_value() ? 1 : 0); }
};

}  // namespace mneme
