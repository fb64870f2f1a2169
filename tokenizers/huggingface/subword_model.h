// The "model" of tokenizer.json: pieces of text to tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/work_meter.h"
#include "tokenizers/huggingface/pre_tokenizer.h"
#include "tokenizers/huggingface/tokenizer_json.h"

namespace mneme {

// Immutable: any thread may call const members at any time.
class SubwordModel {
 public:
  virtual ~SubwordModel() = default;

  // Appends the ids of `piece`, which is not empty. Errors are those of `meter`, and
  // INVALID_ARGUMENT for a piece that the vocabulary cannot spell and has no unknown token for;
  // BPE that names no unknown token drops such characters, as the tokenizers package does.
  virtual absl::Status Append(absl::string_view piece, WorkMeter& meter,
                              std::vector<int32_t>& ids) const = 0;

  // The spelling of each token, by id, as the file has it; empty where no token has the id.
  const std::vector<std::string>& tokens() const { return tokens_; }
  // The token for text that the vocabulary cannot spell.
  std::optional<int32_t> unk_id() const { return unk_id_; }

 protected:
  SubwordModel(std::vector<std::string> tokens, std::optional<int32_t> unk_id)
      : tokens_(std::move(tokens)), unk_id_(unk_id) {}

 private:
  std::vector<std::string> tokens_;
  std::optional<int32_t> unk_id_;
};

// From the "model" of a file: BPE, WordPiece, Unigram, WordLevel. `alphabet` is that of the pieces;
// `path` names the file in errors, which say the key, what it holds and what was expected.
// INVALID_ARGUMENT as well: no tokens, two of one id or spelling, an id that is not below
// kMaxTokenIds (vocabulary.h), a merge that names or makes what is no token, or has an empty half.
// UNIMPLEMENTED: a type or an option that is not supported (dropout).
absl::StatusOr<std::unique_ptr<SubwordModel>> MakeSubwordModel(TokenizerJson::Model model,
                                                               PieceAlphabet alphabet,
                                                               absl::string_view path);

}  // namespace mneme
