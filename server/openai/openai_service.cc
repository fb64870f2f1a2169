#include "server/openai/openai_service.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "server/http/http_error.h"
#include "server/openai/chat_messages.h"
#include "server/openai/json_body.h"
#include "server/openai/openai_generate.h"
#include "server/openai/openai_request.h"
#include "server/openai/tokenizer_info.h"
#include "server/openai/wanted_call.h"
#include "server/process/out_of_memory.h"
#include "server/process/version.h"
#include "server/requests/request_conversion.h"

namespace mneme {
namespace {

Json MaxLengthJson(const Engine& engine) {
  const std::optional<int64_t> most = MaxModelLength(engine);
  return most.has_value() ? Json(*most) : Json();
}

// vLLM's, as far as it applies.
Json ModelJson(const EngineAccess& access, const Engine& engine) {
  return {{"id", SanitizeUtf8(access.facts().model_name)},
          {"object", "model"},
          {"created", absl::ToUnixSeconds(access.start_time())},
          {"owned_by", "mneme"},
          {"root", SanitizeUtf8(access.facts().model_name)},
          {"parent", nullptr},
          {"max_model_len", MaxLengthJson(engine)}};
}

absl::StatusOr<Json> Tokenized(const EngineAccess& access, const HttpCall& call,
                               const TextExecutors& executors) {
  MNEME_ASSIGN_OR_RETURN(const Engine* engine, access.Get());
  MNEME_ASSIGN_OR_RETURN(const absl::Duration deadline, DeadlineOf(call.request()));
  WorkMeter meter(WantedUntil(deadline, call, executors));
  MNEME_RETURN_IF_ERROR(meter.Look());
  MNEME_ASSIGN_OR_RETURN(Json body, ParseJsonBody(call.request(), meter));
  const TakenApart body_end(body);
  JsonFields fields(body);
  std::string model;
  std::string prompt;
  std::string pair;
  bool special = true;
  bool parse_special = true;
  bool with_pieces = false;
  fields.Read("model", model);
  const bool has_special = fields.Read("add_special_tokens", special);
  fields.Read("return_token_strs", with_pieces);
  std::vector<int32_t> ids;
  std::vector<int32_t> type_ids;
  const bool is_chat = fields.Has("messages");
  MNEME_ASSIGN_OR_RETURN(const Tokenizer* tokenizer,
                         NeedTokenizer(*engine, is_chat ? "messages" : "prompt"));
  if (is_chat) {
    if (fields.Has("prompt")) fields.Fail("prompt", "is there beside messages, expected only one");
    fields.Unsupported("add_special_tokens");
    fields.Unsupported("text_pair");
    fields.Unsupported("parse_special");  // in what the template writes, and nowhere else
    OpenAiRequest request;
    ReadMessages(fields, request);
    MNEME_RETURN_IF_ERROR(fields.Finish());
    MNEME_ASSIGN_OR_RETURN(const Conversation conversation, ToConversation(request));
    absl::StatusOr<ChatPrompt> rendered =
        ToChatPrompt(conversation, *engine, access.facts(), meter);
    if (!rendered.ok()) return WithBodyField(rendered.status(), request.names);
    ids = std::move(rendered->at_start);
  } else {
    fields.Read("parse_special", parse_special);
    if (!fields.Read("prompt", prompt)) {
      fields.Fail("prompt", "is missing, expected a text (or messages)");
    }
    const bool has_pair = fields.Read("text_pair", pair);
    MNEME_RETURN_IF_ERROR(fields.Finish());
    MNEME_RETURN_IF_ERROR(CheckTextSize(prompt, "prompt", access.facts()));
    const EncodeOptions options{.add_bos = has_special ? special : tokenizer->adds_bos(),
                                .add_eos = special,
                                .parse_special = parse_special};
    if (has_pair) {
      MNEME_RETURN_IF_ERROR(CheckTextSize(pair, "text_pair", access.facts()));
      MNEME_ASSIGN_OR_RETURN(
          Tokenizer::Pair encoded,
          EncodeTextPair(*tokenizer, prompt, pair, options, access.facts(), meter));
      ids = std::move(encoded.ids);
      type_ids = std::move(encoded.type_ids);
    } else {
      MNEME_ASSIGN_OR_RETURN(ids, EncodeText(*tokenizer, prompt, options, access.facts(), meter));
    }
  }
  MNEME_RETURN_IF_ERROR(CheckModelName(model, access.facts()));
  Json json = {{"count", ids.size()},
               {"max_model_len", MaxLengthJson(*engine)},
               {"tokens", ids},
               {"token_strs", nullptr}};
  if (!type_ids.empty()) json["type_ids"] = type_ids;
  if (!with_pieces) return json;
  json["token_strs"] = Json::array();
  for (const int32_t id : ids) {
    json["token_strs"].push_back(SanitizeUtf8(tokenizer->entry(id).piece));
  }
  return json;
}

absl::StatusOr<Json> Detokenized(const EngineAccess& access, const HttpCall& call,
                                 const TextExecutors& executors) {
  MNEME_ASSIGN_OR_RETURN(const Engine* engine, access.Get());
  MNEME_ASSIGN_OR_RETURN(const absl::Duration deadline, DeadlineOf(call.request()));
  WorkMeter meter(WantedUntil(deadline, call, executors));
  MNEME_RETURN_IF_ERROR(meter.Look());
  MNEME_ASSIGN_OR_RETURN(Json body, ParseJsonBody(call.request(), meter));
  const TakenApart body_end(body);
  JsonFields fields(body);
  std::string model;
  fields.Read("model", model);
  const Json* tokens = fields.Find("tokens");
  std::vector<int32_t> ids;
  MNEME_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, NeedTokenizer(*engine, "tokens"));
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
  routes.Add({"POST", std::string(kCompletionsPath),
              WithTexts(&OpenAiService::Complete, &OpenAiService::RefuseToGenerate)});
  routes.Add({"POST", std::string(kChatPath),
              WithTexts(&OpenAiService::Chat, &OpenAiService::RefuseToGenerate)});
  for (const absl::string_view path : {kClassifyPath, kShortClassifyPath}) {
    routes.Add({"POST", std::string(path),
                WithTexts(&OpenAiService::Classify, &OpenAiService::RefuseToClassify)});
  }
  routes.Add({"POST", "/tokenize", WithTexts(&OpenAiService::Tokenize, &OpenAiService::Refuse)});
  routes.Add(
      {"POST", "/detokenize", WithTexts(&OpenAiService::Detokenize, &OpenAiService::Refuse)});
}

HttpHandler OpenAiService::WithTexts(Handler handler, Refusal refuse) {
  return [this, handler, refuse](const std::shared_ptr<HttpCall>& call) {
    const HttpRequest& request = call->request();
    const auto work = [this, handler, refuse, call] {
      RunOrRefuse([&] { (this->*handler)(call); },
                  [&](const absl::Status& why) { (this->*refuse)(call, why); });
    };
    Lanes* const lanes = executors_.For(request.body.size());
    if (lanes == nullptr) return work();
    if (lanes->TryPost(TextOwner(request.owner, request.peer), work)) return;
    (this->*refuse)(call, TooManyTasks());
  };
}

void OpenAiService::Health(const std::shared_ptr<HttpCall>& call) {
  if (const absl::Status ready = engine_.CheckReady(); !ready.ok()) {
    return call->Send(ErrorResponse(ready));
  }
  Json health = {{"status", "ok"}};
  const absl::StatusOr<Engine*> engine = engine_.Get();
  // Whatever has no stored session works all the same.
  const absl::Status store = engine.ok() ? (*engine)->store_health() : absl::OkStatus();
  if (!store.ok()) health = {{"status", "degraded"}, {"session_store", store.message()}};
  call->Send(JsonResponse(health));
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

void OpenAiService::TokenizerInfo(const std::shared_ptr<HttpCall>& call) {
  const absl::StatusOr<Engine*> engine = engine_.Get();
  if (!engine.ok()) return call->Send(ErrorResponse(engine.status()));
  if (engine_.facts().tokenizer_info.empty()) {
    return call->Send(ErrorResponse(404, "the model has no tokenizer", "no_tokenizer"));
  }
  call->Send({.body = engine_.facts().tokenizer_info});
}

void OpenAiService::Complete(const std::shared_ptr<HttpCall>& call) {
  generate_.Begin(call, OpenAiKind::kCompletion);
}

void OpenAiService::Chat(const std::shared_ptr<HttpCall>& call) {
  generate_.Begin(call, OpenAiKind::kChat);
}

void OpenAiService::Classify(const std::shared_ptr<HttpCall>& call) { classify_.Begin(call); }

void OpenAiService::RefuseToClassify(const std::shared_ptr<HttpCall>& call,
                                     const absl::Status& why) {
  classify_.Refuse(call, why);
}

void OpenAiService::RefuseToGenerate(const std::shared_ptr<HttpCall>& call,
                                     const absl::Status& why) {
  generate_.Refuse(call, why);
}

void OpenAiService::Refuse(const std::shared_ptr<HttpCall>& call, const absl::Status& why) {
  call->Send(ErrorResponse(why));
}

void OpenAiService::Tokenize(const std::shared_ptr<HttpCall>& call) {
  absl::StatusOr<Json> json = Tokenized(engine_, *call, executors_);
  std::optional<TakenApart> json_end;
  if (json.ok()) json_end.emplace(*json);
  call->Send(JsonOrErrorResponse(json));
}

void OpenAiService::Detokenize(const std::shared_ptr<HttpCall>& call) {
  call->Send(JsonOrErrorResponse(Detokenized(engine_, *call, executors_)));
}

}  // namespace mneme
