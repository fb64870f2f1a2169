#include "tokenizers/huggingface/reference_number.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace mneme {

double ReferenceNumber(absl::string_view number) {
  // As serde_json does unless it is told to take more time: it takes the digits that fit 64 bits,
  // as an integer, and multiplies or divides by a power of ten, both of them rounded.
  uint64_t digits = 0;
  int64_t exponent = 0;
  bool is_full = false, is_fraction = false;
  size_t at = 0;
  const bool is_negative = at < number.size() && number[at] == '-';
  if (is_negative) ++at;
  for (; at < number.size() && number[at] != 'e' && number[at] != 'E'; ++at) {
    if (number[at] == '.') {
      is_fraction = true;
      is_full = false;
      continue;
    }
    const auto digit = static_cast<uint64_t>(number[at] - '0');
    constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
    if (is_full || digits > (kMax - digit) / 10) {
      is_full = true;
      if (!is_fraction) ++exponent;
    } else {
      digits = 10 * digits + digit;
      if (is_fraction) --exponent;
    }
  }
  if (at < number.size()) {
    ++at;
    const bool has_minus = at < number.size() && number[at] == '-';
    if (at < number.size() && (number[at] == '-' || number[at] == '+')) ++at;
    int64_t written = 0;
    constexpr int64_t kFar = 100'000;  // no double's exponent, however many digits there were
    for (; at < number.size(); ++at) written = std::min(kFar, 10 * written + (number[at] - '0'));
    exponent += has_minus ? -written : written;
  }
  const auto power = [](int64_t ten) {
    double value = 0.0;
    const std::string text = absl::StrCat("1e", ten);
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  constexpr int64_t kLargestPower = 308;
  auto value = static_cast<double>(digits);
  while (exponent < -kLargestPower && value != 0.0) {
    value /= power(kLargestPower);
    exponent += kLargestPower;
  }
  if (value != 0.0) {
    value =
        exponent < 0 ? value / power(-exponent) : value * power(std::min(exponent, kLargestPower));
  }
  return is_negative ? -value : value;
}

}  // namespace mneme
