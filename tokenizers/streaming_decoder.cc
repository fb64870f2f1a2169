#include "tokenizers/streaming_decoder.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/utf8.h"

namespace mneme {

// Bytes to which nothing is added any more.
void StreamingDecoder::AppendFinal(absl::string_view bytes, std::string& text) const {
  while (!bytes.empty()) {
    const size_t valid = FirstInvalidUtf8(bytes);
    absl::StrAppend(&text, bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    if (!tokenizer_->decode_rules().replaces_each_byte) {
      absl::StrAppend(&text, SanitizeUtf8(bytes));
      return;
    }
    absl::StrAppend(&text, kReplacementCharacter);
    bytes.remove_prefix(1);
  }
}

void StreamingDecoder::PushBytes(absl::string_view bytes, std::string& text) {
  // Nearly always there is nothing held, and nothing to hold.
  std::string joined;
  if (held_size_ > 0) {
    joined = absl::StrCat(absl::string_view(held_.data(), held_size_), bytes);
    bytes = joined;
  }
  const size_t final_bytes = CompleteUtf8Prefix(bytes);
  AppendFinal(bytes.substr(0, final_bytes), text);
  std::copy(bytes.begin() + static_cast<int64_t>(final_bytes), bytes.end(), held_.begin());
  held_size_ = static_cast<uint8_t>(bytes.size() - final_bytes);
}

absl::string_view StreamingDecoder::TextOf(int32_t id) {
  const TokenEntry& entry = tokenizer_->entry(id);
  const DecodeRules& rules = tokenizer_->decode_rules();
  absl::string_view piece = entry.text;
  if (!at_start_) return piece;
  const bool has_dummy_prefix =
      entry.kind == TokenKind::kText && absl::StartsWith(entry.piece, Tokenizer::kSpaceSymbol);
  switch (rules.start) {
    case DecodeRules::Start::kSame:
      break;
    case DecodeRules::Start::kStripFirstSpace:
      if (has_dummy_prefix) piece.remove_prefix(1);
      at_start_ = piece.empty() && !has_dummy_prefix;
      return piece;
    case DecodeRules::Start::kStripEverySpace:
      if (has_dummy_prefix) piece.remove_prefix(1);
      at_start_ = piece.empty();
      return piece;
    case DecodeRules::Start::kInitialTexts:
      piece = rules.initial_texts[id];
      break;
    case DecodeRules::Start::kStripOneFromText:
      if (piece.empty()) return piece;
      if (piece[0] == rules.stripped) piece.remove_prefix(1);
      break;
  }
  at_start_ = false;
  return piece;
}

void StreamingDecoder::Push(int32_t id, std::string& text) {
  DCHECK(tokenizer_->contains(id)) << id;
  const TokenEntry& entry = tokenizer_->entry(id);
  const DecodeRules& rules = tokenizer_->decode_rules();
  const bool is_skipped = entry.kind == TokenKind::kControl || entry.kind == TokenKind::kPadding
                              ? skip_special_tokens_ || entry.text.empty()
                              : false;
  if (is_skipped) {
    if (!rules.joins_across_skipped) Flush(text);
    return;
  }
  if (held_before_next_ > 0) {
    const absl::string_view last = tokenizer_->entry(held_token_).text;
    PushBytes(last.substr(last.size() - held_before_next_), text);
    held_before_next_ = 0;
  }
  absl::string_view piece = TextOf(id);
  if (!rules.bytes_before_next.empty()) {
    held_before_next_ = rules.bytes_before_next[id];
    held_token_ = id;
    piece.remove_suffix(held_before_next_);
  }
  PushBytes(piece, text);
}

void StreamingDecoder::Flush(std::string& text) {
  held_before_next_ = 0;
  if (held_size_ == 0) return;
  AppendFinal(absl::string_view(held_.data(), held_size_), text);
  held_size_ = 0;
}

}  // namespace mneme
