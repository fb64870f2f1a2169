#include "tokenizers/streaming_decoder.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/utf8.h"

namespace mneme {

void StreamingDecoder::PushByte(uint8_t byte, std::string& text) {
  held_[held_size_++] = static_cast<char>(byte);
  const absl::string_view held(held_.data(), held_size_);
  const size_t final_bytes = CompleteUtf8Prefix(held);
  for (absl::string_view rest = held.substr(0, final_bytes); !rest.empty();) {
    const size_t valid = FirstInvalidUtf8(rest);
    absl::StrAppend(&text, rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (!rest.empty()) {
      absl::StrAppend(&text, kReplacementCharacter);
      rest.remove_prefix(1);
    }
  }
  std::copy(held.begin() + final_bytes, held.end(), held_.begin());
  held_size_ = static_cast<uint8_t>(held.size() - final_bytes);
}

void StreamingDecoder::Push(int32_t id, std::string& text) {
  DCHECK(tokenizer_->contains(id)) << id;
  const TokenEntry& entry = tokenizer_->entry(id);
  if (entry.kind == TokenKind::kByte) {
    at_start_ = false;
    PushByte(static_cast<uint8_t>(entry.text[0]), text);
    return;
  }
  Flush(text);
  absl::string_view piece = entry.text;
  if (entry.kind == TokenKind::kControl || entry.kind == TokenKind::kPadding) {
    piece = skip_special_tokens_ ? absl::string_view() : absl::string_view(entry.piece);
  } else if (entry.kind == TokenKind::kText && at_start_ &&
             absl::StartsWith(entry.piece, Tokenizer::kSpaceSymbol)) {
    if (tokenizer_->strip_every_space()) {
      piece.remove_prefix(1);
    } else if (tokenizer_->strip_first_space()) {
      piece.remove_prefix(1);
      at_start_ = false;
    }
  }
  if (!piece.empty()) at_start_ = false;
  absl::StrAppend(&text, piece);
}

void StreamingDecoder::Flush(std::string& text) {
  for (; held_size_ > 0; --held_size_) absl::StrAppend(&text, kReplacementCharacter);
}

}  // namespace mneme
