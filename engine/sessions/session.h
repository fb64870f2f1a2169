// One conversation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/request.h"
#include "engine/sessions/conversation_digest.h"
#include "engine/sessions/token_history.h"
#include "store/rewind_point.h"
#include "store/session_record.h"

namespace mneme {

// The last positions [begin, end) that a session forgot (ForgetSegments), and where it stood then,
// before which its log does not lead any more. 0: it forgot none.
struct ForgottenRange {
  static constexpr size_t kMostKnown = 64;
  int64_t begin = 0, end = 0, at = 0;
  // All ranges that it forgot, in order and apart; where they are more than kMostKnown, the last.
  std::vector<std::pair<int64_t, int64_t>> all;

  void Add(int64_t from, int64_t to, int64_t position);
  // Whether it forgot all of [from, to).
  bool Has(int64_t from, int64_t to) const;
};

// Everything that belongs to a session and is not in its slab; plain data, bounded. Copying it,
// with a copy of the slab, is a fork.
struct Session {
  SessionKey key;  // empty name: ephemeral
  // No other session has it, not a later one of the same key either: of named ones where there is a
  // store, SessionRecord::id.
  int64_t id = 0;
  int slot = -1;  // of its slab; -1: it has none
  int64_t fed_tokens = 0;
  ConversationDigest fed;  // of those tokens
  // The conversation that it began with, up to the first message of a user
  // (Prompt::opening_end); of nothing where that is not known.
  ConversationDigest opening;
  // PrefixTree's name for those tokens; 0, or another number of tokens: it does not have them.
  uint64_t path = 0;
  // Sampled, known to the client, and not yet fed: the first token that goes on from here.
  std::optional<int32_t> pending_token;
  bool has_text = false;  // something other than control tokens is in the conversation
  TokenHistory history;   // of all tokens, the pending one included
  int32_t evictions = 0;  // of engrams (kEngramsEvicted), up to the last crossing
  ForgottenRange forgotten;
  std::optional<uint64_t> memory_seed;  // that it brought; none: it draws from ModelInfo's, if any

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

  // Where there is a store (SessionLog).
  Durability durability = Durability::kTurn;
  bool logged = false;  // the store has its record
  // Not durable, and the store's snapshot is all of it (SessionRecord::parked), wherever else its
  // state is.
  bool parked = false;
  // It began anew from there: its log is cut with its next turn. Null: it did not.
  std::shared_ptr<const RewindPoint> cut;
  std::optional<int64_t> doubted_at;  // SessionRecord's, until a request takes it as it is
  int64_t turns = 0;                  // SessionRecord::turns
  int64_t rewinds = 0;                // likewise
  int64_t snapshot = 0;       // tokens fed where its newest snapshot was taken, as far as is known
  int64_t snapshot_turn = 0;  // `turns` there
  // Tokens, when it was fetched from there for the request that has it now; -1: it was not.
  int64_t replayed = -1;
  absl::Status not_there;  // why it could not be fetched; OK: nobody tried in vain

  // Tokens of the conversation, the pending one included.
  int64_t position() const { return fed_tokens + (pending_token.has_value() ? 1 : 0); }
};

}  // namespace mneme
