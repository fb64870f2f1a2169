// Reads a SentencePiece `tokenizer.model` without SentencePiece: a small protocol-buffer message of
// which the vocabulary and a few flags matter here.
//
// The library trusts such a file: offsets in its normalisation table are followed unchecked, nested
// user-defined pieces overrun an array. So nothing reaches it that did not pass through here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

struct SentencePieceModelFile {
  // Values of the file format.
  enum class PieceType : uint8_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };
  struct Piece {
    std::string text;  // valid UTF-8, 1 to kMaxPieceBytes bytes
    PieceType type = PieceType::kNormal;
    uint8_t byte = 0;  // of a kByte piece
  };

  static constexpr size_t kMaxFileBytes = size_t{256} << 20;
  static constexpr size_t kMaxPieceBytes = 4096;

  std::vector<Piece> pieces;  // by id; exactly one is kUnknown, no two are spelled alike
  std::string unk_surface = " \xE2\x81\x87 ";
  bool byte_fallback = false;  // what the vocabulary cannot spell becomes bytes, not kUnknown
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
};

// INVALID_ARGUMENT says what is wrong and where; UNIMPLEMENTED names a feature that changes
// decoding and is not supported (a denormaliser). Never aborts, whatever the bytes.
absl::StatusOr<SentencePieceModelFile> ParseSentencePieceModel(absl::string_view bytes);

// The same model with other white space rules, as bytes for the library. Its self-test samples are
// left out, because they hold for the original rules only. `bytes` must have passed the parser.
std::string WithWhitespaceRules(absl::string_view bytes, bool add_dummy_prefix,
                                bool remove_extra_whitespaces);

}  // namespace mneme
