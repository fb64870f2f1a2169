#include <memory>
#include <string>

#include "tokenizers/huggingface/change_characters.h"
#include "tokenizers/huggingface/normalizers.h"
#include "tokenizers/huggingface/text_steps.h"
#include "tokenizers/unicode/character_class.h"
#include "tokenizers/unicode/lowercase.h"

namespace mneme {
namespace {

// The blocks of Chinese characters that BERT cuts apart; kana and Hangul are not among them.
bool IsChinese(char32_t c) {
  return c >= 0x3400 &&
         ((c >= 0x4E00 && c <= 0x9FFF) || c <= 0x4DBF || (c >= 0xF900 && c <= 0xFAFF) ||
          (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
          (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0x2F800 && c <= 0x2FA1F));
}

struct BertOptions {
  bool clean_text, handle_chinese_chars, strip_accents, lowercase;
};

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(BertOptions options) : options_(options) {}

  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext,
                                              WorkMeter& meter,
                                              std::string& storage) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    TextSteps steps(text, storage);
    if (options_.clean_text) steps.Set(Clean(steps.text(), steps.free()));
    if (options_.handle_chinese_chars) steps.Set(SpaceChinese(steps.text(), steps.free()));
    if (options_.strip_accents) {
      steps.Set(mneme::Normalize(NormalForm::kNfd, steps.text(), steps.free()));
      steps.Set(StripMarks(steps.text(), steps.free()));
    }
    if (options_.lowercase) steps.Set(Lowercase(steps.text(), steps.free()));
    return steps.Finish();
  }

 private:
  static absl::string_view Clean(absl::string_view text, std::string& storage) {
    return ChangeCharacters(
        text,
        [](char32_t c) {
          if (c >= ' ' && c < 0x7F) return false;
          return (FlagTable()[c] & (kBertControlFlag | kWhiteSpaceFlag)) != 0;
        },
        [](char32_t c, std::string& output) {
          if (!HasFlag(c, kBertControlFlag)) output += ' ';
        },
        storage);
  }

  static absl::string_view SpaceChinese(absl::string_view text, std::string& storage) {
    return ChangeCharacters(
        text, IsChinese,
        [](char32_t c, std::string& output) {
          output += ' ';
          AppendUtf8(c, output);
          output += ' ';
        },
        storage);
  }

  static absl::string_view StripMarks(absl::string_view text, std::string& storage) {
    return ChangeCharacters(
        text, [](char32_t c) { return c >= 0x80 && HasFlag(c, kBertMarkFlag); },
        [](char32_t, std::string&) {}, storage);
  }

  const BertOptions options_;
};

}  // namespace

NormalizerOr MakeBertNormalizer(const StepOptions& options) {
  const auto clean_text = options.Bool("clean_text");
  if (!clean_text.ok()) return clean_text.status();
  const auto chinese = options.Bool("handle_chinese_chars");
  if (!chinese.ok()) return chinese.status();
  const auto lowercase = options.Bool("lowercase");
  if (!lowercase.ok()) return lowercase.status();
  const auto strip_accents = options.Bool("strip_accents", *lowercase);
  if (!strip_accents.ok()) return strip_accents.status();
  return std::make_unique<BertNormalizer>(
      BertOptions{*clean_text, *chinese, *strip_accents, *lowercase});
}

}  // namespace mneme
