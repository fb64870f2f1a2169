#include "server/jinja/lexer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme::jinja {
namespace {

// Longest first.
constexpr absl::string_view kOperators[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*",
                                            "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                            "]",  "{",  "}",  ",",  ".",  ":",  "|"};

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {
    // One line break at the very end is not part of a template.
    if (absl::EndsWith(source_, "\n")) source_.remove_suffix(1);
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) MNEME_RETURN_IF_ERROR(TextAndTag());
    Add(Token::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", what));
  }
  void Add(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }
  bool Sees(absl::string_view text) const { return absl::StartsWith(source_.substr(at_), text); }
  void Skip(size_t bytes) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + at_, source_.begin() + at_ + bytes, '\n'));
    at_ += bytes;
  }
  void SkipSpace() {
    while (at_ < source_.size() && absl::ascii_isspace(source_[at_])) Skip(1);
  }

  // Text up to the next tag, and that tag.
  absl::Status TextAndTag() {
    size_t tag = at_;
    while (tag < source_.size() &&
           !(source_[tag] == '{' && tag + 1 < source_.size() &&
             (source_[tag + 1] == '%' || source_[tag + 1] == '{' || source_[tag + 1] == '#'))) {
      ++tag;
    }
    std::string text(source_.substr(at_, tag - at_));
    const bool has_tag = tag < source_.size();
    const char kind = has_tag ? source_[tag + 1] : ' ';
    const char mark = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (has_tag && mark == '-') {
      absl::StripTrailingAsciiWhitespace(&text);
    } else if (has_tag && kind != '{' && mark != '+') {
      // lstrip_blocks: a tag that begins its line takes the space in front of it along.
      const size_t line_begin = text.rfind('\n') + 1;  // npos + 1 == 0
      const bool begins_line = line_begin > 0 || begins_line_;
      if (begins_line && text.find_first_not_of(" \t", line_begin) == std::string::npos) {
        text.erase(line_begin);
      }
    }
    if (!text.empty()) Add(Token::kText, text);
    Skip(tag - at_);
    begins_line_ = false;
    if (!has_tag) return absl::OkStatus();
    Skip(2);
    if (kind == '#') return Comment();
    if (mark == '-' || (mark == '+' && kind != '{')) Skip(1);
    return Tag(kind == '%');
  }

  absl::Status Comment() {
    const size_t end = source_.find("#}", at_);
    if (end == absl::string_view::npos) return Error("a comment without its #}");
    const bool strips = end > at_ && source_[end - 1] == '-';
    Skip(end + 2 - at_);
    AfterTag(strips, true);
    return absl::OkStatus();
  }

  // trim_blocks: the line break behind a block is not text.
  void AfterTag(bool strips, bool is_block) {
    if (strips) {
      SkipSpace();
    } else if (is_block && Sees("\n")) {
      Skip(1);
      begins_line_ = true;
    }
  }

  absl::Status Tag(bool is_block) {
    Add(is_block ? Token::kBlockBegin : Token::kPrintBegin, "");
    const absl::string_view end = is_block ? "%}" : "}}";
    int braces = 0;
    while (true) {
      SkipSpace();
      if (at_ >= source_.size()) return Error(absl::StrCat("a tag without its ", end));
      const bool strips = Sees(absl::StrCat("-", end));
      if (braces == 0 && (strips || Sees(end) || Sees(absl::StrCat("+", end)))) {
        const bool keeps = Sees("+");
        Skip(strips || keeps ? 3 : 2);
        Add(is_block ? Token::kBlockEnd : Token::kPrintEnd, "");
        AfterTag(strips, is_block && !keeps);
        return absl::OkStatus();
      }
      if (source_[at_] == '{') ++braces;
      if (source_[at_] == '}') --braces;
      MNEME_RETURN_IF_ERROR(One());
    }
  }

  absl::Status One() {
    const char c = source_[at_];
    if (absl::ascii_isalpha(c) || c == '_') {
      size_t end = at_;
      while (end < source_.size() && (absl::ascii_isalnum(source_[end]) || source_[end] == '_'))
        ++end;
      Add(Token::kName, std::string(source_.substr(at_, end - at_)));
      Skip(end - at_);
      return absl::OkStatus();
    }
    if (absl::ascii_isdigit(c)) return Number();
    if (c == '\'' || c == '"') return String(c);
    for (const absl::string_view op : kOperators) {
      if (!Sees(op)) continue;
      Add(Token::kOperator, std::string(op));
      Skip(op.size());
      return absl::OkStatus();
    }
    return Error(absl::StrCat("unexpected \"", std::string(1, c), "\" in a tag"));
  }

  absl::Status Number() {
    size_t end = at_;
    while (end < source_.size() && absl::ascii_isdigit(source_[end])) ++end;
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && absl::ascii_isdigit(source_[end + 1])) {
      is_float = true;
      ++end;
      while (end < source_.size() && absl::ascii_isdigit(source_[end])) ++end;
    }
    size_t exponent = end + 1;
    if (exponent < source_.size() && (source_[exponent] == '-' || source_[exponent] == '+')) {
      ++exponent;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E') &&
        exponent < source_.size() && absl::ascii_isdigit(source_[exponent])) {
      is_float = true;
      for (end = exponent; end < source_.size() && absl::ascii_isdigit(source_[end]);) ++end;
    }
    Add(is_float ? Token::kFloat : Token::kInt, std::string(source_.substr(at_, end - at_)));
    Skip(end - at_);
    return absl::OkStatus();
  }

  absl::Status String(char quote) {
    std::string text;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\' || i + 1 >= source_.size()) {
        text.push_back(source_[i]);
        continue;
      }
      const char c = source_[++i];
      switch (c) {
        case 'n':
          text.push_back('\n');
          break;
        case 't':
          text.push_back('\t');
          break;
        case 'r':
          text.push_back('\r');
          break;
        case '\\':
        case '\'':
        case '"':
          text.push_back(c);
          break;
        case '\n':
          break;
        case 'x':
        case 'u':
        case 'U':
        case 'N':
        case '0':
          return Error(absl::StrCat("the escape \\", std::string(1, c), " is not supported"));
        default:
          text.push_back('\\');
          text.push_back(c);
      }
    }
    if (i >= source_.size()) return Error("a text without its closing quotation mark");
    Add(Token::kString, std::move(text));
    Skip(i + 1 - at_);
    return absl::OkStatus();
  }

  absl::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool begins_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  return Lexer(source).Run();
}

}  // namespace mneme::jinja
