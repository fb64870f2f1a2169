#include "tokenizers/huggingface/post_processor_json.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/config_reader.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

using Json = nlohmann::json;
using Item = PostProcessor::Item;

constexpr int kMaxProcessorDepth = 8;

absl::Status Expected(const std::string& path, const Json* value, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, " is ", value == nullptr ? "missing" : Shown(*value), ", expected ", what));
}

const Json* Find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

absl::StatusOr<int32_t> Id(const Json* value, const std::string& path) {
  if (value == nullptr || !value->is_number_integer() || *value < 0 || *value > INT32_MAX) {
    return Expected(path, value, "a token's id");
  }
  return value->get<int32_t>();
}

using IdsByName = absl::flat_hash_map<std::string, std::vector<int32_t>>;

// {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}}
absl::StatusOr<IdsByName> SpecialTokens(const Json& config, const std::string& path) {
  const Json* tokens = Find(config, "special_tokens");
  if (tokens == nullptr || !tokens->is_object()) {
    return Expected(absl::StrCat(path, ".special_tokens"), tokens, "an object");
  }
  IdsByName by_name;
  for (const auto& [name, token] : tokens->items()) {
    const std::string at = absl::StrCat(path, ".special_tokens[\"", name, "\"].ids");
    const Json* ids = token.is_object() ? Find(token, "ids") : nullptr;
    if (ids == nullptr || !ids->is_array()) return Expected(at, ids, "a list of ids");
    for (const Json& id : *ids) {
      MNEME_ASSIGN_OR_RETURN(const int32_t value, Id(&id, at));
      by_name[name].push_back(value);
    }
  }
  return by_name;
}

absl::StatusOr<std::vector<Item>> Template(const Json& config, const char* key,
                                           const IdsByName& by_name, const std::string& path) {
  const std::string at = absl::StrCat(path, ".", key);
  const Json* list = Find(config, key);
  if (list == nullptr || !list->is_array()) return Expected(at, list, "a list");
  std::vector<Item> items;
  for (const Json& entry : *list) {
    const bool is_one = entry.is_object() && entry.size() == 1 && entry.begin()->is_object();
    const std::string kind = is_one ? entry.begin().key() : "";
    if (kind != "Sequence" && kind != "SpecialToken") {
      return Expected(at, &entry, "{\"Sequence\": {...}} or {\"SpecialToken\": {...}}");
    }
    const Json& value = *entry.begin();
    const Json* name = Find(value, "id");
    MNEME_ASSIGN_OR_RETURN(const int32_t type_id,
                           Id(Find(value, "type_id"), absl::StrCat(at, ".type_id")));
    if (name == nullptr || !name->is_string()) return Expected(at + ".id", name, "a string");
    if (kind == "Sequence") {
      if (*name != "A" && *name != "B") return Expected(at + ".id", name, "\"A\" or \"B\"");
      items.push_back({*name == "A" ? Item::Kind::kText : Item::Kind::kPair, 0, type_id});
      continue;
    }
    const auto ids = by_name.find(name->get<std::string>());
    if (ids == by_name.end()) return Expected(at + ".id", name, "a name of special_tokens");
    for (const int32_t id : ids->second) items.push_back(PostProcessor::Token(id, type_id));
  }
  return items;
}

int64_t Count(const std::vector<Item>& items, Item::Kind kind) {
  return std::count_if(items.begin(), items.end(),
                       [kind](const Item& item) { return item.kind == kind; });
}

absl::StatusOr<PostProcessor> ParseTemplates(const Json& config, const std::string& path) {
  MNEME_ASSIGN_OR_RETURN(const IdsByName by_name, SpecialTokens(config, path));
  PostProcessor parsed;
  MNEME_ASSIGN_OR_RETURN(parsed.single, Template(config, "single", by_name, path));
  MNEME_ASSIGN_OR_RETURN(parsed.pair, Template(config, "pair", by_name, path));
  if (Count(parsed.single, Item::Kind::kText) != 1 ||
      Count(parsed.single, Item::Kind::kPair) != 0) {
    return absl::UnimplementedError(
        absl::StrCat(path, ".single is not supported; expected Sequence A once, and no B"));
  }
  if (Count(parsed.pair, Item::Kind::kText) != 1 || Count(parsed.pair, Item::Kind::kPair) != 1) {
    return absl::UnimplementedError(
        absl::StrCat(path, ".pair is not supported; expected Sequence A and B, each once"));
  }
  return parsed;
}

// "sep": ["[SEP]", 3]
absl::StatusOr<int32_t> IdOfPair(const Json& config, const char* key, const std::string& path) {
  const std::string at = absl::StrCat(path, ".", key);
  const Json* pair = Find(config, key);
  if (pair == nullptr || !pair->is_array() || pair->size() != 2) {
    return Expected(at, pair, "a list of a token and its id");
  }
  return Id(&(*pair)[1], at);
}

absl::StatusOr<PostProcessor> ParseBert(const Json& config, const std::string& path,
                                        bool is_roberta) {
  MNEME_ASSIGN_OR_RETURN(const int32_t cls, IdOfPair(config, "cls", path));
  MNEME_ASSIGN_OR_RETURN(const int32_t sep, IdOfPair(config, "sep", path));
  return is_roberta ? PostProcessor::Roberta(cls, sep) : PostProcessor::Bert(cls, sep);
}

// None: nothing is put around texts.
absl::StatusOr<std::optional<PostProcessor>> Parse(const Json& config, const std::string& path,
                                                   int depth) {
  if (!config.is_object()) return Expected(path, &config, "an object with \"type\"");
  const Json* type = Find(config, "type");
  if (type == nullptr || !type->is_string()) {
    return Expected(absl::StrCat(path, ".type"), type, "a string");
  }
  if (*type == "ByteLevel") return std::nullopt;
  if (*type == "TemplateProcessing") return ParseTemplates(config, path);
  if (*type == "BertProcessing") return ParseBert(config, path, false);
  if (*type == "RobertaProcessing") return ParseBert(config, path, true);
  if (*type != "Sequence") {
    return absl::UnimplementedError(
        absl::StrCat(path, ".type is ", Shown(*type),
                     ", which is not supported; expected TemplateProcessing, BertProcessing, "
                     "RobertaProcessing, ByteLevel or Sequence"));
  }
  const Json* list = Find(config, "processors");
  if (list == nullptr || !list->is_array() || depth == kMaxProcessorDepth) {
    return Expected(absl::StrCat(path, ".processors"), list,
                    absl::StrCat("a list, nested at most ", kMaxProcessorDepth, " deep"));
  }
  std::optional<PostProcessor> found;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string at = absl::StrCat(path, ".processors[", i, "]");
    MNEME_ASSIGN_OR_RETURN(std::optional<PostProcessor> one, Parse((*list)[i], at, depth + 1));
    if (!one.has_value()) continue;
    if (found.has_value()) {
      return absl::UnimplementedError(
          absl::StrCat(at, " is a second one that puts tokens around texts, expected at most one"));
    }
    found = std::move(one);
  }
  return found;
}

}  // namespace

absl::StatusOr<PostProcessor> ParsePostProcessor(const Json& config, absl::string_view path) {
  if (config.is_null()) return PostProcessor();
  MNEME_ASSIGN_OR_RETURN(std::optional<PostProcessor> parsed, Parse(config, std::string(path), 0));
  return parsed.has_value() ? *std::move(parsed) : PostProcessor();
}

std::vector<TemplateToken> TemplateTokens(const Json& config) {
  std::vector<TemplateToken> found;
  if (!config.is_object()) return found;
  for (const Json& one : config.value("processors", Json::array())) {
    for (TemplateToken& token : TemplateTokens(one)) found.push_back(std::move(token));
  }
  const std::string type = config.value("type", "");
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    for (const char* key : {"cls", "sep"}) {
      const Json& pair = config[key];
      if (pair[0].is_string()) found.push_back({pair[0], pair[1]});
    }
  }
  if (type != "TemplateProcessing") return found;
  for (const char* key : {"single", "pair"}) {
    for (const Json& entry : config[key]) {
      if (!entry.contains("SpecialToken")) continue;
      const std::string name = entry["SpecialToken"]["id"];
      const Json& special = config["special_tokens"][name];
      const Json spellings = special.value("tokens", Json::array());
      for (size_t i = 0; i < special["ids"].size(); ++i) {
        const bool is_spelt = i < spellings.size() && spellings[i].is_string();
        found.push_back({is_spelt ? spellings[i].get<std::string>() : name, special["ids"][i]});
      }
    }
  }
  return found;
}

}  // namespace mneme
