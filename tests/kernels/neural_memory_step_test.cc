// NeuralMemoryStep and HeldMemory on a GPU against the operations they stand for, on the same GPU
// and in float64.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/held_steps.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/neural_memory_problem.h"
#include "tests/support/backends.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

// What a layer's tokens go through before its memory.
struct NeuralLayer {
  MemoryRule memory;
  int conv_width = 0;
  bool conv_bias = false;
  bool silu = true;
  bool l2_norm = true;
  bool turns = false;        // q and k, by positions that begin anew
  bool exponential = false;  // the decay
};

std::vector<NeuralLayer> NeuralLayers() {
  using Read = MemoryRule::Read;
  return {
      {.memory = {.name = "lmm", .heads = 4, .dim = 64, .hidden = 128}, .conv_width = 4},
      {.memory = {.name = "a linear memory with a gain, as a matrix memory forgets",
                  .heads = 8,
                  .dim = 32,
                  .depth = 1,
                  .norm = MemoryRule::Norm::kRms,
                  .trains_gain = true},
       .conv_width = 3,
       .conv_bias = true,
       .exponential = true},
      {.memory = {.name = "at an anchor, without convolutions", .heads = 4, .anchor_period = 8}},
      {.memory = {.name = "ttt",
                  .heads = 4,
                  .dim = 32,
                  .depth = 1,
                  .biases = true,
                  .norm = MemoryRule::Norm::kLayer,
                  .step = 16,
                  .anchor_period = 16,
                  .read = Read::kAhead,
                  .orders = 0,
                  .keep = false,
                  .scaled = true},
       .conv_width = 4,
       .conv_bias = true,
       .silu = false,
       .l2_norm = false,
       .turns = true},
      {.memory = {.name = "of any depth", .heads = 4, .depth = 3}, .conv_width = 2},
  };
}

struct NeuralStepResult {
  bool fused = false, answered = false;
  std::vector<double> out, states, windows;
  std::vector<double> hidden, surprise;  // behind the answer
};

// How a layer's token is computed: operation by operation, as NeuralMemoryStep, or as HeldMemory,
// which holds steps of few heads back, too, or not.
enum class Way : uint8_t { kParts, kStep, kHeld, kFew };

std::vector<SegmentSpec> ManySegments() {
  return {{.length = 1, .slot = 2},
          {.length = 1, .slot = -1},
          {.length = 1, .slot = 0, .fresh = true},
          {.length = 0, .slot = 1},
          {.length = 1, .slot = 3}};
}

class NeuralStepProblem {
 public:
  NeuralStepProblem(uint64_t seed, const NeuralLayer& layer,
                    const std::vector<SegmentSpec>& segments = ManySegments())
      : layer_(layer), memory_(seed, layer.memory, segments) {
    SeededRandom random(seed + 1000);
    const int width = Width(), heads = layer.memory.heads;
    for (int i = 0; i < 3; ++i) {
      filters_[i] = random.NormalValues(width * std::max(layer.conv_width, 1));
      biases_[i] = random.NormalValues(width);
      windows_[i] = random.NormalValues(width * std::max(layer.conv_width - 1, 1));
    }
    for (std::vector<double>* logits : {&memory_.rate, &memory_.momentum, &memory_.keep}) {
      *logits = random.NormalValues(static_cast<int64_t>(logits->size()));
    }
    a_log_ = random.NormalValues(heads);
    dt_bias_ = random.NormalValues(heads);
    for (int i = 0; i < 2 * (layer.memory.dim / 2); ++i) {
      const double frequency = i < layer.memory.dim / 2 ? random.Uniform(1e-4, 1) : 1e-10;
      frequencies_.push_back(static_cast<float>(frequency));
    }
    int entries = 0;
    for (const SegmentSpec& s : segments) entries += s.length;
    gate_ = random.NormalValues(int64_t{entries} * width);
    norm_ = random.UniformValues(layer.memory.dim, 0.5, 1.5);
    hidden_ = random.NormalValues(int64_t{entries} * kModelDim);
    product_ = random.NormalValues(int64_t{kModelDim} * width, 0.1, DType::kBF16);
  }

  NeuralStepResult Run(Backend& backend, Way way) const {
    Workbench bench(backend);
    const MemoryProblem::Loaded loaded = memory_.Load(bench);
    NeuralMemoryArgs args = loaded.args;
    args.segments.longest = 1;
    std::vector<SlabPool> windows;
    std::vector<MemoryStream> streams;
    TensorView* const results[] = {&args.q, &args.k, &args.v};
    for (int i = 0; i < 3; ++i) {
      TensorView x = *results[i];
      x.shape = {x.shape[0], Width()};
      MemoryStream stream;
      if (layer_.conv_width > 0) {
        windows.emplace_back(bench, MemoryProblem::kSlots, 1,
                             int64_t{layer_.conv_width - 1} * Width(),
                             backend.state_format().window_dtype);
        for (const SegmentSpec& s : memory_.segments) {
          if (s.slot >= 0 && !s.fresh) windows.back().Write(s.slot, 0, windows_[i]);
        }
        const TensorView y = bench.NewActivations(x.shape);
        stream.convolution = ShortConvArgs{
            .x = x,
            .weight = bench.Floats(filters_[i], {Width(), layer_.conv_width}),
            .bias = layer_.conv_bias ? bench.Floats(biases_[i], {Width()}) : TensorView{},
            .activation = layer_.silu ? Activation::kSilu : Activation::kIdentity,
            .segments = args.segments,
            .window = windows.back().view(),
            .y = y};
        results[i]->data = y.data;
      } else if (layer_.silu) {
        stream.activation = ActivateArgs{.x = x, .activation = Activation::kSilu, .y = x};
      }
      const TensorView by_head = *results[i];
      if (i < 2 && layer_.l2_norm) {
        stream.last = L2NormArgs{.x = by_head, .eps = 1e-24f, .y = by_head};
      } else if (i < 2 && layer_.turns) {
        stream.last =
            RopeArgs{.x = by_head,
                     .positions = args.positions,
                     .frequencies = bench.Floats(frequencies_, {2, layer_.memory.dim / 2}),
                     .period = layer_.memory.step,
                     .interleaved = true,
                     .y = by_head};
      }
      streams.push_back(stream);
    }
    for (const TensorView& gate : {args.rate, args.momentum}) {
      if (gate.empty()) continue;
      streams.push_back(
          {.activation = ActivateArgs{.x = gate, .activation = Activation::kSigmoid, .y = gate}});
    }
    if (!args.keep.empty()) {
      KeepGateArgs keep = {.x = args.keep, .y = args.keep};
      if (layer_.exponential) {
        keep.a_log = bench.Floats(a_log_, {layer_.memory.heads});
        keep.dt_bias = bench.Floats(dt_bias_, {layer_.memory.heads});
      }
      streams.emplace_back().last = keep;
    }

    // The way out.
    const int64_t entries = args.q.shape[0];
    const Shape flat{entries, Width()};
    const TensorView gated = bench.NewActivations(flat), normed = bench.NewActivations(flat);
    const TensorView hidden = bench.Activations(hidden_, {entries, kModelDim});
    const TensorView surprise =
        bench.Floats(std::vector<double>(static_cast<size_t>(entries), -1), {entries});
    const auto with_shape = [](TensorView tensor, const Shape& shape) {
      tensor.shape = shape;
      return tensor;
    };
    const Shape by_head{entries * layer_.memory.heads, layer_.memory.dim};
    NeuralMemoryOutputArgs output = {
        .gate = {.x = bench.Activations(gate_, flat), .activation = Activation::kSilu, .y = gated},
        .product = {.a = with_shape(args.out, flat), .b = gated, .y = gated},
        .norm = RmsNormArgs{.x = with_shape(gated, by_head),
                            .weight = bench.Floats(norm_, {layer_.memory.dim}),
                            .eps = 1e-3f,
                            .y = with_shape(normed, by_head)}};
    if (!args.loss.empty()) {
      output.surprise = {.loss = args.loss, .read = args.out, .surprise = surprise};
    }
    const PackedMatrix matrix = bench.Pack(product_, kModelDim, Width(), DType::kBF16);
    const LinearArgs product = {
        .x = normed, .weights = {&matrix, 1}, .y = hidden, .accumulate = true};

    NeuralStepResult result;
    if (way == Way::kStep) {
      result.fused = bench.kernels().NeuralMemoryStep({.streams = streams, .memory = args});
    } else if (way != Way::kParts) {
      const MemoryAnswer answer = {.output = &output, .product = product, .done = &result.answered};
      result.fused = RunHeld(bench, streams, args, answer, /*holds=*/way == Way::kHeld);
    }
    if (!result.fused) Compose(bench.kernels(), streams, args);
    if (!result.answered) {
      Kernels& kernels = bench.kernels();
      if (!args.loss.empty()) kernels.Surprise(output.surprise);
      kernels.Activate({&output.gate, 1});
      kernels.Multiply(output.product);
      kernels.RmsNorm(std::get<RmsNormArgs>(output.norm));
      kernels.Linear({&product, 1});
    }
    result.hidden = memory_.ActiveRows(bench, hidden, kModelDim);
    result.surprise = memory_.ActiveRows(bench, surprise, 1);
    const MemoryProblem::Trained trained = memory_.Results(bench, loaded);
    result.out = trained.out;
    result.out.insert(result.out.end(), trained.loss.begin(), trained.loss.end());
    result.states = trained.states;
    for (const SegmentSpec& s : memory_.segments) {
      for (SlabPool& window : windows) {
        if (!s.active()) continue;
        const std::vector<double> values = window.Read(s.slot, 0);
        result.windows.insert(result.windows.end(), values.begin(), values.end());
      }
    }
    return result;
  }

 private:
  static constexpr int kModelDim = 40;

  int Width() const { return layer_.memory.heads * layer_.memory.dim; }

  // One step with room for three, which is held back unless its session is fresh; then it is
  // settled.
  bool RunHeld(Workbench& bench, const std::vector<MemoryStream>& streams,
               const NeuralMemoryArgs& args, const MemoryAnswer& answer, bool holds) const {
    HeldMemorySteps* const steps = HeldMemoryStepsOf(bench.kernels());
    const int heads = layer_.memory.heads, dim = layer_.memory.dim, hidden = layer_.memory.hidden;
    if (steps == nullptr || !HoldsStepsBack(args, layer_.memory.orders, dim)) return false;
    constexpr int kCapacity = 3;
    SlabPool numbers(bench, MemoryProblem::kSlots, 1, heads * HeldNumbers(kCapacity), DType::kF32);
    SlabPool vectors(bench, MemoryProblem::kSlots, 1, heads * kCapacity * HeldVectors(dim, hidden),
                     DType::kF32);
    std::vector<int> slots;
    for (const SegmentSpec& s : memory_.segments) {
      if (!s.active()) continue;
      slots.push_back(s.slot);
      if (s.fresh) continue;
      numbers.Write(s.slot, 0,
                    std::vector<double>(static_cast<size_t>(heads * HeldNumbers(kCapacity)), 0));
    }
    const HeldSteps held = {
        .capacity = kCapacity, .numbers = numbers.view(), .vectors = vectors.view()};
    if (!steps->HeldMemory({.streams = streams,
                            .memory = args,
                            .held = held,
                            .answer = answer,
                            .always_holds = holds})) {
      return false;
    }
    steps->SettleNetwork({.slots = bench.Ints(slots),
                          .heads = heads,
                          .dim = dim,
                          .hidden = hidden,
                          .weights = args.weights,
                          .momenta = args.momenta,
                          .held = held});
    return true;
  }

  static void Compose(Kernels& kernels, const std::vector<MemoryStream>& streams,
                      const NeuralMemoryArgs& args) {
    for (const MemoryStream& s : streams) {
      if (s.convolution.has_value()) kernels.ShortConv({&*s.convolution, 1});
      if (s.activation.has_value()) kernels.Activate({&*s.activation, 1});
      if (const auto* norm = std::get_if<L2NormArgs>(&s.last)) kernels.L2Norm(*norm);
      if (const auto* rope = std::get_if<RopeArgs>(&s.last)) kernels.Rope(*rope);
      if (const auto* keep = std::get_if<KeepGateArgs>(&s.last)) kernels.KeepGate(*keep);
    }
    kernels.NeuralMemory(args);
  }

  const NeuralLayer layer_;
  MemoryProblem memory_;
  std::vector<double> filters_[3], biases_[3], windows_[3];
  std::vector<double> a_log_, dt_bias_, frequencies_;
  std::vector<double> gate_, norm_, hidden_, product_;
};

NeuralLayer OtherLayer() {
  NeuralLayer other = NeuralLayers()[0];
  other.memory.name = "other inputs, gates and norms";
  other.memory.dim = 96;
  other.memory.hidden = 384;
  other.memory.norm = MemoryRule::Norm::kLayer;
  other.memory.trains_gain = true;
  other.conv_bias = true;
  other.silu = false;
  other.l2_norm = false;
  other.exponential = true;
  return other;
}

class CudaNeuralMemoryStepTest : public CudaTest {};

// Errors are relative in norm: sums of some hundred terms, and functions of a few ulp.
constexpr double kNeuralStepBound = 1e-5;

TEST_F(CudaNeuralMemoryStepTest, AgreesWithItsPartsAndWithFloat64) {
  const std::unique_ptr<Backend> backend = AvailableBackends()[0].Make(2, DType::kF32);
  const std::unique_ptr<Backend> reference = MakeReferenceBackend({});
  uint64_t seed = 1900;
  for (const NeuralLayer& layer : NeuralLayers()) {
    for (int round = 0; round < 3; ++round) {
      ++seed;
      SCOPED_TRACE(std::string(layer.memory.name) + ", seed " + std::to_string(seed));
      const NeuralStepProblem p(seed, layer);
      const NeuralStepResult got = p.Run(*backend, Way::kStep),
                             parts = p.Run(*backend, Way::kParts);
      EXPECT_TRUE(got.fused);
      EXPECT_THAT(got.windows, HasSameBits(parts.windows));
      const NeuralStepResult exact = p.Run(*reference, Way::kParts);
      for (const NeuralStepResult& want : {parts, exact}) {
        EXPECT_LE(RelativeError(got.out, want.out), kNeuralStepBound);
        EXPECT_LE(RelativeError(got.states, want.states), kNeuralStepBound);
      }
      const NeuralStepResult again = p.Run(*backend, Way::kStep);
      EXPECT_THAT(again.out, HasSameBits(got.out));
      EXPECT_THAT(again.states, HasSameBits(got.states));
    }
  }
}

TEST_F(CudaNeuralMemoryStepTest, LayersThatHoldStepsBackAgreeToo) {
  const std::unique_ptr<Backend> backend = AvailableBackends()[0].Make(2, DType::kF32);
  const std::unique_ptr<Backend> reference = MakeReferenceBackend({});
  const NeuralLayer plain = NeuralLayers()[0], other = OtherLayer();
  uint64_t seed = 2900;
  for (const NeuralLayer& layer : {plain, other}) {
    for (int round = 0; round < 3; ++round) {
      ++seed;
      SCOPED_TRACE(std::string(layer.memory.name) + ", seed " + std::to_string(seed));
      const NeuralStepProblem p(seed, layer);
      const NeuralStepResult got = p.Run(*backend, Way::kHeld);
      EXPECT_TRUE(got.fused);
      const NeuralStepResult parts = p.Run(*backend, Way::kParts);
      const NeuralStepResult exact = p.Run(*reference, Way::kParts);
      EXPECT_THAT(got.windows, HasSameBits(parts.windows));
      EXPECT_LE(RelativeError(got.out, exact.out), kNeuralStepBound);
      EXPECT_LE(RelativeError(got.states, exact.states), kNeuralStepBound);
    }
  }
}

// From the streams to the answer's product, of few heads.
void ExpectFewHeadsToAgree(const NeuralLayer& layer, uint64_t seed) {
  if (!HasHopperKernels()) GTEST_SKIP() << "needs clusters";
  const std::unique_ptr<Backend> reference = MakeReferenceBackend({});
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::unique_ptr<Backend> backend = AvailableBackends()[0].Make(2, compute);
    // The product of two rows or less finds surprises as well.
    for (const auto& segments :
         {std::vector<SegmentSpec>{{.length = 1, .slot = 2}},
          {{.length = 1, .slot = 1}, {.length = 1, .slot = 3, .fresh = true}},
          {{.length = 1, .slot = 2}, {.length = 1, .slot = -1}, {.length = 1, .slot = 0}}}) {
      ++seed;
      SCOPED_TRACE(std::to_string(segments.size()) + " segments, seed " + std::to_string(seed));
      const NeuralStepProblem p(seed, layer, segments);
      const NeuralStepResult got = p.Run(*backend, Way::kFew);
      EXPECT_TRUE(got.fused);
      EXPECT_TRUE(got.answered);
      const NeuralStepResult exact = p.Run(*reference, Way::kParts);
      EXPECT_THAT(got.windows, HasSameBits(p.Run(*backend, Way::kParts).windows));
      EXPECT_LE(RelativeError(got.out, exact.out), kNeuralStepBound);
      EXPECT_LE(RelativeError(got.states, exact.states), kNeuralStepBound);
      EXPECT_LE(RelativeError(got.surprise, exact.surprise), kNeuralStepBound);
      const bool rounds = compute == DType::kBF16 && segments.size() > 2;
      EXPECT_LE(RelativeError(got.hidden, exact.hidden), rounds ? kUnitBF16 : kNeuralStepBound);
      const NeuralStepResult again = p.Run(*backend, Way::kFew);
      EXPECT_THAT(again.hidden, HasSameBits(got.hidden));
      EXPECT_THAT(again.states, HasSameBits(got.states));
    }
  }
}

TEST_F(CudaNeuralMemoryStepTest, FewHeadsAgreeToo) {
  ExpectFewHeadsToAgree(NeuralLayers()[0], 3900);
}

TEST_F(CudaNeuralMemoryStepTest, FewLargeHeadsWithGainsAgreeToo) {
  ExpectFewHeadsToAgree(OtherLayer(), 4000);
}

TEST_F(CudaNeuralMemoryStepTest, FewNarrowHeadsAgreeToo) {
  NeuralLayer layer = NeuralLayers()[0];
  layer.memory.dim = 32;
  layer.memory.hidden = 64;
  layer.memory.norm = MemoryRule::Norm::kRms;
  layer.memory.trains_gain = true;
  layer.conv_width = 3;
  ExpectFewHeadsToAgree(layer, 4100);
}

TEST_F(CudaNeuralMemoryStepTest, FewHeadsOfMoreUnitsWithoutConvolutionsAgreeToo) {
  NeuralLayer layer = NeuralLayers()[0];
  layer.memory.hidden = 256;
  layer.conv_width = 0;
  ExpectFewHeadsToAgree(layer, 4200);
}

TEST_F(CudaNeuralMemoryStepTest, LeavesWhatItCannotTakeToItsParts) {
  const std::unique_ptr<Backend> backend = AvailableBackends()[0].Make(2, DType::kF32);
  NeuralLayer layer = NeuralLayers()[0];
  layer.conv_width = 5;
  EXPECT_FALSE(NeuralStepProblem(1, layer).Run(*backend, Way::kStep).fused);
  layer = NeuralLayers()[0];
  layer.memory.heads = 3;  // gates by fours
  EXPECT_FALSE(NeuralStepProblem(2, layer).Run(*backend, Way::kStep).fused);
}

}  // namespace
}  // namespace mneme
