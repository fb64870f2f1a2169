#include "engine/whole_history.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// Whether a conversation that is not what the session holds may take its place. A name that was
// meant for another conversation should not cost this one: so they are to begin with the same
// messages, up to the first one of a user.
bool MayGoBack(const Request& request, const Session& session, const Tokenizer* tokenizer) {
  if (request.on_mismatch == OnMismatch::kReplace) return true;
  return request.on_mismatch == OnMismatch::kRewind && session.opening.bytes > 0 &&
         MatchHistory(tokenizer, request.prompt.at_start, session.opening).matches;
}

// Of a prompt of which the session holds the first `known` tokens.
void SkipKnown(Prompt& prompt, int64_t known) {
  prompt.at_start.erase(prompt.at_start.begin(), prompt.at_start.begin() + known);
  prompt.continued.clear();
  prompt.same_everywhere = true;
  std::erase_if(prompt.message_ends, [&](int64_t end) { return end <= known; });
  for (int64_t& end : prompt.message_ends) end -= known;
}

}  // namespace

absl::Status FitHistory(Generation& g, const Session& session, const Tokenizer* tokenizer) {
  Prompt& prompt = g.request.prompt;
  const HistoryMatch match = MatchHistory(tokenizer, prompt.at_start, session.fed);
  if (match.matches && match.cuts_token) {
    return WithPosition(
        WithReason(absl::FailedPreconditionError("the session ends inside of a token"),
                   kReasonHistoryCut),
        session.fed.bytes);
  }
  const bool has_more = match.tokens < static_cast<int64_t>(prompt.at_start.size());
  if (match.matches && has_more) {
    SkipKnown(prompt, match.tokens);
    return absl::OkStatus();
  }
  if (MayGoBack(g.request, session, tokenizer)) {
    g.goes_back = true;
    return absl::OkStatus();
  }
  if (match.matches) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "session \"", session.key.name,
                          "\" remembers all of the conversation sent, and nothing new follows")),
                      kReasonHistory);
  }
  return WithPosition(
      WithReason(absl::FailedPreconditionError(absl::StrCat(
                     "the conversation sent does not begin with the ", session.fed_tokens,
                     " tokens that session \"", session.key.name, "\" remembers",
                     g.request.on_mismatch == OnMismatch::kRewind
                         ? ", nor is it known to be the same up to the first message of a user"
                         : "")),
                 kReasonHistory),
      session.position());
}

}  // namespace mneme
