#include "server/openai/openai_classify.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "server/classify/classify_batch.h"
#include "server/classify/classify_request.h"
#include "server/http/http_error.h"
#include "server/openai/json_body.h"
#include "server/openai/wanted_call.h"
#include "server/requests/refusal.h"
#include "server/requests/request_conversion.h"

namespace mneme {
namespace {

bool IsIds(const Json& value) {
  return value.is_array() && !value.empty() && value.front().is_number();
}

void ReadIds(JsonFields& fields, const std::string& name, const Json& value,
             std::vector<int32_t>& ids) {
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_number_integer() || value[i] < 0 || value[i] > INT32_MAX) {
      return fields.Fail(absl::StrCat(name, "[", i, "]"), "a token id", value[i]);
    }
    ids.push_back(value[i].get<int32_t>());
  }
}

// A text, token ids, or an object with "text" and "text_pair".
void ReadDocument(JsonFields& fields, const std::string& name, const Json& value,
                  std::vector<ClassifyDocument>& documents) {
  ClassifyDocument& document = documents.emplace_back();
  if (value.is_string()) {
    document.text = value.get<std::string>();
  } else if (IsIds(value)) {
    document.has_ids = true;
    ReadIds(fields, name, value, document.ids);
  } else if (value.is_object()) {
    JsonFields pair(value, name);
    std::string second;
    if (!pair.Read("text", document.text)) pair.Fail("text", "is missing, expected a text");
    if (pair.Read("text_pair", second)) document.pair = std::move(second);
    if (const absl::Status status = pair.Finish(); !status.ok()) fields.Fail(status);
  } else {
    fields.Fail(name, "a text, a list of token ids, or {\"text\": .., \"text_pair\": ..}", value);
  }
}

struct ClassifyBody {
  ClassifyCall call;
  bool scores = true;  // or else logits
  bool is_list = false;
};

absl::StatusOr<ClassifyBody> ToBody(const Json& json) {
  JsonFields fields(json);
  ClassifyBody body;
  ClassifyCall& call = body.call;
  fields.Read("model", call.model);
  fields.Read("priority", call.priority);
  fields.Read("add_special_tokens", call.special_tokens);
  fields.Read("parse_special", call.parse_special);
  fields.Read("activation", body.scores);
  fields.Read("use_activation", body.scores);
  fields.Ignore("user");
  fields.Unsupported("truncate_prompt_tokens");
  const Json* input = fields.Find("input");
  if (input == nullptr) {
    fields.Fail("input", "is missing, expected a text or a list of texts");
  } else if (input->is_array() && !IsIds(*input)) {
    body.is_list = true;
    for (size_t i = 0; i < input->size(); ++i) {
      ReadDocument(fields, absl::StrCat("input[", i, "]"), (*input)[i], call.documents);
    }
  } else {
    ReadDocument(fields, "input", *input, call.documents);
  }
  MNEME_RETURN_IF_ERROR(fields.Finish());
  return body;
}

// "documents[2].text" is "input[2]", or "input" where that is no list.
absl::Status WithInputField(const absl::Status& status, bool is_list) {
  const std::optional<std::string> field = FieldOf(status);
  if (!field.has_value() || !field->starts_with("documents")) return status;
  absl::string_view rest = *field;
  absl::ConsumePrefix(&rest, "documents");
  const size_t close = rest.find(']');
  absl::string_view part = close == absl::string_view::npos ? "" : rest.substr(close + 1);
  const absl::string_view place = rest.substr(0, rest.size() - part.size());
  if (part == ".text" || part == ".token_ids") part = "";
  absl::ConsumePrefix(&part, ".token_ids.ids");
  return WithField(status, absl::StrCat("input", is_list ? place : "", part));
}

Json AnswerJson(const ClassifiedBatch& batch, const HttpRequest& http, const Engine& engine,
                const ServingFacts& facts, bool scores) {
  const Classes& classes = engine.model_info().classes;
  Json data = Json::array();
  for (const ClassifiedDocument& document : batch.documents) {
    const Json numbers = scores ? Json(document.scores) : Json(document.logits);
    data.push_back({{"index", data.size()},
                    {"label", SanitizeUtf8(classes.labels[document.label])},
                    {"probs", numbers},
                    {"num_classes", classes.labels.size()}});
    if (document.memory_evicted) data.back()["memory_evicted"] = true;
  }
  const int64_t tokens = batch.usage.prompt_tokens;
  Json usage = {{"prompt_tokens", tokens},
                {"total_tokens", tokens},
                {"completion_tokens", 0},
                {"prompt_tokens_details", nullptr}};
  if (batch.usage.memory_evicted) usage["memory_evicted"] = true;
  return {{"id", absl::StrCat("classify-", http.id)},
          {"object", "list"},
          {"created", absl::ToUnixSeconds(absl::Now())},
          {"model", SanitizeUtf8(facts.model_name)},
          {"data", std::move(data)},
          {"usage", std::move(usage)}};
}

}  // namespace

absl::Status OpenAiClassify::Submit(const std::shared_ptr<HttpCall>& call) const {
  const HttpRequest& http = call->request();
  MNEME_ASSIGN_OR_RETURN(Engine * engine, access_.GetForWork());
  CallFacts facts = CallFactsOf(http);
  MNEME_ASSIGN_OR_RETURN(facts.deadline, DeadlineOf(http));
  WorkMeter meter(
      [this, wanted = WantedUntil(facts.deadline, *call, executors_)]() -> absl::Status {
        MNEME_RETURN_IF_ERROR(access_.GetForWork().status());
        return wanted();
      });
  MNEME_RETURN_IF_ERROR(meter.Look());
  MNEME_ASSIGN_OR_RETURN(Json json, ParseJsonBody(http, meter));
  const TakenApart json_end(json);
  MNEME_ASSIGN_OR_RETURN(ClassifyBody body, ToBody(json));
  const CallerRef caller = security_.authenticator().CallerNamed(http.owner);
  MNEME_ASSIGN_OR_RETURN(const StreamPermit permit, security_.quotas().BeginStream(caller));
  MNEME_RETURN_IF_ERROR(permit->CheckPriority(body.call.priority));
  absl::StatusOr<std::vector<Request>> requests =
      ToEngineRequests(std::move(body.call), facts, *engine, access_.facts(), meter);
  if (!requests.ok()) return WithInputField(requests.status(), body.is_list);
  int64_t tokens = 0;
  for (const Request& one : *requests) tokens += static_cast<int64_t>(one.prompt.at_start.size());
  MNEME_RETURN_IF_ERROR(permit->TakeTokens(tokens));
  const std::shared_ptr<ClassifyBatch> batch = ClassifyBatch::Start(
      *engine, *std::move(requests), permit,
      [this, facts](const absl::Status& status) { LogRefusal(access_, facts, status); },
      [this, call, engine, scores = body.scores](const absl::StatusOr<ClassifiedBatch>& answer) {
        if (!answer.ok()) return call->Send(ErrorResponse(answer.status()));
        call->Send(
            JsonResponse(AnswerJson(*answer, call->request(), *engine, access_.facts(), scores)));
      });
  call->OnClientLeft([weak = std::weak_ptr<ClassifyBatch>(batch)] {
    if (const std::shared_ptr<ClassifyBatch> left = weak.lock()) left->Cancel();
  });
  return absl::OkStatus();
}

void OpenAiClassify::Begin(const std::shared_ptr<HttpCall>& call) const {
  if (const absl::Status status = Submit(call); !status.ok()) Refuse(call, status);
}

void OpenAiClassify::Refuse(const std::shared_ptr<HttpCall>& call, const absl::Status& why) const {
  CountRefusal(access_, CallFactsOf(call->request()), why);
  call->Send(ErrorResponse(why));
}

void OpenAiClassify::OnExchange(const HttpExchange& exchange) const {
  const absl::string_view route = exchange.request.route;
  if (exchange.refusal.ok() || (route != kClassifyPath && route != kShortClassifyPath)) return;
  CountRefusal(access_, CallFactsOf(exchange.request), exchange.refusal);
}

}  // namespace mneme
