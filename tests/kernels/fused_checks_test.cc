// Checks of operations that stand for several: what the operations themselves would refuse, and a
// part that is not fed what the one ahead of it leaves.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/checks.h"

namespace mneme {
namespace {

constexpr ActivationTypes kTypes{DType::kF32, /*takes_rounded=*/true};

// Memory that any view may point to; checks do not read it.
float memory[4096];
std::byte slab[64];

TensorView View(Shape shape, DType dtype = DType::kF32, int at = 0) {
  return {memory + at, dtype, shape};
}
StateView State(DType dtype = DType::kF32) {
  return {.base = slab, .slab_bytes = 64, .dtype = dtype};
}
Segments OneToken() {
  return {.count = 1,
          .offsets = View({2}, DType::kI32),
          .slots = View({1}, DType::kI32),
          .memories = View({1}, DType::kI32),
          .fresh = View({1}, DType::kI32),
          .longest = 1};
}

TEST(FusedChecksDeathTest, Products) {
  const PackedMatrix matrix = {memory, DType::kF32, 4, 8};
  SwiGluProductArgs swiglu = {.x = View({2, 8}, DType::kBF16),
                              .gate = matrix,
                              .up = matrix,
                              .y = View({2, 4}, DType::kBF16)};
  Check(swiglu, kTypes);
  swiglu.up_bias = View({1, 8});
  EXPECT_DEATH(Check(swiglu, kTypes), "up_bias has shape \\[1, 8\\], expected \\[1, 4\\]");
  swiglu.up_bias = View({1, 4});
  Check(swiglu, kTypes);
  swiglu.y = View({2, 8});
  EXPECT_DEATH(Check(swiglu, kTypes), "y has shape \\[2, 8\\], expected \\[2, 4\\]");
  swiglu.up.in_features = 7;
  EXPECT_DEATH(Check(swiglu, kTypes), "up is 4 x 7, gate 4 x 8");

  ActivatedProduct product = {
      .product = {.x = View({2, 8}), .weights = {&matrix, 1}, .y = View({2, 4})}};
  Check(product, kTypes);
  product.product.accumulate = true;
  EXPECT_DEATH(Check(product, kTypes), "an activation of what is added up");
}

TEST(FusedChecksDeathTest, Steps) {
  const PackedMatrix in = {memory, DType::kF32, 6, 4}, out = {memory, DType::kF32, 4, 6};
  GatedFeedForward network = {.norm = View({4}), .gate = in, .up = in, .down = out};
  const FeedForwardStepArgs feed = {.network = network, .hidden = View({2, 4})};
  Check(feed, kTypes);
  network.up = out;
  EXPECT_DEATH(Check(feed, kTypes), "gate or up is 4 x 6, expected 6 x 4");
  network.up = in;
  network.down = in;
  EXPECT_DEATH(Check(feed, kTypes), "down is 6 x 4, expected 4 x 6");

  DeltaMixer mixer = {.norm = View({4}), .memories = 3, .top_k = 2, .q_proj = in, .out_proj = out};
  DeltaMixerStepArgs step = {
      .mixer = mixer,
      .hidden = View({2, 4}),
      .slots = View({2}, DType::kI32),
      .choice = {.indices = View({2, 2}, DType::kI32), .weights = View({2, 2})}};
  Check(step, kTypes);
  step.slots = View({3}, DType::kI32);  // one of which has no token
  Check(step, kTypes);
  step.choice.indices = View({2, 3}, DType::kI32);
  EXPECT_DEATH(Check(step, kTypes), "choice.indices has shape \\[2, 3\\], expected \\[2, 2\\]");
  mixer.memories = 0;
  Check(step, kTypes);
  mixer.out_proj = in;
  EXPECT_DEATH(Check(step, kTypes), "a mixer from 4 to 6 features, beside a norm of 4");
}

TEST(FusedChecksDeathTest, PairsOfOperations) {
  const RmsNormArgs norm = {.x = View({2, 4}), .weight = View({4}), .y = View({2, 4})};
  const RouteTopKArgs route = {.indices = View({2, 2}, DType::kI32), .weights = View({2, 2})};
  PackedMatrix router = {memory, DType::kF32, 3, 4};
  Check(norm, router, route, kTypes);
  router.out_features = 1;
  EXPECT_DEATH(Check(norm, router, route, kTypes), "top_k 2 of 1");
  router.in_features = 5;
  EXPECT_DEATH(Check(norm, router, route, kTypes), "features of a router");

  const MixMemoriesArgs mix = {.x = View({6, 4}),
                               .token_entries = View({2, 3}, DType::kI32),
                               .weights = View({2, 2}),
                               .y = View({2, 4}, DType::kF32, 64)};
  GatedRmsNormArgs gated = {
      .x = View({2, 1, 4}, DType::kF32, 64), .weight = View({4}), .y = View({2, 1, 4})};
  Check(mix, gated, kTypes);
  gated.x = View({2, 1, 4});
  EXPECT_DEATH(Check(mix, gated, kTypes), "norm.x is not what the part ahead of it leaves");

  LayerNormArgs layer = {.x = View({1, 4}), .weight = View({4}), .y = View({1, 4}, DType::kF32, 8)};
  const TokenShiftArgs shift = {.x = View({1, 4}, DType::kF32, 8),
                                .mix = View({2, 4}),
                                .segments = OneToken(),
                                .y = View({2, 1, 4})};
  Check(layer, shift, kTypes);
  layer.y.data = nullptr;
  Check(layer, shift, kTypes);
  layer.y = View({1, 4});
  EXPECT_DEATH(Check(layer, shift, kTypes), "shift.x is not what the part ahead of it leaves");
}

TEST(FusedChecksDeathTest, Streams) {
  MemoryStream stream;
  EXPECT_DEATH(Check(stream, kTypes), "a stream without parts");
  stream.convolution = ShortConvArgs{.x = View({1, 8}),
                                     .weight = View({8, 4}),
                                     .segments = OneToken(),
                                     .y = View({1, 8}, DType::kF32, 16)};
  Check(stream, kTypes);
  const TensorView heads = View({1, 2, 4}, DType::kF32, 16);
  stream.last = L2NormArgs{.x = heads, .y = heads};
  Check(stream, kTypes);
  stream.last = L2NormArgs{.x = View({1, 2, 4}), .y = heads};
  EXPECT_DEATH(Check(stream, kTypes), "x is not what the part ahead of it leaves");
  stream.last = L2NormArgs{.x = heads, .y = View({1, 2, 5})};
  EXPECT_DEATH(Check(stream, kTypes), "y has shape");
}

TEST(FusedChecksDeathTest, Mamba2) {
  const TensorView v = View({1, 2, 4}, DType::kF32, 16), decay = View({1, 2}, DType::kF32, 32);
  const TensorView flat = View({1, 8}, DType::kF32, 16);
  const Mamba2StepArgs plain = {.discretize = {.u = View({1, 2, 4}),
                                               .dt = View({1, 2}),
                                               .dt_bias = View({2}),
                                               .a = View({2}),
                                               .log_decay = decay,
                                               .v = v},
                                .memory = {.rule = {.decay = MatrixRule::Decay::kHead,
                                                    .correction = MatrixRule::Correction::kNone},
                                           .q = View({1, 1, 8}),
                                           .k = View({1, 1, 8}),
                                           .v = v,
                                           .log_decay = decay,
                                           .segments = OneToken(),
                                           .state = State(),
                                           .out = v},
                                .skip = {.x = View({1, 8}), .scale = View({8}), .y = flat},
                                .gate = {}};
  Check(plain, kTypes);
  Mamba2StepArgs args = plain;
  args.memory.segments.longest = 2;
  EXPECT_DEATH(Check(args, kTypes), "tokens of a segment, in a step of single ones");
  args = plain;
  args.memory.v = View({1, 2, 4});
  EXPECT_DEATH(Check(args, kTypes), "memory.v is not what the part ahead of it leaves");
  args = plain;
  args.gate = {.gate = View({1, 8}), .up = View({1, 8}), .y = View({1, 8})};
  EXPECT_DEATH(Check(args, kTypes), "gate.up is not what the part ahead of it leaves");
  args = plain;
  args.discretize.a = View({3});
  EXPECT_DEATH(Check(args, kTypes), "a has shape \\[3\\], expected \\[2\\]");
}

TEST(FusedChecksDeathTest, StreamsOfResiduals) {
  const TensorView x = View({3, 2, 8}), y = View({3, 8}, DType::kF32, 64);
  PassStreamsArgs args;
  args.read = {.mixing = {.gain = View({8}),
                          .alpha = View({2, 3}),
                          .alpha_weight = View({3, 8}),
                          .scales = View({3})},
               .x = x,
               .y = {},
               .post = {}};
  args.norms[0] = {.weight = View({8}), .y = y};
  Check(args, kTypes);  // nothing looks at the input by itself
  args.write = {.x = View({3, 8}), .post = View({3, 2}), .y = View({3, 2, 8}, DType::kF32, 128)};
  EXPECT_DEATH(Check(args, kTypes), "read.x is not what the part ahead of it leaves");
  args.write = {};
  args.norms[0].weight = View({7});
  EXPECT_DEATH(Check(args, kTypes), "weight has shape \\[7\\], expected \\[8\\]");
}

TEST(FusedChecksDeathTest, Settling) {
  SettleArgs matrices = {.slots = View({2}, DType::kI32),
                         .memories = 1,
                         .heads = 2,
                         .key_dim = 4,
                         .value_heads = 2,
                         .value_dim = 4,
                         .state = State()};
  Check(matrices, kTypes);
  matrices.slots = View({2}, DType::kI64);
  EXPECT_DEATH(Check(matrices, kTypes), "slots is i64, expected i32");
  matrices.slots = View({2}, DType::kI32);
  matrices.state = {};
  EXPECT_DEATH(Check(matrices, kTypes), "state is unset");

  SettleNetworkArgs networks = {.slots = View({2}, DType::kI32), .heads = 2, .dim = 4, .hidden = 8};
  EXPECT_DEATH(Check(networks, kTypes), "steps that are held back");
  networks.held = {.capacity = 7, .numbers = State(), .vectors = {}};
  EXPECT_DEATH(Check(networks, kTypes), "held.vectors is unset");
}

}  // namespace
}  // namespace mneme
