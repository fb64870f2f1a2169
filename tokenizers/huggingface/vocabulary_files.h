// Vocabularies from before tokenizer.json, as its "model".
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/huggingface/tokenizer_json.h"

namespace mneme {

// GPT-2's vocab.json and merges.txt as the "model" of type BPE that they are. Lines of merges.txt
// that begin with "#version" are no merges, wherever they stand; any other has two halves.
absl::StatusOr<TokenizerJson::Model> ParseVocabAndMerges(absl::string_view vocab,
                                                         absl::string_view vocab_path,
                                                         absl::string_view merges,
                                                         absl::string_view merges_path);

// BERT's vocab.txt, a token on each line, as the "model" of type WordPiece that it is, with BERT's
// options: unk_token "[UNK]", continuing_subword_prefix "##", words of 100 characters. White space
// at the end of a line is no part of its token. Of lines that are the same the last counts, and the
// ids of the others have no token.
absl::StatusOr<TokenizerJson::Model> ParseVocabText(absl::string_view vocab,
                                                    absl::string_view vocab_path);

}  // namespace mneme
