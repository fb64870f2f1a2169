// Parts of networks whose residual has several streams, as one operation. As in decode_step.h, what
// they compute is defined by the operations of kernels.h that they stand for, in the order named,
// and a device that has no fused form, for these arguments or at all, says so. What operands hold
// afterwards that are not named as results is unspecified.
#pragma once

#include "kernels/kernels.h"
#include "kernels/tensor_view.h"

namespace mneme {

// The operations between two branches that follow each other:
//   WriteStreams   write: what the first one gave, unless its x is empty
//   ReadStreams    read: what the second one is fed
//   RmsNorm        each of norms whose y is not empty, of read.y
//   ChunkMean      mean, unless its y is empty, of norms[1].y; its segments have one token each
// An x of norms and mean is not looked at, read.y may be empty where nothing else wants it, and
// mean.y may be as LinearArgs::x. write.y is read.x, and write.post may be read.post.
struct PassStreamsArgs {
  WriteStreamsArgs write;
  ReadStreamsArgs read;
  RmsNormArgs norms[2];
  ChunkMeanArgs mean;
};

// A memory whose gates are still logits, and whose answer has a gate of each head:
//   Activate       kSigmoid, in place, of memory.rate and memory.momentum
//   KeepGate       of memory.keep, in place, without a_log
//   NeuralMemory   memory
//   Activate       kSigmoid of gate, [entries, heads]
//   Multiply       of memory.out by that, to y, [entries, heads * dim] act, or as LinearArgs::x in
//                  steps of single tokens
struct GatedMemoryArgs {
  NeuralMemoryArgs memory;
  TensorView gate, y;
  // Whether whatever writes the memory's state, positions and segments was launched before an
  // operation that no other one overlaps: then they may be read while the one ahead still runs.
  bool settled = false;
};

// Attention whose queries and keys are not rotated yet, and whose values are not mixed:
//   ValueResidual  mix, unless its v is empty; else that is attention.v
//   Rope           of attention.q and attention.k, in place, as `rope` has it but for x and y
//   Attention      attention; its out may be as LinearArgs::x, which a device that does not take
//                  longer rows so refuses
struct TurnedAttentionArgs {
  ValueResidualArgs mix;
  RopeArgs rope;
  AttentionArgs attention;
  // As of GatedMemoryArgs: of contexts and of what tells of rows.
  bool settled = false;
};

// A backend's kernels have this beside Kernels, if they can fuse such parts. False: nothing was
// done, the caller goes operation by operation.
class StreamSteps {
 public:
  virtual ~StreamSteps() = default;

  virtual bool PassStreams(const PassStreamsArgs& args) = 0;
  virtual bool GatedMemory(const GatedMemoryArgs& args) = 0;
  virtual bool TurnedAttention(const TurnedAttentionArgs& args) = 0;
};

// Those of a backend, or null.
inline StreamSteps* StreamStepsOf(Kernels& kernels) { return dynamic_cast<StreamSteps*>(&kernels); }

}  // namespace mneme
