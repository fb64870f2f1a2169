// Launchers of RWKV's token shift, gates and outputs; kernels/ops/rwkv.h has the equations.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"
#include "kernels/recurrent_steps.h"

namespace mneme::cuda::rwkv {

// rwkv/token_shift.cu
void TokenShift(Device& device, const TokenShiftArgs& args);

// rwkv/norm_shift.cu
bool NormAndShift(Device& device, const LayerNormArgs& norm, const TokenShiftArgs& shift);

// rwkv/rwkv7.cu
void Rwkv7Gates(Device& device, const Rwkv7GatesArgs& args);
void ValueResidual(Device& device, const ValueResidualArgs& args);
void Rwkv7Output(Device& device, const Rwkv7OutputArgs& args);

// rwkv/rwkv7_step.cu: for heads of 64 or 128 keys and as many values.
bool Rwkv7LayerStep(Device& device, const Rwkv7LayerStepArgs& layer);

}  // namespace mneme::cuda::rwkv
