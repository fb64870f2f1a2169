#include "tokenizers/special_ids.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

void ChooseSpecialId(absl::string_view name, const std::optional<std::string>& spelling,
                     std::optional<int32_t> config_id, int64_t vocab_size, FindToken find,
                     std::optional<int32_t>& id, Tokenizer::Vocabulary& vocabulary) {
  if (spelling.has_value() && spelling->empty()) {
    id = std::nullopt;
    return;
  }
  if (spelling.has_value()) {
    const std::optional<int32_t> found = find(*spelling);
    if (found.has_value() && *found < vocab_size) {
      id = found;
    } else {
      vocabulary.notes.push_back(absl::StrCat(
          name, " \"", absl::CHexEscape(*spelling),
          "\" of tokenizer_config.json is not in the vocabulary", ", so it is ignored"));
    }
  }
  if (id.has_value() && config_id.has_value() && *id != *config_id) {
    vocabulary.notes.push_back(absl::StrCat("config.json says that ", name, " is id ", *config_id,
                                            ", the tokenizer says ", *id,
                                            "; prompts are encoded with the latter"));
  }
}

}  // namespace

void ChooseSpecialIds(const TokenizerConfig& config, const TokenizerFacts& facts, FindToken find,
                      Tokenizer::Vocabulary& vocabulary) {
  ChooseSpecialId("bos_token", config.Spelling("bos_token"), facts.bos_token_id, facts.vocab_size,
                  find, vocabulary.bos_id, vocabulary);
  ChooseSpecialId("eos_token", config.Spelling("eos_token"), facts.eos_token_id, facts.vocab_size,
                  find, vocabulary.eos_id, vocabulary);
}

}  // namespace mneme
