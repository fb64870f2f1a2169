#include "models/tokenizer.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "models/streaming_decoder.h"

namespace mneme {

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
  if (!text.empty()) MNEME_RETURN_IF_ERROR(AppendIds(text, options.continuation, ids));
  return ids;
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
