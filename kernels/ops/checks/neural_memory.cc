#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {

void Check(const NeuralMemoryArgs& args, ActivationTypes types) {
  using Read = NeuralMemoryArgs::Read;
  const MemoryNetwork& network = args.network;
  ExpectRank(args.q, 3, "q");
  const int64_t entries = args.q.shape[0], heads = args.q.shape[1], dim = args.q.shape[2];
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  CHECK(network.depth >= 1 && network.depth <= kMaxMemoryDepth) << "depth " << network.depth;
  CHECK(network.depth == 1 || network.hidden >= 1) << "hidden " << network.hidden;
  CHECK(normed || !network.trains_gain) << "a gain without a norm";
  Expect(args.q, types, args.q.shape, "q");
  Expect(args.out, types, args.q.shape, "out");
  if (!args.gain.empty()) {
    CHECK(normed && !network.trains_gain) << "a gain beside a trained one, or without a norm";
    Expect(args.gain, DType::kF32, {heads, dim}, "gain");
    Expect(args.shift, DType::kF32, {heads, dim}, "shift");
  }
  CHECK(!normed || network.trains_gain || !args.gain.empty()) << "a norm without a gain";
  Expect(args.positions, DType::kI64, {entries}, "positions");
  Check(args.segments);
  CHECK_GE(args.step, 1) << "step";
  CHECK(args.anchor_period % args.step == 0) << "anchor_period " << args.anchor_period;
  const auto expect_copy = [&](const MemoryCopy& copy, const char* name) {
    for (int i = 0; i < network.tensors(); ++i) {
      CHECK(copy.at[i].base != nullptr && types.Take(copy.at[i].dtype)) << name << " " << i;
    }
  };
  const auto expect_initial = [&](const MemoryInitial& initial, bool needed, const char* name,
                                  int64_t rows) {
    for (int i = 0; i < network.tensors(); ++i) {
      const TensorView& tensor = initial.at[i];
      if (tensor.empty() && !needed) continue;
      const Shape one = network.shape(i, dim);
      CHECK(tensor.dtype == DType::kF32 || types.Take(tensor.dtype)) << name << " " << i;
      ExpectShape(tensor, one.rank == 2 ? Shape{rows, one[0], one[1]} : Shape{rows, one[0]}, name);
    }
  };
  expect_copy(args.weights, "weights");
  expect_initial(args.initial_weights, true, "initial weights", heads);
  if (args.frozen_period != 0) expect_copy(args.frozen, "frozen");
  CHECK(args.read != Read::kFrozen || args.frozen_period != 0) << "no F to read";
  if (args.stores_anchor()) expect_copy(args.anchors, "anchors");
  if (!args.trains()) return;
  CHECK_GE(args.keys, 1) << "keys";
  const int64_t pairs = heads * args.keys, width = args.gate_width();
  if (args.channel_gates) {
    CHECK(types.act == DType::kF64) << "gates of channels, which the reference alone has";
    CHECK(network.depth == 1 && !normed && !network.biases)
        << "gates of channels of a network that is no single matrix";
  }
  Expect(args.k, types, {entries, pairs, dim}, "k");
  Expect(args.v, types, {entries, pairs, dim}, "v");
  Expect(args.rate, types, {entries, pairs * width}, "rate");
  if (!args.loss.empty()) Expect(args.loss, types, {entries, pairs}, "loss");
  const int64_t orders = args.orders();
  if (orders > 0) {
    CHECK_LE(orders, kMaxMomentumOrders) << "orders of momentum";
    Expect(args.momentum, types, {entries, heads * orders * width}, "momentum");
    expect_copy(args.momenta, "momenta");
  }
  if (!args.momentum_mix.empty()) {
    CHECK_GE(orders, 1) << "a mix of no momenta";
    const bool zeroth = args.momentum_mix.shape[1] == heads * (orders + 1);
    Expect(args.momentum_mix, types, {entries, heads * (orders + (zeroth ? 1 : 0))},
           "momentum_mix");
  }
  if (!args.keep.empty()) Expect(args.keep, types, {entries, heads * width}, "keep");
  if (!args.tensor_rates.empty()) {
    Expect(args.tensor_rates, types, {entries, heads * network.tensors()}, "tensor_rates");
  }
  if (args.has_residual()) {
    Expect(args.residual_mix, types, {entries, heads}, "residual_mix");
    expect_copy(args.residual, "residual");
  }
  if (!args.transition.empty()) Expect(args.transition, DType::kF32, {1}, "transition");
  if (args.before.at[0].base != nullptr) expect_copy(args.before, "before");
  if (!args.step_scale.empty()) {
    Expect(args.step_scale, DType::kF32, {args.step}, "step_scale");
  }
  CHECK_GE(args.max_grad_norm, 0) << "max_grad_norm";
  CHECK(args.read != Read::kAhead ||
        (args.momentum.empty() && args.keep.empty() && args.tensor_rates.empty() &&
         args.max_grad_norm == 0 && !args.spectral_norm && !args.has_residual() &&
         args.transition.empty() && args.step > 1))
      << "reading ahead of a step that does not only take G off W, or of one token";
  if (args.anchor_period == 0) expect_initial(args.initial_anchor, true, "initial anchor", heads);
  if (args.read == Read::kAhead) expect_copy(args.gradients, "gradients");
  if (args.stores_pairs()) {
    const int64_t held = (args.step - 1) * args.keys;
    const auto expect_pairs = [&](const StateView& view, const TensorView& initial,
                                  const Shape& shape, const char* name) {
      CHECK(view.base != nullptr && types.Take(view.dtype)) << "pending " << name;
      if (initial.empty()) return;
      CHECK(initial.dtype == DType::kF32 || types.Take(initial.dtype)) << "initial " << name;
      ExpectShape(initial, shape, name);
    };
    expect_pairs(args.pending.k, args.initial_pending.k, {heads, held, dim}, "keys");
    expect_pairs(args.pending.v, args.initial_pending.v, {heads, held, dim}, "values");
    expect_pairs(args.pending.rate, args.initial_pending.rate,
                 width == 1 ? Shape{heads, held} : Shape{heads, held, width}, "rates");
  }
  expect_initial(args.initial_momenta, false, "initial momenta", heads * orders);
  expect_initial(args.initial_anchors, false, "initial anchors", heads);
  expect_initial(args.initial_frozen, false, "initial frozen", heads);
  expect_initial(args.initial_gradients, false, "initial gradients", heads);
}

void Check(const KeepGateArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 2, "x");
  Expect(args.x, types, args.x.shape, "x");
  if (!args.a_log.empty()) {
    Expect(args.a_log, DType::kF32, {args.x.shape[1]}, "a_log");
    Expect(args.dt_bias, DType::kF32, {args.x.shape[1]}, "dt_bias");
  }
  Expect(args.y, types, args.x.shape, "y");
}

void Check(const ChunkMeanArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 2, "x");
  CHECK_GE(args.chunk, 1) << "chunk";
  Expect(args.x, types, args.x.shape, "x");
  Expect(args.positions, DType::kI64, {args.x.shape[0]}, "positions");
  Check(args.segments);
  CHECK(types.Take(args.sums.dtype)) << "sums are " << Name(args.sums.dtype);
  Expect(args.y, types, args.x.shape, "y");
}

void Check(const ChunkPoolArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 2, "x");
  CHECK_GE(args.chunk, 1) << "chunk";
  Expect(args.x, types, args.x.shape, "x");
  Expect(args.logits, types, args.x.shape, "logits");
  Expect(args.positions, DType::kI64, {args.x.shape[0]}, "positions");
  Check(args.segments);
  CHECK(types.Take(args.sums.dtype)) << "sums are " << Name(args.sums.dtype);
  Expect(args.y, types, args.x.shape, "y");
}

void Check(const SurpriseArgs& args, ActivationTypes types) {
  ExpectRank(args.loss, 2, "loss");
  ExpectRank(args.read, 3, "read");
  CHECK_GE(args.loss.shape[1], 1) << "loss";
  const int64_t entries = args.loss.shape[0];
  Expect(args.loss, types, args.loss.shape, "loss");
  Expect(args.read, types, {entries, args.read.shape[1], args.read.shape[2]}, "read");
  const int64_t tokens = args.surprise.shape[0];
  Expect(args.surprise, DType::kF32, {tokens}, "surprise");
  if (args.places.empty() && args.outer.empty()) {
    CHECK_EQ(tokens, entries) << "entries, without places";
  }
  if (!args.outer.empty()) Expect(args.outer, DType::kI32, {tokens}, "outer");
  if (!args.places.empty()) {
    const int64_t places = args.outer.empty() ? tokens : args.places.shape[0];
    Expect(args.places, DType::kI32, {places}, "places");
  }
}

}  // namespace mneme
