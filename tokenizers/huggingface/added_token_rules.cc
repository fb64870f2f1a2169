#include "tokenizers/huggingface/added_token_rules.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/config_reader.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

using Json = nlohmann::json;
using Spec = TokenizerConfig::AddedToken;

// In the order in which they get ids; others follow.
constexpr absl::string_view kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

// Tokens in the order in which they came, each spelling once.
class SpecList {
 public:
  // Later flags win, but that once special is special, as the package skips it all the same.
  void Put(const Spec& spec) {
    const auto [it, is_new] = by_content_.try_emplace(spec.content, specs_.size());
    if (is_new) {
      specs_.push_back(spec);
    } else {
      Spec& known = specs_[it->second];
      const Spec before = std::exchange(known, spec);
      known.special = spec.special || before.special;
      if (spec.id < 0) known.id = before.id;
    }
  }
  // Null: none is spelled so.
  Spec* Find(const std::string& content) {
    const auto it = by_content_.find(content);
    return it == by_content_.end() ? nullptr : &specs_[it->second];
  }
  const std::vector<Spec>& specs() const { return specs_; }

 private:
  std::vector<Spec> specs_;
  absl::flat_hash_map<std::string, size_t> by_content_;
};

std::vector<Spec> NamedTokens(const TokenizerConfig& config) {
  std::vector<Spec> named;
  const auto is_usual = [](absl::string_view name) {
    return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
  };
  for (const absl::string_view name : kNames) {
    for (const auto& token : config.named) {
      if (token.name == name) named.push_back(token.token);
    }
  }
  for (const auto& token : config.named) {
    if (!is_usual(token.name)) named.push_back(token.token);
  }
  std::erase_if(named, [](const Spec& spec) { return spec.content.empty(); });
  return named;
}

// Both in the order of their ids; where both have an id, `file` alone.
std::vector<Spec> ById(const std::vector<Spec>& legacy, const std::vector<Spec>& file) {
  std::vector<Spec> all = file;
  for (const Spec& spec : legacy) {
    const auto same_id = [&](const Spec& other) { return other.id == spec.id; };
    if (std::none_of(file.begin(), file.end(), same_id)) all.push_back(spec);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Spec& a, const Spec& b) { return a.id < b.id; });
  return all;
}

// Ids of the model's vocabulary, of the spellings in the list.
absl::flat_hash_map<absl::string_view, int32_t> IdsInModel(
    const SpecList& list, const std::vector<std::string>& model_tokens) {
  absl::flat_hash_map<absl::string_view, int32_t> ids;
  for (const Spec& spec : list.specs()) ids[spec.content] = -1;
  for (size_t id = 0; id < model_tokens.size(); ++id) {
    if (model_tokens[id].empty()) continue;
    const auto it = ids.find(model_tokens[id]);
    if (it != ids.end()) it->second = static_cast<int32_t>(id);
  }
  return ids;
}

}  // namespace

absl::StatusOr<std::vector<Spec>> ParseAddedTokens(const Json& list, absl::string_view path) {
  std::vector<Spec> added;
  if (list.is_null()) return added;
  if (!list.is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is ", Shown(list), ", expected a list of tokens"));
  }
  absl::flat_hash_map<int64_t, size_t> by_id;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = absl::StrCat(path, "[", i, "]");
    if (!list[i].is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(at, " is ", Shown(list[i]), ", expected an object"));
    }
    ConfigReader reader(list[i], at);
    Spec spec;
    spec.id = reader.Int("id", -1, 0, INT32_MAX);
    spec.content = reader.String("content", "");
    spec.special = reader.Bool("special", false);
    spec.lstrip = reader.Bool("lstrip", false);
    spec.rstrip = reader.Bool("rstrip", false);
    spec.single_word = reader.Bool("single_word", false);
    spec.normalized = reader.Bool("normalized", !spec.special);
    MNEME_RETURN_IF_ERROR(reader.status());
    if (spec.id < 0 || spec.content.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(at, " is ", Shown(list[i]), ", expected \"id\" and \"content\""));
    }
    const auto [same, is_new] = by_id.try_emplace(spec.id, i);
    if (!is_new && added[same->second].content != spec.content) {
      return absl::InvalidArgumentError(absl::StrCat(at, " is \"", absl::CHexEscape(spec.content),
                                                     "\" with id ", spec.id, ", which \"",
                                                     absl::CHexEscape(added[same->second].content),
                                                     "\" has already; expected an id for each"));
    }
    added.push_back(std::move(spec));
  }
  return added;
}

std::vector<Pipeline::Added> ResolveAddedTokens(const AddedTokenSources& sources,
                                                const std::vector<std::string>& model_tokens,
                                                int32_t model_count,
                                                std::vector<std::string>& notes) {
  const TokenizerConfig& config = sources.config;
  SpecList list;
  if (sources.file_is_whole) {
    for (const Spec& spec : sources.file) list.Put(spec);
  }
  SpecList configured;  // those that a name makes special
  if (config.added_tokens.has_value()) {
    for (const Spec& spec : *config.added_tokens) configured.Put(spec);
  } else {
    for (const Spec& spec : ById(sources.legacy, sources.file)) configured.Put(spec);
  }
  for (const Spec& spec : configured.specs()) {
    if (!spec.content.empty()) list.Put(spec);
  }
  for (const Spec& spec : NamedTokens(config)) {
    Spec* known = list.Find(spec.content);
    if (known == nullptr) {
      list.Put(spec);
    } else if (configured.Find(spec.content) != nullptr) {
      known->special = true;
    }
  }
  for (const Spec& spec : config.extra_tokens) {
    if (list.Find(spec.content) == nullptr) list.Put(spec);
  }

  const auto in_model = IdsInModel(list, model_tokens);
  int32_t next = model_count;
  std::vector<Pipeline::Added> added;
  for (const Spec& spec : list.specs()) {
    const int32_t known = in_model.at(spec.content);
    const int32_t id = known >= 0 ? known : next;
    next = std::max(next, id + 1);
    if (spec.id >= 0 && spec.id != id) {
      notes.push_back(absl::StrCat("added token \"", absl::CHexEscape(spec.content),
                                   "\" was written with id ", spec.id, " and has ", id,
                                   ", as in transformers, which numbers added tokens anew"));
    }
    added.push_back({.token = {.id = id,
                               .text = spec.content,
                               .special = spec.special,
                               .strips_left = spec.lstrip,
                               .strips_right = spec.rstrip,
                               .single_word = spec.single_word},
                     .normalized = spec.normalized});
  }
  return added;
}

}  // namespace mneme
