// Texts that `mneme generate --stats` and `mneme chat` print of a memory: how surprising it found
// what it read, and what of it an answer drew on.
#pragma once

#include <string>
#include <vector>

#include "mneme/v1/inference.pb.h"
#include "mneme/v1/memory.pb.h"

namespace mneme::cli {

// "surprise 0.1234", of usage that has it.
std::string SurpriseText(const v1::Usage& usage);

// "41% of long-term segment 3 (tokens 450 to 599)", the largest share first; behind the first
// `most` of them how many there are more. Empty: the answer drew on no recalled engrams.
std::vector<std::string> MemoryUseTexts(const v1::MemoryUse& use, int most);

}  // namespace mneme::cli
