#include "server/openai/openai_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/status_payload.h"
#include "server/http/http_error.h"

namespace mneme {
namespace {

// Bytes of server-sent events for one write; the rest waits in the TokenStream.
constexpr size_t kMaxReadBytes = 65536;

}  // namespace

void OpenAiAnswer::Start(std::shared_ptr<HttpCall> call, AnswerFacts facts, Streams streams,
                         Recut recut) {
  const std::shared_ptr<OpenAiAnswer> self(
      new OpenAiAnswer(std::move(call), std::move(facts), streams, std::move(recut)));
  {
    absl::MutexLock lock(&self->mu_);
    self->self_ = self;
  }
  const std::weak_ptr<OpenAiAnswer> weak = self;
  for (const std::shared_ptr<TokenStream>& stream : streams) {
    stream->SetReadyCallback([weak] {
      if (const std::shared_ptr<OpenAiAnswer> answer = weak.lock()) answer->Advance();
    });
  }
  self->call_->OnClientLeft([weak] {
    if (const std::shared_ptr<OpenAiAnswer> answer = weak.lock()) answer->Abandon();
  });
  self->Advance();
}

OpenAiAnswer::OpenAiAnswer(std::shared_ptr<HttpCall> call, AnswerFacts facts, Streams streams,
                           Recut recut)
    : call_(std::move(call)),
      facts_(std::move(facts)),
      recut_(std::move(recut)),
      streams_(std::move(streams)) {
  choices_.resize(streams_.size() * facts_.n);
  begun_.resize(choices_.size());
}

void OpenAiAnswer::Abandon() {
  Streams dropped;  // destroyed after the lock is gone
  std::shared_ptr<OpenAiAnswer> self;
  absl::MutexLock lock(&mu_);
  dropped = std::exchange(streams_, {});
  self = std::exchange(self_, nullptr);
}

void OpenAiAnswer::Advance() {
  Streams dropped;
  std::shared_ptr<OpenAiAnswer> self;
  HttpResponse response;
  int64_t cut_bytes = 0;
  enum { kWait, kSend, kStream, kWake, kRecut } next = kWait;
  {
    absl::MutexLock lock(&mu_);
    if (head_sent_) {
      next = kWake;
    } else if (!streams_.empty()) {
      TakeEvents();
      if (recut_ && ReasonOf(error_) == kReasonHistoryCut) {
        cut_bytes = PositionOf(error_).value_or(0);
        next = kRecut;
      } else if (!error_.ok()) {
        response = ErrorResponse(error_);
        next = kSend;
      } else if (!facts_.stream && ended_ == streams_.size()) {
        response.body = WholeBody();
        response.fields = StateFields();
        next = kSend;
      } else if (facts_.stream && admitted_ > 0) {
        response.content_type = "text/event-stream; charset=utf-8";
        response.fields = StateFields();
        response.fields.push_back({"Cache-Control", "no-cache"});
        response.fields.push_back({"X-Accel-Buffering", "no"});  // nginx would hold events back
        head_sent_ = true;
        next = kStream;
      }
      if (next == kSend || next == kRecut) dropped = std::exchange(streams_, {});
      if (next != kWait) self = std::exchange(self_, nullptr);
    }
  }
  if (next == kSend) call_->Send(std::move(response));
  if (next == kStream) call_->Stream(std::move(response), self);
  if (next == kWake) call_->Wake();
  if (next == kRecut) recut_(cut_bytes);
}

HttpBody::State OpenAiAnswer::Read(std::string& out) {
  Streams dropped;
  absl::MutexLock lock(&mu_);
  if (!finished_) TakeEvents();
  if (!finished_ && (!error_.ok() || ended_ == streams_.size())) {
    if (!error_.ok()) {
      absl::StrAppend(&text_, "data: ", ErrorJson(error_), "\n\n");
    } else if (facts_.include_usage) {
      Json last = EnvelopeJson(facts_, Json::array());
      last["usage"] = UsageJson(usage_);
      if (!facts_.session.empty()) last["session"] = SessionJson();
      AppendData(last);
    }
    text_.append("data: [DONE]\n\n");
    finished_ = true;
    dropped = std::exchange(streams_, {});
  }
  const bool was_empty = text_.empty();
  out.append(std::exchange(text_, {}));
  if (finished_) return State::kEnd;
  return was_empty ? State::kLater : State::kMore;
}

void OpenAiAnswer::TakeEvents() {
  for (size_t prompt = 0; prompt < streams_.size(); ++prompt) {
    while (error_.ok() && text_.size() < kMaxReadBytes) {
      std::optional<TokenEvent> event = streams_[prompt]->TryNext();
      if (!event.has_value()) break;
      Take(prompt, *std::move(event));
    }
  }
}

void OpenAiAnswer::Take(size_t prompt, TokenEvent event) {
  if (event.is_start) {
    ++admitted_;
    resumed_tokens_ = event.usage.resumed_tokens;
    rewound_from_ = event.usage.rewound_from;
    replayed_ = event.replayed;
    return;
  }
  const int first = static_cast<int>(prompt) * facts_.n;
  const bool is_prompt = event.is_prompt;
  for (int i = 0; i < facts_.n; ++i) {
    // The prompt is the same in front of every choice, and comes once.
    if (!is_prompt && i != event.choice) continue;
    TokenEvent own = event;
    if (i != event.choice) own.finish = FinishReason::kNone;
    AnswerChoice& choice = choices_[first + i];
    AddTo(choice, own);
    const bool error_end = event.is_last && !event.status.ok();
    if (facts_.stream && !error_end &&
        (!choice.text.empty() || !choice.logprobs.empty() ||
         choice.finish != FinishReason::kNone)) {
      AppendChunk(first + i, choice);
    }
  }
  if (!event.is_last) return;
  ++ended_;
  if (admitted_ < ended_) ++admitted_;  // refused, or replayed without a start
  error_ = WithBodyField(event.status, facts_.names, prompt);
  replayed_ = event.replayed;
  usage_.completion_tokens += event.usage.completion_tokens;
  const int64_t cached = event.usage.resumed_tokens + event.usage.cached_tokens;
  usage_.cached_tokens += cached;
  usage_.replayed_tokens += event.usage.replayed_tokens;
  if (event.usage.surprise.has_value()) {
    usage_.surprised_tokens += event.usage.fed_tokens;
    usage_.surprise_sum += *event.usage.surprise * static_cast<double>(event.usage.fed_tokens);
  }
  usage_.memory_evicted = usage_.memory_evicted || event.usage.memory_evicted;
  if (event.usage.memory_use.has_value()) usage_.memory_use.push_back(*event.usage.memory_use);
  session_position_ = event.session_position;
  has_pending_token_ = event.has_pending_token;
  session_gone_ = event.session_gone;
  usage_.prompt_tokens += event.usage.prompt_tokens + cached;
}

void OpenAiAnswer::AddTo(AnswerChoice& choice, const TokenEvent& event) const {
  if (!event.is_prompt) choice.tokens += static_cast<int64_t>(event.token_ids.size());
  if (!event.is_prompt || facts_.echo) {
    choice.text.append(event.text);
    choice.logprobs.insert(choice.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  }
  if (event.finish == FinishReason::kNone) return;
  choice.finish = event.finish;
  choice.stop_matched = event.stop_matched;
  choice.context_full = event.context_full;
  if (event.stop_is_token) choice.stop_token = event.token_ids.back();
}

void OpenAiAnswer::AppendChunk(int index, AnswerChoice& choice) {
  Json json =
      EnvelopeJson(facts_, Json::array({ChoiceJson(facts_, index, choice, !begun_[index])}));
  if (facts_.include_usage) json["usage"] = nullptr;
  begun_[index] = true;
  AppendData(json);
  choice.text.clear();
  choice.logprobs.clear();
}

void OpenAiAnswer::AppendData(const Json& json) {
  absl::StrAppend(&text_, "data: ", JsonText(json), "\n\n");
}

std::vector<HttpField> OpenAiAnswer::StateFields() const {
  std::vector<HttpField> fields;
  if (replayed_) fields.push_back({"x-idempotent-replay", "true"});
  if (facts_.session.empty()) return fields;
  fields.push_back({"x-session-id", facts_.session});
  fields.push_back({"x-session-resumed-tokens", absl::StrCat(resumed_tokens_)});
  fields.push_back({"x-session-reuse", rewound_from_ > 0     ? "rewound"
                                       : resumed_tokens_ > 0 ? "resumed"
                                                             : "new"});
  if (rewound_from_ > 0) fields.push_back({"x-session-rewound-from", absl::StrCat(rewound_from_)});
  if (session_gone_) {
    fields.push_back({"x-session-gone", "true"});
  } else if (ended_ > 0) {
    fields.push_back({"x-session-position", absl::StrCat(session_position_)});
  }
  return fields;
}

Json OpenAiAnswer::SessionJson() const {
  if (session_gone_) return {{"id", facts_.session}, {"gone", true}};
  Json json = {{"id", facts_.session},
               {"position", session_position_},
               {"has_pending_token", has_pending_token_}};
  if (usage_.replayed_tokens > 0) json["replayed_tokens"] = usage_.replayed_tokens;
  return json;
}

std::string OpenAiAnswer::WholeBody() {
  Json choices = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    choices.push_back(ChoiceJson(facts_, static_cast<int>(i), choices_[i], true));
  }
  Json json = EnvelopeJson(facts_, std::move(choices));
  json["usage"] = UsageJson(usage_);
  if (!facts_.session.empty()) json["session"] = SessionJson();
  return JsonText(json);
}

}  // namespace mneme
