#include "tokenizers/byte_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace mneme {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(Vocabulary vocabulary) : Tokenizer(std::move(vocabulary)) {}

  absl::string_view kind() const override { return "bytes"; }

 protected:
  absl::Status AppendIds(absl::string_view text, const TextOptions& options, WorkMeter& meter,
                         std::vector<int32_t>& ids) const override {
    for (const AddedTokens::Part& part :
         added_tokens().Split(text, options.parse_special, options.breaks)) {
      if (part.token != nullptr) ids.push_back(part.token->id);
      // One by one: room for each part exactly would be made anew each time.
      for (const char c : part.text) ids.push_back(static_cast<unsigned char>(c));
    }
    return meter.AddBytes(text.size());
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeByteTokenizer(int64_t vocab_size,
                                                             std::optional<int32_t> bos_id,
                                                             std::optional<int32_t> eos_id,
                                                             std::vector<std::string> notes) {
  if (!FitsByteTokenizer(vocab_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the byte tokenizer needs a vocab_size of ", kByteTokenizerMinVocabSize,
                     " to ", kByteTokenizerMaxVocabSize, ", the model has ", vocab_size));
  }
  Tokenizer::Vocabulary vocabulary;
  vocabulary.notes = std::move(notes);
  vocabulary.entries.resize(static_cast<size_t>(vocab_size));
  for (int id = 0; id < vocab_size; ++id) {
    TokenEntry& entry = vocabulary.entries[id];
    if (id < 256) {
      entry.kind = TokenKind::kBytes;
      entry.piece = absl::StrFormat("<0x%02X>", id);
      entry.text = std::string(1, static_cast<char>(id));
    } else {
      entry.kind = TokenKind::kControl;
      entry.piece = absl::StrCat("<|", id, "|>");
    }
  }
  const auto special = [&](absl::string_view name, std::optional<int32_t> id) {
    if (id.has_value() && *id < 256) {
      vocabulary.notes.push_back(absl::StrCat(name, " ", *id,
                                              " is a byte of the byte tokenizer, "
                                              "which therefore has no such special token"));
      return std::optional<int32_t>();
    }
    return id;
  };
  vocabulary.bos_id = special("bos_token_id", bos_id);
  vocabulary.eos_id = special("eos_token_id", eos_id);
  if (vocabulary.bos_id.has_value()) vocabulary.entries[*vocabulary.bos_id].piece = "<s>";
  if (vocabulary.eos_id.has_value()) vocabulary.entries[*vocabulary.eos_id].piece = "</s>";
  if (vocabulary.bos_id.has_value()) {
    vocabulary.post_processor = PostProcessor::Prefix(*vocabulary.bos_id);
    vocabulary.adds_bos = true;
  }
  for (int id = 256; id < vocab_size; ++id) {
    TokenEntry& entry = vocabulary.entries[id];
    entry.text = entry.piece;
    vocabulary.added.push_back({.id = id, .text = entry.piece});
  }
  vocabulary.decode.replaces_each_byte = true;
  vocabulary.decode.joins_across_skipped = false;
  return std::unique_ptr<Tokenizer>(new ByteTokenizer(std::move(vocabulary)));
}

}  // namespace mneme
