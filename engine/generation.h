// A request inside the engine: what is left of it to do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/idempotency.h"
#include "engine/memory_use.h"
#include "engine/request.h"
#include "engine/request_report.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sessions/log_cut.h"
#include "engine/sessions/prefix_cache.h"
#include "engine/sessions/session.h"
#include "engine/sessions/session_log.h"
#include "engine/stop_condition.h"
#include "engine/token_stream.h"
#include "models/classes.h"
#include "tokenizers/streaming_decoder.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// One of a request's n answers: a sequence that is fed and sampled.
struct Choice {
  explicit Choice(const StopRules& rules) : stop(rules) {}

  int index = 0;
  FinishReason finish = FinishReason::kNone;
  Session* session = nullptr;          // null before the choice begins
  std::unique_ptr<Session> ephemeral;  // what `session` points to, unless that is in the table
  int64_t cursor = 0;                  // tokens of Generation::feed that were fed
  int64_t last_run = 0;                // number of the step
  // Its token of the last step, and the logit row that this came from, until the client gets it.
  struct Undelivered {
    int32_t token;
    int logit_row;
  };
  std::optional<Undelivered> undelivered;
  StopCondition stop;
  std::optional<StreamingDecoder> decoder;
  absl::Duration last_token_at;
};

struct EditLoad;       // engine/edits.h
struct SessionReplay;  // engine/replay.h

// How far a request was told what the record of its idempotency key holds, which is that of another
// one that runs. Events of a record grow at their end alone (MergeEvents).
struct Attachment {
  KeyRecord* record = nullptr;  // null: that one came to nothing, and this one is to run itself
  size_t event = 0;             // of the record's
  bool begun = false;           // of that event, told so far:
  size_t text = 0, tokens = 0, logprobs = 0;
};

struct Generation {
  ~Generation();
  Generation(Request accepted, std::shared_ptr<TokenStream> events, absl::Duration now);

  // First what every step looks at, close together: a step of many rows has the device wait for
  // the host's memory.
  std::shared_ptr<TokenStream> stream;
  std::vector<Choice> choices;      // n; the first one begins at once, the others when it forks
  std::unique_ptr<Session> copy;    // of its session, on its way to the first choice
  std::vector<int32_t> feed;        // pending token of the session, if any, and the prompt
  std::vector<int32_t> feed_types;  // of a text to be classified: SegmentedText::types
  StopRules rules;
  Usage usage;
  absl::Duration deadline = absl::InfiniteDuration();  // on the monotonic clock, as the next ones
  bool ended = false;                                  // nothing is left but to send the last event
  // The prompt's way through the prefix cache; null where it has none, and once it was fed. Goes
  // before the slab of choice 0 does.
  std::unique_ptr<PrefixRun> prefix;
  // The state that a session which goes back begins with; null where it has none, and once it is
  // there. Goes before the slab does.
  std::unique_ptr<EditLoad> load;
  int64_t next_cut = kNoCut;  // of `feed`, where the next row has to end at the latest
  // From then on, where the state that it ends with may serve others. Goes before the slab does.
  std::unique_ptr<PrefixTrail> trail;
  absl::Duration submitted, admitted, first_token, last_token;
  std::vector<int> reserved_slots;  // for choices that are not forked yet

  Request request;
  int64_t arrival = 0;          // order among requests
  KeyRecord* record = nullptr;  // of its idempotency key
  uint64_t seed = 0;

  std::unique_ptr<Attachment> attachment;  // null: it is nobody's repetition, or runs itself
  bool taken_over = false;                 // nobody but those that are attached to it wants it
  bool goes_back = false;                  // its session is to begin anew with the prompt
  int64_t parts_at = 0;                    // then: tokens that the session goes back to
  // For where its log and the prompt part, from when it is claimed; null: there is no log, or it
  // does not lead there.
  std::shared_ptr<const CutSearch> search;
  // It names a session and runs in a copy of it, or in one of its own (Request::remember).
  bool on_copy = false;

  // From admission on, as `choices`, `feed`, `rules` and `reserved_slots`.
  std::vector<int64_t> message_ends;  // Prompt::message_ends, in `feed`
  ConversationDigest opening;         // Session::opening, where the prompt begins one
  bool feeds_pending = false;         // feed[0] is the session's pending token
  bool claims_session = false;        // SessionManager::Claim
  bool created_session = false;
  bool spoilt = false;  // a step that fed choice 0 failed, or its logits were not finite
  // What memories that are trained say of the tokens fed: the sum of their surprise, and how many
  // they are.
  double surprise_sum = 0;
  int64_t surprised_tokens = 0;
  bool memory_evicted = false;                 // Usage::memory_evicted
  std::unique_ptr<MemoryUseTally> memory_use;  // if asked for
  Sampler sampler;
  // For a named session, where there is a log.
  FedTurn turn;
  std::optional<TokenEvent> unlogged_last;  // while the log makes the turn durable: the last event
  std::optional<TokenEvent> kept_last;      // while `trail` is saved: likewise
  bool unlogged = false;                    // it did not become durable
  bool record_closed = false;               // the last event is in `record`
  // No client's request, but one of these:
  std::unique_ptr<SessionReplay> replay;            // a session is fed its log
  std::function<void(const absl::Status&)> errand;  // is to run when the session has its slab
  bool reads_log = false;                           // and `search` has what it was fed
  int64_t shown_prompt = 0;  // tokens of `feed` that were sent to the client, or skipped
  int unfinished = 0;        // choices
  // max_tokens was lowered to what the session's state has room for: a choice that gets there ends
  // because of that.
  bool fills_context = false;
  bool queued = false;  // found to have to wait: AdmissionQueue counts it

  // Tells whoever keeps account of the request that it ends. Once, before the last event is sent.
  void ReportEnd(const Usage& final_usage) {
    if (request.on_end != nullptr) std::exchange(request.on_end, nullptr)(final_usage);
  }
  // Whether a choice ended because its session has no room for another token.
  bool has_filled_context() const {
    return fills_context && std::any_of(choices.begin(), choices.end(), [](const Choice& choice) {
             return choice.finish == FinishReason::kLength;
           });
  }
  bool named() const { return !on_copy && !request.session.name.empty(); }
  bool is_admitted() const { return !choices.empty(); }
  int64_t feed_tokens() const { return static_cast<int64_t>(feed.size()); }
  // Choices are forked in front of the last token to be fed, so that each of them samples from
  // logits of its own. Nothing is forked where nothing will be sampled.
  bool forks() const { return request.n > 1 && request.stop.max_tokens > 0; }
  bool must_fork() const {
    return !reserved_slots.empty() && choices[0].cursor == feed_tokens() - 1;
  }
  // While it waits for a place.
  bool is_searching() const { return search != nullptr && !search->done(); }
  // It waits for something other than a row, and others may have its rows meanwhile.
  bool lends_rows() const {
    return stream->full() || load != nullptr || (prefix != nullptr && !prefix->can_run());
  }
  // The most that it can have in a step.
  int rows() const { return !forks() ? 1 : is_admitted() ? unfinished : request.n; }
  // What of the answer depends on tokens of the prompt by more than the state that they lead to.
  bool needs_whole_prompt() const {
    return shows_prompt() || request.surprise || request.memory_use || request.classify;
  }
  // Whether somebody is likely to go on from the state that it ends with.
  bool keeps_end() const {
    return named() ||
           (!on_copy && request.n == 1 && request.prompt.source == PromptSource::kMessages);
  }
  bool is_held() const { return unlogged_last.has_value() || kept_last.has_value(); }
  bool shows_prompt() const { return request.echo || request.prompt_logprobs >= 0; }
  bool scores_prompt() const { return request.prompt_logprobs >= 0; }
};

// The tokens that the request would feed before it draws the first one, in `session`, or in a new
// one if that is null.
int64_t TokensToFeed(const Request& request, const Session* session, const Tokenizer* tokenizer);
// The first message of a conversation that begins so; of nothing where it is not known.
ConversationDigest OpeningOf(const Prompt& prompt, const Tokenizer* tokenizer);
// Sets what is to be fed: the session's pending token, unless the prompt says itself what takes its
// place and the session forgets it; and the prompt, which is given up. `session`: null for a new
// one; `tokenizer` may be null.
void BeginFeed(Generation& g, Session* session, const Tokenizer* tokenizer);
// The same for a text to be classified.
void BeginText(Generation& g, const Classes& classes);
// Lowers max_tokens to what fits where a session can be fed `max_context` tokens at most. The last
// token drawn is not fed. After BeginFeed; the feed itself fits.
void LimitDraws(Generation& g, int64_t max_context);
// Sets how tokens are drawn, and what ends a choice. `seed`: where the request names none.
void BeginDraws(Generation& g, uint64_t seed, const std::vector<int32_t>& end_tokens);

// The row that `choice`, which is running, wants in the next step. `classes`: the model's.
RowCandidate NextRow(const Generation& generation, const Choice& choice, const Classes& classes);

// The part of the answer that a sampled token adds: ends the choice where it must, and sets text,
// token id, finish and stop_matched of `event`.
void AcceptToken(Choice& choice, const StopRules& rules, const Tokenizer* tokenizer, int32_t token,
                 TokenEvent& event);

// The text of a token in lists of log-probabilities: valid UTF-8, "<0xE2>" for a byte that is no
// character.
std::string TokenText(const Tokenizer* tokenizer, int32_t token);

// Whether `token` is text, so that what follows it is not at the start of a sequence.
bool IsText(const Tokenizer* tokenizer, int32_t token);

// The report of a request that ended; `last` is its last event.
RequestReport MakeReport(const Generation& generation, const TokenEvent& last, absl::Duration now);

}  // namespace mneme
