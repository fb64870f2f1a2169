// Byte pair encoding, as the tokenizers package does it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizers/huggingface/merge_table.h"
#include "tokenizers/huggingface/subword_model.h"
#include "tokenizers/huggingface/symbol_merger.h"
#include "tokenizers/huggingface/token_table.h"
#include "tokenizers/huggingface/vocabulary.h"

namespace mneme {

// A piece becomes symbols, one for each character, which are merged. A character that is no token
// becomes the tokens of its bytes ("<0xE2>"), with byte_fallback and if there are all of them; else
// the unknown token; else, if the model names none, nothing. A piece that is a token whole needs
// one look-up: whether merging gives that token is found out when it is first met.
class BpeModel final : public SubwordModel {
 public:
  // As MakeSubwordModel.
  static absl::StatusOr<std::unique_ptr<SubwordModel>> Make(const TokenizerJson::Model& model,
                                                            PieceAlphabet alphabet,
                                                            absl::string_view path);

  absl::Status Append(absl::string_view piece, WorkMeter& meter,
                      std::vector<int32_t>& ids) const override;

 private:
  struct Options {
    std::optional<std::string> unk_token;
    std::string prefix, suffix;
    bool fuse_unk = false;
    bool byte_fallback = false;
    bool ignore_merges = false;
  };
  // Where in a piece a character is: it is spelled with the prefix unless it is the first, and with
  // the suffix if it is the last.
  struct Place {
    bool is_first, is_last;
    size_t index() const { return (is_first ? 1 : 0) + (is_last ? 2 : 0); }
  };

  BpeModel(std::vector<std::string> tokens, std::optional<int32_t> unk_id, Options options,
           PieceAlphabet alphabet, TokenTable by_spelling, MergeTable merges);

  static absl::StatusOr<Options> ReadOptions(const nlohmann::json& options,
                                             const std::string& path);
  static absl::StatusOr<MergeTable> ReadMerges(const TokenizerJson::Model& model,
                                               const Vocabulary& vocabulary, size_t prefix_bytes,
                                               absl::string_view path);

  const TokenTable& whole() const { return shares_spelling_ ? by_spelling_ : whole_; }
  // As the vocabulary spells `character`, which is of a piece.
  std::string Spelled(absl::string_view character, Place place) const;
  absl::Status AppendSymbols(absl::string_view piece, SymbolBuffer& symbols) const;
  // Whether merging `piece`, which is the whole token `id`, gives just that.
  absl::StatusOr<bool> MergesToItself(absl::string_view piece, int32_t id, WorkMeter& meter) const;

  const Options options_;
  const PieceAlphabet alphabet_;
  TokenTable by_spelling_;  // for characters of more than one byte
  const MergeTable merges_;
  std::array<int32_t, 256> byte_tokens_;
  // Ids of characters of one byte: any byte in kBytes, ASCII in kText; -1: none. By Place::index().
  std::array<std::array<int32_t, 256>, 4> byte_symbols_;
  // Tokens by the piece that each is, with the suffix at its end: by_spelling_, if the pieces are
  // text and there is no suffix.
  bool shares_spelling_ = false;
  TokenTable whole_;
  TokenTable ignore_;  // with ignore_merges and a suffix: tokens by the piece that they spell
  // The results of MergesToItself, by id.
  enum class Whole : uint8_t { kUnknown, kYes, kNo };
  const std::unique_ptr<std::atomic<Whole>[]> merges_to_itself_;
};

}  // namespace mneme
