#include "server/config/units.h"

#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace mneme {
namespace {

struct Unit {
  absl::string_view name;
  int64_t size;
};

constexpr Unit kBinaryUnits[] = {{"TiB", int64_t{1} << 40},
                                 {"GiB", int64_t{1} << 30},
                                 {"MiB", int64_t{1} << 20},
                                 {"KiB", int64_t{1} << 10}};
constexpr Unit kByteUnits[] = {{"tib", int64_t{1} << 40},
                               {"gib", int64_t{1} << 30},
                               {"mib", int64_t{1} << 20},
                               {"kib", int64_t{1} << 10},
                               {"tb", 1000000000000},
                               {"gb", 1000000000},
                               {"mb", 1000000},
                               {"kb", 1000},
                               {"t", int64_t{1} << 40},
                               {"g", int64_t{1} << 30},
                               {"m", int64_t{1} << 20},
                               {"k", int64_t{1} << 10},
                               {"b", 1}};
constexpr Unit kTimeUnits[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

// Whole numbers stay exact; others are rounded to the nearest unit. Fails outside [0, 2^63).
bool Scale(absl::string_view number, int64_t unit, int64_t* out) {
  int64_t whole;
  if (absl::SimpleAtoi(number, &whole)) {
    if (whole < 0 || whole > std::numeric_limits<int64_t>::max() / unit) return false;
    *out = whole * unit;
    return true;
  }
  double value;
  if (!absl::SimpleAtod(number, &value)) return false;
  value = std::nearbyint(value * static_cast<double>(unit));
  if (!(value >= 0 && value < 0x1p63)) return false;
  *out = static_cast<int64_t>(value);
  return true;
}

}  // namespace

std::optional<int64_t> ParseBytes(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  absl::string_view number = lower;
  int64_t unit = 1;
  for (const Unit& candidate : kByteUnits) {
    if (absl::ConsumeSuffix(&number, candidate.name)) {
      unit = candidate.size;
      break;
    }
  }
  int64_t bytes;
  if (!Scale(absl::StripAsciiWhitespace(number), unit, &bytes)) return std::nullopt;
  return bytes;
}

std::optional<int64_t> ParseMilliseconds(absl::string_view text) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(text);
  int64_t milliseconds;
  if (Scale(stripped, 1000, &milliseconds)) return milliseconds;
  absl::Duration duration;
  if (!absl::ParseDuration(stripped, &duration) || duration < absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return std::nullopt;
  }
  return absl::ToInt64Milliseconds(duration);
}

std::string FormatBytes(int64_t bytes) {
  for (const Unit& unit : kBinaryUnits) {
    if (bytes >= unit.size && bytes % unit.size == 0)
      return absl::StrCat(bytes / unit.size, unit.name);
  }
  return absl::StrCat(bytes, "B");
}

std::string FormatMilliseconds(int64_t milliseconds) {
  for (const Unit& unit : kTimeUnits) {
    if (milliseconds % unit.size == 0 && milliseconds >= unit.size) {
      return absl::StrCat(milliseconds / unit.size, unit.name);
    }
  }
  return absl::StrCat(milliseconds, "s");  // only zero gets here
}

}  // namespace mneme
