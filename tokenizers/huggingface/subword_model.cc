#include "tokenizers/huggingface/subword_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/config_reader.h"
#include "base/status_macros.h"
#include "tokenizers/huggingface/bpe.h"
#include "tokenizers/huggingface/unigram.h"
#include "tokenizers/huggingface/word_level.h"
#include "tokenizers/huggingface/word_piece.h"

namespace mneme {
namespace {

// Files of before types were written have none: the reference takes the first that the keys fit.
std::string TypeByKeys(const TokenizerJson::Model& model) {
  if (model.has_merges) return "BPE";
  if (model.has_scores) return "Unigram";
  return model.options.contains("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

}  // namespace

absl::StatusOr<std::unique_ptr<SubwordModel>> MakeSubwordModel(TokenizerJson::Model model,
                                                               PieceAlphabet alphabet,
                                                               absl::string_view path) {
  ConfigReader reader(model.options, absl::StrCat(path, ": model"));
  const std::string type = reader.String("type", TypeByKeys(model));
  MNEME_RETURN_IF_ERROR(reader.status());
  if (type == "BPE") return BpeModel::Make(model, alphabet, path);
  if (type == "WordLevel") return WordLevelModel::Make(model, alphabet, path);
  if (type == "WordPiece") return WordPieceModel::Make(model, alphabet, path);
  if (type == "Unigram") return UnigramModel::Make(model, alphabet, path);
  reader.Unsupported("type", type, "BPE, WordPiece, Unigram or WordLevel");
  return reader.status();
}

}  // namespace mneme
