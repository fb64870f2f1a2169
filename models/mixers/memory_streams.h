// A step's entries between their projections and a memory.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/held_steps.h"
#include "kernels/kernels.h"
#include "models/forward_context.h"

namespace mneme {

// The streams that memories of a layer read (EntryStreams), as far as they are made, and what is
// left to do: Run() does it with the rule that reads it, as one operation where the device has one,
// Finish() without. Until then streams are described, not computed.
class MemoryStreams {
 public:
  // A stream that is what `y` holds, [entries, channels].
  int Add(const TensorView& y);
  // One that `parts` make, in y.
  int Add(const TensorView& y, const MemoryStream& parts);

  // Another tensor in the place of a stream, if it is one.
  void Replace(int stream, const TensorView& y);

  // [entries, channels] act; by_token: [tokens, channels] as LinearArgs::y.
  const TensorView& operator[](int stream) const { return streams_[stream].y; }

  // Something for each of `heads` heads, the last thing that is done to a stream, in place: the
  // arguments less their tensors. Returns the stream by head, as all of these do.
  TensorView L2Norm(int stream, int64_t heads, L2NormArgs norm = {});
  TensorView SumNorm(int stream, int64_t heads, float eps);
  TensorView Rope(int stream, int64_t heads, RopeArgs rope);
  // Leaves log decays, and where there is a `complement`, theirs in it.
  TensorView DecayGates(int stream, int64_t heads, DecayGatesArgs gates);
  // The gate of a stream of a number for each head.
  void KeepGate(int stream, KeepGateArgs gate);

  // Does the operations that are left, then the rule.
  void Run(ForwardContext& ctx, const MatrixMemoryArgs& rule) const;
  // `held`: what memories may hold back, where the device has operations for that.
  void Run(ForwardContext& ctx, const NeuralMemoryArgs& memory, const HeldSteps& held = {},
           const MemoryAnswer& answer = {}) const;
  // Does the operations that are left, for those that follow before the rule.
  void Finish(ForwardContext& ctx);

 private:
  struct Stream {
    TensorView y;
    MemoryStream parts;
    bool left = false;  // there are parts
  };
  std::vector<MemoryStream> Left() const;

  std::vector<Stream> streams_;
};

// `view` as [rows, heads, channels / heads], and back.
TensorView ByHead(TensorView view, int64_t heads);
TensorView Flat(TensorView view);

}  // namespace mneme
