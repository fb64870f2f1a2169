#include "base/number_text.h"

#include <charconv>
#include <cmath>

namespace mneme {
namespace {

template <typename Number>
std::string Shortest(Number value) {
  const Number size = std::abs(value);
  const bool is_plain = size == 0 || (size >= Number{1e-5} && size < Number{1e15});
  char text[64];  // at most 17 digits, 5 zeros, a sign, a point and an exponent
  const std::to_chars_result end =
      is_plain ? std::to_chars(text, text + sizeof(text), value, std::chars_format::fixed)
               : std::to_chars(text, text + sizeof(text), value);
  return {text, end.ptr};
}

}  // namespace

std::string NumberText(double value) { return Shortest(value); }
std::string NumberText(float value) { return Shortest(value); }

}  // namespace mneme
