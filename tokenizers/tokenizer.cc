#include "tokenizers/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "tokenizers/rules_digest.h"
#include "tokenizers/streaming_decoder.h"

namespace mneme {
namespace {

using Item = PostProcessor::Item;

absl::Status CheckText(absl::string_view text) {
  if (static_cast<int64_t>(text.size()) > Tokenizer::kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text has ", text.size(), " bytes, expected at most ", Tokenizer::kMaxTextBytes));
  }
  const size_t offset = FirstInvalidUtf8(text);
  if (offset == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("text is not valid UTF-8: byte 0x",
                   absl::Hex(static_cast<unsigned char>(text[offset]), absl::kZeroPad2),
                   " at offset ", offset, " starts no complete character"));
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)), added_tokens_(vocabulary_.added) {}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text,
                                                       EncodeOptions options) const {
  WorkMeter meter;
  return Encode(text, options, meter);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text,
                                                       EncodeOptions options,
                                                       WorkMeter& meter) const {
  std::vector<int32_t> ids;
  bool behind_text = false;
  for (const Item& item : vocabulary_.post_processor.single) {
    if (item.kind == Item::Kind::kText) {
      MNEME_RETURN_IF_ERROR(AppendText(text, options, meter, ids));
      behind_text = true;
    } else if (behind_text ? options.add_eos : options.add_bos) {
      ids.push_back(item.id);
    }
  }
  return ids;
}

absl::StatusOr<Tokenizer::Pair> Tokenizer::EncodePair(absl::string_view text,
                                                      absl::string_view pair, EncodeOptions options,
                                                      WorkMeter& meter) const {
  const bool adds = options.add_bos || options.add_eos;
  std::vector<int32_t> first;
  MNEME_RETURN_IF_ERROR(AppendText(text, options, meter, first));
  std::vector<int32_t> second;
  MNEME_RETURN_IF_ERROR(AppendText(pair, options, meter, second));
  Pair out;
  for (const Item& item : vocabulary_.post_processor.pair) {
    if (item.kind == Item::Kind::kToken) {
      if (adds) out.ids.push_back(item.id);
    } else {
      const std::vector<int32_t>& ids = item.kind == Item::Kind::kText ? first : second;
      out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    }
    out.type_ids.resize(out.ids.size(), item.type_id);
  }
  return out;
}

absl::Status Tokenizer::AppendText(absl::string_view text, const EncodeOptions& options,
                                   WorkMeter& meter, std::vector<int32_t>& ids) const {
  MNEME_RETURN_IF_ERROR(CheckText(text));
  if (text.empty()) return absl::OkStatus();
  TextOptions how = {
      .continuation = options.continuation, .parse_special = options.parse_special, .breaks = {}};
  const size_t begin = ids.size();
  if (options.has_breaks) {
    const UnbrokenText unbroken = TakeOutBreaks(text);
    if (unbroken.text.empty()) return absl::OkStatus();
    how.breaks = unbroken.breaks;
    MNEME_RETURN_IF_ERROR(AppendIds(unbroken.text, how, meter, ids));
  } else {
    MNEME_RETURN_IF_ERROR(AppendIds(text, how, meter, ids));
  }
  const auto beyond = std::find_if(ids.begin() + static_cast<int64_t>(begin), ids.end(),
                                   [this](int32_t id) { return !contains(id); });
  if (beyond == ids.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("text has the token ", *beyond,
                   ", for which the model has no row: its vocab_size is ", vocab_size()));
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

uint64_t Tokenizer::digest() const {
  RulesDigest digest;
  digest.Add(kind()).Add(vocabulary_.rules_digest).Add(uint64_t{vocabulary_.entries.size()});
  for (const TokenEntry& entry : vocabulary_.entries) {
    digest.Add(entry.piece).Add(static_cast<uint64_t>(entry.kind));
  }
  AddToDigest(added_tokens_.tokens(), digest);
  return digest.Finish();
}

std::vector<int32_t> Tokenizer::PaddingIds() const {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (entry(id).kind == TokenKind::kPadding) ids.push_back(id);
  }
  return ids;
}

absl::Status Tokenizer::CheckId(int64_t id, int64_t index) const {
  if (contains(id)) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("token id ", id, " at index ", index,
                                            " is outside the vocabulary, expected 0 to ",
                                            vocab_size() - 1));
}

}  // namespace mneme
