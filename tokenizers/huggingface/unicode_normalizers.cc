// Normalizers that only Unicode's tables decide.
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "tokenizers/huggingface/change_characters.h"
#include "tokenizers/huggingface/normalizers.h"
#include "tokenizers/unicode/character_class.h"
#include "tokenizers/unicode/lowercase.h"

namespace mneme {
namespace {

class NormalFormNormalizer final : public Normalizer {
 public:
  explicit NormalFormNormalizer(NormalForm form) : form_(form) {}

  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext,
                                              WorkMeter& meter,
                                              std::string& storage) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    return mneme::Normalize(form_, text, storage);
  }

 private:
  const NormalForm form_;
};

class LowercaseNormalizer final : public Normalizer {
 public:
  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext,
                                              WorkMeter& meter,
                                              std::string& storage) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    return Lowercase(text, storage);
  }
};

class StripAccentsNormalizer final : public Normalizer {
 public:
  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext,
                                              WorkMeter& meter,
                                              std::string& storage) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    return ChangeCharacters(
        text, [](char32_t c) { return c >= 0x80 && HasFlag(c, kMarkFlag); },
        [](char32_t, std::string&) {}, storage);
  }
};

class NmtNormalizer final : public Normalizer {
 public:
  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext,
                                              WorkMeter& meter,
                                              std::string& storage) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    return ChangeCharacters(
        text, [](char32_t c) { return IsRemoved(c) || IsSpace(c); },
        [](char32_t c, std::string& output) {
          if (IsSpace(c)) output += ' ';
        },
        storage);
  }

 private:
  static bool IsRemoved(char32_t c) {
    return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
           c == 0x8F || c == 0x9F;
  }
  static bool IsSpace(char32_t c) {
    return c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
  }
};

}  // namespace

std::unique_ptr<Normalizer> MakeNormalFormNormalizer(NormalForm form) {
  return std::make_unique<NormalFormNormalizer>(form);
}
std::unique_ptr<Normalizer> MakeLowercaseNormalizer() {
  return std::make_unique<LowercaseNormalizer>();
}
std::unique_ptr<Normalizer> MakeStripAccentsNormalizer() {
  return std::make_unique<StripAccentsNormalizer>();
}
std::unique_ptr<Normalizer> MakeNmtNormalizer() { return std::make_unique<NmtNormalizer>(); }

}  // namespace mneme
