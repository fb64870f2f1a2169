#include "tokenizers/huggingface/word_scanner.h"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "tokenizers/unicode/character_class.h"
#include "tokenizers/unicode/code_point.h"
#include "tokenizers/unicode/tables.h"

namespace mneme {

const absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// How the patterns differ. All of them try, at each place: a contraction; a word; numbers;
// neither; white space. Something always matches, so matches lie next to one another.
struct WordRules {
  enum Contractions {
    kNone,
    kLowercase,   // 's 't 're 've 'm 'll 'd
    kAnyCase,     // the same in any case, and U+017F for s
    kAfterWords,  // the same, at the end of a word
  };
  Contractions contractions = kAnyCase;
  // A space may stand before a word or number; else any one character before a word, but a letter,
  // number, CR or LF.
  bool space_before = false;
  bool marks_in_words = false;
  // A word is capitals and then small letters, where letters without case and marks are both.
  bool cased_words = false;
  int max_digits = 1;       // 0: any number
  bool slash_ends = false;  // with CR and LF, behind what is neither; no tail if `space_before`
  // White space at the text's end stays together, line breaks or not.
  bool whole_end = false;
};

constexpr WordRules kGpt2{
    .contractions = WordRules::kLowercase, .space_before = true, .max_digits = 0};
constexpr WordRules kCl100k{.max_digits = 3};
constexpr WordRules kCl100kWholeEnd{.max_digits = 0, .whole_end = true};
constexpr WordRules kQwen2{};
constexpr WordRules kQwen35{.marks_in_words = true};
constexpr WordRules kO200k{.contractions = WordRules::kAfterWords,
                           .cased_words = true,
                           .max_digits = 3,
                           .slash_ends = true};
constexpr WordRules kTekken{
    .contractions = WordRules::kNone, .cased_words = true, .slash_ends = true};

enum CharacterClass : uint8_t {
  kLetter = 1 << 0,
  kNumber = 1 << 1,
  kSpace = 1 << 2,
  kMark = 1 << 3,
  kCapital = 1 << 4,  // or without case, or a mark
  kSmall = 1 << 5,    // the same
  kNewline = 1 << 6,  // CR and LF
};

struct ClassTables {
  static const ClassTables& Get() {
    static const auto* const tables = new ClassTables();
    return *tables;
  }

  std::array<uint8_t, 128> ascii;
  CodePointTable all;

 private:
  ClassTables() : all(CodePointTable::Of(Changes(), ClassOf)) {
    for (size_t c = 0; c < ascii.size(); ++c) ascii[c] = all[static_cast<char32_t>(c)];
  }

  static std::vector<char32_t> Changes() {
    std::vector<char32_t> changes = {'\n', '\n' + 1, '\r', '\r' + 1};
    AppendChanges(unicode_tables::CategoryRuns(), changes);
    AppendChanges(unicode_tables::FlagRuns(), changes);
    return changes;
  }

  static uint8_t ClassOf(char32_t c) {
    const uint32_t category = uint32_t{1} << CategoryTable()[c];
    const auto is = [category](absl::string_view name) {
      return (category & *CategorySet(name)) != 0;
    };
    const bool both = is("Lm") || is("Lo") || is("M");
    uint8_t bits = 0;
    if (is("L")) bits |= kLetter;
    if (is("N")) bits |= kNumber;
    if (HasFlag(c, kWhiteSpaceFlag)) bits |= kSpace;
    if (is("M")) bits |= kMark;
    if (both || is("Lu") || is("Lt")) bits |= kCapital;
    if (both || is("Ll")) bits |= kSmall;
    if (c == '\r' || c == '\n') bits |= kNewline;
    return bits;
  }
};

template <WordRules kRules>
class WordScan {
 public:
  explicit WordScan(absl::string_view text) : text_(text), tables_(ClassTables::Get()) {}

  // Where the match that begins at `at`, which is below text.size(), ends.
  size_t MatchEnd(size_t at) {
    const Class first = ClassAt(at);
    if constexpr (kRules.contractions == WordRules::kLowercase ||
                  kRules.contractions == WordRules::kAnyCase) {
      if (text_[at] == '\'') {
        if (const size_t end = ContractionEnd(at); end > at) return end;
      }
    }
    if constexpr (kRules.space_before) {
      const size_t begin = text_[at] == ' ' && at + 1 < text_.size() ? at + 1 : at;
      const Class next = begin == at ? first : ClassAt(begin);
      if ((next.bits & kLetter) != 0) return RunEnd<kLetter>(begin + next.length);
      if ((next.bits & kNumber) != 0) return RunEnd<kNumber>(begin + next.length);
      if ((next.bits & kSpace) == 0) return OthersEnd(begin + next.length);
      return SpaceEnd(at, first);
    }
    if (const size_t end = WordEnd(at, first); end > at) return end;
    if ((first.bits & kNumber) != 0) return NumberEnd(at + first.length);
    const size_t begin = text_[at] == ' ' ? at + 1 : at;
    if (begin < text_.size()) {
      const Class next = begin == at ? first : ClassAt(begin);
      if ((next.bits & kNeither) == 0) {
        size_t end = OthersEnd(begin + next.length);
        while (end < text_.size() && (text_[end] == '\r' || text_[end] == '\n' ||
                                      (kRules.slash_ends && text_[end] == '/'))) {
          ++end;
        }
        return end;
      }
    }
    return SpaceEnd(at, first);
  }

  // Bytes looked at, so far.
  size_t examined() const { return examined_; }

 private:
  struct Class {
    uint8_t bits;
    uint32_t length;
  };

  static constexpr uint8_t kWord = kRules.marks_in_words ? kLetter | kMark : kLetter;
  // The end of a run of characters that are neither letters nor numbers nor white space.
  static constexpr uint8_t kNeither = kSpace | kNumber | kWord;

  Class ClassAt(size_t at) const {
    const auto byte = static_cast<unsigned char>(text_[at]);
    if (byte < 0x80) return {tables_.ascii[byte], 1};
    const CodePoint c = CodePointAt(text_, at);
    return {tables_.all[c.value], c.length};
  }

  // Where characters with one of the bits end.
  template <uint8_t kBits>
  size_t RunEnd(size_t at) {
    const size_t begin = at;
    while (at < text_.size()) {
      const Class c = ClassAt(at);
      if ((c.bits & kBits) == 0) break;
      at += c.length;
    }
    examined_ += at - begin;
    return at;
  }

  size_t OthersEnd(size_t at) {
    const size_t begin = at;
    while (at < text_.size()) {
      const Class c = ClassAt(at);
      if ((c.bits & kNeither) != 0) break;
      at += c.length;
    }
    examined_ += at - begin;
    return at;
  }

  size_t NumberEnd(size_t at) {
    if constexpr (kRules.max_digits == 0) return RunEnd<kNumber>(at);
    for (int digits = 1; digits < kRules.max_digits && at < text_.size(); ++digits) {
      const Class c = ClassAt(at);
      if ((c.bits & kNumber) == 0) break;
      at += c.length;
    }
    return at;
  }

  // `at`, if none begins there.
  size_t WordEnd(size_t at, Class first) {
    const bool may_precede = (first.bits & (kLetter | kNumber | kNewline)) == 0;
    if constexpr (kRules.cased_words) {
      return CasedWordEnd(at, first, may_precede);
    } else {
      if ((first.bits & kWord) != 0) return RunEnd<kWord>(at + first.length);
      const size_t next = at + first.length;
      if (!may_precede || next == text_.size()) return at;
      const Class second = ClassAt(next);
      return (second.bits & kWord) != 0 ? RunEnd<kWord>(next + second.length) : at;
    }
  }

  // Capitals and small letters from a place on.
  struct CasedRun {
    std::optional<size_t> small_end;  // of capitals*, small+; none: no small letter
    size_t capitals_end;
  };

  CasedRun CasedRunAt(size_t at) {
    const size_t begin = at;
    CasedRun run{.capitals_end = at};
    while (at < text_.size()) {
      const Class c = ClassAt(at);
      if ((c.bits & kCapital) == 0) break;
      at += c.length;
      // Letters without case at the end of the capitals are the small letters, if none follow.
      if ((c.bits & kSmall) != 0) run.small_end = at;
    }
    run.capitals_end = at;
    examined_ += at - begin;
    if (at < text_.size() && (ClassAt(at).bits & kSmall) != 0) run.small_end = RunEnd<kSmall>(at);
    return run;
  }

  size_t CasedWordEnd(size_t at, Class first, bool may_precede) {
    std::optional<CasedRun> behind;  // the first character
    if (may_precede && at + first.length < text_.size()) behind = CasedRunAt(at + first.length);
    size_t end = at;
    if (behind.has_value() && behind->small_end.has_value()) {
      end = *behind->small_end;
    } else {
      std::optional<CasedRun> here;
      if ((first.bits & (kCapital | kSmall)) != 0) here = CasedRunAt(at);
      if (here.has_value() && here->small_end.has_value()) {
        end = *here->small_end;
      } else if (behind.has_value() && behind->capitals_end > at + first.length) {
        end = behind->capitals_end;
      } else if (here.has_value()) {
        end = here->capitals_end;
      }
    }
    if constexpr (kRules.contractions == WordRules::kAfterWords) {
      if (end > at && end < text_.size() && text_[end] == '\'') return ContractionEnd(end);
    }
    return end;
  }

  // `at`, where an apostrophe is, if none begins there.
  size_t ContractionEnd(size_t at) const {
    const auto letter = [this](size_t i) -> char {
      if (i >= text_.size()) return '\0';
      if (kRules.contractions == WordRules::kLowercase) return text_[i];
      return text_[i] >= 'A' && text_[i] <= 'Z' ? static_cast<char>(text_[i] | 0x20) : text_[i];
    };
    switch (letter(at + 1)) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return at + 2;
      case 'r':
      case 'v':
        return letter(at + 2) == 'e' ? at + 3 : at;
      case 'l':
        return letter(at + 2) == 'l' ? at + 3 : at;
      case '\xC5':  // U+017F, which is an s without case
        return kRules.contractions != WordRules::kLowercase && letter(at + 2) == '\xBF' ? at + 3
                                                                                        : at;
      default:
        return at;
    }
  }

  // White space from `at` on: to its last CR or LF; else but for the last one, which goes with what
  // follows; else all.
  size_t SpaceEnd(size_t at, Class first) {
    const size_t begin = at;
    size_t last = at;  // where the last one begins
    size_t newline_end = at;
    Class c = first;
    while (true) {
      last = at;
      at += c.length;
      if ((c.bits & kNewline) != 0) newline_end = at;
      if (at == text_.size()) break;
      c = ClassAt(at);
      if ((c.bits & kSpace) == 0) break;
    }
    examined_ += at - begin;
    if (kRules.whole_end && at == text_.size()) return at;
    if (!kRules.space_before && newline_end > begin) return newline_end;
    if (at == text_.size() || last == begin) return at;
    return last;
  }

  const absl::string_view text_;
  const ClassTables& tables_;
  size_t examined_ = 0;
};

template <WordRules kRules>
class WordScanner final : public SplitPattern {
 public:
  absl::Status FindAll(absl::string_view text, WorkMeter& meter, MatchSink sink) const override {
    WordScan<kRules> scan(text);
    size_t counted = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = scan.MatchEnd(at);
      // A match of some bytes takes about as long as writing them.
      if (const size_t done = end + scan.examined(); done - counted >= kBytesPerCount) {
        if (absl::Status status = meter.AddBytes(done - counted); !status.ok()) return status;
        counted = done;
      }
      if (absl::Status status = sink(at, end); !status.ok()) return status;
      at = end;
    }
    return meter.AddBytes(text.size() + scan.examined() - counted);
  }

 private:
  static constexpr size_t kBytesPerCount = 1024;
};

struct KnownPattern {
  absl::string_view pattern;
  std::unique_ptr<SplitPattern> (*make)();
};

template <WordRules kRules>
std::unique_ptr<SplitPattern> MakeScanner() {
  return std::make_unique<WordScanner<kRules>>();
}

#define MNEME_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define MNEME_CAPITALS R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define MNEME_SMALL R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define MNEME_OTHERS_AND_SPACES R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define MNEME_OTHERS_SLASH_AND_SPACES R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"

constexpr KnownPattern kKnownPatterns[] = {
    // GPT-2, GPT-NeoX, Falcon, StarCoder, Mamba.
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     MakeScanner<kGpt2>},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     MakeScanner<kGpt2>},
    // cl100k and Llama 3.
    {MNEME_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})" MNEME_OTHERS_AND_SPACES,
     MakeScanner<kCl100k>},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
     R"(|\s*[\r\n]|\s+(?!\S)|\s+)",
     MakeScanner<kCl100k>},
    // cl100k as tiktoken writes it by now; "{1,3}+" repeats the repeat.
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+)"
     R"(|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
     MakeScanner<kCl100kWholeEnd>},
    // Qwen 2 and 3.
    {MNEME_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" MNEME_OTHERS_AND_SPACES,
     MakeScanner<kQwen2>},
    // Qwen 3.5.
    {MNEME_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
                        R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     MakeScanner<kQwen35>},
    // o200k, Llama 4.
    {R"([^\r\n\p{L}\p{N}]?)" MNEME_CAPITALS "*" MNEME_SMALL "+" MNEME_CONTRACTIONS
     R"(?|[^\r\n\p{L}\p{N}]?)" MNEME_CAPITALS "+" MNEME_SMALL "*" MNEME_CONTRACTIONS
     R"(?|\p{N}{1,3})" MNEME_OTHERS_SLASH_AND_SPACES,
     MakeScanner<kO200k>},
    // Mistral's Tekken, Nemotron.
    {R"([^\r\n\p{L}\p{N}]?)" MNEME_CAPITALS "*" MNEME_SMALL "+"
     R"(|[^\r\n\p{L}\p{N}]?)" MNEME_CAPITALS "+" MNEME_SMALL "*"
     R"(|\p{N})" MNEME_OTHERS_SLASH_AND_SPACES,
     MakeScanner<kTekken>},
};

#undef MNEME_CONTRACTIONS
#undef MNEME_CAPITALS
#undef MNEME_SMALL
#undef MNEME_OTHERS_AND_SPACES
#undef MNEME_OTHERS_SLASH_AND_SPACES

}  // namespace

std::unique_ptr<SplitPattern> MakeWordScanner(absl::string_view pattern) {
  for (const KnownPattern& known : kKnownPatterns) {
    if (known.pattern == pattern) return known.make();
  }
  return nullptr;
}

}  // namespace mneme
