// A session's engrams as text, for comparison with other implementations.
#pragma once

#include <string>

#include "models/engrams/engram_graph.h"

namespace mneme {

// A line of JSON, whose keys the help of mneme-inspect explains. Engrams are oldest first, and
// named by their births.
std::string EngramDumpLine(const EngramGraph& graph);

}  // namespace mneme
