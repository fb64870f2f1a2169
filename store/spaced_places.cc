#include "store/spaced_places.h"

#include <algorithm>
#include <cstddef>

namespace mneme {

std::vector<bool> SpacedPlaces(std::span<const SpacedPlace> places, int64_t begin, int64_t most) {
  std::vector<size_t> kept(places.size());
  for (size_t i = 0; i < kept.size(); ++i) kept[i] = i;
  int64_t others =
      std::count_if(places.begin(), places.end(), [](const SpacedPlace& p) { return !p.needed; });
  // What the gap around a kept place would have of all that is behind its beginning.
  const auto share = [&](size_t k) {
    const int64_t from = k == 0 ? begin : places[kept[k - 1]].position;
    const int64_t to = k + 1 == kept.size() ? places.back().position : places[kept[k + 1]].position;
    const int64_t behind = places.back().position - from;
    return behind <= 0 ? 0.0 : static_cast<double>(to - from) / static_cast<double>(behind);
  };
  for (; others > std::max<int64_t>(most, 0); --others) {
    size_t least = kept.size();
    for (size_t k = 0; k < kept.size(); ++k) {
      if (places[kept[k]].needed) continue;
      if (least == kept.size() || share(k) < share(least)) least = k;
    }
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(least));
  }
  std::vector<bool> keeps(places.size(), false);
  for (const size_t i : kept) keeps[i] = true;
  return keeps;
}

}  // namespace mneme
