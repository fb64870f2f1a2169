#include "tokenizers/huggingface/bpe.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/config_reader.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "tokenizers/huggingface/byte_alphabet.h"
#include "tokenizers/huggingface/model_options.h"

namespace mneme {

absl::StatusOr<BpeModel::Options> BpeModel::ReadOptions(const nlohmann::json& options,
                                                        const std::string& path) {
  ConfigReader reader(options, path);
  Options read;
  read.unk_token = NullableString(reader, "unk_token");
  read.prefix = NullableString(reader, "continuing_subword_prefix").value_or("");
  read.suffix = NullableString(reader, "end_of_word_suffix").value_or("");
  read.fuse_unk = BoolOrFalse(reader, "fuse_unk");
  read.byte_fallback = BoolOrFalse(reader, "byte_fallback");
  read.ignore_merges = BoolOrFalse(reader, "ignore_merges");
  if (!reader.IsNull("dropout")) {
    const nlohmann::json& dropout = *reader.Find("dropout");
    if (!dropout.is_number()) {
      reader.Invalid("dropout", dropout, "null or 0");
    } else if (dropout.get<double>() != 0.0) {
      reader.Unsupported("dropout", dropout, "null or 0");
    }
  }
  MNEME_RETURN_IF_ERROR(reader.status());
  return read;
}

absl::StatusOr<MergeTable> BpeModel::ReadMerges(const TokenizerJson::Model& model,
                                                const Vocabulary& vocabulary, size_t prefix_bytes,
                                                absl::string_view path) {
  const auto& [by_id, by_spelling] = vocabulary;
  struct Found {
    int32_t left, right, id;
  };
  std::vector<Found> found;
  found.reserve(model.merges.size());
  std::string whole;
  int32_t previous = -1;
  for (size_t i = 0; i < model.merges.size(); ++i) {
    const absl::string_view left = model.merges[i].left, right = model.merges[i].right;
    if (i + TokenTable::kAhead < model.merges.size()) {
      const auto& ahead = model.merges[i + TokenTable::kAhead];
      by_spelling.Prefetch(ahead.left);
      by_spelling.Prefetch(ahead.right);
    }
    const auto refused = [&, &left = left, &right = right](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": merges[", i, "] is ",
                                                     Shown(std::string(left)), " and ",
                                                     Shown(std::string(right)), "; ", what));
    };
    if (left.empty() || right.size() <= prefix_bytes) {
      return refused(prefix_bytes == 0
                         ? "expected two tokens that are not empty"
                         : "expected two tokens, and more than continuing_subword_prefix behind");
    }
    whole.assign(left.data(), left.size());
    whole.append(right.data() + prefix_bytes, right.size() - prefix_bytes);
    const int32_t left_id = by_spelling.Find(left);
    const int32_t right_id = by_spelling.Find(right);
    // Tokens that merges make are listed in their order, mostly.
    const auto next = static_cast<size_t>(previous + 1);
    const int32_t id = next < by_id.size() && by_id[next] == whole ? static_cast<int32_t>(next)
                                                                   : by_spelling.Find(whole);
    previous = id;
    if (left_id < 0 || right_id < 0 || id < 0) {
      const absl::string_view missing = left_id < 0 ? left : right_id < 0 ? right : whole;
      return refused(absl::StrCat(Shown(std::string(missing)),
                                  id < 0 && left_id >= 0 && right_id >= 0
                                      ? ", which they make, is not in the vocabulary"
                                      : " is not in the vocabulary"));
    }
    found.push_back({left_id, right_id, id});
  }
  MergeTable merges(found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (i + TokenTable::kAhead < found.size()) {
      const Found& ahead = found[i + TokenTable::kAhead];
      merges.Prefetch(ahead.left, ahead.right);
    }
    merges.Set(found[i].left, found[i].right,
               {.rank = static_cast<uint32_t>(i), .id = found[i].id});
  }
  return merges;
}

absl::StatusOr<std::unique_ptr<SubwordModel>> BpeModel::Make(const TokenizerJson::Model& model,
                                                             PieceAlphabet alphabet,
                                                             absl::string_view path) {
  const std::string model_path = absl::StrCat(path, ": model");
  MNEME_ASSIGN_OR_RETURN(Options options, ReadOptions(model.options, model_path));
  if (!model.has_merges) {
    return absl::InvalidArgumentError(
        absl::StrCat(model_path, ": has no key \"merges\", expected those of its type, BPE"));
  }
  MNEME_RETURN_IF_ERROR(CheckHasIds(model, model_path));
  MNEME_ASSIGN_OR_RETURN(Vocabulary vocabulary, MakeVocabulary(model, model_path));
  MNEME_ASSIGN_OR_RETURN(MergeTable merges,
                         ReadMerges(model, vocabulary, options.prefix.size(), model_path));
  const std::optional<int32_t> unk_id = IdOf(vocabulary.by_spelling, options.unk_token);
  return std::unique_ptr<SubwordModel>(
      new BpeModel(std::move(vocabulary.by_id), unk_id, std::move(options), alphabet,
                   std::move(vocabulary.by_spelling), std::move(merges)));
}

BpeModel::BpeModel(std::vector<std::string> tokens, std::optional<int32_t> unk_id, Options options,
                   PieceAlphabet alphabet, TokenTable by_spelling, MergeTable merges)
    : SubwordModel(std::move(tokens), unk_id),
      options_(std::move(options)),
      alphabet_(alphabet),
      by_spelling_(std::move(by_spelling)),
      merges_(std::move(merges)),
      byte_tokens_(ByteTokens(by_spelling_)),
      merges_to_itself_(new std::atomic<Whole>[this->tokens().size()]()) {
  for (const bool is_first : {false, true}) {
    for (const bool is_last : {false, true}) {
      const Place place = {is_first, is_last};
      for (int byte = 0; byte < 256; ++byte) {
        const char character = static_cast<char>(byte);
        byte_symbols_[place.index()][byte] =
            byte >= 0x80 && alphabet_ == PieceAlphabet::kText
                ? -1
                : by_spelling_.Find(Spelled({&character, 1}, place));
      }
    }
  }
  const bool ignores_apart = options_.ignore_merges && !options_.suffix.empty();
  if (ignores_apart) ignore_ = TokenTable(this->tokens().size());
  shares_spelling_ = alphabet_ == PieceAlphabet::kText && options_.suffix.empty();
  if (shares_spelling_) return;
  whole_ = TokenTable(this->tokens().size());
  // A ring of those that were asked for ahead.
  std::array<std::pair<std::string, int32_t>, TokenTable::kAhead> ring;
  size_t made = 0;
  const auto insert = [&](const std::pair<std::string, int32_t>& piece) {
    if (!piece.first.empty()) whole_.Insert(piece.first, piece.second);
  };
  for (size_t i = 0; i < this->tokens().size(); ++i) {
    absl::string_view spelling = this->tokens()[i];
    const auto id = static_cast<int32_t>(i);
    if (spelling.empty()) continue;  // no token, or one that no piece is
    if (ignores_apart) {
      if (const auto piece = PieceOf(spelling, alphabet_)) ignore_.Insert(*piece, id);
    }
    if (!absl::ConsumeSuffix(&spelling, options_.suffix)) continue;
    if (auto piece = PieceOf(spelling, alphabet_)) {
      auto& place = ring[made++ % ring.size()];
      insert(place);
      whole_.Prefetch(*piece);
      place = {*std::move(piece), id};
    }
  }
  for (const auto& piece : ring) insert(piece);
  // Only characters of more than one byte are looked for by their spelling.
  if (alphabet_ == PieceAlphabet::kBytes) by_spelling_ = TokenTable();
}

std::string BpeModel::Spelled(absl::string_view character, Place place) const {
  return absl::StrCat(place.is_first ? "" : options_.prefix,
                      alphabet_ == PieceAlphabet::kBytes ? InByteAlphabet(character) : character,
                      place.is_last ? options_.suffix : "");
}

absl::Status BpeModel::AppendSymbols(absl::string_view piece, SymbolBuffer& symbols) const {
  const bool is_bytes = alphabet_ == PieceAlphabet::kBytes;
  const bool is_plain = options_.prefix.empty() && options_.suffix.empty();
  int waiting_unknown = 0;  // the reference puts one out only once it sees what follows
  for (size_t at = 0, end; at < piece.size(); at = end) {
    end = at + (is_bytes ? 1 : CharacterBytes(piece.substr(at)));
    const Place place = {.is_first = at == 0, .is_last = end == piece.size()};
    const absl::string_view character = piece.substr(at, end - at);
    int32_t id = byte_symbols_[place.index()][static_cast<uint8_t>(character[0])];
    if (character.size() > 1) {
      id = is_plain ? by_spelling_.Find(character) : by_spelling_.Find(Spelled(character, place));
    }
    if (id >= 0) {
      if (waiting_unknown > 0) symbols.push_back(*unk_id());
      waiting_unknown = 0;
      symbols.push_back(id);
      continue;
    }
    if (options_.byte_fallback) {
      const std::string spelled = Spelled(character, place);
      const auto token_of = [&](char byte) { return byte_tokens_[static_cast<uint8_t>(byte)]; };
      if (std::all_of(spelled.begin(), spelled.end(), [&](char c) { return token_of(c) >= 0; })) {
        for (const char byte : spelled) symbols.push_back(token_of(byte));
        continue;
      }
    }
    if (!options_.unk_token.has_value()) continue;
    if (!unk_id().has_value()) {
      return NoUnknownToken(character, *options_.unk_token);
    }
    if (waiting_unknown > 0 && !options_.fuse_unk) symbols.push_back(*unk_id());
    waiting_unknown = 1;
  }
  if (waiting_unknown > 0) symbols.push_back(*unk_id());
  return absl::OkStatus();
}

absl::StatusOr<bool> BpeModel::MergesToItself(absl::string_view piece, int32_t id,
                                              WorkMeter& meter) const {
  std::atomic<Whole>& known = merges_to_itself_[id];
  const Whole whole = known.load(std::memory_order_relaxed);
  if (whole != Whole::kUnknown) return whole == Whole::kYes;
  // Whoever else looks at the same time finds the same.
  SymbolBuffer symbols;
  MNEME_RETURN_IF_ERROR(AppendSymbols(piece, symbols));
  MNEME_RETURN_IF_ERROR(MergeSymbols(merges_, meter, symbols));
  const bool is_itself = symbols.size() == 1 && symbols.front() == id;
  known.store(is_itself ? Whole::kYes : Whole::kNo, std::memory_order_relaxed);
  return is_itself;
}

absl::Status BpeModel::Append(absl::string_view piece, WorkMeter& meter,
                              std::vector<int32_t>& ids) const {
  const bool ignores_apart = options_.ignore_merges && !options_.suffix.empty();
  if (ignores_apart) {
    if (const int32_t id = ignore_.Find(piece); id >= 0) {
      ids.push_back(id);
      return meter.Add(1);
    }
  }
  if (const int32_t id = whole().Find(piece); id >= 0) {
    bool is_itself = options_.ignore_merges && !ignores_apart;
    if (!is_itself) {
      MNEME_ASSIGN_OR_RETURN(is_itself, MergesToItself(piece, id, meter));
    }
    if (is_itself) {
      ids.push_back(id);
      return meter.Add(1);
    }
  }
  SymbolBuffer symbols;
  MNEME_RETURN_IF_ERROR(AppendSymbols(piece, symbols));
  MNEME_RETURN_IF_ERROR(MergeSymbols(merges_, meter, symbols));
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  return absl::OkStatus();
}

}  // namespace mneme
