// MatrixMemoryStep on a GPU against the operations it stands for, on the same GPU and in float64.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/backends.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

enum class Last { kNothing, kL2Norm, kSumNorm, kRope };

// A layer's step: what its q, k, v and gates go through, and its rule.
struct MatrixLayer {
  std::string name;
  int heads = 2, kv_heads = 2, key_dim = 128, value_dim = 64;
  int conv_width = 0;
  Activation conv_activation = Activation::kSilu;
  Activation activation = Activation::kIdentity;  // of q and k
  Last last = Last::kNothing;                     // likewise
  MatrixRule rule;
  std::optional<DecayGate> gate;  // of decays by key or value
  bool complement_is_key = false;
  bool spread = false;   // entries are of other rows
  bool rounded = false;  // projections and windows are bf16
};

constexpr MatrixRule RuleOf(MatrixRule::Decay decay, MatrixRule::Correction correction) {
  return {.decay = decay, .correction = correction};
}

std::vector<MatrixLayer> MatrixLayers() {
  using Decay = MatrixRule::Decay;
  using Correction = MatrixRule::Correction;
  const MatrixRule keys = RuleOf(Decay::kKey, Correction::kNone);
  return {
      {.name = "kda",
       .heads = 4,
       .kv_heads = 4,
       .conv_width = 4,
       .last = Last::kL2Norm,
       .rule = RuleOf(Decay::kKey, Correction::kDelta),
       .gate = DecayGate::kSoftplus,
       .rounded = true},
      {.name = "kda with a bound, without convolutions, f32",
       .heads = 4,
       .kv_heads = 4,
       .key_dim = 64,
       .value_dim = 80,
       .activation = Activation::kSilu,
       .last = Last::kL2Norm,
       .rule = RuleOf(Decay::kKey, Correction::kDelta),
       .gate = DecayGate::kBounded},
      {.name = "delta_net",
       .heads = 8,
       .kv_heads = 8,
       .conv_width = 4,
       .last = Last::kL2Norm,
       .rule = RuleOf(Decay::kNone, Correction::kDelta)},
      {.name = "delta_net, sums, other activations behind convolutions of 2",
       .heads = 4,
       .kv_heads = 4,
       .conv_width = 2,
       .conv_activation = Activation::kIdentity,
       .activation = Activation::kEluPlusOne,
       .last = Last::kSumNorm,
       .rule = RuleOf(Decay::kNone, Correction::kDelta),
       .rounded = true},
      {.name = "gla, grouped heads",
       .heads = 4,
       .kv_heads = 2,
       .activation = Activation::kRelu,
       .rule = keys,
       .gate = DecayGate::kLogSigmoid},
      {.name = "routed gla, convolutions of 3",
       .conv_width = 3,
       .rule = keys,
       .gate = DecayGate::kLogSigmoid,
       .spread = true},
      {.name = "hgrn2",
       .conv_width = 4,
       .rule = keys,
       .gate = DecayGate::kForget,
       .complement_is_key = true},
      {.name = "retnet",
       .key_dim = 256,
       .value_dim = 512,
       .last = Last::kRope,
       .rule = RuleOf(Decay::kConstant, Correction::kNone)},
      {.name = "retnet, heads of 512",
       .heads = 4,
       .kv_heads = 1,
       .key_dim = 512,
       .activation = Activation::kSilu,
       .last = Last::kRope,
       .rule = RuleOf(Decay::kConstant, Correction::kNone)},
      {.name = "linear attention of odd heads",
       .key_dim = 20,
       .value_dim = 12,
       .activation = Activation::kSigmoid,
       .last = Last::kSumNorm,
       .rule = RuleOf(Decay::kNone, Correction::kNone)},
      {.name = "keys of slots",
       .key_dim = 128,
       .value_dim = 64,
       .activation = Activation::kSilu,
       .rule = RuleOf(Decay::kValue, Correction::kNone),
       .gate = DecayGate::kLogSigmoid},
  };
}

struct MatrixStepResult {
  bool fused = false;
  std::vector<double> out, states, windows;
};

class MatrixStepProblem {
 public:
  static constexpr int kSlots = 9, kMemories = 2;

  MatrixStepProblem(uint64_t seed, const MatrixLayer& layer)
      : layer_(layer), segments_(RandomSegments(seed, kSlots, kMemories, /*longest=*/1)) {
    SeededRandom random(seed);
    entries_ = Entries(segments_);
    rows_ = layer.spread ? entries_ / 2 + 1 : entries_;
    for (int e = 0; e < entries_; ++e) {
      entry_rows_.push_back(random.Int(0, rows_ - 1));
      positions_.push_back(random.Int(0, 1 << 20));
    }
    const auto values = [&](int64_t n, double scale = 1) {
      std::vector<double> drawn = random.NormalValues(n, scale);
      if (layer.rounded) {
        for (double& value : drawn) value = RoundTo(value, DType::kBF16);
      }
      return drawn;
    };
    const int widths[] = {layer.heads * layer.key_dim, layer.kv_heads * layer.key_dim,
                          layer.kv_heads * layer.value_dim};
    for (int i = 0; i < 3; ++i) {
      streams_[i] = {widths[i], values(int64_t{rows_} * widths[i]),
                     random.NormalValues(widths[i] * std::max(layer.conv_width, 1)),
                     values(int64_t{std::max(layer.conv_width - 1, 1)} * widths[i])};
    }
    const int decay_width = DecayWidth();
    rates_ = random.NormalValues(int64_t{entries_} * layer.kv_heads * decay_width);
    lower_ = random.UniformValues(layer.kv_heads * decay_width, 0, 0.9);
    a_log_ = random.NormalValues(layer.kv_heads);
    dt_bias_ = random.NormalValues(layer.kv_heads * decay_width);
    constant_decay_ = random.UniformValues(layer.heads, -0.2, 0);
    strengths_ = random.NormalValues(int64_t{entries_} * layer.kv_heads);
    for (int i = 0; i < layer.key_dim / 2; ++i) frequencies_.push_back(random.Uniform(1e-4, 1));
    for (double& frequency : frequencies_) frequency = RoundTo(frequency, DType::kF32);
    states_ = random.NormalValues(StateElements());
  }

  int64_t StateElements() const {
    return int64_t{layer_.heads} * layer_.value_dim * layer_.key_dim;
  }

  MatrixStepResult Run(Backend& backend, bool fuse) const {
    Workbench bench(backend);
    const bool exact = backend.activation_dtype() == DType::kF64;
    const DType rounded = layer_.rounded && !exact ? DType::kBF16 : backend.activation_dtype();
    const DType window_dtype = layer_.rounded ? rounded : backend.state_format().window_dtype;
    SlabPool states(bench, kSlots, kMemories, StateElements(), backend.state_format().memory_dtype);
    std::vector<SlabPool> windows;
    for (const Stream& stream : streams_) {
      windows.emplace_back(bench, kSlots, kMemories,
                           int64_t{std::max(layer_.conv_width - 1, 1)} * stream.width,
                           window_dtype);
    }
    for (int i = 0; i < kSlots * kMemories; ++i) {
      const int slot = i / kMemories, memory = i % kMemories;
      if (IsFresh(segments_, slot, memory)) continue;
      states.Write(slot, memory, states_);
      for (int n = 0; n < 3; ++n) windows[n].Write(slot, memory, streams_[n].window);
    }
    const std::vector<std::byte> before = states.Bytes();

    Segments segments = Upload(bench, segments_);
    segments.longest = 1;
    const TensorView from = layer_.spread ? bench.Ints(entry_rows_) : TensorView{};
    std::vector<MemoryStream> streams;
    const auto by_head = [&](TensorView y, int heads, int width) {
      y.shape = {entries_, heads, width};
      return y;
    };
    TensorView results[3];
    for (int i = 0; i < 3; ++i) {
      MemoryStream stream;
      TensorView at = bench.Values(streams_[i].x, {rows_, streams_[i].width}, rounded);
      bool spread = layer_.spread;
      const auto next = [&] {
        spread = false;
        return at = bench.NewActivations({entries_, streams_[i].width});
      };
      if (layer_.conv_width > 0) {
        const TensorView x = at;
        stream.convolution = ShortConvArgs{
            .x = x,
            .entry_rows = from,
            .weight = bench.Floats(streams_[i].filter, {streams_[i].width, layer_.conv_width}),
            .activation = layer_.conv_activation,
            .segments = segments,
            .window = windows[i].view(),
            .y = next()};
      }
      const bool activated = i < 2 && layer_.activation != Activation::kIdentity;
      if (activated || spread || (layer_.rounded && layer_.conv_width == 0)) {
        const TensorView x = at, rows = spread ? from : TensorView{};
        stream.activation =
            ActivateArgs{.x = x,
                         .entry_rows = rows,
                         .activation = activated ? layer_.activation : Activation::kIdentity,
                         .scale = 0.5f,
                         .y = next()};
      }
      const int heads = i == 0 ? layer_.heads : layer_.kv_heads;
      results[i] = by_head(at, heads, streams_[i].width / heads);
      const TensorView u = results[i];
      if (i < 2 && layer_.last == Last::kL2Norm) {
        stream.last = L2NormArgs{.x = u, .scale = 0.75f, .eps = 1e-3f, .y = u};
      } else if (i < 2 && layer_.last == Last::kSumNorm) {
        stream.last = SumNormArgs{.x = u, .eps = 200, .y = u};
      } else if (i < 2 && layer_.last == Last::kRope) {
        stream.last = RopeArgs{.x = u,
                               .positions = bench.Longs(positions_),
                               .frequencies = bench.Floats(frequencies_, {layer_.key_dim / 2}),
                               .y = u};
      }
      const bool any = stream.convolution.has_value() || stream.activation.has_value() ||
                       !std::holds_alternative<std::monostate>(stream.last);
      if (any) streams.push_back(stream);
    }
    MatrixMemoryArgs rule = {
        .rule = layer_.rule,
        .q = results[0],
        .k = results[1],
        .v = results[2],
        .scale = 0.75f,
        .long_keys = true,
        .segments = segments,
        .state = states.view(),
        .out = bench.NewActivations({entries_, layer_.heads, layer_.value_dim})};
    if (layer_.rule.decay == MatrixRule::Decay::kConstant) {
      rule.log_decay = bench.Floats(constant_decay_, {layer_.heads});
    }
    if (layer_.gate.has_value()) {
      const int width = DecayWidth();
      const Shape shape{entries_, layer_.kv_heads, width}, head_shape{layer_.kv_heads, width};
      const TensorView rates = bench.Activations(rates_, shape);
      MemoryStream stream;
      DecayGatesArgs gates = {.gate = *layer_.gate,
                              .x = rates,
                              .normalizer = 8,
                              .lower_bound = -3,
                              .lower = bench.Floats(lower_, head_shape),
                              .a_log = bench.Floats(a_log_, {layer_.kv_heads}),
                              .dt_bias = bench.Floats(dt_bias_, head_shape),
                              .log_decay = rates};
      if (layer_.complement_is_key) {
        gates.complement = rule.k = bench.NewActivations(shape);
      }
      stream.last = gates;
      streams.push_back(stream);
      rule.log_decay = rates;
    }
    if (layer_.rule.correction == MatrixRule::Correction::kDelta) {
      MemoryStream stream;
      const TensorView beta = bench.Activations(strengths_, {entries_, layer_.kv_heads});
      stream.activation =
          ActivateArgs{.x = beta, .activation = Activation::kSigmoid, .scale = 1.5f, .y = beta};
      streams.push_back(stream);
      rule.beta = beta;
    }
    MatrixStepResult result;
    result.fused = fuse && bench.kernels().MatrixMemoryStep({.streams = streams, .rule = rule});
    if (!result.fused) Compose(bench.kernels(), streams, rule);
    EXPECT_TRUE(states.OnlyTouched(before, [this](int slot, int memory) {
      return IsActive(segments_, slot, memory);
    })) << "state outside the segments' memories was written";

    std::vector<int> active;
    for (size_t s = 0; s < segments_.size(); ++s) {
      if (!segments_[s].active()) continue;
      active.push_back(static_cast<int>(s));
      Append(states.Read(segments_[s].slot, segments_[s].memory), result.states);
      for (int n = 0; n < 3 && layer_.conv_width > 0; ++n) {
        Append(windows[n].Read(segments_[s].slot, segments_[s].memory), result.windows);
      }
    }
    result.out =
        PickEntries(bench.Read(rule.out), layer_.heads * layer_.value_dim, segments_, active);
    return result;
  }

 private:
  struct Stream {
    int width = 0;
    std::vector<double> x, filter, window;
  };

  int DecayWidth() const {
    return layer_.rule.decay == MatrixRule::Decay::kValue ? layer_.value_dim : layer_.key_dim;
  }
  static void Append(const std::vector<double>& values, std::vector<double>& to) {
    to.insert(to.end(), values.begin(), values.end());
  }
  static void Compose(Kernels& kernels, const std::vector<MemoryStream>& streams,
                      const MatrixMemoryArgs& rule) {
    for (const MemoryStream& stream : streams) {
      if (stream.convolution.has_value()) kernels.ShortConv({&*stream.convolution, 1});
      if (stream.activation.has_value()) kernels.Activate({&*stream.activation, 1});
      if (const auto* last = std::get_if<L2NormArgs>(&stream.last)) kernels.L2Norm(*last);
      if (const auto* last = std::get_if<SumNormArgs>(&stream.last)) kernels.SumNorm(*last);
      if (const auto* last = std::get_if<RopeArgs>(&stream.last)) kernels.Rope(*last);
      if (const auto* last = std::get_if<DecayGatesArgs>(&stream.last)) kernels.DecayGates(*last);
    }
    kernels.MatrixMemory(rule);
  }

  const MatrixLayer layer_;
  const std::vector<SegmentSpec> segments_;
  int entries_ = 0, rows_ = 0;
  std::vector<int> entry_rows_;
  std::vector<int64_t> positions_;
  Stream streams_[3];
  std::vector<double> rates_, lower_, a_log_, dt_bias_, constant_decay_, strengths_;
  std::vector<double> frequencies_, states_;
};

class CudaMatrixMemoryStepTest : public CudaTest {};

// Errors are relative in norm: a sum of 512 terms at the most, and functions of a few ulp.
constexpr double kMatrixStepBound = 1e-5;

TEST_F(CudaMatrixMemoryStepTest, AgreesWithItsPartsAndWithFloat64) {
  const std::unique_ptr<Backend> backend = AvailableBackends()[0].Make(2, DType::kF32);
  const std::unique_ptr<Backend> reference = MakeReferenceBackend({});
  uint64_t seed = 900;
  for (const MatrixLayer& layer : MatrixLayers()) {
    for (int round = 0; round < 3; ++round) {
      ++seed;
      SCOPED_TRACE(layer.name + ", seed " + std::to_string(seed));
      const MatrixStepProblem p(seed, layer);
      const MatrixStepResult got = p.Run(*backend, true), parts = p.Run(*backend, false);
      EXPECT_TRUE(got.fused);
      EXPECT_THAT(got.windows, HasSameBits(parts.windows));
      const MatrixStepResult exact = p.Run(*reference, false);
      for (const MatrixStepResult& want : {parts, exact}) {
        EXPECT_LE(RelativeError(got.out, want.out), kMatrixStepBound);
        EXPECT_LE(RelativeError(got.states, want.states), kMatrixStepBound);
      }
      // Once more: a step's bits are its own.
      const MatrixStepResult again = p.Run(*backend, true);
      EXPECT_THAT(again.out, HasSameBits(got.out));
      EXPECT_THAT(again.states, HasSameBits(got.states));
    }
  }
}

TEST_F(CudaMatrixMemoryStepTest, LeavesWhatItCannotTakeToItsParts) {
  const std::unique_ptr<Backend> backend = AvailableBackends()[0].Make(2, DType::kF32);
  MatrixLayer layer = MatrixLayers()[0];
  for (const int width : {5, 9}) {  // of a convolution
    layer.conv_width = width;
    EXPECT_FALSE(MatrixStepProblem(1, layer).Run(*backend, true).fused);
  }
  layer = MatrixLayers()[1];
  layer.key_dim = 30;  // not a multiple of four
  EXPECT_FALSE(MatrixStepProblem(2, layer).Run(*backend, true).fused);
  layer = MatrixLayers()[2];
  layer.heads = layer.kv_heads = 3;  // nor are their strengths
  EXPECT_FALSE(MatrixStepProblem(3, layer).Run(*backend, true).fused);
}

}  // namespace
}  // namespace mneme
