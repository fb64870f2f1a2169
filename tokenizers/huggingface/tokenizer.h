// Tokenizers of tokenizer.json and of the files before it: a pipeline of parts.
//
//   text -> added tokens cut out -> normalizer -> normalised added tokens cut out -> pre-tokenizer
//        -> model -> ids -> post-processor;   ids -> decoder -> text
//
// Each part is a header of this folder; together they give what the tokenizers package gives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/huggingface/normalizer.h"
#include "tokenizers/huggingface/pre_tokenizer.h"
#include "tokenizers/huggingface/subword_model.h"
#include "tokenizers/huggingface/token_decoder.h"
#include "tokenizers/huggingface/tokenizer_json.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

struct Pipeline {
  struct Added {
    AddedToken token;
    // It is found in normalised text, by its normalised spelling, rather than in the text itself.
    bool normalized = false;
  };
  std::vector<Added> added_tokens;
  std::unique_ptr<Normalizer> normalizer;  // may be null
  PreTokenization pre_tokenization;
  std::unique_ptr<SubwordModel> model;
  std::string model_type;  // "BPE", "WordPiece", "Unigram", "WordLevel"
  TokenDecoder decoder;
  PostProcessor post_processor;
  uint64_t digest = 0;  // of the file's vocabulary, merges and scores, normalizer, pre-tokenizer
};

// The parts that a file like tokenizer.json at `path` has, without added tokens, which not it alone
// decides (added_token_rules.h). Errors name the file, the key, what it holds and what was
// expected; UNIMPLEMENTED: it asks for something that is not supported.
absl::StatusOr<Pipeline> MakePipeline(TokenizerJson file, absl::string_view path);

// `vocab_size` is that of the model's head. Tokens of the pipeline beyond it are never decoded, and
// a text that needs one is refused; rows without a token are padding. `vocabulary` comes with what
// files around the pipeline say: special ids, notes. The rest of it is filled in here.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakePipelineTokenizer(Pipeline pipeline, int vocab_size,
                                                                 Tokenizer::Vocabulary vocabulary);

}  // namespace mneme
