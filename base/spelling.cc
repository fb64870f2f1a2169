#include "base/spelling.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace mneme {

int EditDistance(absl::string_view a, absl::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int> two_above(columns), above(columns), row(columns);
  for (size_t j = 0; j < columns; ++j) above[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j < columns; ++j) {
      const int replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, above[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_above[j - 2] + 1);
      }
    }
    std::swap(two_above, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string NearestSpelling(absl::string_view typed, std::span<const std::string> words) {
  const int letters =
      static_cast<int>(typed.size() - std::min(typed.find_first_not_of('-'), typed.size()));
  int best = std::clamp(letters / 4, 1, 3) + 1;
  const std::string* nearest = nullptr;
  for (const std::string& word : words) {
    int distance = EditDistance(typed, word);
    if (letters >= 3 && absl::StartsWith(word, typed)) distance = std::min(distance, 1);
    // --port is near --grpc-port, sessions near max_sessions.
    const bool ends_so = absl::StartsWith(typed, "--")
                             ? absl::EndsWith(word, typed.substr(1))
                             : absl::EndsWith(word, absl::StrCat("_", typed));
    if (letters >= 3 && ends_so) distance = std::min(distance, 1);
    if (distance < best) {
      best = distance;
      nearest = &word;
    }
  }
  return nearest == nullptr ? "" : *nearest;
}

std::string Alternatives(std::span<const std::string> words) {
  if (words.size() < 2) return absl::StrJoin(words, "");
  return absl::StrCat(absl::StrJoin(words.first(words.size() - 1), ", "), " or ", words.back());
}

}  // namespace mneme
