#include "tokenizers/huggingface/byte_alphabet.h"

#include <array>

namespace mneme {
namespace {

// The first code point of those that stand for bytes which are not printable.
constexpr int kFirstSubstitute = 0x100;

// Printable in Latin-1; the soft hyphen, 0xAD, is not.
constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint16_t, 256> code_points = {};
  // Indexed by code point less kFirstSubstitute.
  std::array<uint8_t, 256> substituted = {};
  int substitutes = 0;
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    if (IsPrintable(byte)) {
      alphabet.code_points[byte] = static_cast<uint16_t>(byte);
    } else {
      alphabet.substituted[alphabet.substitutes] = static_cast<uint8_t>(byte);
      alphabet.code_points[byte] = static_cast<uint16_t>(kFirstSubstitute + alphabet.substitutes++);
    }
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

void AppendInByteAlphabet(uint8_t byte, std::string& text) {
  const int code_point = kAlphabet.code_points[byte];
  if (code_point < 0x80) {
    text.push_back(static_cast<char>(code_point));
  } else {
    text.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
    text.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  }
}

std::string InByteAlphabet(absl::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() + bytes.size() / 2);
  for (const char c : bytes) AppendInByteAlphabet(static_cast<uint8_t>(c), text);
  return text;
}

std::optional<std::string> FromByteAlphabet(absl::string_view text) {
  std::string bytes(text.size(), '\0');
  char* out = bytes.data();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<uint8_t>(text[i]);
    int code_point = lead;
    if (lead >= 0x80) {
      // All of the alphabet that is not ASCII takes two bytes.
      if (lead < 0xC2 || lead > 0xDF || i + 1 == text.size()) return std::nullopt;
      code_point = (lead & 0x1F) << 6 | (static_cast<uint8_t>(text[++i]) & 0x3F);
    }
    if (code_point < kFirstSubstitute) {
      if (!IsPrintable(code_point)) return std::nullopt;
      *out++ = static_cast<char>(code_point);
    } else {
      const int substitute = code_point - kFirstSubstitute;
      if (substitute >= kAlphabet.substitutes) return std::nullopt;
      *out++ = static_cast<char>(kAlphabet.substituted[substitute]);
    }
  }
  bytes.resize(static_cast<size_t>(out - bytes.data()));
  return bytes;
}

}  // namespace mneme
