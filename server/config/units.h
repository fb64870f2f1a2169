// Sizes and times as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

// "8GiB", "512 MiB", "1.5GB", "64k" or a number of bytes. KiB, MiB, GiB, TiB and the single letters
// count by 1024; kB, MB, GB, TB by 1000. Upper and lower case are the same. Nothing for what is no
// size, or too large a one.
std::optional<int64_t> ParseBytes(absl::string_view text);

// "250ms", "30s", "5m", "1h30m" or a number of seconds, as whole milliseconds. Nothing for what is
// no time, or too long a one.
std::optional<int64_t> ParseMilliseconds(absl::string_view text);

// The shortest of the spellings above that is exact: "8GiB", "1500B", "30m", "250ms".
std::string FormatBytes(int64_t bytes);
std::string FormatMilliseconds(int64_t milliseconds);

}  // namespace mneme
