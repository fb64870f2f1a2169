// BOS and EOS: several files have a say.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/tokenizer_config.h"
#include "tokenizers/tokenizer_loader.h"

namespace mneme {

// The id of a spelling; none: the vocabulary does not have it.
using FindToken = absl::FunctionRef<std::optional<int32_t>(absl::string_view)>;

// Sets bos_id and eos_id of `vocabulary`, which come as the tokenizer's own files have them, else
// as the model's configuration says, if that counts: what `config` spells wins. Notes say where
// that and the model's configuration (`facts`) contradict each other.
void ChooseSpecialIds(const TokenizerConfig& config, const TokenizerFacts& facts, FindToken find,
                      Tokenizer::Vocabulary& vocabulary);

}  // namespace mneme
