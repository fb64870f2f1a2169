#include "tokenizers/huggingface/word_piece.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/config_reader.h"
#include "base/status_macros.h"
#include "tokenizers/huggingface/model_options.h"
#include "tokenizers/huggingface/vocabulary.h"

namespace mneme {

absl::StatusOr<std::unique_ptr<SubwordModel>> WordPieceModel::Make(
    const TokenizerJson::Model& model, PieceAlphabet alphabet, absl::string_view path) {
  const std::string model_path = absl::StrCat(path, ": model");
  constexpr const char* kMaxCharacters = "max_input_chars_per_word";
  ConfigReader reader(model.options, model_path);
  Options options;
  options.unk_token = RequiredString(reader, "unk_token");
  options.prefix = RequiredString(reader, "continuing_subword_prefix");
  if (!reader.Has(kMaxCharacters)) reader.Invalid(kMaxCharacters, nullptr, "an integer");
  options.max_characters =
      static_cast<size_t>(reader.Int(kMaxCharacters, 0, 0, std::numeric_limits<int32_t>::max()));
  MNEME_RETURN_IF_ERROR(reader.status());
  MNEME_RETURN_IF_ERROR(CheckHasIds(model, model_path));
  MNEME_ASSIGN_OR_RETURN(Vocabulary vocabulary, MakeVocabulary(model, model_path));
  const std::optional<int32_t> unk_id = IdOf(vocabulary.by_spelling, options.unk_token);
  return std::unique_ptr<SubwordModel>(
      new WordPieceModel(std::move(vocabulary.by_id), unk_id, std::move(options), alphabet));
}

WordPieceModel::WordPieceModel(std::vector<std::string> tokens, std::optional<int32_t> unk_id,
                               Options options, PieceAlphabet alphabet)
    : SubwordModel(std::move(tokens), unk_id), options_(std::move(options)), alphabet_(alphabet) {
  const auto trie_of = [&](absl::string_view prefix) {
    TextArena pieces;
    std::vector<ByteTrie::Entry> entries;
    for (size_t id = 0; id < this->tokens().size(); ++id) {
      absl::string_view spelling = this->tokens()[id];
      if (!absl::ConsumePrefix(&spelling, prefix)) continue;
      if (const auto piece = PieceOf(spelling, alphabet_)) {
        entries.push_back({pieces.Add(*piece), static_cast<int32_t>(id)});
      }
    }
    return ByteTrie(std::move(entries));
  };
  beginnings_ = trie_of("");
  continuations_ = trie_of(options_.prefix);
}

size_t WordPieceModel::Characters(absl::string_view piece) const {
  if (alphabet_ == PieceAlphabet::kBytes) return piece.size();
  return static_cast<size_t>(std::count_if(piece.begin(), piece.end(), [](char c) {
    return (static_cast<uint8_t>(c) & 0xC0) != 0x80;  // no later byte of a character
  }));
}

absl::Status WordPieceModel::Append(absl::string_view piece, WorkMeter& meter,
                                    std::vector<int32_t>& ids) const {
  MNEME_RETURN_IF_ERROR(meter.AddBytes(piece.size()));
  const size_t known = ids.size();
  bool is_spelled = Characters(piece) <= options_.max_characters;
  for (absl::string_view rest = piece; is_spelled && !rest.empty();) {
    const ByteTrie& trie = rest.size() == piece.size() ? beginnings_ : continuations_;
    int64_t steps = 0;
    const ByteTrie::Match match = trie.Longest(rest, steps);
    MNEME_RETURN_IF_ERROR(meter.Add(1 + steps / 8));
    if (match.bytes == 0) {
      is_spelled = false;
    } else {
      ids.push_back(match.value);
      rest.remove_prefix(match.bytes);
    }
  }
  if (is_spelled) return absl::OkStatus();
  ids.resize(known);
  if (!unk_id().has_value()) return NoUnknownToken(piece, options_.unk_token);
  ids.push_back(*unk_id());
  return absl::OkStatus();
}

}  // namespace mneme
