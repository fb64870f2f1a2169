// Rows whose tokens see each other in both directions: kernels/ops/whole_segments.h says what is
// computed.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::whole_segments {

void IndexWholeSegments(Device& device, const IndexWholeSegmentsArgs& args);
void SegmentAttention(Device& device, const SegmentAttentionArgs& args);

}  // namespace mneme::cuda::whole_segments
