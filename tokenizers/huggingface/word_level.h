// A vocabulary of whole pieces, as the tokenizers package has it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokenizers/huggingface/subword_model.h"
#include "tokenizers/huggingface/token_table.h"

namespace mneme {

// A piece is a token, or the unknown one.
class WordLevelModel final : public SubwordModel {
 public:
  // As MakeSubwordModel.
  static absl::StatusOr<std::unique_ptr<SubwordModel>> Make(const TokenizerJson::Model& model,
                                                            PieceAlphabet alphabet,
                                                            absl::string_view path);

  absl::Status Append(absl::string_view piece, WorkMeter& meter,
                      std::vector<int32_t>& ids) const override;

 private:
  WordLevelModel(std::vector<std::string> tokens, std::optional<int32_t> unk_id,
                 std::string unk_token, PieceAlphabet alphabet);

  const std::string unk_token_;
  TokenTable by_piece_;
};

}  // namespace mneme
