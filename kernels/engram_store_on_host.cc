// One session's store of engrams, and whom they fired with.
#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/engrams_on_host.h"

namespace mneme {

namespace {

constexpr int kWordBits = 64;  // of a history, as it is read here

}  // namespace

template <typename Number>
std::vector<int> Engrams<Number>::OfType(EngramType wanted) const {
  std::vector<int> slots;
  for (int i = 0; i < capacity(); ++i) {
    if (type(i) == wanted) slots.push_back(i);
  }
  std::sort(slots.begin(), slots.end(), [&](int a, int b) { return birth(a) < birth(b); });
  return slots;
}

template <typename Number>
void Engrams<Number>::CountsWith(int i, const std::vector<int>& others, int segment,
                                 std::vector<uint16_t>& counts) const {
  counts.resize(others.size());
  if (store_.steps == 0) {
    const uint16_t* row = this->counts(i);
    std::transform(others.begin(), others.end(), counts.begin(), [row](int j) { return row[j]; });
    return;
  }
  // Later words are zeros.
  const int words = std::min(segment, store_.steps - 1) / kWordBits + 1;
  const uint64_t* own = fired(i);
  std::transform(others.begin(), others.end(), counts.begin(), [&](int j) {
    const uint64_t* other = fired(j);
    int count = 0;
    for (int w = 0; w < words; ++w) count += std::popcount(own[w] & other[w]);
    return static_cast<uint16_t>(count);
  });
}

template <typename Number>
void Engrams<Number>::Fire(const std::vector<int>& active, int segment) const {
  if (store_.steps == 0) {
    for (const int i : active) {
      uint16_t* row = counts(i);
      for (const int j : active) {
        if (row[j] < std::numeric_limits<uint16_t>::max()) ++row[j];
      }
    }
    return;
  }
  const int step = segment % store_.steps, word = step / kWordBits;
  const uint64_t bit = uint64_t{1} << (step % kWordBits);
  for (int i = 0; i < capacity(); ++i) {
    if (type(i) != EngramType::kFree) fired(i)[word] &= ~bit;
  }
  for (const int i : active) fired(i)[word] |= bit;
  fact(kEngramHistoryWrapped) = std::max(0, segment - store_.steps);
}

template <typename Number>
void Engrams<Number>::ForgetFirings(const std::vector<int>& born) const {
  if (store_.steps > 0) {
    for (const int b : born) std::fill_n(fired(b), store_.steps / kWordBits, uint64_t{0});
    return;
  }
  for (const int b : born) std::fill_n(counts(b), capacity(), uint16_t{0});
  for (int j = 0; j < capacity(); ++j) {
    if (type(j) == EngramType::kFree) continue;
    for (const int b : born) counts(j)[b] = 0;
  }
}

template class Engrams<float>;
template class Engrams<double>;

}  // namespace mneme
