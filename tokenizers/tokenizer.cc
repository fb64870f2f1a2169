#include "tokenizers/tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "tokenizers/streaming_decoder.h"

namespace mneme {
namespace {

SpecialTokens SpecialTokensOf(const Tokenizer::Vocabulary& vocabulary) {
  std::vector<SpecialTokens::Spelling> spellings;
  for (const SpecialTokens::Token& token : vocabulary.added) {
    spellings.push_back({vocabulary.entries[token.id].piece, token});
  }
  for (size_t id = 0; id < vocabulary.entries.size(); ++id) {
    const TokenEntry& entry = vocabulary.entries[id];
    if (entry.kind != TokenKind::kControl && entry.kind != TokenKind::kUnknown) continue;
    spellings.push_back({entry.piece, {.id = static_cast<int32_t>(id)}});
  }
  return SpecialTokens(std::move(spellings));
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)), special_tokens_(SpecialTokensOf(vocabulary_)) {}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text,
                                                       EncodeOptions options) const {
  if (static_cast<int64_t>(text.size()) > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text has ", text.size(), " bytes, expected at most ", kMaxTextBytes));
  }
  if (const size_t offset = FirstInvalidUtf8(text); offset != text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("text is not valid UTF-8: byte 0x",
                     absl::Hex(static_cast<unsigned char>(text[offset]), absl::kZeroPad2),
                     " at offset ", offset, " starts no complete character"));
  }
  std::vector<int32_t> ids;
  if (options.add_bos && bos_id().has_value()) ids.push_back(*bos_id());
  if (text.empty()) return ids;
  if (options.parse_special) {
    MNEME_RETURN_IF_ERROR(AppendParsed(text, options, ids));
  } else {
    MNEME_RETURN_IF_ERROR(AppendIds(text, options.continuation, ids));
  }
  return ids;
}

absl::Status Tokenizer::AppendParsed(absl::string_view text, EncodeOptions options,
                                     std::vector<int32_t>& ids) const {
  bool continuation = options.continuation;
  for (const SpecialTokens::Part& part : special_tokens_.Split(text, options.has_breaks)) {
    if (!part.text.empty()) {
      MNEME_RETURN_IF_ERROR(AppendIds(part.text, continuation, ids));
      continuation = true;
    }
    if (!part.has_token) continue;
    ids.push_back(part.token.id);
    continuation = !vocabulary_.prefix_after_special;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids,
                                              DecodeOptions options) const {
  std::string text;
  StreamingDecoder decoder(*this, options);
  for (size_t i = 0; i < ids.size(); ++i) {
    MNEME_RETURN_IF_ERROR(CheckId(ids[i], static_cast<int64_t>(i)));
    decoder.Push(ids[i], text);
  }
  decoder.Flush(text);
  return text;
}

absl::Status Tokenizer::CheckId(int64_t id, int64_t index) const {
  if (contains(id)) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("token id ", id, " at index ", index,
                                            " is outside the vocabulary, expected 0 to ",
                                            vocab_size() - 1));
}

}  // namespace mneme
