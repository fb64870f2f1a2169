#include "server/text_encoder.h"

#include <malloc.h>

#include "absl/strings/str_cat.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// Below, what the allocator keeps is little, and asking for it back costs more than it gives.
constexpr size_t kTrimBytes = 262144;

}  // namespace

absl::StatusOr<const Tokenizer*> NeedTokenizer(const Engine& engine, absl::string_view field) {
  if (engine.tokenizer() != nullptr) return engine.tokenizer();
  return WithReason(
      FieldError(field, "needs a tokenizer, and this model has none: it takes token ids"),
      "NO_TOKENIZER");
}

absl::Status CheckTextSize(absl::string_view text, absl::string_view field,
                           const ServingFacts& facts) {
  if (static_cast<int64_t>(text.size()) <= facts.max_text_bytes) return absl::OkStatus();
  return WithReason(FieldError(field, absl::StrCat("has ", text.size(), " bytes, expected at most ",
                                                   facts.max_text_bytes,
                                                   " (--max-text-size); send token ids instead")),
                    "TEXT_TOO_LONG");
}

absl::StatusOr<std::vector<int32_t>> EncodeText(const Tokenizer& tokenizer, absl::string_view text,
                                                EncodeOptions options) {
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text, options);
#ifdef __GLIBC__
  if (text.size() >= kTrimBytes) malloc_trim(0);
#endif
  return ids;
}

}  // namespace mneme
