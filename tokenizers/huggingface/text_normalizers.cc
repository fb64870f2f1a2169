// Normalizers that take texts away, put texts in or write them otherwise.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tokenizers/huggingface/byte_alphabet.h"
#include "tokenizers/huggingface/normalizers.h"
#include "tokenizers/huggingface/split_pattern.h"
#include "tokenizers/unicode/character_class.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {
namespace {

class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext,
                                              WorkMeter& meter, std::string&) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    if (left_) {
      size_t begin = 0;
      while (begin < text.size()) {
        const CodePoint c = CodePointAt(text, begin);
        if (!HasFlag(c.value, kWhiteSpaceFlag)) break;
        begin += c.length;
      }
      text.remove_prefix(begin);
    }
    if (right_) {
      size_t end = text.size();
      while (end > 0) {
        const size_t last = PreviousCodePoint(text, end);
        if (!HasFlag(CodePointAt(text, last).value, kWhiteSpaceFlag)) break;
        end = last;
      }
      text = text.substr(0, end);
    }
    return text;
  }

 private:
  const bool left_, right_;
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}

  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext context,
                                              WorkMeter& meter,
                                              std::string& storage) const override {
    if (text.empty() || context.continuation || prefix_.empty()) return text;
    if (absl::Status status = meter.AddBytes(prefix_.size() + text.size()); !status.ok()) {
      return status;
    }
    storage.clear();
    absl::StrAppend(&storage, prefix_, text);
    return storage;
  }

 private:
  const std::string prefix_;
};

// Texts are shorter before (Tokenizer::kMaxTextBytes); a few replacements in a row may grow them.
constexpr size_t kMaxReplacedBytes = size_t{256} << 20;

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(std::unique_ptr<SplitPattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext,
                                              WorkMeter& meter,
                                              std::string& storage) const override {
    if (text.empty()) return text;
    storage.clear();
    size_t done = 0;
    bool found = false;
    const absl::Status status =
        pattern_->FindAll(text, meter, [&](size_t begin, size_t end) -> absl::Status {
          found = true;
          storage.append(text.data() + done, begin - done);
          storage += content_;
          done = end;
          if (storage.size() > kMaxReplacedBytes) {
            return absl::InvalidArgumentError(
                absl::StrCat("text grows to more than ", kMaxReplacedBytes,
                             " bytes where the tokenizer's normalizer puts \"",
                             absl::CHexEscape(content_), "\" into it"));
          }
          return meter.AddBytes(content_.size());
        });
    if (!status.ok()) return status;
    if (!found) return text;
    storage.append(text.data() + done, text.size() - done);
    return storage;
  }

 private:
  const std::unique_ptr<SplitPattern> pattern_;
  const std::string content_;
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext,
                                              WorkMeter& meter,
                                              std::string& storage) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    storage = InByteAlphabet(text);
    return storage;
  }
};

}  // namespace

NormalizerOr MakeStripNormalizer(const StepOptions& options) {
  const auto left = options.Bool("strip_left");
  if (!left.ok()) return left.status();
  const auto right = options.Bool("strip_right");
  if (!right.ok()) return right.status();
  return std::make_unique<StripNormalizer>(*left, *right);
}

NormalizerOr MakePrependNormalizer(const StepOptions& options) {
  auto prefix = options.Text("prepend");
  if (!prefix.ok()) return prefix.status();
  return std::make_unique<PrependNormalizer>(*std::move(prefix));
}

NormalizerOr MakeReplaceNormalizer(const StepOptions& options) {
  const nlohmann::json* pattern = options.Find("pattern");
  if (pattern == nullptr) return options.Error("pattern", "{\"String\": ...} or {\"Regex\": ...}");
  auto compiled = MakeSplitPattern(*pattern, options.path(), options.KeyOf("pattern"));
  if (!compiled.ok()) return compiled.status();
  auto content = options.Text("content");
  if (!content.ok()) return content.status();
  return std::make_unique<ReplaceNormalizer>(*std::move(compiled), *std::move(content));
}

std::unique_ptr<Normalizer> MakeByteLevelNormalizer() {
  return std::make_unique<ByteLevelNormalizer>();
}

}  // namespace mneme
