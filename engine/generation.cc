#include "engine/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/utf8.h"
#include "engine/edits.h"
#include "engine/replay.h"

namespace mneme {

Generation::Generation(Request accepted, std::shared_ptr<TokenStream> events, absl::Duration now)
    : stream(std::move(events)), submitted(now), request(std::move(accepted)) {}

Generation::~Generation() = default;

namespace {

// Whether the prompt says itself what follows the tokens that the session was fed.
bool SupersedesPending(const Request& request, const Session& session, const Tokenizer* tokenizer) {
  if (!session.pending_token.has_value()) return false;
  if (request.whole_history) return true;
  const std::vector<int32_t>& prompt = request.prompt.At(session.position());
  return request.repeats_end && !prompt.empty() && prompt.front() == *session.pending_token &&
         !IsText(tokenizer, *session.pending_token);
}

}  // namespace

int64_t TokensToFeed(const Request& request, const Session* session, const Tokenizer* tokenizer) {
  const int64_t position = session == nullptr ? 0 : session->position();
  const auto prompt = static_cast<int64_t>(request.prompt.At(position).size());
  const bool pending = session != nullptr && session->pending_token.has_value() &&
                       !SupersedesPending(request, *session, tokenizer);
  return prompt + (pending ? 1 : 0);
}

ConversationDigest OpeningOf(const Prompt& prompt, const Tokenizer* tokenizer) {
  ConversationDigest opening;
  const int64_t first = prompt.message_ends.empty() ? 0 : prompt.message_ends[0];
  const auto end =
      std::min<size_t>(prompt.opening_end > 0 ? prompt.opening_end : first, prompt.at_start.size());
  for (size_t i = 0; i < end; ++i) opening.Add(tokenizer, prompt.at_start[i]);
  return opening;
}

void BeginFeed(Generation& g, Session* session, const Tokenizer* tokenizer) {
  const int64_t position = session == nullptr ? 0 : session->position();
  if (session != nullptr && SupersedesPending(g.request, *session, tokenizer)) {
    session->history.PopLast();
    session->pending_token.reset();
    g.turn.dropped_pending = true;
  }
  if (position == 0 && g.opening.bytes == 0) g.opening = OpeningOf(g.request.prompt, tokenizer);
  const std::vector<int32_t>& prompt = g.request.prompt.At(position);
  g.usage.resumed_tokens = session == nullptr ? 0 : session->fed_tokens;
  g.usage.replayed_tokens = session == nullptr ? 0 : std::max<int64_t>(0, session->replayed);
  if (session != nullptr && session->pending_token.has_value()) {
    g.feeds_pending = true;
    g.shown_prompt = 1;
    g.feed.push_back(*session->pending_token);
  }
  g.feed.insert(g.feed.end(), prompt.begin(), prompt.end());
  g.usage.prompt_tokens = g.feed_tokens();
  // Those of the other reading are not this one's.
  if (position == 0 || g.request.whole_history) {
    g.message_ends = std::move(g.request.prompt.message_ends);
  }
  g.request.prompt = {.source = g.request.prompt.source};
}

void BeginText(Generation& g, const Classes& classes) {
  g.usage.prompt_tokens = static_cast<int64_t>(g.request.prompt.at_start.size());
  SegmentedText text = FillUp(classes, g.request.prompt.at_start, g.request.token_types);
  g.feed = std::move(text.tokens);
  g.feed_types = std::move(text.types);
  g.request.prompt = {};
  g.request.token_types = {};
}

void LimitDraws(Generation& g, int64_t max_context) {
  const int64_t room = max_context - g.usage.resumed_tokens - g.feed_tokens() + 1;
  if (g.request.stop.max_tokens <= room) return;
  g.request.stop.max_tokens = static_cast<int>(room);
  g.fills_context = true;
}

void BeginDraws(Generation& g, uint64_t seed, const std::vector<int32_t>& end_tokens) {
  const Request& request = g.request;
  g.seed = request.sampling.seed.value_or(seed);
  g.rules = StopRules(request.stop, end_tokens);
  g.sampler = Sampler(request.sampling, g.seed, g.rules.StopTokens(), request.logprobs,
                      request.prompt_logprobs);
}

RowCandidate NextRow(const Generation& generation, const Choice& choice, const Classes& classes) {
  RowCandidate row = {.slot = choice.session->slot,
                      .position = choice.session->fed_tokens,
                      .last_run = choice.last_run};
  const int64_t size = generation.feed_tokens();
  if (generation.request.classify) {
    const int64_t count = std::min<int64_t>(classes.segment, size - choice.cursor);
    row.tokens = std::span(generation.feed).subspan(choice.cursor, count);
    row.types = std::span(generation.feed_types).subspan(choice.cursor, count);
    row.whole = true;
    row.samples = choice.cursor + count == size;
    return row;
  }
  if (choice.cursor == size) {
    row.tokens = std::span(&*choice.session->pending_token, 1);
    row.samples = true;
    return row;
  }
  // Up to the fork, if that is still to come.
  const int64_t end =
      std::min(generation.reserved_slots.empty() ? size : size - 1, generation.next_cut);
  row.tokens = std::span(generation.feed).subspan(choice.cursor, end - choice.cursor);
  row.samples = end == size && generation.request.stop.max_tokens > 0;
  // A token is scored by the logits after the one before it. Choice 0 scores for all.
  if (generation.scores_prompt() && choice.index == 0) {
    row.scored_tokens = static_cast<int>(std::min(end, size - 1) - choice.cursor);
  }
  return row;
}

void AcceptToken(Choice& choice, const StopRules& rules, const Tokenizer* tokenizer, int32_t token,
                 TokenEvent& event) {
  std::string text;
  if (choice.decoder.has_value()) {
    // A stop token is not part of the text; what came before it is complete.
    if (rules.IsStopToken(token)) {
      choice.decoder->Flush(text);
    } else if (tokenizer->contains(token)) {
      choice.decoder->Push(token, text);
    }
  }
  StopCondition::Outcome outcome = choice.stop.OnToken(token, text, event.text);
  if (outcome.finish == FinishReason::kLength && choice.decoder.has_value()) {
    choice.decoder->Flush(event.text);
  }
  event.choice = choice.index;
  event.token_ids.push_back(token);
  event.finish = choice.finish = outcome.finish;
  event.stop_matched = std::move(outcome.matched);
  event.stop_is_token = outcome.finish == FinishReason::kStop && rules.IsStopToken(token);
}

namespace {

// "<0xE4><0xBD>", for bytes that are no text by themselves.
std::string SpelledBytes(absl::string_view bytes) {
  std::string spelled;
  for (const char c : bytes) {
    absl::StrAppendFormat(&spelled, "<0x%02X>", static_cast<unsigned char>(c));
  }
  return spelled;
}

}  // namespace

std::string TokenText(const Tokenizer* tokenizer, int32_t token) {
  if (tokenizer == nullptr || !tokenizer->contains(token)) return "";
  const TokenEntry& entry = tokenizer->entry(token);
  switch (entry.kind) {
    case TokenKind::kText:
    case TokenKind::kUnknown:
      return SanitizeUtf8(entry.text);
    case TokenKind::kBytes:
      return IsValidUtf8(entry.text) ? entry.text : SpelledBytes(entry.text);
    case TokenKind::kControl:
    case TokenKind::kPadding:
      return SanitizeUtf8(entry.piece);
  }
  return "";
}

bool IsText(const Tokenizer* tokenizer, int32_t token) {
  return tokenizer != nullptr && tokenizer->contains(token) &&
         tokenizer->entry(token).kind != TokenKind::kControl;
}

RequestReport MakeReport(const Generation& generation, const TokenEvent& last, absl::Duration now) {
  const Generation& g = generation;
  return {.id = g.request.id,
          .origin = g.request.origin,
          .session = g.request.session,
          .n = g.request.n,
          .admitted = g.is_admitted(),
          .replayed = last.replayed,
          .status = last.status,
          .finish = g.is_admitted() ? g.choices[0].finish : last.finish,
          .context_full = g.is_admitted() ? g.has_filled_context() : last.context_full,
          .usage = last.usage,
          .timings = last.timings,
          .total = now - g.submitted};
}

}  // namespace mneme
