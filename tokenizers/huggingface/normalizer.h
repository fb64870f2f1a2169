// The "normalizer" of tokenizer.json: what a text becomes before it is cut.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/work_meter.h"
#include "tokenizers/huggingface/section.h"

namespace mneme {

// Immutable: any thread may call const members at any time.
class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // The normal form of `text`, which is valid UTF-8 and may be empty: `text` itself or a part of
  // it, where nothing else changes, or a view of `storage`, whose former contents are lost. `text`
  // must not lie in `storage`. Work is linear in the text. Errors are those of `meter`, and
  // INVALID_ARGUMENT for a text that a pattern gives up on.
  virtual absl::StatusOr<absl::string_view> Normalize(absl::string_view text,
                                                      SectionContext context, WorkMeter& meter,
                                                      std::string& storage) const = 0;
};

// From the value of "normalizer", an object; `path` names it in errors, which say the key, what it
// holds and what was expected. UNIMPLEMENTED: a type, or an option of one, that is not supported.
//
// Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, BertNormalizer, Replace, Prepend,
// ByteLevel, Precompiled, Nmt. ByteLevel's result is text in the byte-level alphabet, and stays
// text: of its pieces the alphabet is PieceAlphabet::kText (pre_tokenizer.h), and tokens are
// spelled so.
absl::StatusOr<std::unique_ptr<Normalizer>> MakeNormalizer(const nlohmann::json& config,
                                                           absl::string_view path);

}  // namespace mneme
