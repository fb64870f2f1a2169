// Which places of a session's past are worth a snapshot, where not all can have one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mneme {

struct SpacedPlace {
  int64_t position = 0;  // tokens fed
  bool needed = false;   // it is kept anyway
};

// Of places in the order of their positions, the newest last, those to keep: the needed ones, and
// `most` others. From where the session stood at `begin`, it can be fed again without a snapshot:
// 0 where its whole log is there, and the first place where the log begins with that.
//
// Going back to a position replays the gap between two places, at most. Of a gap counts what share
// it has of all that lies behind its beginning: where `most` is too few, one place after the other
// goes, each time the one that leaves the smallest such share. So gaps grow in proportion to their
// age, from the newest place backwards, whatever the order in which places came and went before: a
// longer way back is the longer replay. With k of them over n places of equal distance the shares
// tend to 1 - n^(-1/k).
std::vector<bool> SpacedPlaces(std::span<const SpacedPlace> places, int64_t begin, int64_t most);

}  // namespace mneme
