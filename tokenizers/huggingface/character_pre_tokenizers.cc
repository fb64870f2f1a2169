// Pre-tokenizers that look at what kind of character each one is.
#include <algorithm>
#include <limits>
#include <memory>

#include "tokenizers/huggingface/delimiter_splitter.h"
#include "tokenizers/huggingface/pre_tokenizers.h"
#include "tokenizers/unicode/character_class.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {
namespace {

bool IsWhiteSpace(char32_t c) { return HasFlag(c, kWhiteSpaceFlag); }
bool IsPunctuation(char32_t c) { return HasFlag(c, kPunctuationFlag); }

// Delimiters are the characters for which `is_delimiter(c)`.
template <typename IsDelimiter>
class CharacterPreTokenizer final : public PreTokenizer {
 public:
  CharacterPreTokenizer(IsDelimiter is_delimiter, DelimiterBehavior behavior)
      : is_delimiter_(is_delimiter), behavior_(behavior) {}

  absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                     PieceSink sink) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    return SplitAtCharacters(text, context, behavior_, is_delimiter_, sink);
  }

 private:
  const IsDelimiter is_delimiter_;
  const DelimiterBehavior behavior_;
};

template <typename IsDelimiter>
std::unique_ptr<PreTokenizer> MakeAt(IsDelimiter is_delimiter, DelimiterBehavior behavior) {
  return std::make_unique<CharacterPreTokenizer<IsDelimiter>>(is_delimiter, behavior);
}

class WhitespacePreTokenizer final : public PreTokenizer {
 public:
  absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                     PieceSink sink) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    constexpr uint8_t kKinds = kWordFlag | kWhiteSpaceFlag;
    size_t begin = 0;
    uint8_t last = 0;
    for (size_t at = 0; at <= text.size();) {
      const bool end = at == text.size();
      const CodePoint c = end ? CodePoint{0, 1} : CodePointAt(text, at);
      const uint8_t kind = end ? 0 : FlagTable()[c.value] & kKinds;
      if (at > begin && (end || kind != last)) {
        if (last != kWhiteSpaceFlag) {
          absl::Status status = sink(text.substr(begin, at - begin), ContextAt(begin, context));
          if (!status.ok()) return status;
        }
        begin = at;
      }
      last = kind;
      at += c.length;
    }
    return absl::OkStatus();
  }
};

class BertPreTokenizer final : public PreTokenizer {
 public:
  absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                     PieceSink sink) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    return SplitAtCharacters(text, context, DelimiterBehavior::kRemoved, IsWhiteSpace,
                             [&](absl::string_view word, SectionContext of_word) {
                               return SplitAtCharacters(word, of_word, DelimiterBehavior::kIsolated,
                                                        IsPunctuation, sink);
                             });
  }
};

// SentencePiece's rule for where a word may not go on: at a change of script, where kana count as
// Han, and spaces and characters of no known script go with any.
class UnicodeScriptsPreTokenizer final : public PreTokenizer {
 public:
  absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                     PieceSink sink) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    // Characters of any script before the first other one belong to no piece: so it is there.
    size_t begin = text.size();
    uint8_t last = 0;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = CodePointAt(text, at);
      const uint8_t script = SectionScriptTable()[c.value];
      if (script != 0) {
        if (script != last) {
          if (begin < at) {
            absl::Status status = sink(text.substr(begin, at - begin), ContextAt(begin, context));
            if (!status.ok()) return status;
          }
          begin = at;
        }
        last = script;
      }
      at += c.length;
    }
    if (begin == text.size()) return absl::OkStatus();
    return sink(text.substr(begin), ContextAt(begin, context));
  }
};

class FixedLengthPreTokenizer final : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(int64_t characters) : characters_(characters) {}

  absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                     PieceSink sink) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    for (size_t begin = 0; begin < text.size();) {
      size_t end = begin;
      for (int64_t i = 0; i < characters_ && end < text.size(); ++i) {
        end += CodePointAt(text, end).length;
      }
      absl::Status status = sink(text.substr(begin, end - begin), ContextAt(begin, context));
      if (!status.ok()) return status;
      begin = end;
    }
    return absl::OkStatus();
  }

 private:
  const int64_t characters_;
};

}  // namespace

std::unique_ptr<PreTokenizer> MakeWhitespacePreTokenizer() {
  return std::make_unique<WhitespacePreTokenizer>();
}

std::unique_ptr<PreTokenizer> MakeWhitespaceSplitPreTokenizer() {
  return MakeAt(IsWhiteSpace, DelimiterBehavior::kRemoved);
}

std::unique_ptr<PreTokenizer> MakeBertPreTokenizer() {
  return std::make_unique<BertPreTokenizer>();
}

PreTokenizerOr MakePunctuationPreTokenizer(const StepOptions& options) {
  const auto behavior = DelimiterBehaviorOption(options, "behavior", DelimiterBehavior::kIsolated);
  if (!behavior.ok()) return behavior.status();
  return MakeAt(IsPunctuation, *behavior);
}

PreTokenizerOr MakeDigitsPreTokenizer(const StepOptions& options) {
  const auto individual = options.Bool("individual_digits");
  if (!individual.ok()) return individual.status();
  return MakeAt([](char32_t c) { return HasFlag(c, kNumericFlag); },
                *individual ? DelimiterBehavior::kIsolated : DelimiterBehavior::kContiguous);
}

PreTokenizerOr MakeCharDelimiterSplitPreTokenizer(const StepOptions& options) {
  const auto delimiter = options.Character("delimiter");
  if (!delimiter.ok()) return delimiter.status();
  return MakeAt([delimiter = *delimiter](char32_t c) { return c == delimiter; },
                DelimiterBehavior::kRemoved);
}

std::unique_ptr<PreTokenizer> MakeUnicodeScriptsPreTokenizer() {
  return std::make_unique<UnicodeScriptsPreTokenizer>();
}

PreTokenizerOr MakeFixedLengthPreTokenizer(const StepOptions& options) {
  const auto length = options.Integer("length", 5);
  if (!length.ok()) return length.status();
  if (*length < 1) return options.Error("length", "at least 1");
  return std::make_unique<FixedLengthPreTokenizer>(*length);
}

}  // namespace mneme
