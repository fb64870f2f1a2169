// The steps of a "normalizer", one function for each type of tokenizer.json. For normalizer.cc.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "tokenizers/huggingface/normalizer.h"
#include "tokenizers/huggingface/step_options.h"
#include "tokenizers/unicode/normal_form.h"

namespace mneme {

using NormalizerOr = absl::StatusOr<std::unique_ptr<Normalizer>>;

// NFC, NFD, NFKC, NFKD.
std::unique_ptr<Normalizer> MakeNormalFormNormalizer(NormalForm form);
std::unique_ptr<Normalizer> MakeLowercaseNormalizer();
// Removes marks; letters that were composed with them stay as they are.
std::unique_ptr<Normalizer> MakeStripAccentsNormalizer();
// Removes what SentencePiece removes, and makes spaces of what it takes for them, in texts to
// translate.
std::unique_ptr<Normalizer> MakeNmtNormalizer();
// White space at the ends.
NormalizerOr MakeStripNormalizer(const StepOptions& options);
// In front of a text that is not empty, and that no session's text precedes.
NormalizerOr MakePrependNormalizer(const StepOptions& options);
NormalizerOr MakeReplaceNormalizer(const StepOptions& options);
// GPT-2's byte-level alphabet (byte_alphabet.h).
std::unique_ptr<Normalizer> MakeByteLevelNormalizer();
NormalizerOr MakeBertNormalizer(const StepOptions& options);
// SentencePiece's table, as the tokenizers package applies it.
NormalizerOr MakePrecompiledNormalizer(const StepOptions& options);

}  // namespace mneme
