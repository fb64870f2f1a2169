#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tokenizers/huggingface/normalizers.h"
#include "tokenizers/sentencepiece/charsmap.h"
#include "tokenizers/unicode/code_point.h"
#include "tokenizers/unicode/grapheme.h"

namespace mneme {
namespace {

// The tokenizers package does not look for the longest entry, as SentencePiece does. It takes what
// readers see as one character, if that is short, and replaces it whole by the shortest entry that
// it begins with; else it does so with each character of it.
class PrecompiledNormalizer final : public Normalizer {
 public:
  explicit PrecompiledNormalizer(Charsmap charsmap) : charsmap_(std::move(charsmap)) {}

  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext,
                                              WorkMeter& meter,
                                              std::string& storage) const override {
    if (absl::Status status = meter.AddBytes(text.size() * kWork); !status.ok()) return status;
    storage.clear();
    size_t done = 0;
    bool changed = false;
    const auto replace = [&](size_t begin, size_t end) {
      const auto replacement = charsmap_.ShortestMatch(text.substr(begin, end - begin));
      if (!replacement.has_value()) return false;
      storage.append(text.data() + done, begin - done);
      absl::StrAppend(&storage, *replacement);
      done = end;
      changed = true;
      return true;
    };
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = GraphemeEnd(text, begin);
      if (end - begin >= kLongGrapheme || !replace(begin, end)) {
        for (size_t at = begin; at < end;) {
          const size_t next = at + CodePointAt(text, at).length;
          replace(at, next);
          at = next;
        }
      }
      begin = end;
    }
    if (!changed) return text;
    storage.append(text.data() + done, text.size() - done);
    return storage;
  }

 private:
  static constexpr size_t kLongGrapheme = 6;
  static constexpr size_t kWork = 4;  // beside copying

  const Charsmap charsmap_;
};

}  // namespace

NormalizerOr MakePrecompiledNormalizer(const StepOptions& options) {
  auto base64 = options.Text("precompiled_charsmap");
  if (!base64.ok()) return base64.status();
  std::string bytes;
  if (!absl::Base64Unescape(*base64, &bytes) || bytes.empty()) {
    return options.Error("precompiled_charsmap", "a table of SentencePiece in base64");
  }
  auto charsmap = Charsmap::Parse(bytes);
  if (!charsmap.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(options.path(), ": ",
                                                   options.KeyOf("precompiled_charsmap"), ": ",
                                                   charsmap.status().message()));
  }
  return std::make_unique<PrecompiledNormalizer>(*std::move(charsmap));
}

}  // namespace mneme
