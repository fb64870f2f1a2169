// Steps of a neural memory that a device holds back, and adds to its weights later: what a model
// that keeps their state and a device that takes them agree on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "kernels/tensor_view.h"

namespace mneme {

// How many steps such a memory holds back, at most. Beside W and S of 64 x 128 and 128 x 64 a step
// more to read costs 1.5 of 131 KB, and one step in eight writes these.
constexpr int kMostHeldSteps = 7;

// There are two kinds. One has depth 2, steps of one token, no anchor and one order of momentum. A
// step takes a rank-one gradient z_l^T delta_l off each product's S, with its rate in delta:
//
//   S_t = momentum_t S_{t-1} - z_t^T delta_t      W_t = keep_t W_{t-1} + S_t
//
// so that with n steps held back the memory stands for
//
//   W_n = kept W_0 + moved S_0 + sum_i g_i z_i^T delta_i
//   S_n = slowed S_0 + sum_i s_i z_i^T delta_i
//
// exactly, and products with it need W_0, S_0 and the vectors alone. Of a step that is held:
//
//   s_i <- momentum s_i,  s_n = -1      g_i <- keep g_i + s_i,  g_n = -1
//   slowed <- momentum slowed           moved <- keep moved + slowed          kept <- keep kept
//
// A trained gain, which is a vector, is written by every step.
//
// The other has depth 1 and steps of several tokens that are read ahead. A token takes the gradient
// k^T error to G, with its rate in the error, and a bias's gradient is the error alone; with n of
// the step's tokens held back G stands for
//
//   G_n = G_0 + sum_i k_i^T error_i
//
// and the token is read at q (W - scale G_n). G_0 is zero where all of the step's tokens are held
// back, as it is at a step's first token; its last one writes W, and G.
struct HeldSteps {
  int capacity = 0;  // 0: every step is written; the views are unset
  // Per memory, of each head HeldNumbers(): n, kept, moved, slowed; g of all places; s of all
  // places. With n = 0 the others have no meaning: no step is held back, whatever the fields hold.
  StateView numbers;
  // Per memory, of each head [capacity, HeldVectors()]: z_1, delta_2, z_2, delta_1, z_1 = k; of the
  // other kind k and error, and of numbers n alone.
  StateView vectors;
};

// f32 of a head; a multiple of four.
constexpr int64_t HeldNumbers(int capacity) { return (4 + 2 * int64_t{capacity} + 3) / 4 * 4; }
constexpr int64_t HeldVectors(int64_t dim, int64_t hidden) { return 2 * (dim + hidden); }

// Whether a memory is one of the first kind, under momentum of `orders`, and its vectors find room
// on a multiprocessor.
inline bool HoldsStepsBack(const NeuralMemoryArgs& rule, int orders, int64_t dim) {
  constexpr int64_t kMostVectors = 1536;
  const MemoryNetwork& network = rule.network;
  return network.depth == 2 && !network.biases && rule.keys == 1 && orders == 1 && rule.step == 1 &&
         rule.anchor_period == 1 && rule.frozen_period == 0 && rule.max_grad_norm == 0 &&
         !rule.spectral_norm && rule.transition.empty() &&
         rule.read == NeuralMemoryArgs::Read::kRunning && dim % 4 == 0 && network.hidden % 4 == 0 &&
         HeldVectors(dim, network.hidden) <= kMostVectors;
}
// Whether a memory is one of the second kind, likewise.
inline bool HoldsGradientsBack(const NeuralMemoryArgs& rule, int orders, int64_t dim) {
  constexpr int64_t kMostDim = 128;
  return rule.network.depth == 1 && !rule.network.trains_gain && rule.keys == 1 && orders == 0 &&
         rule.read == NeuralMemoryArgs::Read::kAhead && rule.anchor_period == rule.step &&
         rule.frozen_period == 0 && dim % 4 == 0 && dim <= kMostDim;
}
// How many steps, or tokens of one, a memory holds back where a device takes up to `most`; 0: none.
inline int HeldCapacity(const NeuralMemoryArgs& rule, int orders, int64_t dim, int most) {
  if (HoldsStepsBack(rule, orders, dim)) return std::min(most, kMostHeldSteps);
  if (HoldsGradientsBack(rule, orders, dim)) {
    return std::min(most, static_cast<int>(rule.step) - 1);
  }
  return 0;
}

// What follows a memory on its way out of the layer. A backend may do it with the memory where
// `output` is not null: that, then the product, of its result. It says so in `done`.
struct MemoryAnswer {
  const NeuralMemoryOutputArgs* output = nullptr;
  LinearArgs product = {};
  bool* done = nullptr;
};

// NeuralMemoryStep of a memory that holds steps back; without streams, of segments of any length.
// A session at its first position has none, whatever its fields hold.
struct HeldMemoryArgs {
  std::span<const MemoryStream> streams;
  NeuralMemoryArgs memory;
  HeldSteps held;
  // As of GatedMemoryArgs: of what streams write, too.
  bool settled = false;
  MemoryAnswer answer = {};
  // Whether steps of few heads, which gain nothing by it, are held back as well.
  bool always_holds = false;
};

// Adds what is held back of some slabs' memories to W and S, or to G, which then are the state by
// themselves.
struct SettleNetworkArgs {
  TensorView slots;  // [n] i32, < 0: padding
  int heads = 0, dim = 0, hidden = 0;
  // As in NeuralMemoryArgs. A memory that is read ahead has gradients, others have the other two.
  MemoryCopy weights, momenta, gradients;
  HeldSteps held;
};

// The kernels of a backend that holds steps back have this beside Kernels.
class HeldMemorySteps {
 public:
  virtual ~HeldMemorySteps() = default;

  // False, for streams only: nothing was done, the caller composes these.
  virtual bool HeldMemory(const HeldMemoryArgs& args) = 0;
  virtual void SettleNetwork(const SettleNetworkArgs& args) = 0;
};

// Those of a backend, or null.
inline HeldMemorySteps* HeldMemoryStepsOf(Kernels& kernels) {
  return dynamic_cast<HeldMemorySteps*>(&kernels);
}

}  // namespace mneme
