// Text to token ids and back.
//
// Users are promised:
//
// - Encoding gives the ids that the package gives which the files were made for, bit for bit:
//   SentencePiece for tokenizer.model, Hugging Face's tokenizers for tokenizer.json and its
//   forerunners, RWKV's own for its World vocabulary. Text that is not UTF-8 is an error that names
//   the offset. NUL and other control characters are ordinary text.
// - BOS, or whatever else the files put in front of a text, comes only when asked for (`add_bos`),
//   which callers do at position 0 of a session; what they put behind it, such as [SEP], comes only
//   when asked for, too (`add_eos`), which nobody does whose text is to be continued.
// - Special tokens are looked for in text only when asked for (`parse_special`): otherwise "<s>" in
//   a prompt is three characters, not BOS, so a user cannot forge control tokens. Added tokens that
//   are not special, such as "<think>", and pieces that a SentencePiece model calls user-defined
//   are ordinary vocabulary, which is found in text everywhere.
// - With a SentencePiece model ids of special tokens are those of the transformers package's
//   LlamaTokenizer: control tokens, the unknown piece and added tokens (tokenizer_config.json) are
//   found by their spelling, the longest first, and take the white space along that they strip.
//   Text behind one has the dummy prefix once more where tokenizer_config.json says legacy: true,
//   or says nothing, and none with legacy: false; behind a spelled BOS, too. BOS is added
//   (`add_bos`) whether or not the text spells one.
// - Text that continues a session is encoded with `continuation`: what a tokenizer puts in front of
//   a text by itself (SentencePiece's dummy prefix; "prepend" and "add_prefix_space" of
//   tokenizer.json) is not repeated, so "mem" followed by "ory" is the text "memory". Spaces that
//   the user wrote are kept as far as the model's normaliser keeps spaces at all: a model that
//   squeezes white space keeps one of a run in front of a continuation, and none at the end of a
//   text.
// - Decoding gives UTF-8, always valid. Special tokens give nothing unless `skip_special_tokens` is
//   off, ids without a token nothing at all. Tokens of bytes are joined into characters. Of bytes
//   that belong to no character each becomes one U+FFFD where a model falls back to bytes
//   ("<0x0A>"), and each maximal ill-formed part where all tokens are bytes. What a decoder does to
//   the first token of a text (no space in front) it does at the start of a sequence only.
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
#include "base/work_meter.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/post_processor.h"

namespace mneme {

enum class TokenKind : uint8_t {
  kText,     // stands for its text
  kBytes,    // bytes, possibly parts of characters
  kControl,  // BOS, EOS and the like: no text but its spelling
  kUnknown,  // what the vocabulary could not spell
  kPadding,  // a row that the model has and the tokenizer does not; nothing encodes to it
};

// One row of the vocabulary.
struct TokenEntry {
  std::string piece;  // as the vocabulary spells it: "▁the", "Ġthe", "<0x0A>", "<s>"
  // Its text within others: " the", "\n"; kControl: where special tokens are not skipped.
  std::string text;
  TokenKind kind = TokenKind::kText;
};

struct EncodeOptions {
  bool add_bos = false;  // put in front what the files put in front of a text, such as BOS
  bool add_eos = false;  // and behind it
  // The text follows other tokens of the same session; BOS alone is not one.
  bool continuation = false;
  // Special tokens that the text spells are these tokens.
  bool parse_special = false;
  // With parse_special: spellings that are text were marked by Tokenizer::Broken, and the marks are
  // no part of the text.
  bool has_breaks = false;
};

struct DecodeOptions {
  bool skip_special_tokens = true;  // false: control pieces are spelled out, "<s>"
  bool at_sequence_start = true;    // false: in the middle of a session
};

// How the texts of tokens become one text.
struct DecodeRules {
  // The treatment of the first text of a sequence.
  enum class Start : uint8_t {
    kSame,              // nothing
    kStripFirstSpace,   // a piece of text that begins with U+2581 loses it
    kStripEverySpace,   // and so do those behind it, as long as there was no text
    kInitialTexts,      // the first token gives its entry of initial_texts
    kStripOneFromText,  // one `stripped` is no part of the text, whichever token it comes from
  };
  Start start = Start::kSame;
  std::vector<std::string> initial_texts;  // kInitialTexts: [vocab_size]
  char stripped = ' ';                     // kStripOneFromText
  // The last token of a text gives its text without this many bytes at its end, [vocab_size] or
  // empty: a space that only stands between tokens.
  std::vector<uint8_t> bytes_before_next;
  // Bytes that are no character become one U+FFFD each, or one for each maximal part.
  bool replaces_each_byte = false;
  // Whether bytes on either side of a token that is skipped are parts of one character.
  bool joins_across_skipped = true;
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
    PostProcessor post_processor;  // what add_bos and add_eos put around texts
    bool adds_bos = false;  // whether prompts start with BOS unless the request says otherwise
    DecodeRules decode;
    // Tokens that are found in text by their spelling before it is encoded.
    std::vector<AddedToken> added;
    // Of what else decides how text is cut: merges, scores, rules for text. 0: nothing else does.
    uint64_t rules_digest = 0;
    std::vector<std::string> notes;  // oddities of the files that did not prevent loading
  };

  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // INVALID_ARGUMENT: not UTF-8 (names the byte offset), longer than kMaxTextBytes, or a token for
  // it that the model has no row for. Or the error of `meter`, once nobody waits any more.
  // An empty text gives no ids but those asked for around it.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, EncodeOptions options,
                                              WorkMeter& meter) const;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              EncodeOptions options = {}) const;

  struct Pair {
    std::vector<int32_t> ids;
    std::vector<int32_t> type_ids;  // as many: which segment a token belongs to, as BERT counts
  };
  // Two texts, such as a question and what may answer it, as the files put them together;
  // what they put around texts, with add_bos or add_eos. Errors as above, of `text` first.
  absl::StatusOr<Pair> EncodePair(absl::string_view text, absl::string_view pair,
                                  EncodeOptions options, WorkMeter& meter) const;

  // `text` with marks in what would be special tokens if it was encoded with parse_special; to be
  // encoded with has_breaks.
  virtual std::string Broken(absl::string_view text) const { return added_tokens_.Broken(text); }

  // OUT_OF_RANGE: an id outside [0, vocab_size()); the message names id, index and range.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids,
                                     DecodeOptions options = {}) const;

  // Rows of the model's embedding, so every id that it can sample is a valid argument below.
  int vocab_size() const { return static_cast<int>(vocabulary_.entries.size()); }
  // Those that are no token (TokenKind::kPadding), which nobody should draw.
  std::vector<int32_t> PaddingIds() const;
  bool contains(int64_t id) const { return id >= 0 && id < vocab_size(); }
  // OK, or the error that Decode gives for an id outside the vocabulary.
  absl::Status CheckId(int64_t id, int64_t index) const;

  const TokenEntry& entry(int32_t id) const { return vocabulary_.entries[id]; }
  std::optional<int32_t> bos_id() const { return vocabulary_.bos_id; }
  std::optional<int32_t> eos_id() const { return vocabulary_.eos_id; }
  std::optional<int32_t> unk_id() const { return vocabulary_.unk_id; }
  bool adds_bos() const { return vocabulary_.adds_bos; }
  // Whether there is anything that `add_eos` puts behind a text.
  bool has_suffix() const {
    return vocabulary_.post_processor.single.back().kind == PostProcessor::Item::Kind::kToken;
  }
  const DecodeRules& decode_rules() const { return vocabulary_.decode; }
  const AddedTokens& added_tokens() const { return added_tokens_; }
  // Of all that decides how text is cut: kind, vocabulary, merges or scores, normalisation,
  // pre-tokenisation, and added tokens. Not of what is put around texts, of decoding, or of a chat
  // template. The same in every version; takes as long as hashing the vocabulary.
  uint64_t digest() const;

  // For the log at start-up: whole sentences without a final stop.
  const std::vector<std::string>& notes() const { return vocabulary_.notes; }
  // "sentencepiece", "bytes", "rwkv"; of tokenizer.json and its forerunners "bpe", "wordpiece",
  // "unigram" or "wordlevel".
  virtual absl::string_view kind() const = 0;

 protected:
  explicit Tokenizer(Vocabulary vocabulary);

  struct TextOptions {
    bool continuation = false;
    bool parse_special = false;
    std::span<const size_t> breaks;  // see AddedTokens::Split
  };
  // Appends the ids of `text`, which is valid UTF-8 and not empty.
  virtual absl::Status AppendIds(absl::string_view text, const TextOptions& options,
                                 WorkMeter& meter, std::vector<int32_t>& ids) const = 0;

 private:
  absl::Status AppendText(absl::string_view text, const EncodeOptions& options, WorkMeter& meter,
                          std::vector<int32_t>& ids) const;

  const Vocabulary vocabulary_;
  const AddedTokens added_tokens_;
};

}  // namespace mneme
