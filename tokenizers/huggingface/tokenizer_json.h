// tokenizer.json, as the tokenizers package writes it. Its vocabulary is read without a tree of
// values: a file of 150,000 tokens has 10 MB.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
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

// GPT-2's vocab.json: an object from tokens to ids. The model has that "vocab" and nothing else.
absl::StatusOr<TokenizerJson::Model> ParseVocabJson(absl::string_view text, absl::string_view path);

// "left right", both in `text`. INVALID_ARGUMENT: "is ..., expected ...".
absl::StatusOr<TokenizerJson::Model::Merge> ParseMerge(absl::string_view text);

// INVALID_ARGUMENT: longer than kMaxTokenizerFileBytes.
absl::Status CheckTokenizerFileSize(absl::string_view text, absl::string_view path);

}  // namespace mneme
