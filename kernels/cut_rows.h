// CutRows and ExpandRows for backends whose memory the host reads: one loop over the rows.
#pragma once

#include "kernels/ops/routing.h"

namespace mneme {

void CutRowsOnHost(const CutRowsArgs& args);
void ExpandRowsOnHost(const ExpandRowsArgs& args);

}  // namespace mneme
