#include "tokenizers/huggingface/json_scanner.h"

#include <array>
#include <cmath>

#include "absl/strings/charconv.h"
#include "base/utf8.h"

namespace mneme {
namespace {

// Bytes of strings that stand for themselves and need no look at what follows.
constexpr std::array<bool, 256> MakePlain() {
  std::array<bool, 256> plain = {};
  for (int byte = 0x20; byte < 0x80; ++byte) plain[byte] = byte != '"' && byte != '\\';
  return plain;
}
constexpr std::array<bool, 256> kPlain = MakePlain();

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

void AppendUtf8(uint32_t code, std::string& text) {
  const auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

bool JsonScanner::ScanString(absl::string_view& text) {
  ++at_;
  const char* const begin = at_;
  const char* kept = begin;  // up to here it is in unescaped_
  bool is_checked = true, has_escapes = false;
  for (;;) {
    while (at_ != end_ && kPlain[static_cast<uint8_t>(*at_)]) ++at_;
    if (at_ == end_) return false;
    const char c = *at_;
    if (c == '"') break;
    if (c == '\\') {
      if (!has_escapes) unescaped_.clear();
      has_escapes = true;
      unescaped_.append(kept, at_);
      if (!ScanEscape()) return false;
      kept = at_;
    } else if (static_cast<uint8_t>(c) >= 0x80) {
      // Characters of two bytes, many in byte-level vocabularies, are looked at here.
      const bool has_two = static_cast<uint8_t>(c) >= 0xC2 && static_cast<uint8_t>(c) <= 0xDF &&
                           end_ - at_ >= 2 && (static_cast<uint8_t>(at_[1]) & 0xC0) == 0x80;
      is_checked = is_checked && has_two;
      at_ += has_two ? 2 : 1;
    } else {
      return false;  // a control character
    }
  }
  if (!is_checked && !IsValidUtf8({begin, static_cast<size_t>(at_ - begin)})) return false;
  if (has_escapes) {
    unescaped_.append(kept, at_);
    text = unescaped_;
  } else {
    text = {begin, static_cast<size_t>(at_ - begin)};
  }
  ++at_;
  return true;
}

bool JsonScanner::ScanEscape() {
  if (++at_ == end_) return false;
  switch (*at_++) {
    case '"':
      unescaped_.push_back('"');
      return true;
    case '\\':
      unescaped_.push_back('\\');
      return true;
    case '/':
      unescaped_.push_back('/');
      return true;
    case 'b':
      unescaped_.push_back('\b');
      return true;
    case 'f':
      unescaped_.push_back('\f');
      return true;
    case 'n':
      unescaped_.push_back('\n');
      return true;
    case 'r':
      unescaped_.push_back('\r');
      return true;
    case 't':
      unescaped_.push_back('\t');
      return true;
    case 'u':
      break;
    default:
      return false;
  }
  uint32_t code = 0;
  if (!ScanHex(code)) return false;
  if (code >= 0xD800 && code < 0xE000) {
    uint32_t low = 0;
    if (code >= 0xDC00 || end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u') return false;
    at_ += 2;
    if (!ScanHex(low) || low < 0xDC00 || low >= 0xE000) return false;
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  AppendUtf8(code, unescaped_);
  return true;
}

bool JsonScanner::ScanHex(uint32_t& code) {
  constexpr int kDigits = 4;
  if (end_ - at_ < kDigits) return false;
  const auto result = std::from_chars(at_, at_ + kDigits, code, 16);
  if (result.ptr != at_ + kDigits) return false;
  at_ += kDigits;
  return true;
}

bool JsonScanner::ScanWord(absl::string_view word) {
  if (static_cast<size_t>(end_ - at_) < word.size() ||
      absl::string_view(at_, word.size()) != word) {
    return false;
  }
  at_ += word.size();
  return true;
}

bool JsonScanner::ScanNumber(absl::string_view& text, bool& is_integer) {
  const char* const begin = at_;
  const auto skip_digits = [&] {
    const char* const first = at_;
    while (at_ != end_ && IsDigit(*at_)) ++at_;
    return at_ != first;
  };
  if (*at_ == '-') ++at_;
  if (at_ != end_ && *at_ == '0') {
    ++at_;
  } else if (!skip_digits()) {
    return false;
  }
  is_integer = true;
  if (at_ != end_ && *at_ == '.') {
    ++at_;
    is_integer = false;
    if (!skip_digits()) return false;
  }
  if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
    ++at_;
    is_integer = false;
    if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
    if (!skip_digits()) return false;
  }
  text = {begin, static_cast<size_t>(at_ - begin)};
  return true;
}

bool JsonScanner::ReadNumber(absl::string_view text, double& number) {
  const auto result = absl::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() || std::abs(number) < 1.0;  // what is next to zero is zero
}

}  // namespace mneme
