// Residual connections of several streams: kernels/ops/residual_streams.h says what is computed.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"
#include "kernels/stream_steps.h"

namespace mneme::cuda::residual_streams {

void ExpandStreams(Device& device, const ExpandStreamsArgs& args);
void ReadStreams(Device& device, const ReadStreamsArgs& args);
void WriteStreams(Device& device, const WriteStreamsArgs& args);
void SumStreams(Device& device, const SumStreamsArgs& args);
void MixViews(Device& device, const MixViewsArgs& args);
// residual_streams/pass_streams.cu
bool PassStreams(Device& device, const PassStreamsArgs& args);

}  // namespace mneme::cuda::residual_streams
