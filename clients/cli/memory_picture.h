// The graph of a session's engrams as a picture.
#pragma once

#include "base/png_image.h"
#include "mneme/v1/memory.pb.h"

namespace mneme::cli {

// Where the first segment's first engram lies; around it are axes with numbers, and below them what
// the colours mean.
inline constexpr int kPlotLeft = 44, kPlotTop = 32;

// Places by birth: the segment from left to right, the place in it from top to bottom. Working
// engrams are green, short-term ones orange, long-term ones blue; a ring is around those that are
// recalled. Edges between engrams that are told are grey, the darker the stronger.
Image DrawMemory(const v1::InspectMemoryResponse& memory);

}  // namespace mneme::cli
