// Unicode's normal forms, with the tables of Unicode 9.0 that the tokenizers package has: what came
// later stays as it is.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// `text`, which is valid UTF-8, itself if it is in that form as far as a quick check can say; else
// a view of `storage`, in which `text` must not lie. Time is linear in the text, however many marks
// follow one another. Any thread.
absl::string_view Normalize(NormalForm form, absl::string_view text, std::string& storage);

}  // namespace mneme
