// SentencePiece models: unigram, BPE and character, with or without byte fallback.
//
// Encoding is the library's. Decoding is ours, from the piece table, and equal to that of the
// SentencePiece 0.2 packages (tests/golden/tokenizer_sp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/sentencepiece/model_file.h"
#include "tokenizers/sentencepiece/shim.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// Text to ids by the library.
//
// A continuation must not get the dummy prefix, which belongs to the start of a text; and where a
// model strips leading white space, the space between two words of a session must survive. So one
// model is held with several sets of white space rules.
class SentencePieceEncoder {
 public:
  // `bytes` is a whole tokenizer.model, `file` what ParseSentencePieceModel made of it; both only
  // read during the call. INVALID_ARGUMENT: the library refuses the model. FAILED_PRECONDITION,
  // UNIMPLEMENTED: there is no library.
  static absl::StatusOr<std::unique_ptr<SentencePieceEncoder>> Load(
      absl::string_view bytes, const SentencePieceModelFile& file);

  // Longest run of characters that are no pieces of their own, for a model without byte fallback.
  // The library joins such a run to one unknown piece in quadratic time: a megabyte would take a
  // minute.
  static constexpr int kMaxUnknownRun = 32768;

  // Appends the ids of `text`, valid UTF-8. INVALID_ARGUMENT names a run longer than
  // kMaxUnknownRun. Any thread.
  absl::Status AppendIds(absl::string_view text, bool continuation,
                         std::vector<int32_t>& ids) const;

  // The tokens that the model itself names as BOS and EOS.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

 private:
  struct ModelDeleter {
    void (*free_model)(mneme_sentencepiece_model*);
    void operator()(mneme_sentencepiece_model* model) const { free_model(model); }
  };
  using Model = std::unique_ptr<mneme_sentencepiece_model, ModelDeleter>;

  explicit SentencePieceEncoder(const mneme_sentencepiece_api* api) : api_(api) {}
  absl::StatusOr<Model> LoadModel(absl::string_view bytes) const;
  absl::StatusOr<bool> StartsWithSpace(absl::string_view text) const;
  absl::Status CheckUnknownRuns(absl::string_view text) const;

  const mneme_sentencepiece_api* api_;
  int piece_count_ = 0;
  // Pieces of one character, as its bytes in one integer; empty for a model with byte fallback.
  absl::flat_hash_set<uint32_t> characters_;
  Model start_{nullptr, {}};         // as written: the start of a session
  Model continuation_{nullptr, {}};  // no dummy prefix; null: start_ has none either
  // Only if the model squeezes white space. A continuation that starts with white space keeps one
  // space of it, and a dummy prefix is just that.
  Model spaced_{nullptr, {}};
  Model bare_{nullptr, {}};  // neither rule: shows whether a text starts with white space
};

// The text that a piece stands for: its spelling with spaces for U+2581.
std::string PieceText(absl::string_view piece);

// Entries, special ids and decoding rules of the model; adds_bos if it has BOS.
Tokenizer::Vocabulary SentencePieceVocabulary(const SentencePieceModelFile& file,
                                              const SentencePieceEncoder& encoder);

// `vocabulary` is that of the model, with rows possibly appended and special ids replaced.
// `prefix_after_special`: text behind a special token that a text spells has a dummy prefix, as
// text at a start has.
std::unique_ptr<Tokenizer> MakeSentencePieceTokenizer(std::unique_ptr<SentencePieceEncoder> encoder,
                                                      Tokenizer::Vocabulary vocabulary,
                                                      bool prefix_after_special);

}  // namespace mneme
