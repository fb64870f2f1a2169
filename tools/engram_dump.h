// A session's engrams as text, for comparison with other implementations.
#pragma once

#include <string>

#include "models/engrams/engram_graph.h"

namespace mneme {

// A line of JSON. Engrams are oldest first, and named by their births.
//   segment, position                     the open segment, and the tokens that were fed
//   births, types, lifespans, gains       of each engram; types: 1 working, 2 short-term, 3
//   long-term counts                                a row for each: segments for which it and each
//   fired recalled                              births, of those that the segment's tokens attend
//   to found, null_candidate, null_recalled, columns, evicted
//                                         of the last retrieval, and since the session's birth
std::string EngramDumpLine(const EngramGraph& graph);

}  // namespace mneme
