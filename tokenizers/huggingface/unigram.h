// Unigram, as the tokenizers package does it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokenizers/byte_trie.h"
#include "tokenizers/huggingface/subword_model.h"

namespace mneme {

// The segmentation of a piece whose scores have the largest sum; a character that is no token
// scores less than any token does. A run of unknown characters becomes one unknown token, or the
// tokens of its bytes ("<0xE2>") with byte_fallback and if there are all of them. Memory is linear
// in the piece.
class UnigramModel final : public SubwordModel {
 public:
  // As MakeSubwordModel.
  static absl::StatusOr<std::unique_ptr<SubwordModel>> Make(const TokenizerJson::Model& model,
                                                            PieceAlphabet alphabet,
                                                            absl::string_view path);

  absl::Status Append(absl::string_view piece, WorkMeter& meter,
                      std::vector<int32_t>& ids) const override;

 private:
  // The best path that ends at a byte.
  struct Node {
    double score = 0.0;
    int32_t id = 0;      // its last token
    int32_t begin = -1;  // where that begins; -1: no path ends here
  };

  UnigramModel(std::vector<std::string> tokens, std::optional<int32_t> unk_id, bool byte_fallback,
               std::vector<double> scores, PieceAlphabet alphabet,
               const std::array<int32_t, 256>& byte_tokens);

  // Best paths to every byte; nodes[0] is the start.
  absl::Status FindPaths(absl::string_view piece, WorkMeter& meter, std::span<Node> nodes) const;
  void AppendUnknown(absl::string_view run, std::vector<int32_t>& ids) const;

  const std::vector<double> scores_;  // by id
  const bool byte_fallback_;
  const PieceAlphabet alphabet_;
  const double unknown_score_;
  const std::array<int32_t, 256> byte_tokens_;
  ByteTrie by_piece_;
};

}  // namespace mneme
