#include "server/openai/openai_service.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "server/http/http_error.h"
#include "server/openai/chat_prompt.h"
#include "server/openai/json_body.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_request.h"
#include "server/request_conversion.h"
#include "server/version.h"

namespace mneme {
namespace {

absl::Status TooManyTexts() { return QueueFullError("too many calls of this kind are waiting"); }

HttpResponse JsonResponse(const Json& json) {
  return {.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

void Answer(const std::shared_ptr<HttpCall>& call, const absl::StatusOr<Json>& json) {
  call->Send(json.ok() ? JsonResponse(*json) : ErrorResponse(json.status()));
}

// vLLM's, as far as it applies.
Json ModelJson(const EngineAccess& access, const Engine& engine) {
  const int limit = engine.options().max_request_tokens;
  return {{"id", SanitizeUtf8(access.facts().model_name)},       {"object", "model"},
          {"created", absl::ToUnixSeconds(access.start_time())}, {"owned_by", "mneme"},
          {"root", SanitizeUtf8(access.facts().model_name)},     {"parent", nullptr},
          {"max_model_len", limit > 0 ? Json(limit) : Json()}};
}

// How long the client waits, from the header x-request-timeout-ms.
absl::StatusOr<absl::Time> DeadlineOf(const HttpRequest& request) {
  const absl::string_view text = request.Field("x-request-timeout-ms");
  int64_t ms = 0;
  if (text.empty()) return absl::InfiniteFuture();
  if (!absl::SimpleAtoi(text, &ms) || ms <= 0) {
    return FieldError("x-request-timeout-ms", "x-request-timeout-ms: expected milliseconds");
  }
  return absl::Now() + absl::Milliseconds(ms);
}

AnswerFacts FactsOf(const OpenAiRequest& request, const HttpRequest& http, const Engine& engine,
                    const EngineAccess& access, const Request& converted) {
  AnswerFacts facts;
  facts.kind = request.kind;
  facts.id = absl::StrCat(request.kind == OpenAiKind::kChat ? "chatcmpl-" : "cmpl-", http.id);
  facts.created = absl::ToUnixSeconds(absl::Now());
  facts.model = SanitizeUtf8(access.facts().model_name);
  facts.fingerprint = absl::StrFormat("fp_%016x", engine.model_info().fingerprint);
  facts.session = converted.session.name;
  facts.n = converted.n;
  facts.stream = request.stream;
  facts.include_usage = request.include_usage;
  facts.echo = converted.echo;
  facts.logprobs = converted.logprobs;
  facts.tokenizer = engine.tokenizer();
  return facts;
}

// The engine's requests: one for each prompt.
absl::StatusOr<std::vector<Request>> ToEngineRequests(const OpenAiRequest& request,
                                                      const HttpRequest& http, const Engine& engine,
                                                      const ServingFacts& facts) {
  MNEME_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(http));
  std::vector<Request> converted;
  const auto add = [&](const v1::GenerateRequest& prompt) -> absl::Status {
    v1::GenerateRequest whole = request.generate;
    whole.MergeFrom(prompt);
    const CallFacts call{.request_id = request.prompts.size() > 1
                                           ? absl::StrCat(http.id, "-", converted.size())
                                           : http.id,
                         .owner = http.owner,
                         .origin = {.api = "http", .client = http.peer},
                         .received = absl::Now(),
                         .deadline = deadline};
    MNEME_ASSIGN_OR_RETURN(Request one, ToEngineRequest(whole, call, engine, facts));
    converted.push_back(std::move(one));
    return absl::OkStatus();
  };
  if (request.kind == OpenAiKind::kCompletion) {
    for (const v1::GenerateRequest& prompt : request.prompts) MNEME_RETURN_IF_ERROR(add(prompt));
    return converted;
  }
  MNEME_ASSIGN_OR_RETURN(const ChatPrompt prompt, ToChatPrompt(request, engine, facts));
  v1::GenerateRequest ids;
  ids.mutable_token_ids()->mutable_ids()->Add(prompt.at_start.begin(), prompt.at_start.end());
  MNEME_RETURN_IF_ERROR(add(ids));
  converted[0].prompt = {.at_start = prompt.at_start,
                         .continued = prompt.continued,
                         .same_everywhere = request.session_mode == SessionMode::kWhole};
  converted[0].whole_history = request.session_mode == SessionMode::kWhole;
  converted[0].repeats_end = !converted[0].whole_history;
  return converted;
}

// Takes a place and tokens from what the caller may use; the engine gives them back.
absl::StatusOr<std::shared_ptr<TokenStream>> SubmitWithinLimits(Request request, Engine& engine,
                                                                Security& security) {
  const CallerRef caller = security.authenticator().CallerNamed(request.session.owner);
  MNEME_ASSIGN_OR_RETURN(StreamPermit permit, security.quotas().BeginStream(caller));
  MNEME_RETURN_IF_ERROR(TakeTokensFor(request, std::move(permit)));
  return engine.Submit(std::move(request));
}

// Submits a chat again whose session ends inside of a token of the history: a model does not
// always cut a text as the tokenizer would.
OpenAiAnswer::Recut MakeRecut(const std::shared_ptr<HttpCall>& call, const AnswerFacts& facts,
                              const Request& request, Engine& engine, Security& security,
                              Executor& executor) {
  if (!request.whole_history || request.session.name.empty()) return nullptr;
  auto again = [call, facts, request, &engine, &security](int64_t bytes) -> absl::Status {
    Request cut = request;
    MNEME_ASSIGN_OR_RETURN(cut.prompt.at_start,
                           CutAt(*engine.tokenizer(), request.prompt.at_start, bytes));
    MNEME_ASSIGN_OR_RETURN(std::shared_ptr<TokenStream> stream,
                           SubmitWithinLimits(std::move(cut), engine, security));
    OpenAiAnswer::Start(call, facts, {std::move(stream)}, nullptr);
    return absl::OkStatus();
  };
  return [call, &executor, again = std::move(again)](int64_t bytes) {
    const bool posted = executor.TryPost([call, again, bytes] {
      const absl::Status status = again(bytes);
      if (!status.ok()) call->Send(ErrorResponse(WithOpenAiField(status, OpenAiKind::kChat)));
    });
    if (!posted) call->Send(ErrorResponse(TooManyTexts()));
  };
}

absl::Status Begin(const std::shared_ptr<HttpCall>& call, OpenAiKind kind, EngineAccess& access,
                   Security& security, TextExecutors& executors) {
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access.GetForWork());
  const HttpRequest& http = call->request();
  MNEME_ASSIGN_OR_RETURN(const Json body, ParseJsonBody(http));
  MNEME_ASSIGN_OR_RETURN(const OpenAiRequest request, ToOpenAiRequest(kind, body, http));
  if (call->client_left()) return absl::CancelledError("the client has left");
  MNEME_ASSIGN_OR_RETURN(std::vector<Request> converted,
                         ToEngineRequests(request, http, *engine, access.facts()));
  AnswerFacts facts = FactsOf(request, http, *engine, access, converted[0]);
  OpenAiAnswer::Recut recut =
      MakeRecut(call, facts, converted[0], *engine, security, executors.ForBody(http.body.size()));
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (Request& one : converted) {
    MNEME_ASSIGN_OR_RETURN(std::shared_ptr<TokenStream> stream,
                           SubmitWithinLimits(std::move(one), *engine, security));
    streams.push_back(std::move(stream));
  }
  OpenAiAnswer::Start(call, std::move(facts), std::move(streams), std::move(recut));
  return absl::OkStatus();
}

void BeginOrFail(const std::shared_ptr<HttpCall>& call, OpenAiKind kind, EngineAccess& access,
                 Security& security, TextExecutors& executors) {
  const absl::Status status = Begin(call, kind, access, security, executors);
  if (!status.ok()) call->Send(ErrorResponse(WithOpenAiField(status, kind)));
}

absl::StatusOr<Json> Tokenized(const EngineAccess& access, const HttpRequest& http) {
  MNEME_ASSIGN_OR_RETURN(const Engine* engine, access.Get());
  MNEME_ASSIGN_OR_RETURN(const Json body, ParseJsonBody(http));
  JsonFields fields(body);
  std::string model;
  std::string prompt;
  bool special = true;
  bool with_pieces = false;
  fields.Read("model", model);
  const bool has_special = fields.Read("add_special_tokens", special);
  fields.Read("return_token_strs", with_pieces);
  MNEME_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, NeedTokenizer(*engine));
  std::vector<int32_t> ids;
  if (const Json* messages = fields.Find("messages"); messages != nullptr) {
    OpenAiRequest chat{.kind = OpenAiKind::kChat, .messages = *messages};
    fields.Read("add_generation_prompt", chat.add_generation_prompt);
    if (const Json* arguments = fields.Find("chat_template_kwargs"); arguments != nullptr) {
      chat.template_arguments = *arguments;
    }
    MNEME_RETURN_IF_ERROR(fields.Finish());
    MNEME_ASSIGN_OR_RETURN(ChatPrompt rendered, ToChatPrompt(chat, *engine, access.facts()));
    ids = std::move(rendered.at_start);
  } else {
    if (!fields.Read("prompt", prompt)) {
      fields.Fail(FieldError("prompt", "prompt is missing, expected a text (or messages)"));
    }
    MNEME_RETURN_IF_ERROR(fields.Finish());
    MNEME_RETURN_IF_ERROR(CheckTextSize(prompt, access.facts()));
    const EncodeOptions options{.add_bos = has_special ? special : tokenizer->adds_bos()};
    MNEME_ASSIGN_OR_RETURN(ids, EncodeText(*tokenizer, prompt, options));
  }
  MNEME_RETURN_IF_ERROR(CheckModelName(model, access.facts()));
  const int limit = engine->options().max_request_tokens;
  Json json = {{"count", ids.size()},
               {"max_model_len", limit > 0 ? Json(limit) : Json()},
               {"tokens", ids},
               {"token_strs", nullptr}};
  if (!with_pieces) return json;
  json["token_strs"] = Json::array();
  for (const int32_t id : ids) {
    json["token_strs"].push_back(SanitizeUtf8(tokenizer->entry(id).piece));
  }
  return json;
}

absl::StatusOr<Json> Detokenized(const EngineAccess& access, const HttpRequest& http) {
  MNEME_ASSIGN_OR_RETURN(const Engine* engine, access.Get());
  MNEME_ASSIGN_OR_RETURN(const Json body, ParseJsonBody(http));
  JsonFields fields(body);
  std::string model;
  fields.Read("model", model);
  const Json* tokens = fields.Find("tokens");
  std::vector<int32_t> ids;
  MNEME_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, NeedTokenizer(*engine));
  if (tokens == nullptr || !tokens->is_array()) {
    fields.Fail("tokens", "a list of token ids", tokens == nullptr ? Json() : *tokens);
  } else {
    for (size_t i = 0; i < tokens->size(); ++i) {
      const Json& id = (*tokens)[i];
      if (!id.is_number_integer() || !tokenizer->contains(id.get<int64_t>())) {
        fields.Fail(absl::StrCat("tokens[", i, "]"),
                    absl::StrCat("a token id from 0 to ", tokenizer->vocab_size() - 1), id);
        break;
      }
      ids.push_back(id.get<int32_t>());
    }
  }
  MNEME_RETURN_IF_ERROR(fields.Finish());
  MNEME_RETURN_IF_ERROR(CheckModelName(model, access.facts()));
  MNEME_ASSIGN_OR_RETURN(std::string text, tokenizer->Decode(ids));
  return Json{{"prompt", std::move(text)}};
}

}  // namespace

void OpenAiService::AddRoutes(HttpRoutes& routes) {
  const auto now = [this](Handler handler) -> HttpHandler {
    return [this, handler](const std::shared_ptr<HttpCall>& call) { (this->*handler)(call); };
  };
  for (const char* path : {"/health", "/ping"}) {
    routes.Add({"GET", path, now(&OpenAiService::Health), /*is_open=*/true});
  }
  routes.Add({.method = "GET",
              .pattern = "/version",
              .handler =
                  [](const std::shared_ptr<HttpCall>& call) {
                    call->Send(JsonResponse({{"version", std::string(ServerVersion())}}));
                  },
              .is_open = true});
  routes.Add({"GET", "/v1/models", now(&OpenAiService::Models)});
  routes.Add({"GET", "/v1/models/{model}", now(&OpenAiService::Model)});
  routes.Add({"GET", "/tokenizer_info", now(&OpenAiService::TokenizerInfo)});
  routes.Add({"POST", "/v1/completions", WithTexts(&OpenAiService::Complete)});
  routes.Add({"POST", "/v1/chat/completions", WithTexts(&OpenAiService::Chat)});
  routes.Add({"POST", "/tokenize", WithTexts(&OpenAiService::Tokenize)});
  routes.Add({"POST", "/detokenize", WithTexts(&OpenAiService::Detokenize)});
}

HttpHandler OpenAiService::WithTexts(Handler handler) {
  return [this, handler](const std::shared_ptr<HttpCall>& call) {
    Executor* executor = executors_.For(call->request().body.size());
    if (executor == nullptr) return (this->*handler)(call);
    if (executor->TryPost([this, handler, call] { (this->*handler)(call); })) return;
    call->Send(ErrorResponse(TooManyTexts()));
  };
}

void OpenAiService::Health(const std::shared_ptr<HttpCall>& call) {
  if (const auto engine = engine_.GetForWork(); !engine.ok()) {
    return call->Send(ErrorResponse(engine.status()));
  }
  call->Send(JsonResponse({{"status", "ok"}}));
}

void OpenAiService::Models(const std::shared_ptr<HttpCall>& call) {
  const absl::StatusOr<Engine*> engine = engine_.Get();
  if (!engine.ok()) return call->Send(ErrorResponse(engine.status()));
  call->Send(
      JsonResponse({{"object", "list"}, {"data", Json::array({ModelJson(engine_, **engine)})}}));
}

void OpenAiService::Model(const std::shared_ptr<HttpCall>& call) {
  const absl::StatusOr<Engine*> engine = engine_.Get();
  if (!engine.ok()) return call->Send(ErrorResponse(engine.status()));
  const absl::Status known = CheckModelName(call->request().route_argument, engine_.facts());
  call->Send(known.ok() ? JsonResponse(ModelJson(engine_, **engine)) : ErrorResponse(known));
}

// Without the spellings of BOS and EOS: clients would send them to /tokenize, where they are text.
void OpenAiService::TokenizerInfo(const std::shared_ptr<HttpCall>& call) {
  const absl::StatusOr<Engine*> engine = engine_.Get();
  if (!engine.ok()) return call->Send(ErrorResponse(engine.status()));
  const absl::StatusOr<const Tokenizer*> tokenizer = NeedTokenizer(**engine);
  if (!tokenizer.ok()) return call->Send(ErrorResponse(tokenizer.status()));
  const auto id_or_null = [](std::optional<int32_t> id) { return id ? Json(*id) : Json(); };
  call->Send(JsonResponse({{"tokenizer_class", std::string((*tokenizer)->kind())},
                           {"vocab_size", (*tokenizer)->vocab_size()},
                           {"bos_token_id", id_or_null((*tokenizer)->bos_id())},
                           {"eos_token_id", id_or_null((*tokenizer)->eos_id())},
                           {"add_bos_token", (*tokenizer)->adds_bos()}}));
}

void OpenAiService::Complete(const std::shared_ptr<HttpCall>& call) {
  BeginOrFail(call, OpenAiKind::kCompletion, engine_, security_, executors_);
}

void OpenAiService::Chat(const std::shared_ptr<HttpCall>& call) {
  BeginOrFail(call, OpenAiKind::kChat, engine_, security_, executors_);
}

void OpenAiService::Tokenize(const std::shared_ptr<HttpCall>& call) {
  Answer(call, Tokenized(engine_, call->request()));
}

void OpenAiService::Detokenize(const std::shared_ptr<HttpCall>& call) {
  Answer(call, Detokenized(engine_, call->request()));
}

}  // namespace mneme
