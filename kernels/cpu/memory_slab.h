// Where a head of a neural memory lies in its slab, and what a call says of it. Included by
// neural_memory.cc only.
#pragma once

#include <cstdint>

#include "kernels/cpu/memory_network.h"
#include "kernels/cpu/memory_step.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/ops/neural_memory.h"

namespace mneme::MNEME_ISA {

using MemoryRead = NeuralMemoryArgs::Read;

// One head of one segment.
class HeadInSlab {
 protected:
  HeadInSlab(const NeuralMemoryArgs& args, int segment, int head)
      : args_(args),
        slot_(args.segments.slots.as<int32_t>()[segment]),
        memory_(args.segments.memories.as<int32_t>()[segment]),
        head_(head),
        tensors_(args.network.tensors()),
        heads_(args.q.shape[1]),
        dim_(args.q.shape[2]),
        pairs_(args.step * args.keys),
        begin_(args.segments.offsets.as<int32_t>()[segment]),
        end_(args.segments.offsets.as<int32_t>()[segment + 1]),
        first_(Position(begin_) == args.first_position),
        weights_(Of(args.weights)) {
    if (args.frozen_period != 0) frozen_ = Of(args.frozen);
    anchor_ = args.stores_anchor() ? Of(args.anchors) : weights_;
    if (args.anchor_period == 0) anchor_ = Of(args.initial_anchor);
    if (!args.trains()) return;
    for (int order = 0; order < args.orders(); ++order) momenta_[order] = Of(args.momenta, order);
    if (args.read == MemoryRead::kAhead) gradients_ = Of(args.gradients);
  }

  int64_t elements(int t) const { return args_.network.shape(t, dim_).elements(); }
  int64_t Position(int64_t e) const { return args_.positions.as<int64_t>()[e]; }
  int64_t HeldPairs() const { return pairs_ - args_.keys; }
  int64_t PairAt(int64_t e) const { return (e * heads_ + head_) * args_.keys; }
  bool HasBefore() const { return args_.before.at[0].base != nullptr; }
  float ScaleOf(int64_t e) const {
    return args_.step_scale.empty() ? 1.0f : args_.step_scale.as<float>()[Position(e) % args_.step];
  }
  float Gate(const TensorView& gate, int64_t e, float otherwise) const {
    return gate.empty() ? otherwise : gate.as<float>()[e * heads_ + head_];
  }
  // The head's vectors of [entries, heads, dim], from entry e on.
  Rows RowsOf(const TensorView& x, int64_t e) const {
    return {x.as<float>() + (e * heads_ + head_) * dim_, heads_ * dim_};
  }
  float* Own(const StateView& view) const { return view.as<float>(slot_, memory_); }
  HeadTensors Of(const MemoryCopy& copy, int order = 0) const {
    HeadTensors all;
    for (int t = 0; t < tensors_; ++t) {
      all.at[t] = Own(copy.at[t]) + (order * heads_ + head_) * elements(t);
    }
    return all;
  }
  HeadTensors Of(const MemoryInitial& initial, int order = 0) const {
    HeadTensors all;
    for (int t = 0; t < tensors_; ++t) {
      all.at[t] = initial.at[t].as<float>() + (order * heads_ + head_) * elements(t);
    }
    return all;
  }
  MomentaOf MomentaOfTensor(int t) const { return {momenta_[0].at[t], heads_ * elements(t)}; }

  static void CopyFloats(const float* from, float* to, int64_t n) {
    ForVectors(n,
               [&](int64_t i, int lanes) { StoreUpTo(to + i, LoadUpTo(from + i, lanes), lanes); });
  }
  static void ZeroFloats(float* to, int64_t n) {
    ForVectors(n,
               [&](int64_t i, int lanes) { StoreUpTo(to + i, mneme::MNEME_ISA::Zero(), lanes); });
  }
  void Copy(const HeadTensors& from, const HeadTensors& to) const {
    for (int t = 0; t < tensors_; ++t) CopyFloats(from.at[t], to.at[t], elements(t));
  }
  void Zero(const HeadTensors& all) const {
    for (int t = 0; t < tensors_; ++t) ZeroFloats(all.at[t], elements(t));
  }
  // The first write: what all sessions share becomes the session's own.
  void Initialise() const {
    const auto fill = [&](const HeadTensors& to, const MemoryInitial& initial, int order) {
      if (initial.at[0].empty()) return Zero(to);
      Copy(Of(initial, order), to);
    };
    const auto fill_as_weights = [&](const HeadTensors& to, const MemoryInitial& initial) {
      Copy(initial.at[0].empty() ? weights_ : Of(initial), to);
    };
    fill(weights_, args_.initial_weights, 0);
    for (int order = 0; order < args_.orders(); ++order) {
      fill(momenta_[order], args_.initial_momenta, order);
    }
    if (args_.stores_anchor()) fill_as_weights(anchor_, args_.initial_anchors);
    if (args_.frozen_period != 0) fill_as_weights(frozen_, args_.initial_frozen);
    if (args_.read == MemoryRead::kAhead) fill(gradients_, args_.initial_gradients, 0);
    if (!args_.stores_pairs()) return;
    const auto fill_pairs = [&](const StateView& view, const TensorView& initial, int64_t width) {
      const int64_t n = HeldPairs() * width, at = head_ * n;
      if (initial.empty()) return ZeroFloats(Own(view) + at, n);
      CopyFloats(initial.as<float>() + at, Own(view) + at, n);
    };
    fill_pairs(args_.pending.k, args_.initial_pending.k, dim_);
    fill_pairs(args_.pending.v, args_.initial_pending.v, dim_);
    fill_pairs(args_.pending.rate, args_.initial_pending.rate, 1);
  }

  const NeuralMemoryArgs& args_;
  const int slot_, memory_, head_, tensors_;
  const int64_t heads_, dim_;
  const int64_t pairs_;        // of a step
  const int64_t begin_, end_;  // entries of the segment
  const bool first_;           // it begins with a session's first token
  const HeadTensors weights_;
  HeadTensors frozen_, anchor_, gradients_, momenta_[kMaxMomentumOrders];
};

}  // namespace mneme::MNEME_ISA
