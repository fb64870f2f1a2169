#include "server/classify/classify_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "server/requests/text_encoder.h"

namespace mneme {
namespace {

// Sets the prompt of `request`. `field`: of the document.
absl::Status AddText(ClassifyDocument document, const std::string& field, const ClassifyCall& call,
                     const Engine& engine, const ServingFacts& facts, WorkMeter& meter,
                     Request& request) {
  request.prompt.same_everywhere = true;
  request.prompt.source = document.has_ids ? PromptSource::kTokenIds : PromptSource::kText;
  if (document.has_ids) {
    if (document.pair.has_value()) {
      return FieldError(field + ".text_pair", "is there beside token_ids, expected a text");
    }
    request.prompt.at_start = std::move(document.ids);
    request.token_types = std::move(document.types);
    return absl::OkStatus();
  }
  if (!document.types.empty()) {
    return FieldError(field + ".token_types", "is there beside a text, expected token_ids");
  }
  MNEME_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, NeedTokenizer(engine, field + ".text"));
  MNEME_RETURN_IF_ERROR(CheckTextSize(document.text, field + ".text", facts));
  const EncodeOptions options = {.add_bos = call.special_tokens,
                                 .add_eos = call.special_tokens,
                                 .parse_special = call.parse_special};
  if (!document.pair.has_value()) {
    MNEME_ASSIGN_OR_RETURN(request.prompt.at_start,
                           EncodeText(*tokenizer, document.text, options, facts, meter));
    return absl::OkStatus();
  }
  MNEME_RETURN_IF_ERROR(CheckTextSize(*document.pair, field + ".text_pair", facts));
  MNEME_ASSIGN_OR_RETURN(
      Tokenizer::Pair pair,
      EncodeTextPair(*tokenizer, document.text, *document.pair, options, facts, meter));
  request.prompt.at_start = std::move(pair.ids);
  // RoBERTa's files count the second text as another one, and its models know one alone.
  if (engine.model_info().classes.types > 1) request.token_types = std::move(pair.type_ids);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Request>> ToEngineRequests(ClassifyCall classify, const CallFacts& call,
                                                      const Engine& engine,
                                                      const ServingFacts& facts, WorkMeter& meter) {
  MNEME_RETURN_IF_ERROR(CheckModelName(classify.model, facts));
  const Classes& classes = engine.model_info().classes;
  MNEME_RETURN_IF_ERROR(CheckKind(/*classify=*/true, classes.exist() ? &classes : nullptr));
  const size_t count = classify.documents.size();
  if (count == 0 || count > kMaxDocuments) {
    return FieldError("documents", absl::StrCat("has ", count, ", expected 1 to ", kMaxDocuments));
  }
  std::vector<Request> requests;
  for (size_t i = 0; i < count; ++i) {
    const std::string field = absl::StrCat("documents[", i, "]");
    Request request;
    request.id = count == 1 ? call.request_id : absl::StrCat(call.request_id, "-", i);
    request.origin = call.origin;
    request.session.owner = call.owner;
    request.deadline = call.deadline;
    request.priority = classify.priority;
    request.classify = true;
    request.stop.max_tokens = 0;
    MNEME_RETURN_IF_ERROR(
        AddText(std::move(classify.documents[i]), field, classify, engine, facts, meter, request));
    if (const absl::Status valid = engine.Validate(request); !valid.ok()) {
      const std::optional<std::string> part = FieldOf(valid);
      return part.has_value() && *part != "priority"
                 ? WithField(valid, absl::StrCat(field, ".", *part))
                 : valid;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace mneme
