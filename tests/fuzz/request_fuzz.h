// The common part of targets that read requests to generate: an engine without a model, the facts
// of a server, and the check of a request that was read.
#pragma once

#include <memory>

#include "engine/request_check.h"
#include "server/chat/chat_template.h"
#include "tests/fuzz/bounds.h"
#include "tests/server/fake_engine.h"

namespace mneme {

struct FuzzedServer {
  FakeEngine engine;
  ServingFacts facts;
};

// With a template that puts BOS first and EOS behind every message, by their spelling.
inline FuzzedServer& Served() {
  static FuzzedServer* const server = [] {
    auto* made = new FuzzedServer();
    const Tokenizer& tokenizer = *made->engine.tokenizer();
    made->facts.model_name = "served";
    made->facts.max_text_bytes = 2000;
    const Json config = {{"bos_token", tokenizer.entry(*tokenizer.bos_id()).piece},
                         {"eos_token", tokenizer.entry(*tokenizer.eos_id()).piece}};
    const absl::StatusOr<std::shared_ptr<const ChatTemplate>> chat_template = ChatTemplate::Parse(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}{{ extra }}",
        config);
    Require(chat_template.ok(), "the template of this test is one");
    made->facts.chat_template = *chat_template;
    return made;
  }();
  return *server;
}

// As the engine takes it.
inline void Judge(const Request& request) {
  const absl::Status judged =
      ValidateRequest(request, {.vocab = Served().engine.tokenizer()->vocab_size(),
                                .has_tokenizer = true,
                                .max_sessions = 10});
  Require(judged.ok() || absl::IsInvalidArgument(judged), "the engine takes it or says why not");
  if (judged.ok()) (void)RequestDigest(request);
}

}  // namespace mneme
