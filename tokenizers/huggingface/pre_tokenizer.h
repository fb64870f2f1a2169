// The "pre_tokenizer" of tokenizer.json: where a text is cut before a model sees it.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/work_meter.h"
#include "tokenizers/huggingface/section.h"

namespace mneme {

// Takes the pieces in their order; a piece lives as long as the call. An error ends the cutting.
using PieceSink = absl::FunctionRef<absl::Status(absl::string_view piece, SectionContext context)>;

// Immutable: any thread may call const members at any time.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  // Gives the pieces of `text`, which is not empty, to `sink`; none of them is empty. Errors are
  // the sink's, those of `meter`, and INVALID_ARGUMENT for a text that a pattern gives up on.
  virtual absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                             PieceSink sink) const = 0;
};

// The alphabet of the pieces.
enum class PieceAlphabet {
  kText,   // UTF-8, as the vocabulary spells its tokens
  kBytes,  // bytes, which the vocabulary spells in the byte-level alphabet (byte_alphabet.h)
};

struct PreTokenization {
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: the whole section is one piece
  PieceAlphabet alphabet = PieceAlphabet::kText;
};

// From the value of "pre_tokenizer", an object; errors as of MakeNormalizer (normalizer.h).
//
// Sequence, ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit, BertPreTokenizer,
// Punctuation, Digits, CharDelimiterSplit, UnicodeScripts, FixedLength. The pieces are bytes if
// ByteLevel is among them.
absl::StatusOr<PreTokenization> MakePreTokenizer(const nlohmann::json& config,
                                                 absl::string_view path);

}  // namespace mneme
