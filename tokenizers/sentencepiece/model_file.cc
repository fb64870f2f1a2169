#include "tokenizers/sentencepiece/model_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "tokenizers/sentencepiece/charsmap.h"

namespace mneme {
namespace {

using PieceType = SentencePieceModelFile::PieceType;

// Field numbers of sentencepiece_model.proto.
constexpr uint32_t kModelPieces = 1, kModelTrainer = 2, kModelNormalizer = 3, kModelSelfTest = 4,
                   kModelDenormalizer = 5;
constexpr uint32_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;
constexpr uint32_t kTrainerModelType = 3, kTrainerByteFallback = 35, kTrainerUnkSurface = 44;
constexpr uint64_t kModelTypeWord = 3;
constexpr uint32_t kNormalizerCharsmap = 2, kNormalizerDummyPrefix = 3,
                   kNormalizerRemoveExtraWhitespaces = 4, kNormalizerEscapeWhitespaces = 5;

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint32_t number = 0;
  uint32_t wire_type = 0;
  uint64_t value = 0;         // kVarint, kFixed64, kFixed32
  absl::string_view payload;  // kBytes
  absl::string_view raw;      // the whole field, tag included
};

// Iterates over the fields of one message.
class FieldReader {
 public:
  explicit FieldReader(absl::string_view bytes) : bytes_(bytes) {}

  // False at the end of the message and at the first malformed field; ok() tells which.
  bool Next(Field& field) {
    if (offset_ == bytes_.size()) return false;
    const size_t begin = offset_;
    uint64_t tag = 0;
    ok_ = ReadVarint(tag) && tag <= UINT32_MAX && (tag >> 3) != 0;
    if (!ok_) return false;
    field = {};
    field.number = static_cast<uint32_t>(tag >> 3);
    field.wire_type = static_cast<uint32_t>(tag & 7);
    switch (field.wire_type) {
      case kVarint:
        ok_ = ReadVarint(field.value);
        break;
      case kFixed64:
        ok_ = ReadFixed(8, field.value);
        break;
      case kFixed32:
        ok_ = ReadFixed(4, field.value);
        break;
      case kBytes: {
        uint64_t size = 0;
        ok_ = ReadVarint(size) && size <= bytes_.size() - offset_;
        if (ok_) {
          field.payload = bytes_.substr(offset_, size);
          offset_ += size;
        }
        break;
      }
      default:  // groups, which the format never had
        ok_ = false;
    }
    field.raw = bytes_.substr(begin, offset_ - begin);
    return ok_;
  }

  bool ok() const { return ok_; }

 private:
  bool ReadVarint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (offset_ == bytes_.size()) return false;
      const auto byte = static_cast<uint8_t>(bytes_[offset_++]);
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool ReadFixed(size_t size, uint64_t& value) {
    if (bytes_.size() - offset_ < size) return false;
    std::memcpy(&value, bytes_.data() + offset_, size);  // little-endian, as every host we run on
    offset_ += size;
    return true;
  }

  absl::string_view bytes_;
  size_t offset_ = 0;
  bool ok_ = true;
};

absl::Status Malformed(absl::string_view where) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a SentencePiece model: malformed protocol buffer in ", where));
}

// A field that the library would skip as unknown, because its wire type is another one, would be
// read by neither or by only one of us. No tool writes that.
absl::Status WrongType(absl::string_view name) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a SentencePiece model: field ", name, " has the wrong type"));
}

// The byte of "<0xAB>", upper case as SentencePiece writes it.
std::optional<uint8_t> ParseBytePiece(absl::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>' || digit(text[3]) < 0 ||
      digit(text[4]) < 0) {
    return std::nullopt;
  }
  return static_cast<uint8_t>(digit(text[3]) * 16 + digit(text[4]));
}

absl::StatusOr<SentencePieceModelFile::Piece> ParsePiece(absl::string_view bytes, size_t id) {
  SentencePieceModelFile::Piece piece;
  FieldReader reader(bytes);
  for (Field field; reader.Next(field);) {
    if (field.number == kPieceText) {
      if (field.wire_type != kBytes) return WrongType("pieces.piece");
      piece.text = std::string(field.payload);
    } else if (field.number == kPieceScore) {
      if (field.wire_type != kFixed32) return WrongType("pieces.score");
      float score = 0;
      const auto bits = static_cast<uint32_t>(field.value);
      std::memcpy(&score, &bits, sizeof(score));
      if (!std::isfinite(score)) {
        return absl::InvalidArgumentError(
            absl::StrCat("piece ", id, " has score ", score, ", expected a finite number"));
      }
    } else if (field.number == kPieceType) {
      if (field.wire_type != kVarint) return WrongType("pieces.type");
      if (field.value < 1 || field.value > 6) {
        return absl::InvalidArgumentError(
            absl::StrCat("piece ", id, " has type ", field.value, ", expected 1 to 6"));
      }
      piece.type = static_cast<PieceType>(field.value);
    }
  }
  if (!reader.ok()) return Malformed(absl::StrCat("piece ", id));
  if (piece.text.empty() || piece.text.size() > SentencePieceModelFile::kMaxPieceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("piece ", id, " has ", piece.text.size(),
                                                   " bytes, expected 1 to ",
                                                   SentencePieceModelFile::kMaxPieceBytes));
  }
  if (!IsValidUtf8(piece.text)) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece ", id, " \"", absl::CHexEscape(piece.text), "\" is not valid UTF-8"));
  }
  if (piece.text.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece ", id, " \"", absl::CHexEscape(piece.text), "\" contains a NUL"));
  }
  if (piece.type == PieceType::kByte) {
    const std::optional<uint8_t> byte = ParseBytePiece(piece.text);
    if (!byte.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "piece ", id, " is \"", absl::CEscape(piece.text), "\", expected a byte as \"<0x0A>\""));
    }
    piece.byte = *byte;
  }
  return piece;
}

absl::Status ParseTrainer(absl::string_view bytes, SentencePieceModelFile& model) {
  FieldReader reader(bytes);
  for (Field field; reader.Next(field);) {
    if (field.number == kTrainerUnkSurface) {
      if (field.wire_type != kBytes) return WrongType("trainer_spec.unk_surface");
      // The library hands it on as a C string.
      model.unk_surface = std::string(field.payload.substr(0, field.payload.find('\0')));
      if (!IsValidUtf8(model.unk_surface)) {
        return absl::InvalidArgumentError("trainer_spec.unk_surface is not valid UTF-8");
      }
    } else if (field.number == kTrainerByteFallback) {
      if (field.wire_type != kVarint) return WrongType("trainer_spec.byte_fallback");
      model.byte_fallback = field.value != 0;
    } else if (field.number == kTrainerModelType) {
      if (field.wire_type != kVarint) return WrongType("trainer_spec.model_type");
      // The library finds control pieces in the text of such models, and then fails.
      if (field.value == kModelTypeWord) {
        return absl::UnimplementedError(
            "trainer_spec.model_type is WORD, expected UNIGRAM, BPE or CHAR");
      }
    }
  }
  return reader.ok() ? absl::OkStatus() : Malformed("trainer_spec");
}

absl::Status ParseNormalizer(absl::string_view bytes, SentencePieceModelFile& model,
                             absl::string_view& charsmap) {
  FieldReader reader(bytes);
  for (Field field; reader.Next(field);) {
    const bool is_flag =
        field.number >= kNormalizerDummyPrefix && field.number <= kNormalizerEscapeWhitespaces;
    if ((is_flag && field.wire_type != kVarint) ||
        (field.number == kNormalizerCharsmap && field.wire_type != kBytes)) {
      return WrongType(absl::StrCat("normalizer_spec field ", field.number));
    }
    if (field.number == kNormalizerCharsmap) {
      charsmap = field.payload;
    } else if (field.number == kNormalizerDummyPrefix) {
      model.add_dummy_prefix = field.value != 0;
    } else if (field.number == kNormalizerRemoveExtraWhitespaces) {
      model.remove_extra_whitespaces = field.value != 0;
    }
  }
  return reader.ok() ? absl::OkStatus() : Malformed("normalizer_spec");
}

absl::Status CheckDenormalizer(absl::string_view bytes) {
  FieldReader reader(bytes);
  for (Field field; reader.Next(field);) {
    if (field.number == kNormalizerCharsmap && !field.payload.empty()) {
      return absl::UnimplementedError(
          "the model has a denormaliser (denormalizer_spec.precompiled_charsmap), which is not "
          "supported");
    }
  }
  return reader.ok() ? absl::OkStatus() : Malformed("denormalizer_spec");
}

// The library looks up all user-defined pieces that start at a position in an array of 64.
absl::Status CheckUserDefinedNesting(const std::vector<SentencePieceModelFile::Piece>& pieces) {
  constexpr size_t kMaxNesting = 32;
  std::vector<absl::string_view> texts;
  for (const auto& piece : pieces) {
    if (piece.type == PieceType::kUserDefined) texts.push_back(piece.text);
  }
  std::sort(texts.begin(), texts.end());
  std::vector<absl::string_view> open;  // each a prefix of the next
  for (const absl::string_view text : texts) {
    while (!open.empty() && text.substr(0, open.back().size()) != open.back()) open.pop_back();
    open.push_back(text);
    if (open.size() > kMaxNesting) {
      return absl::InvalidArgumentError(
          absl::StrCat("user-defined piece \"", absl::CEscape(text.substr(0, 64)),
                       "\" starts with more than ", kMaxNesting - 1, " others"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckVocabulary(const std::vector<SentencePieceModelFile::Piece>& pieces) {
  if (pieces.empty()) {
    return absl::InvalidArgumentError("not a SentencePiece model: it has no pieces");
  }
  absl::flat_hash_set<absl::string_view> seen;
  size_t unknowns = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!seen.insert(pieces[id].text).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "piece ", id, " \"", absl::CEscape(pieces[id].text), "\" is in the vocabulary twice"));
    }
    unknowns += pieces[id].type == PieceType::kUnknown ? 1 : 0;
  }
  if (unknowns != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has ", unknowns, " unknown pieces, expected 1"));
  }
  return CheckUserDefinedNesting(pieces);
}

}  // namespace

absl::StatusOr<SentencePieceModelFile> ParseSentencePieceModel(absl::string_view bytes) {
  if (bytes.size() > SentencePieceModelFile::kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the file has ", bytes.size(),
                                                   " bytes, expected at most ",
                                                   SentencePieceModelFile::kMaxFileBytes));
  }
  SentencePieceModelFile model;
  absl::string_view charsmap;
  FieldReader reader(bytes);
  for (Field field; reader.Next(field);) {
    if (field.number > kModelDenormalizer) {
      continue;  // extensions
    }
    if (field.wire_type != kBytes) return WrongType(absl::StrCat(field.number, " of the model"));
    if (field.number == kModelPieces) {
      MNEME_ASSIGN_OR_RETURN(auto piece, ParsePiece(field.payload, model.pieces.size()));
      model.pieces.push_back(std::move(piece));
    } else if (field.number == kModelTrainer) {
      MNEME_RETURN_IF_ERROR(ParseTrainer(field.payload, model));
    } else if (field.number == kModelNormalizer) {
      MNEME_RETURN_IF_ERROR(ParseNormalizer(field.payload, model, charsmap));
    } else if (field.number == kModelDenormalizer) {
      MNEME_RETURN_IF_ERROR(CheckDenormalizer(field.payload));
    }
  }
  if (!reader.ok()) return Malformed("the model");
  MNEME_RETURN_IF_ERROR(CheckVocabulary(model.pieces));
  MNEME_RETURN_IF_ERROR(CheckCharsmap(charsmap));
  return model;
}

std::string WithWhitespaceRules(absl::string_view bytes, bool add_dummy_prefix,
                                bool remove_extra_whitespaces) {
  std::string changed;
  changed.reserve(bytes.size() + 8);
  FieldReader reader(bytes);
  for (Field field; reader.Next(field);) {
    if (field.number != kModelSelfTest) changed.append(field.raw.data(), field.raw.size());
  }
  // A message that occurs twice is merged, and its last value of a field wins.
  const char rules[] = {
      static_cast<char>(kModelNormalizer << 3 | kBytes),
      4,
      static_cast<char>(kNormalizerDummyPrefix << 3 | kVarint),
      static_cast<char>(add_dummy_prefix ? 1 : 0),
      static_cast<char>(kNormalizerRemoveExtraWhitespaces << 3 | kVarint),
      static_cast<char>(remove_extra_whitespaces ? 1 : 0),
  };
  changed.append(rules, sizeof(rules));
  return changed;
}

}  // namespace mneme
