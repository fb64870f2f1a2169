// One call to Generate as the engine sees it, and what comes back. Plain data; nothing here knows
// RPC.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/memory_use.h"
#include "store/session_record.h"

namespace mneme {

// How the next token is drawn. Ranges are checked by ValidateSampling(); kernels.h (SamplingRow)
// states the order in which the fields act.
struct SamplingParams {
  float temperature = 1.0f;  // [0, 100]; 0 is greedy, and so is all below kLeastTemperature
  int top_k = 0;             // 0: off
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1]
  // (0, 10], kLeastRepetitionPenalty where it is less; over prompt and generated tokens of the
  // history.
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;   // [-2, 2]; over generated tokens of the history
  float frequency_penalty = 0.0f;  // [-2, 2]; over generated tokens of the history
  std::vector<std::pair<int32_t, float>> logit_bias;  // token, [-100, 100]; -100 bans the token
  std::optional<uint64_t> seed;                       // unset: drawn at random for this request
};

// When to end, and what of the end is shown.
struct StopParams {
  int max_tokens = 16;  // generated per choice, >= 0; 0 feeds the prompt and generates nothing
  // Before so many, end tokens and stop token ids are banned, and stop strings are not matched.
  int min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop_strings;  // at most 16 of at most 256 bytes
  bool include_stop_in_output = false;    // keep a matched stop string in the text
};

// A session is named by its owner and a name; ephemeral ones have an empty name and end with their
// request.
struct SessionKey {
  std::string owner;  // empty: the anonymous owner
  std::string name;   // 1..128 of [A-Za-z0-9._:/@+-]; empty: ephemeral

  friend auto operator<=>(const SessionKey&, const SessionKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SessionKey& key) {
    return H::combine(std::move(h), key.owner, key.name);
  }
};

// The form in which a request gave its prompt, for messages about it.
enum class PromptSource { kText, kTokenIds, kMessages };

// Text prompts are tokenised on the caller's thread, before anyone knows where the session stands,
// so both readings are made: at the start of a session (BOS, dummy prefix) and in the middle of
// one.
struct Prompt {
  std::vector<int32_t> at_start;
  std::vector<int32_t> continued;
  // Why there is no such reading, which is then empty; OK where there is. Messages that may begin a
  // conversation need not be such as may continue one.
  absl::Status at_start_status;
  absl::Status continued_status;
  // Both readings are at_start, and `continued` is empty: token ids, which may be many.
  bool same_everywhere = false;
  PromptSource source = PromptSource::kText;
  // Of `at_start`: tokens in front of the ends of its messages, where it has any.
  std::vector<int64_t> message_ends;
  // Of `at_start`: tokens up to the end of the first message of a user; 0: not known.
  int64_t opening_end = 0;

  // The reading for a session that stands at `position`, and whether there is one.
  const std::vector<int32_t>& At(int64_t position) const {
    return position == 0 || same_everywhere ? at_start : continued;
  }
  const absl::Status& StatusAt(int64_t position) const {
    return position == 0 || same_everywhere ? at_start_status : continued_status;
  }
};

struct Usage {
  // New ones in front of the answer: the session's pending token, if it was fed, and what the
  // request brought, BOS included, but for cached_tokens. Logs, metrics and answers of both
  // protocols mean this by prompt tokens.
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // generated, all choices
  // Cached ones: in the session's memory when the request began, and not fed again.
  int64_t resumed_tokens = 0;
  // Cached, too: what of the request's prompt others had been fed before, so that the session that
  // began with it took over their state (PrefixCache). No prompt_tokens.
  int64_t cached_tokens = 0;
  int64_t fed_tokens = 0;  // that went through the model for this request, all choices
  // Of the resumed ones: fed again from the session's log, before the request, as it was stored.
  int64_t replayed_tokens = 0;
  // The session's position before it went back for this request (Request::on_mismatch); 0: it did
  // not. Not kept of answers that are repeated after a restart.
  int64_t rewound_from = 0;
  // The mean loss of memories that are trained while they read, over tokens fed and layers. If
  // asked for, in the last event of a request that fed any.
  std::optional<double> surprise;
  // Engrams were evicted from the session whose lifespan was not over, at some time since its
  // birth, or from one of the choices. In the last event.
  bool memory_evicted = false;
  // The engrams that choice 0 drew on: in the last event, if asked for.
  std::optional<MemoryUse> memory_use;
};

// Where a request came from, for logs; the engine only hands it on.
struct RequestOrigin {
  std::string api;       // "grpc", "http"
  std::string client;    // the peer's address
  std::string trace_id;  // W3C trace context: 32 hexadecimal digits; empty: none came
  std::string span_id;   // 16, of this request within the trace
};

// What a request wants of the states that prompts share which begin alike.
struct PrefixCacheParams {
  bool bypass = false;  // neither take one nor leave one
  std::string salt;     // shares with requests of the same alone; at most 128 bytes
  // Where the client wants one: tokens of the prompt, as it begins a session. At most 64, from 1 to
  // their number.
  std::vector<int64_t> marks;
};

// What becomes of a session that was fed something else than the conversation sent.
enum class OnMismatch : uint8_t {
  kRefuse,   // nothing: the request is refused, FAILED_PRECONDITION
  kRewind,   // it goes back to where they part; as above where not even the first message is common
  kReplace,  // it goes back, be it to its beginning
};

struct Request {
  std::string id;  // for logs; unique per server
  RequestOrigin origin;
  SessionKey session;
  bool create_session = true;  // a missing named session is created; otherwise NOT_FOUND
  // A session that was lost, or may have been, begins anew; otherwise DATA_LOSS says that it was.
  bool replaces_lost = false;
  std::optional<Durability> durability;  // of a session that is created; unset: the server's
  // The seed of a session that is created; unset: ModelInfo's. One that exists must have it.
  std::optional<uint64_t> memory_seed;
  // Zero: the server's default for a created session, no change for another; infinite: never
  // expires.
  absl::Duration session_ttl = absl::ZeroDuration();

  // `prompt` is the whole conversation from its start, as a client without a session would send it.
  // A session that was fed a beginning of it goes on behind that beginning; its pending token
  // counts for nothing. One that goes back is from then on what a new one is that was fed this
  // conversation; the part that it had been fed is cut into tokens as it was then, where these are
  // known.
  bool whole_history = false;
  OnMismatch on_mismatch = OnMismatch::kRefuse;
  // False: answers in a copy of the session, if there is one, which ends with the request. Nothing
  // that is named, stored or shared is made or changed; the record of its idempotency key, which
  // this process keeps, is all that stays.
  bool remember = true;
  // The prompt spells out how the answer before it ended ("</s>"): where the session's pending
  // token is that very one, it is not fed twice.
  bool repeats_end = false;
  Prompt prompt;  // may be empty where the session has a pending token
  // The prompt is a text to be classified, in a session of its own. Nothing is generated, and what
  // concerns that has its default.
  bool classify = false;
  std::vector<int32_t> token_types;  // of such a text, the pair's that each token is of; none: 0
  SamplingParams sampling;
  StopParams stop;
  // Choices, by forking the session in front of the prompt's last token. Choice 0 goes on as the
  // session, the others are dropped. Each takes a slab while it runs.
  int n = 1;
  int logprobs = -1;         // -1: none; 0: of chosen tokens; k: and of the k most likely
  int prompt_logprobs = -1;  // the same for the prompt's tokens
  bool echo = false;         // the prompt's text and tokens come first in the stream
  bool skip_special_tokens = true;
  bool surprise = false;    // Usage::surprise is wanted; the model's memories are trained
  bool memory_use = false;  // Usage::memory_use is wanted; the model makes engrams
  PrefixCacheParams prefix_cache;

  // Retries. A request whose session is elsewhere than expected is refused with the position
  // (ABORTED). A repeated idempotency key never feeds the prompt again: a finished request is
  // replayed, a running one is followed to its end, a broken one refused.
  std::optional<int64_t> expected_position;  // tokens of the conversation, pending one included
  std::string idempotency_key;               // at most 128 bytes, per owner; empty: none

  // Go on when the reader drops the stream, and when the deadline passes: events are thrown away,
  // all else stays the same. An explicit Cancel() still ends the request, and the deadline one that
  // follows another (idempotency_key).
  bool detached = false;

  // When the reader stops waiting, on the monotonic clock: whoever takes a date from a client turns
  // it into this on arrival.
  absl::Duration deadline = absl::InfiniteDuration();
  // [-1000, 1000]; among waiting requests a step is worth kPriorityStep of waiting; equal: first
  // come.
  int priority = 0;

  // Runs once on the loop's thread, in front of the last event, whether or not anybody reads that:
  // for whoever keeps account of requests. All of `usage` is zero for an answer that was replayed.
  // Must be quick. A request that Submit refuses is destroyed without the call.
  std::function<void(const Usage& usage)> on_end;
};

struct TopLogprob {
  int32_t token = 0;
  float logprob = 0;
  std::string text;
};
struct TokenLogprob {
  int32_t token = 0;
  // NaN where nothing predicted the token: the first one of a session, and the first one after a
  // request that generated nothing.
  float logprob = 0;
  std::string text;
  std::vector<TopLogprob> top;
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kDeadline, kError };

struct Timings {
  absl::Duration queue;    // submitted -> admitted
  absl::Duration prefill;  // admitted -> first token
  absl::Duration decode;   // first token -> last
};

// One message of a request's stream. The first one of an admitted request has is_start and no
// tokens; a request that is never admitted has its last event only. Text is complete UTF-8 and
// already trimmed by stop rules; token_ids are the tokens sampled since the last event (text may
// lag behind them, and does not show a stop token that they end with).
struct TokenEvent {
  int choice = 0;
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;  // one per token id if asked for
  bool is_prompt = false;              // echoed prompt or prompt log-probabilities
  // The request was admitted. Set with it: seed, usage.prompt_tokens, usage.resumed_tokens,
  // usage.cached_tokens and timings.queue.
  bool is_start = false;
  // On a choice's last event:
  FinishReason finish = FinishReason::kNone;
  std::string stop_matched;  // the stop string, or the token id in decimal
  bool stop_is_token = false;
  // With kLength: not max_tokens ended the choice, but the session's state, which has no room for
  // another token (--max-context).
  bool context_full = false;
  // Of a text that was classified: one for each of ModelInfo::classes, with `finish`.
  std::vector<float> class_logits;
  // On the request's last event:
  bool is_last = false;
  absl::Status status;  // OK, CANCELLED, DEADLINE_EXCEEDED, ...; payloads: status_payload.h
  Usage usage;
  Timings timings;
  // Choice 0's: tokens of the conversation now, pending one included.
  int64_t session_position = 0;
  bool has_pending_token = false;
  uint64_t seed = 0;      // used for the draws, so that a run can be repeated
  bool replayed = false;  // answered from the record of an idempotency key
  // The answer is replayed, and the named session that it was given in has ended since. Position
  // and pending token are what they were then.
  bool session_gone = false;
};

// Where the state of a session is.
enum class Residence : uint8_t {
  kResident,    // in a slab
  kLeaving,     // in its slab, on its way to the host
  kParked,      // in memory of the host: it has no slab
  kComing,      // with the host or in the store, on its way to its slab
  kStored,      // in the store: it has no slab
  kLost,        // nowhere any more; that it existed is known
  kOtherModel,  // in the store, and of no use to this model
};

// How a session is to begin.
struct NewSession {
  NewSession() = default;
  NewSession(absl::Duration time_to_live) : ttl(time_to_live) {}  // and else by default

  absl::Duration ttl = absl::ZeroDuration();  // as Request::session_ttl, and the next ones
  std::optional<Durability> durability;
  bool replaces_lost = false;
  std::optional<uint64_t> memory_seed;  // as of Request
};

// The answer of session commands.
struct SessionInfo {
  SessionKey key;
  int64_t position = 0;  // tokens of the conversation, pending one included
  bool has_pending_token = false;
  bool busy = false;
  absl::Time created;
  absl::Time last_used;
  absl::Duration ttl;                   // idle time after which it is deleted; infinite: never
  std::optional<uint64_t> memory_seed;  // that it brought; unset: it draws from the model's, if any
  int64_t state_bytes = 0;              // 0: lost, or another model's
  int64_t stored_bytes = 0;             // SessionRecord's; 0: nothing, or there is no store
  Residence residence = Residence::kResident;
  // Unset: there is no store, and sessions end with the server.
  std::optional<Durability> durability;
  std::optional<int64_t> may_have_been_at;  // SessionRecord::doubted_at
};

// A place in a session's log that the session can go back to.
struct CheckpointInfo {
  std::string name;
  int64_t position = 0;  // as in SessionInfo
  bool has_pending_token = false;
  absl::Time created;
};

}  // namespace mneme
