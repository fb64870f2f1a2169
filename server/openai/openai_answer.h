// From the engine's streams to the answer of an OpenAI endpoint: one JSON object, or a stream of
// server-sent events.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/token_stream.h"
#include "server/http/http_call.h"
#include "server/openai/openai_json.h"

namespace mneme {

// One for each call; keeps itself alive until the call is answered or its client has left, which
// ends the requests.
//
// Nothing is sent before the engine has admitted a request, so that a refusal has a status of its
// own. Afterwards a stream takes events when the connection asks for more; what is not taken waits
// in the TokenStreams, whose bound makes the engine pause these requests and no others.
class OpenAiAnswer final : public HttpBody, public std::enable_shared_from_this<OpenAiAnswer> {
 public:
  // Submits the request anew, with its history cut at that byte, and begins another answer to the
  // call: the session ends inside of one of the history's tokens (kReasonHistoryCut).
  using Recut = std::function<void(int64_t bytes)>;

  // One stream for each prompt. `recut` may be empty.
  static void Start(std::shared_ptr<HttpCall> call, AnswerFacts facts,
                    std::vector<std::shared_ptr<TokenStream>> streams, Recut recut);

  State Read(std::string& out) override ABSL_LOCKS_EXCLUDED(mu_);
  std::string KeepAlive() override { return ": waiting\n\n"; }

 private:
  using Streams = std::vector<std::shared_ptr<TokenStream>>;

  OpenAiAnswer(std::shared_ptr<HttpCall> call, AnswerFacts facts, Streams streams, Recut recut);

  // The engine has something to say.
  void Advance() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes all events there are, as long as nothing went wrong.
  void TakeEvents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(size_t prompt, TokenEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddTo(AnswerChoice& choice, const TokenEvent& event) const;
  void AppendChunk(int index, AnswerChoice& choice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AppendData(const Json& json) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<HttpField> StateFields() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string WholeBody() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Json SessionJson() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Abandon() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<HttpCall> call_;
  const AnswerFacts facts_;
  const Recut recut_;

  absl::Mutex mu_;
  std::shared_ptr<OpenAiAnswer> self_ ABSL_GUARDED_BY(mu_);
  // Dropping one waits for its callback, which may be waiting for the lock: they are only ever
  // moved out under it.
  Streams streams_ ABSL_GUARDED_BY(mu_);
  std::vector<AnswerChoice> choices_ ABSL_GUARDED_BY(mu_);  // [prompts * n]
  std::vector<bool> begun_ ABSL_GUARDED_BY(mu_);            // choices with a chunk already
  AnswerUsage usage_ ABSL_GUARDED_BY(mu_);
  size_t admitted_ ABSL_GUARDED_BY(mu_) = 0;
  size_t ended_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  std::string text_ ABSL_GUARDED_BY(mu_);  // events in server-sent form, not yet read
  bool head_sent_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // `text_` has its end
  bool replayed_ ABSL_GUARDED_BY(mu_) = false;
  int64_t resumed_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t rewound_from_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t session_position_ ABSL_GUARDED_BY(mu_) = 0;
  bool has_pending_token_ ABSL_GUARDED_BY(mu_) = false;
  bool session_gone_ ABSL_GUARDED_BY(mu_) = false;  // since the answer that is sent again
};

}  // namespace mneme
