// WordPiece, as the tokenizers package does it for BERT.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizers/byte_trie.h"
#include "tokenizers/huggingface/subword_model.h"

namespace mneme {

// The longest token that a piece begins with, then the longest continuation of what is left, and so
// on. A piece that is left with something that no token begins, or that has too many characters, is
// the unknown token as a whole.
class WordPieceModel final : public SubwordModel {
 public:
  // As MakeSubwordModel.
  static absl::StatusOr<std::unique_ptr<SubwordModel>> Make(const TokenizerJson::Model& model,
                                                            PieceAlphabet alphabet,
                                                            absl::string_view path);

  absl::Status Append(absl::string_view piece, WorkMeter& meter,
                      std::vector<int32_t>& ids) const override;

 private:
  struct Options {
    std::string unk_token;
    std::string prefix;  // of continuations
    size_t max_characters = 0;
  };

  WordPieceModel(std::vector<std::string> tokens, std::optional<int32_t> unk_id, Options options,
                 PieceAlphabet alphabet);

  size_t Characters(absl::string_view piece) const;

  const Options options_;
  const PieceAlphabet alphabet_;
  ByteTrie beginnings_, continuations_;  // the latter without their prefix
};

}  // namespace mneme
