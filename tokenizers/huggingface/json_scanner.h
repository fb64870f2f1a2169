// A fast reader of JSON texts, for those whose strings are many and short.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace mneme {

// Calls a handler's members for the values of one text, in their order; any of them may return
// false, which ends the reading. Strings are views, of the text or of a buffer, and live as long as
// the call:
//
//   bool Null(); bool Bool(bool); bool Integer(uint64_t); bool Number(absl::string_view, double);
//   bool String(absl::string_view); bool Key(absl::string_view);
//   bool BeginObject(); bool EndObject(); bool BeginList(); bool EndList();
//
// Number gets what is negative, or is written with a point or an exponent, or exceeds 64 bits.
class JsonScanner {
 public:
  explicit JsonScanner(absl::string_view text)
      : begin_(text.data()), end_(text.data() + text.size()), at_(begin_) {}

  enum class Result {
    kDone,
    kEnded,    // by the handler
    kNotJson,  // or a number beyond the range of double
  };

  // Bytes read so far.
  size_t position() const { return static_cast<size_t>(at_ - begin_); }

  template <typename Handler>
  Result Scan(Handler& handler) {
    bool goes_on = true;  // says the handler
    // Open arrays and objects, as the characters that close them.
    std::vector<char> open;
    for (;;) {
      // A value begins here.
      SkipSpace();
      if (at_ == end_) return Result::kNotJson;
      bool is_open = false;  // it has begun a list or an object that is not empty
      switch (*at_) {
        case '"': {
          absl::string_view text;
          if (!ScanString(text)) return Result::kNotJson;
          goes_on = handler.String(text);
          break;
        }
        case '{':
        case '[': {
          const bool is_object = *at_++ == '{';
          if (!(is_object ? handler.BeginObject() : handler.BeginList())) return Result::kEnded;
          SkipSpace();
          const char close = is_object ? '}' : ']';
          if (at_ != end_ && *at_ == close) {
            ++at_;
            goes_on = is_object ? handler.EndObject() : handler.EndList();
          } else {
            open.push_back(close);
            is_open = true;
          }
          break;
        }
        case 't':
          if (!ScanWord("true")) return Result::kNotJson;
          goes_on = handler.Bool(true);
          break;
        case 'f':
          if (!ScanWord("false")) return Result::kNotJson;
          goes_on = handler.Bool(false);
          break;
        case 'n':
          if (!ScanWord("null")) return Result::kNotJson;
          goes_on = handler.Null();
          break;
        default: {
          absl::string_view text;
          bool is_integer = false;
          if (!ScanNumber(text, is_integer)) return Result::kNotJson;
          const char* const text_end = text.data() + text.size();
          uint64_t integer = 0;
          if (is_integer && text[0] != '-' &&
              std::from_chars(text.data(), text_end, integer).ec == std::errc()) {
            goes_on = handler.Integer(integer);
          } else {
            double number = 0.0;
            if (!ReadNumber(text, number)) return Result::kNotJson;
            goes_on = handler.Number(text, number);
          }
        }
      }
      if (!goes_on) return Result::kEnded;
      // Reads closing characters behind the value, and the comma before the next one.
      while (!is_open) {
        SkipSpace();
        if (open.empty()) return at_ == end_ ? Result::kDone : Result::kNotJson;
        if (at_ == end_) return Result::kNotJson;
        if (*at_ == ',') {
          ++at_;
          break;
        }
        if (*at_ != open.back()) return Result::kNotJson;
        ++at_;
        if (!(open.back() == '}' ? handler.EndObject() : handler.EndList())) return Result::kEnded;
        open.pop_back();
      }
      if (open.back() == '}') {
        SkipSpace();
        absl::string_view key;
        if (at_ == end_ || *at_ != '"' || !ScanString(key)) return Result::kNotJson;
        if (!handler.Key(key)) return Result::kEnded;
        SkipSpace();
        if (at_ == end_ || *at_++ != ':') return Result::kNotJson;
      }
    }
  }

 private:
  void SkipSpace() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  // From the quotation mark that begins it to behind the one that ends it.
  bool ScanString(absl::string_view& text);
  bool ScanEscape();
  bool ScanHex(uint32_t& code);
  bool ScanWord(absl::string_view word);
  bool ScanNumber(absl::string_view& text, bool& is_integer);
  static bool ReadNumber(absl::string_view text, double& number);

  const char* const begin_;
  const char* const end_;
  const char* at_;
  std::string unescaped_;
};

}  // namespace mneme
