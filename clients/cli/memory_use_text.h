// The text that `mneme generate --stats` and `mneme chat` print of what an answer drew on.
#pragma once

#include <string>
#include <vector>

#include "mneme/v1/memory.pb.h"

namespace mneme::cli {

// "41% of long-term segment 3 (tokens 450 to 599)", the largest share first; behind the first
// `most` of them how many there are more. Empty: the answer drew on no recalled engrams.
std::vector<std::string> MemoryUseTexts(const v1::MemoryUse& use, int most);

}  // namespace mneme::cli
