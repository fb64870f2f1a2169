#include "base/config_reader.h"

#include "base/spelling.h"

namespace mneme {

void ConfigReader::Adopt(const ConfigReader& part) {
  if (status_.ok()) status_ = part.status_;
  for (std::string& hint : part.Hints()) hints_of_parts_.push_back(std::move(hint));
}

absl::string_view ConfigReader::Nearest(absl::string_view key) const {
  int best = key.size() < 8 ? 2 : 3;  // short words are near to each other by chance
  absl::string_view nearest;
  for (const std::string& known : asked_) {
    if (key.size() >= known.size() + 3 || known.size() >= key.size() + 3) continue;
    if (const int distance = EditDistance(key, known); distance < best) {
      best = distance;
      nearest = known;
    }
  }
  return nearest;
}

std::vector<std::string> ConfigReader::Hints() const {
  std::vector<std::string> hints = hints_of_parts_;
  for (const auto& item : object_.items()) {
    const std::string& key = item.key();
    if (IsKnown(key)) continue;
    const absl::string_view nearest = Nearest(key);
    if (nearest.empty()) continue;
    hints.push_back(absl::StrCat(path_, ": key ", Shown(nlohmann::json(key)),
                                 " is unknown and ignored; did you mean \"", nearest, "\"?"));
  }
  return hints;
}

}  // namespace mneme
