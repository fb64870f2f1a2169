#include "tokenizers/huggingface/word_level.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/config_reader.h"
#include "base/status_macros.h"
#include "tokenizers/huggingface/model_options.h"
#include "tokenizers/huggingface/vocabulary.h"

namespace mneme {

absl::StatusOr<std::unique_ptr<SubwordModel>> WordLevelModel::Make(
    const TokenizerJson::Model& model, PieceAlphabet alphabet, absl::string_view path) {
  const std::string model_path = absl::StrCat(path, ": model");
  ConfigReader reader(model.options, model_path);
  std::string unk_token = RequiredString(reader, "unk_token");
  MNEME_RETURN_IF_ERROR(reader.status());
  MNEME_RETURN_IF_ERROR(CheckHasIds(model, model_path));
  MNEME_ASSIGN_OR_RETURN(Vocabulary vocabulary, MakeVocabulary(model, model_path));
  const std::optional<int32_t> unk_id = IdOf(vocabulary.by_spelling, unk_token);
  return std::unique_ptr<SubwordModel>(
      new WordLevelModel(std::move(vocabulary.by_id), unk_id, std::move(unk_token), alphabet));
}

WordLevelModel::WordLevelModel(std::vector<std::string> tokens, std::optional<int32_t> unk_id,
                               std::string unk_token, PieceAlphabet alphabet)
    : SubwordModel(std::move(tokens), unk_id),
      unk_token_(std::move(unk_token)),
      by_piece_(this->tokens().size()) {
  for (size_t id = 0; id < this->tokens().size(); ++id) {
    const std::string& spelling = this->tokens()[id];
    if (spelling.empty()) continue;  // no token, or one that no piece is
    if (const auto piece = PieceOf(spelling, alphabet)) {
      by_piece_.Insert(*piece, static_cast<int32_t>(id));
    }
  }
}

absl::Status WordLevelModel::Append(absl::string_view piece, WorkMeter& meter,
                                    std::vector<int32_t>& ids) const {
  MNEME_RETURN_IF_ERROR(meter.AddBytes(piece.size()));
  const int32_t id = by_piece_.Find(piece);
  if (id < 0 && !unk_id().has_value()) return NoUnknownToken(piece, unk_token_);
  ids.push_back(id < 0 ? *unk_id() : id);
  return absl::OkStatus();
}

}  // namespace mneme
