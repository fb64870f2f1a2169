// Text to token ids and back.
//
// What users are promised:
//
// - Encoding gives the ids that the SentencePiece package gives for the same model, bit for bit.
//   Text that is not UTF-8 is an error that names the offset. NUL and other control characters are
//   ordinary text. No EOS is ever appended.
// - BOS comes only when asked for (`add_bos`), which callers do at position 0 of a session.
// - Special tokens are looked for in text only when asked for (`parse_special`): otherwise "<s>" in
//   a prompt is three characters, not BOS, so a user cannot forge control tokens. (A model's
//   user-defined pieces, such as "<|user|>", are part of its vocabulary, and SentencePiece finds
//   them in text as it does everywhere.) Where they are looked for, ids are those of the
//   transformers package's LlamaTokenizer: control tokens, the unknown piece and added tokens
//   (tokenizer_config.json) are found by their spelling, the longest first, and take the white
//   space along that they strip. Text behind one has the dummy prefix once more where
//   tokenizer_config.json says legacy: true, or says nothing, and none with legacy: false; behind a
//   spelled BOS, too. BOS is added (`add_bos`) whether or not the text spells one.
// - Text that continues a session is encoded with `continuation`: the space that SentencePiece puts
//   in front of a text (its dummy prefix) is not repeated, so "mem" followed by "ory" is the text
//   "memory". Spaces that the user wrote are kept as far as the model's normaliser keeps spaces at
//   all: a model that squeezes white space keeps one of a run in front of a continuation, and none
//   at the end of a text.
// - Decoding gives UTF-8, always valid. Control ids (BOS, EOS, padding rows) give nothing unless
//   `skip_special_tokens` is off; the unknown piece gives the surface that the model has for it
//   (" ⁇ "); byte pieces are joined into characters, and every byte that belongs to no
//   character becomes one U+FFFD. At the start of a sequence the dummy prefix's space is removed
//   again.
// - StreamingDecoder (streaming_decoder.h) gives the same text piece by piece.
//
// All of it is immutable after loading: any thread may call any const member at any time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/special_tokens.h"

namespace mneme {

enum class TokenKind : uint8_t {
  kText,     // stands for its text
  kByte,     // one byte, possibly a part of a character
  kControl,  // BOS, EOS and the like: no text
  kUnknown,  // what the vocabulary could not spell
  kPadding,  // a row that the model has and the tokenizer does not; nothing encodes to it
};

// One row of the vocabulary.
struct TokenEntry {
  std::string piece;  // as the vocabulary spells it: "▁the", "<0x0A>", "<s>"
  std::string text;   // what it stands for: " the", "\n", ""; kByte: exactly one byte
  TokenKind kind = TokenKind::kText;
};

struct EncodeOptions {
  bool add_bos = false;  // put BOS in front; no effect on a tokenizer without one
  // The text follows other tokens of the same session; BOS alone is not one.
  bool continuation = false;
  // Special tokens that the text spells are these tokens.
  bool parse_special = false;
  // With parse_special: spellings that are text were marked by SpecialTokens::Broken, and the marks
  // are no part of the text.
  bool has_breaks = false;
};

struct DecodeOptions {
  bool skip_special_tokens = true;  // false: control pieces are spelled out, "<s>"
  bool at_sequence_start = true;    // false: a leading space is text, as in the middle of a session
};

class Tokenizer {
 public:
  // Longer texts are refused. SentencePiece takes about 100 bytes of memory for each byte of text.
  static constexpr int64_t kMaxTextBytes = int64_t{64} << 20;
  // U+2581, which stands for a space in the spelling of SentencePiece's pieces.
  static constexpr absl::string_view kSpaceSymbol = "\xE2\x96\x81";

  struct Vocabulary {
    std::vector<TokenEntry> entries;  // [vocab_size]
    std::optional<int32_t> bos_id, eos_id, unk_id;
    bool adds_bos = false;  // whether prompts start with BOS unless the request says otherwise
    // Which spaces of the dummy prefix a decoder removes at the start of a sequence.
    bool strip_first_space = false;  // one
    bool strip_every_space = false;  // as long as there was no text
    // Tokens that are special besides control tokens and the unknown piece, and what they strip.
    std::vector<SpecialTokens::Token> added;
    // Text behind a special token that a text spells has a dummy prefix, as text at a start has.
    bool prefix_after_special = true;
    std::vector<std::string> notes;  // oddities of the files that did not prevent loading
  };

  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // INVALID_ARGUMENT: not UTF-8 (names the byte offset), or longer than kMaxTextBytes.
  // An empty text gives no ids but the BOS asked for.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              EncodeOptions options = {}) const;

  // OUT_OF_RANGE: an id outside [0, vocab_size()); the message names id, index and range.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids,
                                     DecodeOptions options = {}) const;

  // Rows of the model's embedding, so every id that it can sample is a valid argument below.
  int vocab_size() const { return static_cast<int>(vocabulary_.entries.size()); }
  bool contains(int64_t id) const { return id >= 0 && id < vocab_size(); }
  // OK, or the error that Decode gives for an id outside the vocabulary.
  absl::Status CheckId(int64_t id, int64_t index) const;

  const TokenEntry& entry(int32_t id) const { return vocabulary_.entries[id]; }
  std::optional<int32_t> bos_id() const { return vocabulary_.bos_id; }
  std::optional<int32_t> eos_id() const { return vocabulary_.eos_id; }
  std::optional<int32_t> unk_id() const { return vocabulary_.unk_id; }
  bool adds_bos() const { return vocabulary_.adds_bos; }
  bool strip_first_space() const { return vocabulary_.strip_first_space; }
  bool strip_every_space() const { return vocabulary_.strip_every_space; }
  const SpecialTokens& special_tokens() const { return special_tokens_; }

  // For the log at start-up: whole sentences without a final stop.
  const std::vector<std::string>& notes() const { return vocabulary_.notes; }
  // "sentencepiece" or "bytes".
  virtual absl::string_view kind() const = 0;

 protected:
  explicit Tokenizer(Vocabulary vocabulary);

  // Appends the ids of `text`, which is valid UTF-8 and not empty.
  virtual absl::Status AppendIds(absl::string_view text, bool continuation,
                                 std::vector<int32_t>& ids) const = 0;

 private:
  absl::Status AppendParsed(absl::string_view text, EncodeOptions options,
                            std::vector<int32_t>& ids) const;

  const Vocabulary vocabulary_;
  const SpecialTokens special_tokens_;
};

}  // namespace mneme
