// GPT-2's alphabet for bytes: one printable character for each byte, so that a vocabulary of byte
// strings can be written as text. Bytes that are printable in Latin-1 stand for themselves; the
// others, in their order, for U+0100 and up ("Ġ" is the space).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

// Appends the two bytes of UTF-8 (one, if ASCII) that `byte` is written as.
void AppendInByteAlphabet(uint8_t byte, std::string& text);
std::string InByteAlphabet(absl::string_view bytes);

// The bytes that `text`, which is UTF-8, writes; none if a character of it is not of the alphabet.
std::optional<std::string> FromByteAlphabet(absl::string_view text);

}  // namespace mneme
