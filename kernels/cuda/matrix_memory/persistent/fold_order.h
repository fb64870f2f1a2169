// The order in which blocks that take segments from a queue come to those that fold.
#pragma once

namespace mneme::cuda::matrix_memory::persistent {

enum : int { kFolding = 0, kNotFolding = 1 };

// A segment: the number-th of its list.
struct FoldPlace {
  int list, number;
};

// The rank-th segment of `count`, rank < count, of which `folding` fold: these lie evenly among the
// first count - last, or are the first of all if they are more. Products of two counts fit an int.
constexpr FoldPlace PlaceOfRank(int rank, int count, int folding, int last) {
  const int mixed = folding > count - last ? folding : count - last;
  int list = kNotFolding, before = folding;  // of those that fold
  if (rank < mixed) {
    before = rank * folding / mixed;
    list = (rank + 1) * folding / mixed > before ? kFolding : kNotFolding;
  }
  return {list, list == kFolding ? before : rank - before};
}

}  // namespace mneme::cuda::matrix_memory::persistent
