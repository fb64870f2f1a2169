// Lowercase as Rust's char::to_lowercase has it: character by character, whatever stands around.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

// `text`, which is valid UTF-8, itself if nothing changes; else a view of `storage`, in which
// `text` must not lie.
absl::string_view Lowercase(absl::string_view text, std::string& storage);

}  // namespace mneme
