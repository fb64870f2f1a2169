// The steps of a "pre_tokenizer", one function for each type of tokenizer.json. For
// pre_tokenizer.cc.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "tokenizers/huggingface/pre_tokenizer.h"
#include "tokenizers/huggingface/step_options.h"

namespace mneme {

using PreTokenizerOr = absl::StatusOr<std::unique_ptr<PreTokenizer>>;

// Whether ByteLevel's pieces are as the text has them, or in the byte-level alphabet.
enum class ByteLevelOutput { kRaw, kMapped };
PreTokenizerOr MakeByteLevelPreTokenizer(const StepOptions& options, ByteLevelOutput output);
// Pieces that were in the byte-level alphabet as raw bytes again. All of them have to be.
std::unique_ptr<PreTokenizer> MakeByteLevelEnd();

PreTokenizerOr MakeSplitPreTokenizer(const StepOptions& options);
PreTokenizerOr MakeMetaspacePreTokenizer(const StepOptions& options);

// Words and runs of what is neither word nor white space.
std::unique_ptr<PreTokenizer> MakeWhitespacePreTokenizer();
// Cuts at white space, which no piece has.
std::unique_ptr<PreTokenizer> MakeWhitespaceSplitPreTokenizer();
std::unique_ptr<PreTokenizer> MakeBertPreTokenizer();
PreTokenizerOr MakePunctuationPreTokenizer(const StepOptions& options);
PreTokenizerOr MakeDigitsPreTokenizer(const StepOptions& options);
PreTokenizerOr MakeCharDelimiterSplitPreTokenizer(const StepOptions& options);
std::unique_ptr<PreTokenizer> MakeUnicodeScriptsPreTokenizer();
PreTokenizerOr MakeFixedLengthPreTokenizer(const StepOptions& options);

}  // namespace mneme
