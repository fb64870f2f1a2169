#include "models/mixers/memory_streams.h"

#include <span>
#include <type_traits>
#include <variant>

#include "base/log.h"

namespace mneme {
namespace {

// The streams, operation by operation.
void Compose(Kernels& kernels, std::span<const MemoryStream> streams) {
  std::vector<ShortConvArgs> convolutions;
  std::vector<ActivateArgs> activations;
  for (const MemoryStream& stream : streams) {
    if (stream.convolution.has_value()) convolutions.push_back(*stream.convolution);
    if (stream.activation.has_value()) activations.push_back(*stream.activation);
  }
  if (!convolutions.empty()) kernels.ShortConv(convolutions);
  if (!activations.empty()) kernels.Activate(activations);
  for (const MemoryStream& stream : streams) {
    if (const auto* l2 = std::get_if<L2NormArgs>(&stream.last)) kernels.L2Norm(*l2);
    if (const auto* sum = std::get_if<SumNormArgs>(&stream.last)) kernels.SumNorm(*sum);
    if (const auto* rope = std::get_if<RopeArgs>(&stream.last)) kernels.Rope(*rope);
    if (const auto* decay = std::get_if<DecayGatesArgs>(&stream.last)) kernels.DecayGates(*decay);
    if (const auto* keep = std::get_if<KeepGateArgs>(&stream.last)) kernels.KeepGate(*keep);
  }
}

}  // namespace

int MemoryStreams::Add(const TensorView& y) {
  streams_.push_back({.y = y});
  return static_cast<int>(streams_.size()) - 1;
}

int MemoryStreams::Add(const TensorView& y, const MemoryStream& parts) {
  streams_.push_back({.y = y, .parts = parts, .left = true});
  return static_cast<int>(streams_.size()) - 1;
}

void MemoryStreams::Replace(int stream, const TensorView& y) {
  if (streams_[stream].y.data != y.data) streams_[stream] = {.y = y};
}

TensorView MemoryStreams::L2Norm(int stream, int64_t heads, L2NormArgs norm) {
  Stream& of = streams_[stream];
  const TensorView y = ByHead(of.y, heads);
  norm.x = y;
  norm.y = y;
  of.parts.last = norm;
  of.left = true;
  return y;
}

TensorView MemoryStreams::SumNorm(int stream, int64_t heads, float eps) {
  Stream& of = streams_[stream];
  const TensorView y = ByHead(of.y, heads);
  of.parts.last = SumNormArgs{.x = y, .eps = eps, .y = y};
  of.left = true;
  return y;
}

TensorView MemoryStreams::Rope(int stream, int64_t heads, RopeArgs rope) {
  Stream& of = streams_[stream];
  const TensorView y = ByHead(of.y, heads);
  rope.x = y;
  rope.y = y;
  of.parts.last = rope;
  of.left = true;
  return y;
}

TensorView MemoryStreams::DecayGates(int stream, int64_t heads, DecayGatesArgs gates) {
  Stream& of = streams_[stream];
  const TensorView y = ByHead(of.y, heads);
  gates.x = y;
  gates.log_decay = y;
  of.parts.last = gates;
  of.left = true;
  return y;
}

void MemoryStreams::KeepGate(int stream, KeepGateArgs gate) {
  Stream& of = streams_[stream];
  gate.x = of.y;
  gate.y = of.y;
  of.parts.last = gate;
  of.left = true;
}

std::vector<MemoryStream> MemoryStreams::Left() const {
  std::vector<MemoryStream> left;
  for (const Stream& stream : streams_) {
    if (stream.left) left.push_back(stream.parts);
  }
  return left;
}

void MemoryStreams::Run(ForwardContext& ctx, const MatrixMemoryArgs& rule) const {
  const std::vector<MemoryStream> left = Left();
  // Where a router chose the segments, it did so in this layer.
  const bool settled = rule.segments.offsets.data == ctx.row_index.segments.offsets.data;
  if (ctx.kernels().MatrixMemoryStep({.streams = left, .rule = rule, .settled = settled})) return;
  Compose(ctx.kernels(), left);
  ctx.kernels().MatrixMemory(rule);
}

void MemoryStreams::Run(ForwardContext& ctx, const NeuralMemoryArgs& memory, const HeldSteps& held,
                        const MemoryAnswer& answer) const {
  const std::vector<MemoryStream> left = Left();
  HeldMemorySteps* const steps = HeldMemoryStepsOf(ctx.kernels());
  if (held.capacity > 0 && steps != nullptr) {
    HeldMemoryArgs args = {
        .streams = left, .memory = memory, .held = held, .settled = true, .answer = answer};
    if (steps->HeldMemory(args)) return;
    Compose(ctx.kernels(), left);
    args.streams = {};
    CHECK(steps->HeldMemory(args));
    return;
  }
  if (ctx.kernels().NeuralMemoryStep({.streams = left, .memory = memory})) return;
  Compose(ctx.kernels(), left);
  ctx.kernels().NeuralMemory(memory);
}

void MemoryStreams::Finish(ForwardContext& ctx) {
  Compose(ctx.kernels(), Left());
  for (Stream& stream : streams_) stream.left = false;
}

TensorView ByHead(TensorView view, int64_t heads) {
  view.shape = {view.shape[0], heads, view.shape[1] / heads};
  return view;
}

TensorView Flat(TensorView view) {
  view.shape = {view.shape[0], view.shape[1] * view.shape[2]};
  return view;
}

}  // namespace mneme
