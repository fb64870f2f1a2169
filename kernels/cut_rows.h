// CutRows, ExpandRows and IndexWholeSegments for backends whose memory the host reads: one loop
// over the rows.
#pragma once

#include "kernels/ops/routing.h"
#include "kernels/ops/whole_segments.h"

namespace mneme {

void CutRowsOnHost(const CutRowsArgs& args);
void ExpandRowsOnHost(const ExpandRowsArgs& args);
void IndexWholeSegmentsOnHost(const IndexWholeSegmentsArgs& args);

}  // namespace mneme
