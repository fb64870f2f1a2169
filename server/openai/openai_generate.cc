#include "server/openai/openai_generate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "server/chat/chat_prompt.h"
#include "server/http/http_error.h"
#include "server/openai/chat_messages.h"
#include "server/openai/json_body.h"
#include "server/openai/wanted_call.h"
#include "server/process/out_of_memory.h"
#include "server/requests/refusal.h"
#include "server/requests/request_conversion.h"

namespace mneme {
namespace {

AnswerFacts FactsOf(const OpenAiRequest& request, const HttpRequest& http, const Engine& engine,
                    const EngineAccess& access, const Request& converted) {
  AnswerFacts facts;
  facts.kind = request.kind;
  facts.names = request.names;
  facts.id = absl::StrCat(request.kind == OpenAiKind::kChat ? "chatcmpl-" : "cmpl-", http.id);
  facts.created = absl::ToUnixSeconds(absl::Now());
  facts.model = SanitizeUtf8(access.facts().model_name);
  facts.fingerprint = absl::StrFormat("fp_%016x", engine.model_info().fingerprint);
  if (converted.remember) facts.session = converted.session.name;
  facts.n = converted.n;
  facts.stream = request.stream;
  facts.include_usage = request.include_usage;
  facts.echo = converted.echo;
  facts.logprobs = converted.logprobs;
  facts.tokenizer = engine.tokenizer();
  return facts;
}

// The engine's requests: one for each prompt, of several only such as it takes. `call` is of the
// whole.
absl::StatusOr<std::vector<Request>> ToEngineRequests(const OpenAiRequest& request, CallFacts call,
                                                      const Engine& engine,
                                                      const ServingFacts& facts, WorkMeter& meter) {
  const std::string call_id = call.request_id;
  std::vector<Request> converted;
  const auto add = [&](const v1::GenerateRequest& prompt) -> absl::Status {
    v1::GenerateRequest whole = request.generate;
    whole.MergeFrom(prompt);
    if (request.prompts.size() > 1) {
      call.request_id = absl::StrCat(call_id, "-", converted.size());
      if (!whole.idempotency_key().empty()) {
        whole.set_idempotency_key(absl::StrCat(whole.idempotency_key(), "-", converted.size()));
      }
    }
    absl::StatusOr<Request> one = ToEngineRequest(whole, call, engine, facts, meter);
    if (!one.ok()) return WithBodyField(one.status(), request.names, converted.size());
    // Before the next one has a copy of everything but the prompt, whatever size that is.
    if (const absl::Status valid = engine.Validate(*one);
        request.prompts.size() > 1 && !valid.ok()) {
      return WithBodyField(valid, request.names, converted.size());
    }
    converted.push_back(*std::move(one));
    return absl::OkStatus();
  };
  if (request.kind == OpenAiKind::kCompletion) {
    for (const v1::GenerateRequest& prompt : request.prompts) MNEME_RETURN_IF_ERROR(add(prompt));
    return converted;
  }
  MNEME_ASSIGN_OR_RETURN(const Conversation conversation, ToConversation(request));
  absl::StatusOr<Request> chat =
      ToChatEngineRequest(request.generate, conversation, call, engine, facts, meter);
  if (!chat.ok()) return WithBodyField(chat.status(), request.names);
  converted.push_back(*std::move(chat));
  return converted;
}

// More prompts than a key may have streams would be refused each time, after some were begun.
absl::Status CheckStreamLimit(const std::vector<Request>& requests, const Security& security) {
  const CallerRef caller = security.authenticator().CallerNamed(requests[0].session.owner);
  const int limit = caller->limits.max_streams;
  if (limit == 0 || requests.size() <= static_cast<size_t>(limit)) return absl::OkStatus();
  return WithReason(
      FieldError("prompt",
                 absl::StrCat("has ", requests.size(),
                              " prompts, as many requests at once, and this key may have ", limit)),
      kReasonStreamLimit);
}

}  // namespace

struct OpenAiGenerate::Prepared {
  Engine* engine = nullptr;
  std::vector<Request> requests;  // at least one
  AnswerFacts facts;
};

absl::StatusOr<OpenAiGenerate::Prepared> OpenAiGenerate::Prepare(
    const std::shared_ptr<HttpCall>& call, OpenAiKind kind) const {
  const HttpRequest& http = call->request();
  Prepared prepared;
  MNEME_ASSIGN_OR_RETURN(prepared.engine, access_.GetForWork());
  const Engine& engine = *prepared.engine;
  CallFacts facts = CallFactsOf(http);
  MNEME_ASSIGN_OR_RETURN(facts.deadline, DeadlineOf(http));
  WorkMeter meter(
      [this, wanted = WantedUntil(facts.deadline, *call, executors_)]() -> absl::Status {
        MNEME_RETURN_IF_ERROR(access_.GetForWork().status());
        return wanted();
      });
  MNEME_RETURN_IF_ERROR(meter.Look());
  MNEME_ASSIGN_OR_RETURN(Json body, ParseJsonBody(http, meter));
  const TakenApart body_end(body);
  MNEME_ASSIGN_OR_RETURN(const OpenAiRequest request, ToOpenAiRequest(kind, body, http));
  MNEME_RETURN_IF_ERROR(
      CheckQueue(engine, request.generate, std::max<size_t>(1, request.prompts.size())));
  MNEME_ASSIGN_OR_RETURN(prepared.requests,
                         ToEngineRequests(request, facts, engine, access_.facts(), meter));
  MNEME_RETURN_IF_ERROR(CheckStreamLimit(prepared.requests, security_));
  prepared.facts = FactsOf(request, http, engine, access_, prepared.requests[0]);
  return prepared;
}

// Takes a place and tokens from what the caller may use, for all of `requests` or for none; the
// engine gives them back.
absl::Status OpenAiGenerate::TakeShares(std::span<Request> requests,
                                        const BodyFields& names) const {
  for (size_t i = 0; i < requests.size(); ++i) {
    const CallerRef caller = security_.authenticator().CallerNamed(requests[i].session.owner);
    absl::StatusOr<StreamPermit> permit = security_.quotas().BeginStream(caller);
    const absl::Status taken =
        permit.ok() ? TakeTokensFor(requests[i], *std::move(permit)) : permit.status();
    if (!taken.ok()) return WithBodyField(taken, names, i);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<TokenStream>> OpenAiGenerate::Submit(Request request,
                                                                    const HttpRequest& http,
                                                                    Engine& engine) const {
  CallFacts call = CallFactsOf(http);
  call.request_id = request.id;
  absl::StatusOr<std::shared_ptr<TokenStream>> stream = engine.Submit(std::move(request));
  if (!stream.ok()) LogRefusal(access_, call, stream.status());
  return stream;
}

// Submits a chat again whose session ends inside of a token of the history: a model does not
// always cut a text as the tokenizer would.
OpenAiAnswer::Recut OpenAiGenerate::MakeRecut(const std::shared_ptr<HttpCall>& call,
                                              const Prepared& prepared) const {
  const Request& request = prepared.requests[0];
  if (!request.whole_history || request.session.name.empty()) return nullptr;
  auto again = [this, call, request, facts = prepared.facts,
                engine = prepared.engine](int64_t bytes) -> absl::Status {
    Request cut = request;
    WorkMeter meter(WantedUntil(request.deadline, *call, executors_));
    MNEME_ASSIGN_OR_RETURN(cut.prompt.at_start, CutAt(*engine->tokenizer(), request.prompt.at_start,
                                                      bytes, access_.facts(), meter));
    if (const absl::Status share = TakeShares({&cut, 1}, facts.names); !share.ok()) {
      CountRefusal(access_, CallFactsOf(call->request()), share);
      return share;
    }
    MNEME_ASSIGN_OR_RETURN(std::shared_ptr<TokenStream> stream,
                           Submit(std::move(cut), call->request(), *engine));
    OpenAiAnswer::Start(call, facts, {std::move(stream)}, nullptr);
    return absl::OkStatus();
  };
  return [this, call, again = std::move(again), names = prepared.facts.names](int64_t bytes) {
    const auto work = [this, call, again, names, bytes] {
      const auto submit = [&] {
        const absl::Status status = again(bytes);
        if (!status.ok()) call->Send(ErrorResponse(WithBodyField(status, names)));
      };
      RunOrRefuse(submit, [&](const absl::Status& why) { Refuse(call, why); });
    };
    const HttpRequest& http = call->request();
    const bool posted =
        executors_.ForBody(http.body.size()).TryPost(TextOwner(http.owner, http.peer), work);
    if (!posted) Refuse(call, TooManyTasks());
  };
}

void OpenAiGenerate::Begin(const std::shared_ptr<HttpCall>& call, OpenAiKind kind) const {
  absl::StatusOr<Prepared> prepared = Prepare(call, kind);
  if (!prepared.ok()) return Refuse(call, prepared.status());
  OpenAiAnswer::Recut recut = MakeRecut(call, *prepared);
  if (const absl::Status shares = TakeShares(prepared->requests, prepared->facts.names);
      !shares.ok()) {
    return Refuse(call, shares);
  }
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (Request& request : prepared->requests) {
    absl::StatusOr<std::shared_ptr<TokenStream>> stream =
        Submit(std::move(request), call->request(), *prepared->engine);
    if (!stream.ok()) {
      return call->Send(
          ErrorResponse(WithBodyField(stream.status(), prepared->facts.names, streams.size())));
    }
    streams.push_back(*std::move(stream));
  }
  OpenAiAnswer::Start(call, std::move(prepared->facts), std::move(streams), std::move(recut));
}

void OpenAiGenerate::Refuse(const std::shared_ptr<HttpCall>& call, const absl::Status& why) const {
  CountRefusal(access_, CallFactsOf(call->request()), why);
  call->Send(ErrorResponse(why));
}

void OpenAiGenerate::OnExchange(const HttpExchange& exchange) const {
  const absl::string_view route = exchange.request.route;
  if (exchange.refusal.ok() || (route != kCompletionsPath && route != kChatPath)) return;
  CountRefusal(access_, CallFactsOf(exchange.request), exchange.refusal);
}

}  // namespace mneme
