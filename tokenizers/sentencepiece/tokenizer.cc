#include "tokenizers/sentencepiece/tokenizer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "tokenizers/rules_digest.h"
#include "tokenizers/sentencepiece/library.h"

namespace mneme {
namespace {

using PieceType = SentencePieceModelFile::PieceType;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceEncoder> encoder, Vocabulary vocabulary,
                         bool prefix_after_special)
      : Tokenizer(std::move(vocabulary)),
        encoder_(std::move(encoder)),
        prefix_after_special_(prefix_after_special) {}

  absl::string_view kind() const override { return "sentencepiece"; }

 protected:
  absl::Status AppendIds(absl::string_view text, const TextOptions& options, WorkMeter& meter,
                         std::vector<int32_t>& ids) const override {
    bool continuation = options.continuation;
    for (const AddedTokens::Part& part :
         added_tokens().Split(text, options.parse_special, options.breaks)) {
      MNEME_RETURN_IF_ERROR(meter.Look());  // the library cannot be interrupted
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
        continuation = !prefix_after_special_;
      } else {
        MNEME_RETURN_IF_ERROR(encoder_->AppendIds(part.text, continuation, ids));
        continuation = true;
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<SentencePieceEncoder> encoder_;
  const bool prefix_after_special_;
};

// Takes the first character off `text`, which is valid UTF-8: its bytes in one integer.
uint32_t TakeCharacter(absl::string_view& text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  const size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint32_t character = 0;
  for (size_t i = 0; i < size; ++i) character = character << 8 | static_cast<uint8_t>(text[i]);
  text.remove_prefix(size);
  return character;
}

TokenEntry MakeEntry(const SentencePieceModelFile::Piece& piece, absl::string_view unk_surface) {
  TokenEntry entry{.piece = piece.text, .text = {}, .kind = TokenKind::kText};
  switch (piece.type) {
    case PieceType::kByte:
      entry.kind = TokenKind::kBytes;
      entry.text = std::string(1, static_cast<char>(piece.byte));
      break;
    case PieceType::kControl:
      entry.kind = TokenKind::kControl;
      entry.text = piece.text;
      break;
    case PieceType::kUnknown:
      entry.kind = TokenKind::kUnknown;
      entry.text = std::string(unk_surface);
      break;
    case PieceType::kNormal:
    case PieceType::kUserDefined:
    case PieceType::kUnused:
      entry.text = PieceText(piece.text);
      break;
  }
  return entry;
}

}  // namespace

std::string PieceText(absl::string_view piece) {
  return absl::StrReplaceAll(piece, {{Tokenizer::kSpaceSymbol, " "}});
}

absl::StatusOr<SentencePieceEncoder::Model> SentencePieceEncoder::LoadModel(
    absl::string_view bytes) const {
  char error[512] = "";
  Model model(api_->load(bytes.data(), bytes.size(), error, sizeof(error)),
              ModelDeleter{api_->free_model});
  if (model == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("SentencePiece refuses the model: ", SanitizeUtf8(error)));
  }
  return model;
}

absl::StatusOr<std::unique_ptr<SentencePieceEncoder>> SentencePieceEncoder::Load(
    absl::string_view bytes, const SentencePieceModelFile& file) {
  MNEME_ASSIGN_OR_RETURN(const mneme_sentencepiece_api* api, SentencePieceLibrary());
  std::unique_ptr<SentencePieceEncoder> encoder(new SentencePieceEncoder(api));
  MNEME_ASSIGN_OR_RETURN(encoder->start_, encoder->LoadModel(bytes));

  // Ids are positions in our reading of the file; the library's must be the same.
  encoder->piece_count_ = api->piece_count(encoder->start_.get());
  if (static_cast<size_t>(encoder->piece_count_) != file.pieces.size()) {
    return absl::InvalidArgumentError(absl::StrCat("SentencePiece reads ", encoder->piece_count_,
                                                   " pieces, expected ", file.pieces.size()));
  }
  for (int id = 0; id < encoder->piece_count_; ++id) {
    size_t size = 0;
    const char* piece = api->piece(encoder->start_.get(), id, &size);
    if (absl::string_view(piece, size) != file.pieces[id].text) {
      return absl::InvalidArgumentError(
          absl::StrCat("SentencePiece reads piece ", id, " as \"", absl::CHexEscape({piece, size}),
                       "\", expected \"", absl::CHexEscape(file.pieces[id].text), "\""));
    }
  }

  for (const auto& piece : file.pieces) {
    absl::string_view rest = piece.text;
    const uint32_t character = TakeCharacter(rest);
    const bool spells = piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined;
    if (!file.byte_fallback && spells && rest.empty()) encoder->characters_.insert(character);
  }
  if (absl::string_view space = Tokenizer::kSpaceSymbol;
      encoder->characters_.contains(TakeCharacter(space))) {
    encoder->characters_.insert(' ');
  }

  const auto load = [&](bool add_dummy_prefix, bool remove_extra_whitespaces) {
    return encoder->LoadModel(
        WithWhitespaceRules(bytes, add_dummy_prefix, remove_extra_whitespaces));
  };
  if (file.add_dummy_prefix) {
    MNEME_ASSIGN_OR_RETURN(encoder->continuation_, load(false, file.remove_extra_whitespaces));
  }
  if (file.remove_extra_whitespaces) {
    MNEME_ASSIGN_OR_RETURN(encoder->spaced_, load(true, true));
    MNEME_ASSIGN_OR_RETURN(encoder->bare_, load(false, false));
  }
  return encoder;
}

absl::StatusOr<bool> SentencePieceEncoder::StartsWithSpace(absl::string_view text) const {
  // A short beginning will do, unless normalising leaves nothing of it.
  for (size_t size = 64;; size *= 4) {
    absl::string_view head = text.substr(0, size);
    head = head.substr(0, CompleteUtf8Prefix(head));
    char error[512] = "";
    const int found =
        api_->starts_with_space(bare_.get(), head.data(), head.size(), error, sizeof(error));
    if (found == -2) {
      return absl::InternalError(absl::StrCat("SentencePiece: ", SanitizeUtf8(error)));
    }
    if (found >= 0 || head.size() == text.size()) return found == 1;
  }
}

absl::Status SentencePieceEncoder::CheckUnknownRuns(absl::string_view text) const {
  int run = 0;
  for (absl::string_view rest = text; !characters_.empty() && !rest.empty();) {
    run = characters_.contains(TakeCharacter(rest)) ? 0 : run + 1;
    if (run > kMaxUnknownRun) {
      return absl::InvalidArgumentError(
          absl::StrCat("text has more than ", kMaxUnknownRun,
                       " characters in a row that are not in the vocabulary, up to offset ",
                       text.size() - rest.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status SentencePieceEncoder::AppendIds(absl::string_view text, bool continuation,
                                             std::vector<int32_t>& ids) const {
  MNEME_RETURN_IF_ERROR(CheckUnknownRuns(text));
  const mneme_sentencepiece_model* model = start_.get();
  if (continuation) {
    bool starts_with_space = false;
    if (bare_ != nullptr) {
      MNEME_ASSIGN_OR_RETURN(starts_with_space, StartsWithSpace(text));
    }
    if (starts_with_space) {
      model = spaced_.get();
    } else if (continuation_ != nullptr) {
      model = continuation_.get();
    }
  }
  mneme_sentencepiece_ids found = {};
  char error[512] = "";
  if (api_->encode(model, text.data(), text.size(), &found, error, sizeof(error)) == 0) {
    return absl::InternalError(absl::StrCat("SentencePiece: ", SanitizeUtf8(error)));
  }
  const bool in_range = std::all_of(found.ids, found.ids + found.size,
                                    [this](int32_t id) { return id >= 0 && id < piece_count_; });
  if (in_range) ids.insert(ids.end(), found.ids, found.ids + found.size);
  api_->free_ids(&found);
  return in_range ? absl::OkStatus()
                  : absl::InternalError("SentencePiece gave an id outside its vocabulary");
}

std::optional<int32_t> SentencePieceEncoder::bos_id() const {
  const int id = api_->bos_id(start_.get());
  return id >= 0 && id < piece_count_ ? std::optional<int32_t>(id) : std::nullopt;
}

std::optional<int32_t> SentencePieceEncoder::eos_id() const {
  const int id = api_->eos_id(start_.get());
  return id >= 0 && id < piece_count_ ? std::optional<int32_t>(id) : std::nullopt;
}

Tokenizer::Vocabulary SentencePieceVocabulary(const SentencePieceModelFile& file,
                                              const SentencePieceEncoder& encoder) {
  Tokenizer::Vocabulary vocabulary;
  vocabulary.entries.reserve(file.pieces.size());
  for (const auto& piece : file.pieces) {
    if (piece.type == PieceType::kUnknown) {
      vocabulary.unk_id = static_cast<int32_t>(vocabulary.entries.size());
    }
    vocabulary.entries.push_back(MakeEntry(piece, file.unk_surface));
  }
  vocabulary.bos_id = encoder.bos_id();
  vocabulary.eos_id = encoder.eos_id();
  vocabulary.adds_bos = vocabulary.bos_id.has_value();
  vocabulary.decode.start = file.remove_extra_whitespaces ? DecodeRules::Start::kStripEverySpace
                            : file.add_dummy_prefix       ? DecodeRules::Start::kStripFirstSpace
                                                          : DecodeRules::Start::kSame;
  vocabulary.decode.replaces_each_byte = true;
  vocabulary.decode.joins_across_skipped = false;
  return vocabulary;
}

std::unique_ptr<Tokenizer> MakeSentencePieceTokenizer(std::unique_ptr<SentencePieceEncoder> encoder,
                                                      Tokenizer::Vocabulary vocabulary,
                                                      bool prefix_after_special) {
  vocabulary.rules_digest =
      RulesDigest().Add(vocabulary.rules_digest).Add(prefix_after_special ? 1 : 0).Finish();
  return std::make_unique<SentencePieceTokenizer>(std::move(encoder), std::move(vocabulary),
                                                  prefix_after_special);
}

}  // namespace mneme
