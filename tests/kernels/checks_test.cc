// A wrong shape ends the process with the argument's name, whichever backend is asked.
#include "kernels/ops/checks.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

// Memory that any view may point to; nothing is read before the check fails.
float memory[4096];

TensorView View(Shape shape, DType dtype = DType::kF32) { return {memory, dtype, shape}; }

class ChecksDeathTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override { backend_ = GetParam().Make(/*threads=*/1); }
  Kernels& kernels() { return backend_->kernels(); }
  TensorView Act(Shape shape) const { return View(shape, backend_->activation_dtype()); }

  std::unique_ptr<Backend> backend_;
};

TEST_P(ChecksDeathTest, DenseOperations) {
  EXPECT_DEATH(kernels().RmsNorm({.x = Act({2, 8}), .weight = View({7}), .y = Act({2, 8})}),
               "weight has shape \\[7\\], expected \\[8\\]");
  EXPECT_DEATH(kernels().RmsNorm({.x = Act({2, 8}), .weight = View({8}), .y = Act({3, 8})}),
               "y has shape \\[3, 8\\], expected \\[2, 8\\]");
  EXPECT_DEATH(kernels().RmsNorm({.x = Act({2, 8}), .weight = View({8}), .y = {}}), "y ");
  EXPECT_DEATH(kernels().LayerNorm({.x = Act({2, 2, 4}), .weight = View({4}), .y = Act({2, 2, 4})}),
               "weight has shape \\[4\\], expected \\[2, 4\\]");
  EXPECT_DEATH(kernels().LayerNorm(
                   {.x = Act({2, 8}), .weight = View({8}), .bias = View({7}), .y = Act({2, 8})}),
               "bias has shape \\[7\\], expected \\[8\\]");
  EXPECT_DEATH(kernels().SwiGlu({.gate = Act({2, 8}), .up = Act({2, 9}), .y = Act({2, 8})}),
               "up has shape");
  EXPECT_DEATH(kernels().GatherRows({.x = Act({4, 8}), .indices = View({2}), .y = Act({2, 8})}),
               "indices is f32, expected i32");
  const TensorView positions = View({2}, DType::kI64);
  EXPECT_DEATH(
      kernels().AddPositions({.positions = positions, .table = View({4, 8}), .y = Act({2, 9})}),
      "y has shape \\[2, 9\\], expected \\[2, 8\\]");
  const PackedMatrix weights[] = {{memory, DType::kF32, 4, 8}, {memory, DType::kF32, 4, 7}};
  const LinearArgs narrow[] = {{.x = Act({2, 7}), .weights = {weights, 1}, .y = Act({2, 4})}};
  EXPECT_DEATH(kernels().Linear(narrow), "x has shape");
  const LinearArgs unequal[] = {{.x = Act({2, 8}), .weights = weights, .y = Act({2, 4})}};
  EXPECT_DEATH(kernels().Linear(unequal), "weights of one product are 4 x 8 and 4 x 7");
}

TEST_P(ChecksDeathTest, OperationsOfRwkv) {
  const Segments segments = {.count = 1,
                             .offsets = View({2}, DType::kI32),
                             .slots = View({1}, DType::kI32),
                             .memories = View({1}, DType::kI32),
                             .fresh = View({1}, DType::kI32)};
  EXPECT_DEATH(
      kernels().TokenShift(
          {.x = Act({2, 8}), .mix = View({3, 8}), .segments = segments, .y = Act({2, 3, 8})}),
      "y has shape \\[2, 3, 8\\], expected \\[3, 2, 8\\]");
  EXPECT_DEATH(kernels().TokenShift({.x = Act({2, 8}),
                                     .mix = View({3, 8}),
                                     .token_mix = Act({3, 1, 8}),
                                     .segments = segments,
                                     .y = Act({3, 2, 8})}),
               "token_mix has shape");
  EXPECT_DEATH(
      kernels().ValueResidual(
          {.first = Act({2, 8}), .gate = Act({2, 8}), .bias = View({7}), .v = Act({2, 8})}),
      "bias has shape \\[7\\], expected \\[8\\]");
  EXPECT_DEATH(kernels().Rwkv7Gates({.decay = Act({2, 2, 4}), .k = Act({2, 2, 4})}), "rate ");
  EXPECT_DEATH(kernels().Rwkv7Output({.x = Act({2, 2, 4}),
                                      .weight = View({2, 4}),
                                      .bias = View({2, 4}),
                                      .r = Act({2, 2, 3}),
                                      .k = Act({2, 2, 4})}),
               "k has shape \\[2, 2, 4\\], expected \\[2, 2, 3\\]");
}

TEST_P(ChecksDeathTest, MemoryOperations) {
  const Segments segments = {.count = 1,
                             .offsets = View({2}, DType::kI32),
                             .slots = View({1}, DType::kI32),
                             .memories = View({1}, DType::kI32),
                             .fresh = View({2}, DType::kI32)};
  const ShortConvArgs convolution[] = {{.x = Act({2, 8}),
                                        .weight = View({8, kMaxConvWidth + 1}),
                                        .segments = segments,
                                        .y = Act({2, 8})}};
  EXPECT_DEATH(kernels().ShortConv(convolution), "a convolution 17 wide");
  EXPECT_DEATH(kernels().MatrixMemory({.q = Act({2, 2, 4}),
                                       .k = Act({2, 2, 4}),
                                       .v = Act({2, 2, 4}),
                                       .segments = segments,
                                       .out = Act({2, 2, 4})}),
               "log_decay has shape");
  EXPECT_DEATH(kernels().MatrixMemory({.q = Act({2, 2, 4}),
                                       .k = Act({2, 2, 4}),
                                       .v = Act({2, 2, 4}),
                                       .log_decay = Act({2, 2}),
                                       .beta = Act({2, 2}),
                                       .segments = segments,
                                       .out = Act({2, 2, 4})}),
               "segments.fresh has shape");
  EXPECT_DEATH(
      kernels().RouteTopK(
          {.logits = Act({2, 4}), .indices = View({2, 5}, DType::kI32), .weights = Act({2, 5})}),
      "top_k 5 of 4");
}

TEST_P(ChecksDeathTest, ActivationsAndProductsOfElements) {
  EXPECT_DEATH(kernels().AddBias({.bias = View({2, 8}), .y = Act({3, 8})}),
               "biases without group_offsets");
  EXPECT_DEATH(kernels().AddBias({.bias = View({1, 7}), .y = Act({3, 8})}),
               "bias has shape \\[1, 7\\], expected \\[1, 8\\]");
  EXPECT_DEATH(
      kernels().AddBias(
          {.bias = View({2, 8}), .group_offsets = View({2}, DType::kI32), .y = Act({3, 8})}),
      "group_offsets has shape");
  const ActivateArgs more[] = {{.x = Act({2, 8}), .y = Act({3, 8})}};
  EXPECT_DEATH(kernels().Activate(more), "rows of as many entries");
  const ActivateArgs wider[] = {
      {.x = Act({2, 8}), .entry_rows = View({3}, DType::kI32), .y = Act({3, 9})}};
  EXPECT_DEATH(kernels().Activate(wider), "y has shape");
  EXPECT_DEATH(kernels().Multiply({.a = Act({2, 8}), .b = Act({3, 8}), .y = Act({2, 8})}),
               "b has shape");
  EXPECT_DEATH(kernels().Multiply({.a = Act({2, 8}), .b = Act({2, 7}), .y = Act({2, 8})}),
               "7 factors of 8");
}

TEST_P(ChecksDeathTest, OperationsOnHeads) {
  EXPECT_DEATH(kernels().SumNorm({.x = Act({2, 8}), .y = Act({2, 8})}), "x has shape");
  EXPECT_DEATH(kernels().Softmax({.x = Act({2, 1, 8}), .y = Act({2, 8, 1})}), "y has shape");
  EXPECT_DEATH(kernels().Divide({.x = Act({2, 3, 8}), .z = Act({2, 8}), .y = Act({2, 3, 8})}),
               "z has shape \\[2, 8\\], expected \\[2, 3\\]");
  EXPECT_DEATH(
      kernels().MapFeatures({.map = FeatureMap::kDpfp, .x = Act({2, 3, 8}), .y = Act({2, 3, 16})}),
      "y has shape \\[2, 3, 16\\], expected \\[2, 3, 64\\]");
  EXPECT_DEATH(kernels().Rope({.x = Act({2, 3, 7}),
                               .positions = View({2}, DType::kI64),
                               .frequencies = View({3}),
                               .y = Act({2, 3, 7})}),
               "pairs of a head of 7");
  EXPECT_DEATH(kernels().Rope({.x = Act({2, 3, 8}),
                               .positions = View({2}, DType::kI32),
                               .frequencies = View({4}),
                               .y = Act({2, 3, 8})}),
               "positions is i32, expected i64");
  EXPECT_DEATH(kernels().GatedRmsNorm({.x = Act({2, 3, 8}),
                                       .gate = Act({2, 3, 8}),
                                       .weight = View({8}),
                                       .activation = Activation::kRelu,
                                       .y = Act({2, 3, 8})}),
               "neither silu nor sigmoid");
}

TEST_P(ChecksDeathTest, Rows) {
  IndexRowsArgs args = {.row_offsets = View({3}, DType::kI32),
                        .slots = View({2}, DType::kI32),
                        .positions = View({2}, DType::kI64),
                        .token_positions = View({5}, DType::kI64),
                        .segments = {.count = 3}};
  EXPECT_DEATH(kernels().IndexRows(args), "segments");
  args.row_offsets.shape = {2};
  EXPECT_DEATH(kernels().IndexRows(args), "row_offsets has shape");
}

TEST_P(ChecksDeathTest, Gates) {
  DecayGatesArgs args = {.gate = DecayGate::kSoftplus,
                         .x = Act({2, 3, 8}),
                         .a_log = View({3}),
                         .dt_bias = View({3, 8}),
                         .log_decay = Act({2, 3, 8}),
                         .complement = Act({2, 3, 7})};
  EXPECT_DEATH(kernels().DecayGates(args), "complement has shape");
  args.dt_bias.shape = {8};
  EXPECT_DEATH(kernels().DecayGates(args), "dt_bias has shape");
  args.a_log = {};
  EXPECT_DEATH(kernels().DecayGates(args), "a_log ");
  args.gate = DecayGate::kForget;
  args.lower = View({3});
  EXPECT_DEATH(kernels().DecayGates(args), "lower has shape");
}

TEST_P(ChecksDeathTest, MatrixMemoriesGetWhatTheirRuleTakes) {
  using Rule = MatrixRule;
  const Segments segments = {.count = 1,
                             .offsets = View({2}, DType::kI32),
                             .slots = View({1}, DType::kI32),
                             .memories = View({1}, DType::kI32),
                             .fresh = View({1}, DType::kI32)};
  const MatrixMemoryArgs plain = {
      .rule = {Rule::Decay::kNone, Rule::Correction::kNone, Rule::Read::kAfter},
      .q = Act({2, 2, 4}),
      .k = Act({2, 2, 4}),
      .v = Act({2, 4, 5}),
      .segments = segments,
      .out = Act({2, 4, 5})};
  MatrixMemoryArgs args = plain;
  args.k = Act({2, 3, 4});
  EXPECT_DEATH(kernels().MatrixMemory(args), "k has 3 heads, the memory 4");
  args = plain;
  args.q = Act({2, 2, 5});
  EXPECT_DEATH(kernels().MatrixMemory(args), "q has shape");
  args = plain;
  args.log_decay = Act({2, 4});
  EXPECT_DEATH(kernels().MatrixMemory(args), "log_decay that the rule has no use for");
  args = plain;
  args.beta = Act({2, 4});
  EXPECT_DEATH(kernels().MatrixMemory(args), "beta that the rule has no use for");
  args = plain;
  args.rule.decay = Rule::Decay::kKey;
  args.log_decay = Act({2, 4, 5});
  EXPECT_DEATH(kernels().MatrixMemory(args), "log_decay has shape");
  args.rule.decay = Rule::Decay::kConstant;
  EXPECT_DEATH(kernels().MatrixMemory(args), "log_decay ");
  args = plain;
  args.rule.correction = Rule::Correction::kGeneral;
  args.c = Act({2, 2, 4});
  EXPECT_DEATH(kernels().MatrixMemory(args), "e has shape");
  args = plain;
  args.rule.read = Rule::Read::kBeforeWithBonus;
  args.bonus = View({2, 4});
  EXPECT_DEATH(kernels().MatrixMemory(args), "bonus has shape \\[2, 4\\], expected \\[4, 4\\]");
}

TEST_P(ChecksDeathTest, ConvolutionsHaveTwoActivations) {
  const ShortConvArgs convolution[] = {{.x = Act({2, 8}),
                                        .weight = View({8, 4}),
                                        .activation = Activation::kSigmoid,
                                        .y = Act({2, 8})}};
  EXPECT_DEATH(kernels().ShortConv(convolution), "neither silu nor nothing");
}

TEST_P(ChecksDeathTest, NeuralMemories) {
  const auto segments = Segments{.count = 1,
                                 .offsets = View({2}, DType::kI32),
                                 .slots = View({1}, DType::kI32),
                                 .memories = View({1}, DType::kI32),
                                 .fresh = View({1}, DType::kI32)};
  const StateView state = {.base = reinterpret_cast<std::byte*>(memory), .dtype = Act({1}).dtype};
  NeuralMemoryArgs plain = {.network = {.depth = 2, .hidden = 6},
                            .q = Act({2, 3, 4}),
                            .k = Act({2, 3, 4}),
                            .v = Act({2, 3, 4}),
                            .rate = Act({2, 3}),
                            .positions = View({2}, DType::kI64),
                            .segments = segments,
                            .out = Act({2, 3, 4})};
  for (int t = 0; t < 2; ++t) {
    plain.weights.at[t] = state;
    plain.initial_weights.at[t] = t == 0 ? View({3, 4, 6}) : View({3, 6, 4});
  }
  NeuralMemoryArgs args = plain;
  args.v = Act({2, 3, 5});
  EXPECT_DEATH(kernels().NeuralMemory(args), "v has shape \\[2, 3, 5\\], expected \\[2, 3, 4\\]");
  args = plain;
  args.network.depth = kMaxMemoryDepth + 1;
  EXPECT_DEATH(kernels().NeuralMemory(args), "depth 5");
  args = plain;
  args.initial_weights.at[1] = View({3, 4, 6});
  EXPECT_DEATH(kernels().NeuralMemory(args), "initial weights has shape");
  args = plain;
  args.momentum = Act({2, 3});
  EXPECT_DEATH(kernels().NeuralMemory(args), "momenta 0");
  args = plain;
  args.step = 2;
  EXPECT_DEATH(kernels().NeuralMemory(args), "anchor_period 1");
  args.anchor_period = 2;
  EXPECT_DEATH(kernels().NeuralMemory(args), "pending keys");
  args.read = NeuralMemoryArgs::Read::kAhead;
  EXPECT_DEATH(kernels().NeuralMemory(args), "gradients 0");
  args.max_grad_norm = 1;
  EXPECT_DEATH(kernels().NeuralMemory(args), "reading ahead");
  args = plain;
  args.read = NeuralMemoryArgs::Read::kAhead;
  EXPECT_DEATH(kernels().NeuralMemory(args), "reading ahead");
  args.read = NeuralMemoryArgs::Read::kFrozen;
  EXPECT_DEATH(kernels().NeuralMemory(args), "no F to read");
  args = plain;
  args.network.norm = MemoryNetwork::Norm::kRms;
  EXPECT_DEATH(kernels().NeuralMemory(args), "a norm without a gain");
  args = plain;
  args.keys = 2;
  EXPECT_DEATH(kernels().NeuralMemory(args), "k has shape \\[2, 3, 4\\], expected \\[2, 6, 4\\]");
  args = plain;
  args.momentum_mix = Act({2, 3});
  EXPECT_DEATH(kernels().NeuralMemory(args), "a mix of no momenta");
  args = plain;
  args.tensor_rates = Act({2, 3});
  EXPECT_DEATH(kernels().NeuralMemory(args), "tensor_rates has shape \\[2, 3\\]");
  args = plain;
  args.residual_mix = Act({2, 3});
  EXPECT_DEATH(kernels().NeuralMemory(args), "residual 0");
  args = plain;
  args.transition = View({1});
  EXPECT_DEATH(kernels().NeuralMemory(args), "anchors 0");
  args = plain;
  args.loss = Act({2, 4});
  EXPECT_DEATH(kernels().NeuralMemory(args), "loss has shape");
  EXPECT_DEATH(kernels().KeepGate({.x = Act({2, 3}), .y = Act({2, 4})}), "y has shape");
  EXPECT_DEATH(kernels().ChunkMean({.x = Act({2, 3}), .chunk = 0}), "chunk");
  EXPECT_DEATH(kernels().ChunkPool({.x = Act({2, 3}), .logits = Act({2, 4})}), "logits has shape");
  EXPECT_DEATH(
      kernels().Surprise(
          {.loss = Act({2, 3}), .read = Act({3, 1, 4}), .surprise = View({2}, DType::kF32)}),
      "read has shape");
}

TEST_P(ChecksDeathTest, Scans) {
  const auto segments = Segments{.count = 1,
                                 .offsets = View({2}, DType::kI32),
                                 .slots = View({1}, DType::kI32),
                                 .memories = View({1}, DType::kI32),
                                 .fresh = View({1}, DType::kI32)};
  const SelectiveScanArgs plain = {.u = Act({2, 8}),
                                   .dt = Act({2, 8}),
                                   .b = Act({2, 4}),
                                   .c = Act({2, 4}),
                                   .a = View({4, 8}),
                                   .dt_bias = View({8}),
                                   .skip = View({8}),
                                   .gate = Act({2, 8}),
                                   .segments = segments,
                                   .state = {.dtype = Act({1}).dtype},
                                   .y = Act({2, 8})};
  SelectiveScanArgs args = plain;
  args.c = Act({2, 5});
  EXPECT_DEATH(kernels().SelectiveScan(args), "c has shape \\[2, 5\\], expected \\[2, 4\\]");
  args = plain;
  args.a = View({kMaxScanStates + 1, 8});
  EXPECT_DEATH(kernels().SelectiveScan(args), "a scan of 257 states");
  args = plain;
  args.state.dtype = DType::kBF16;
  EXPECT_DEATH(kernels().SelectiveScan(args), "state is bf16");
  DiscretizeArgs steps = {.u = Act({2, 3, 8}),
                          .dt = Act({2, 3}),
                          .dt_bias = View({3}),
                          .a = View({3}),
                          .least_step = 2,
                          .most_step = 1,
                          .log_decay = Act({2, 3}),
                          .v = Act({2, 3, 8})};
  EXPECT_DEATH(kernels().Discretize(steps), "steps from 2 to 1");
  steps.most_step = 3;
  steps.v = Act({2, 8, 3});
  EXPECT_DEATH(kernels().Discretize(steps), "v has shape");
  EXPECT_DEATH(kernels().AddScaled({.x = Act({2, 8}), .scale = View({2}), .y = Act({2, 8})}),
               "scale has shape \\[2\\], expected \\[8\\]");
  const ShortConvArgs convolution[] = {
      {.x = Act({2, 8}), .weight = View({8, 4}), .bias = View({4}), .y = Act({2, 8})}};
  EXPECT_DEATH(kernels().ShortConv(convolution), "bias has shape \\[4\\], expected \\[8\\]");
  EXPECT_DEATH(
      kernels().GatedRmsNorm({.x = Act({2, 3, 8}), .weight = View({2, 8}), .y = Act({2, 3, 8})}),
      "weight has shape \\[2, 8\\], expected \\[3, 8\\]");
}

INSTANTIATE_TEST_SUITE_P(Backends, ChecksDeathTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
