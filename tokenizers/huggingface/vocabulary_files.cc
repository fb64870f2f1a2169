#include "tokenizers/huggingface/vocabulary_files.h"

#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace mneme {
namespace {

using Model = TokenizerJson::Model;

// The next line, without its end; none if `rest` is at its end.
std::optional<absl::string_view> NextLine(absl::string_view& rest) {
  if (rest.empty()) return std::nullopt;
  const size_t end = rest.find('\n');
  absl::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == absl::string_view::npos ? rest.size() : end + 1);
  absl::ConsumeSuffix(&line, "\r");
  return line;
}

absl::Status CheckUtf8(absl::string_view text, absl::string_view path) {
  const size_t invalid = FirstInvalidUtf8(text);
  if (invalid == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ":", LineAndColumn(text, invalid),
                                                 ": not UTF-8 at byte offset ", invalid));
}

// Without Unicode's white space at its end, as Rust's trim_end does.
absl::string_view WithoutSpaceAtEnd(absl::string_view line) {
  // U+0085, U+00A0; U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F, U+3000
  static constexpr absl::string_view kSpaces[] = {
      " ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\u0085", "\u00A0", "\u1680",
      "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008",
      "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"};
  for (bool trimmed = true; trimmed;) {
    trimmed = false;
    for (const absl::string_view space : kSpaces) {
      trimmed = absl::ConsumeSuffix(&line, space) || trimmed;
    }
  }
  return line;
}

}  // namespace

absl::StatusOr<Model> ParseVocabAndMerges(absl::string_view vocab, absl::string_view vocab_path,
                                          absl::string_view merges, absl::string_view merges_path) {
  MNEME_RETURN_IF_ERROR(CheckTokenizerFileSize(merges, merges_path));
  MNEME_RETURN_IF_ERROR(CheckUtf8(merges, merges_path));
  MNEME_ASSIGN_OR_RETURN(Model model, ParseVocabJson(vocab, vocab_path));
  model.options["type"] = "BPE";
  model.has_merges = true;
  absl::string_view rest = model.texts.Add(merges);
  for (int64_t number = 1; const auto line = NextLine(rest); ++number) {
    if (absl::StartsWith(*line, "#version")) continue;
    const absl::StatusOr<Model::Merge> merge = ParseMerge(*line);
    if (!merge.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(merges_path, ":", number, ": ", merge.status().message()));
    }
    model.merges.push_back(*merge);
  }
  return model;
}

absl::StatusOr<Model> ParseVocabText(absl::string_view vocab, absl::string_view vocab_path) {
  MNEME_RETURN_IF_ERROR(CheckTokenizerFileSize(vocab, vocab_path));
  MNEME_RETURN_IF_ERROR(CheckUtf8(vocab, vocab_path));
  Model model;
  model.options = {{"type", "WordPiece"},
                   {"unk_token", "[UNK]"},
                   {"continuing_subword_prefix", "##"},
                   {"max_input_chars_per_word", 100}};
  model.has_vocab = true;
  absl::flat_hash_map<absl::string_view, size_t> places;
  absl::string_view rest = model.texts.Add(vocab);
  for (int32_t id = 0; const auto line = NextLine(rest); ++id) {
    const absl::string_view token = WithoutSpaceAtEnd(*line);
    const auto [place, is_new] = places.try_emplace(token, model.vocab.size());
    if (is_new) {
      model.vocab.push_back({token, id, 0.0});
    } else {
      model.vocab[place->second].id = id;
    }
  }
  return model;
}

}  // namespace mneme
