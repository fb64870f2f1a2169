// A block of threads is one head of one segment, and walks its tokens. A step whose gradient is not
// needed as a whole rewrites W and S in the pass that also reads; the gradient of one pair is then
// in shared memory, those of several are in scratch, as the factors that they are made of.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/general.h"
#include "kernels/cuda/neural_memory/head_of_segment.cuh"

namespace mneme::cuda::neural_memory {
namespace {

__global__ void __launch_bounds__(kThreads)
    NeuralMemoryKernel(const __grid_constant__ MemoryParams p) {
  extern __shared__ float shared[];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const Segment segment(p.segments, static_cast<int>(blockIdx.x) / p.heads);
  if (segment.slot < 0 || segment.first == segment.end) return;
  HeadOfSegment head(p, segment, static_cast<int>(blockIdx.x) % p.heads, shared);
  head.Run(segment.first, segment.end);
}

// Floats of scratch that a block takes.
int64_t ScratchFloats(const MemoryParams& p) {
  if (p.k == nullptr || p.read == MemoryRead::kAhead) return 0;
  int64_t all = 0, gathered = 0;
  for (int t = 0; t < p.tensors; ++t) {
    const Shape shape = p.network.shape(t, p.dim);
    const int64_t n = shape.elements();
    const bool orthogonal = p.spectral_norm && shape.rank == 2;
    const int64_t floats = n + (orthogonal ? OrthogonalFloats(shape[0], shape[1]) : 0);
    all += n;
    gathered = gathered > floats ? gathered : floats;
  }
  const int64_t pairs = p.step * p.keys;
  return (p.has[kResidual] ? all : 0) + (pairs > 1 ? pairs * FactorFloats(p.network, p.dim) : 0) +
         (p.gathers ? gathered : 0);
}

}  // namespace

void LaunchGeneral(Device& device, const NeuralMemoryArgs& args) {
  const int heads = static_cast<int>(args.q.shape[1]);
  MemoryParams p = {.network = args.network,
                    .q = args.q.as<const float>(),
                    .k = args.k.as<const float>(),
                    .v = args.v.as<const float>(),
                    .rate = args.rate.as<const float>(),
                    .momentum = args.momentum.as<const float>(),
                    .momentum_mix = args.momentum_mix.as<const float>(),
                    .keep = args.keep.as<const float>(),
                    .tensor_rates = args.tensor_rates.as<const float>(),
                    .residual_mix = args.residual_mix.as<const float>(),
                    .transition = args.transition.as<const float>(),
                    .step_scale = args.step_scale.as<const float>(),
                    .gain = args.gain.as<const float>(),
                    .shift = args.shift.as<const float>(),
                    .positions = args.positions.as<const int64_t>(),
                    .segments = ArraysOf(args.segments),
                    .out = args.out.as<float>(),
                    .loss = args.loss.as<float>(),
                    .step = args.step,
                    .anchor_period = args.anchor_period,
                    .frozen_period = args.frozen_period,
                    .first_position = args.first_position,
                    .rate_scale = static_cast<float>(args.rate_scale),
                    .max_grad_norm = static_cast<float>(args.max_grad_norm),
                    .read = args.read,
                    .heads = heads,
                    .dim = static_cast<int>(args.q.shape[2]),
                    .tensors = args.network.tensors(),
                    .keys = args.keys,
                    .orders = args.orders()};
  const bool trains = args.trains();
  if (!args.momentum_mix.empty())
    p.mix_logits = static_cast<int>(args.momentum_mix.shape[1]) / heads;
  p.fixed_anchor = args.anchor_period == 0;
  p.gathers = args.max_grad_norm > 0 || args.spectral_norm;
  p.spectral_norm = args.spectral_norm;
  p.has[kWeights] = true;
  p.has[kMomenta] = trains && p.orders > 0;
  p.has[kAnchors] = args.stores_anchor();
  p.has[kFrozen] = args.frozen_period != 0;
  p.has[kGradients] = trains && args.read == MemoryRead::kAhead;
  p.has[kBefore] = trains && args.before.at[0].base != nullptr;
  p.has[kResidual] = trains && args.has_residual();
  p.has_pairs = trains && args.stores_pairs();
  const MemoryCopy* copies[kCopies] = {&args.weights,   &args.momenta, &args.anchors, &args.frozen,
                                       &args.gradients, &args.before,  &args.residual};
  const MemoryInitial* initial[kBefore] = {&args.initial_weights, &args.initial_momenta,
                                           &args.initial_anchors, &args.initial_frozen,
                                           &args.initial_gradients};
  for (int t = 0; t < p.tensors; ++t) {
    for (int copy = 0; copy < kCopies; ++copy) {
      CHECK(!p.has[copy] || copies[copy]->at[t].dtype == DType::kF32);
      p.copies[copy][t] = copies[copy]->at[t];
      if (copy < kBefore) p.initial[copy][t] = initial[copy]->at[t].as<const float>();
    }
    p.initial_anchor[t] = args.initial_anchor.at[t].as<const float>();
  }
  const StateView* pairs[kPairParts] = {&args.pending.k, &args.pending.v, &args.pending.rate};
  const TensorView* initial_pairs[kPairParts] = {&args.initial_pending.k, &args.initial_pending.v,
                                                 &args.initial_pending.rate};
  for (int part = 0; part < kPairParts; ++part) {
    p.pairs[part] = *pairs[part];
    p.initial_pairs[part] = initial_pairs[part]->as<const float>();
  }
  const int blocks = args.segments.count * heads;
  p.scratch_floats = ScratchFloats(p);
  if (p.scratch_floats > 0) {
    p.scratch = static_cast<float*>(
        device.Scratch(blocks * p.scratch_floats * static_cast<int64_t>(sizeof(float))));
    if (p.scratch == nullptr) return;  // the device knows why
  }
  const int64_t shared =
      HeadNetwork::SharedFloats(args.network, p.dim) * static_cast<int64_t>(sizeof(float));
  LaunchOverlapping(device, "NeuralMemory", NeuralMemoryKernel, blocks, kThreads, shared, 1, p);
}

}  // namespace mneme::cuda::neural_memory
