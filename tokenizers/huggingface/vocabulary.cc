#include "tokenizers/huggingface/vocabulary.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "tokenizers/huggingface/byte_alphabet.h"

namespace mneme {
namespace {

absl::Status Refused(absl::string_view path, absl::string_view token, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": vocab: token ", Shown(std::string(token)), " ", what));
}

}  // namespace

absl::StatusOr<Vocabulary> MakeVocabulary(const TokenizerJson::Model& model,
                                          absl::string_view path) {
  if (model.vocab.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, model.has_vocab ? ": vocab is empty" : ": has no key \"vocab\"",
                     ", expected the tokens of a vocabulary"));
  }
  int32_t largest = 0;
  for (const auto& token : model.vocab) {
    if (token.id >= kMaxTokenIds) {
      return Refused(path, token.text,
                     absl::StrCat("has the id ", token.id, ", expected one below ", kMaxTokenIds));
    }
    largest = std::max(largest, token.id);
  }
  Vocabulary vocabulary = {.by_id = std::vector<std::string>(static_cast<size_t>(largest) + 1),
                           .by_spelling = TokenTable(model.vocab.size())};
  std::vector<bool> is_taken(vocabulary.by_id.size());
  for (size_t i = 0; i < model.vocab.size(); ++i) {
    const auto& token = model.vocab[i];
    if (i + TokenTable::kAhead < model.vocab.size()) {
      vocabulary.by_spelling.Prefetch(model.vocab[i + TokenTable::kAhead].text);
    }
    std::string& place = vocabulary.by_id[token.id];
    if (is_taken[token.id]) {
      return Refused(path, token.text,
                     absl::StrCat("has the id ", token.id, ", which token ", Shown(place),
                                  " has, too; expected one token for each id"));
    }
    is_taken[token.id] = true;
    place.assign(token.text.data(), token.text.size());
    if (model.has_scores) {
      vocabulary.by_spelling.InsertOrAssign(token.text, token.id);
    } else if (!vocabulary.by_spelling.Insert(token.text, token.id)) {
      return Refused(path, token.text, "occurs twice");
    }
  }
  return vocabulary;
}

std::optional<std::string> PieceOf(absl::string_view spelling, PieceAlphabet alphabet) {
  if (alphabet == PieceAlphabet::kBytes) return FromByteAlphabet(spelling);
  return std::string(spelling);
}

std::array<int32_t, 256> ByteTokens(const TokenTable& by_spelling) {
  std::array<int32_t, 256> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens[byte] = by_spelling.Find(absl::StrFormat("<0x%02X>", byte));
  }
  return tokens;
}

}  // namespace mneme
