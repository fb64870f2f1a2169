// tokenizer.json, as the tokenizers package writes it. Its vocabulary is read without a tree of
// values: a file of 150,000 tokens has 10 MB.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/huggingface/text_arena.h"

namespace mneme {

struct TokenizerJson {
  // "model". Which of the lists are filled follows from what the file holds, not from the type.
  struct Model {
    // Its keys without vocab and merges: type, unk_token, ...
    nlohmann::json options = nlohmann::json::object();
    struct Token {
      absl::string_view text;  // in `texts`; UTF-8
      int32_t id = 0;          // not negative: of "vocab", an object; the index, if it is a list
      double score = 0.0;      // of "vocab", a list of [text, score]
    };
    // Nothing is promised of two that have the same text or id: models refuse what they cannot use.
    std::vector<Token> vocab;
    bool has_vocab = false;
    bool has_scores = false;  // "vocab" is a list
    struct Merge {
      absl::string_view left, right;  // in `texts`; UTF-8
    };
    // "merges", in their order: pairs, or strings with one space between their halves.
    std::vector<Merge> merges;
    bool has_merges = false;
    TextArena texts;
  };
  Model model;
  // The other keys of the file: added_tokens, normalizer, pre_tokenizer, post_processor, decoder,
  // truncation, padding, version.
  nlohmann::json rest = nlohmann::json::object();
};

// Longer files are refused: the largest vocabularies that are in use have 35 MB.
inline constexpr int64_t kMaxTokenizerFileBytes = int64_t{256} << 20;

// `text` is that of the file at `path`. INVALID_ARGUMENT names the file, the key, what it holds and
// what was expected; also for a key that occurs twice, except in "vocab", where the model says so.
absl::StatusOr<TokenizerJson> ParseTokenizerJson(absl::string_view text, absl::string_view path);

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

// The number that the tokenizers package reads where a JSON text has `number`, a valid one: its
// parser rounds more than once, and the last bit decides between segmentations of equal score.
double ReferenceNumber(absl::string_view number);

}  // namespace mneme
