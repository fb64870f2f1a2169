// DeltaMixerStep and DecodeProgram on a GPU, of one layer with one memory, against the operations
// they stand for in float64: what models always pass alike is data all the same.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/cuda_test.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

// How a step is run.
enum class Way { kParts, kMixer, kLayer };

struct StepsResult {
  bool fused = true;
  std::vector<double> added;   // to hidden, of all steps and rows
  std::vector<double> states;  // of all rows, at the end
};

// A layer, and steps of one token for every row; rows are new sessions in the first one.
struct LayerProblem {
  static constexpr int kModelDim = 512, kMlpDim = 1280, kWidth = 4, kSteps = 5;
  static constexpr int kHeads = 2, kValueHeads = 4, kValueDim = 64, kValues = 256;

  LayerProblem(uint64_t seed, int rows, int key_dim)
      : rows(rows), key_dim(key_dim), keys(kHeads * key_dim) {
    // Norms that no model has: any number that a kernel assumes shows. Queries and keys are so
    // short that their eps counts, and the reading is so short that the norm behind it does not
    // hide the length of queries.
    norms = {.q = {.scale = 0.3f, .eps = 1e-2f}, .k = {.scale = 0.6f, .eps = 1e-2f}};
    constexpr double kShort = 0x1p-6;
    SeededRandom random(seed);
    const auto matrix = [&random](int64_t outputs, int64_t inputs) {
      return random.NormalValues(outputs * inputs, 1 / std::sqrt(inputs), DType::kBF16);
    };
    for (int step = 0; step < kSteps; ++step) {
      hidden.push_back(random.NormalValues(int64_t{rows} * kModelDim));
    }
    norm = random.UniformValues(kModelDim, 0.5, 1.5);
    mlp_norm = random.UniformValues(kModelDim, 0.5, 1.5);
    out_norm = random.UniformValues(kValueDim, 0.5, 1.5);
    q = matrix(keys, kModelDim);
    k = matrix(keys, kModelDim);
    v = matrix(kValues, kModelDim);
    g = matrix(kValues, kModelDim);
    a = matrix(kValueHeads, kModelDim);
    b = matrix(kValueHeads, kModelDim);
    out = matrix(kModelDim, kValues);
    gate = matrix(kMlpDim, kModelDim);
    up = matrix(kMlpDim, kModelDim);
    down = matrix(kModelDim, kMlpDim);
    q_conv = random.NormalValues(int64_t{keys} * kWidth, kShort);
    k_conv = random.NormalValues(int64_t{keys} * kWidth, kShort);
    v_conv = random.NormalValues(int64_t{kValues} * kWidth);
    a_log = random.UniformValues(kValueHeads, -3, -1);
    dt_bias = random.NormalValues(kValueHeads);
  }

  int rows, key_dim, keys;
  QueryKeyNorms norms;
  float out_norm_eps = 1e-3f;
  std::vector<std::vector<double>> hidden;  // of each step
  std::vector<double> norm, mlp_norm, out_norm, q, k, v, g, a, b, out, gate, up, down;
  std::vector<double> q_conv, k_conv, v_conv, a_log, dt_bias;
};

// A problem's weights and sessions on a backend.
class LayerRun {
 public:
  LayerRun(Backend& backend, const LayerProblem& p)
      : p_(p),
        bench_(backend),
        q_window_(Windows(p.keys)),
        k_window_(Windows(p.keys)),
        v_window_(Windows(p.kValues)),
        written_(bench_, p.rows, 1, 1, DType::kU8),
        state_(bench_, p.rows, 1, int64_t{p.kValues} * p.key_dim,
               backend.state_format().memory_dtype) {
    for (int row = 0; row < p.rows; ++row) {
      written_.Write(row, 0, {0});
      slots_.push_back(row);
    }
    k_ = Pack(p.k, p.keys);
    v_ = Pack(p.v, p.kValues);
    a_ = Pack(p.a, p.kValueHeads);
    b_ = Pack(p.b, p.kValueHeads);
    slots_view_ = bench_.Ints(slots_);
    layer_.mixer = {.norm = bench_.Floats(p.norm, {p.kModelDim}),
                    .shared = true,
                    .heads = p.kHeads,
                    .key_dim = p.key_dim,
                    .value_heads = p.kValueHeads,
                    .value_dim = p.kValueDim,
                    .q_proj = Pack(p.q, p.keys),
                    .g_proj = Pack(p.g, p.kValues),
                    .k_proj = {&k_, 1},
                    .v_proj = {&v_, 1},
                    .a_proj = {&a_, 1},
                    .b_proj = {&b_, 1},
                    .q_conv = bench_.Floats(p.q_conv, {p.keys, p.kWidth}),
                    .k_conv = bench_.Floats(p.k_conv, {p.keys, p.kWidth}),
                    .v_conv = bench_.Floats(p.v_conv, {p.kValues, p.kWidth}),
                    .q_window = q_window_.view(),
                    .k_window = k_window_.view(),
                    .v_window = v_window_.view(),
                    .norms = p.norms,
                    .a_log = bench_.Floats(p.a_log, {p.kValueHeads}),
                    .dt_bias = bench_.Floats(p.dt_bias, {p.kValueHeads}),
                    .written = written_.view(),
                    .state = state_.view(),
                    .out_norm = bench_.Floats(p.out_norm, {p.kValueDim}),
                    .out_norm_eps = p.out_norm_eps,
                    .out_proj = bench_.Pack(p.out, p.kModelDim, p.kValues, DType::kBF16)};
    layer_.feed_forward = {.norm = bench_.Floats(p.mlp_norm, {p.kModelDim}),
                           .gate = Pack(p.gate, p.kMlpDim),
                           .up = Pack(p.up, p.kMlpDim),
                           .down = bench_.Pack(p.down, p.kModelDim, p.kMlpDim, DType::kBF16)};
  }

  // Runs step `step`; what it adds to its hidden state. The parts are those of all of the layer or
  // of the mixer alone.
  std::vector<double> Step(int step, Way way, bool whole_layer) {
    const std::vector<double>& before = p_.hidden[step];
    const TensorView hidden = bench_.Activations(before, {p_.rows, p_.kModelDim});
    Kernels& kernels = bench_.kernels();
    if (way == Way::kParts) {
      Mix(hidden, /*fresh=*/step == 0);
      if (whole_layer) FeedForward(hidden);
    } else if (way == Way::kMixer) {
      fused_ &=
          kernels.DeltaMixerStep({.mixer = layer_.mixer, .hidden = hidden, .slots = slots_view_});
    } else {
      if (program_ == nullptr) program_ = kernels.CompileDecode({&layer_, 1}, nullptr);
      fused_ &= program_ != nullptr && program_->Run({.hidden = hidden, .slots = slots_view_}, 0,
                                                     1) == DecodeDone::kLayers;
    }
    std::vector<double> added = bench_.Read(hidden);
    for (size_t i = 0; i < added.size(); ++i) added[i] -= before[i];
    return added;
  }
  bool fused() const { return fused_; }
  std::vector<double> States() {
    std::vector<double> all;
    for (int row = 0; row < p_.rows; ++row) {
      const std::vector<double> state = state_.Read(row, 0);
      all.insert(all.end(), state.begin(), state.end());
    }
    return all;
  }

 private:
  SlabPool Windows(int channels) {
    return SlabPool(bench_, p_.rows, 1, int64_t{p_.kWidth - 1} * channels,
                    bench_.backend().state_format().bf16_window_dtype);
  }
  PackedMatrix Pack(const std::vector<double>& values, int outputs) {
    return bench_.Pack(values, outputs, p_.kModelDim, DType::kBF16);
  }
  TensorView Normed(const TensorView& x, const TensorView& weight, float eps) {
    const TensorView y = bench_.NewActivations(x.shape);
    bench_.kernels().RmsNorm({.x = x, .weight = weight, .eps = eps, .y = y});
    return y;
  }
  TensorView Product(const TensorView& x, const PackedMatrix& matrix) {
    const TensorView y = bench_.NewActivations({p_.rows, matrix.out_features});
    const LinearArgs product = {.x = x, .weights = {&matrix, 1}, .y = y};
    bench_.kernels().Linear({&product, 1});
    return y;
  }
  void AddProduct(const TensorView& x, const PackedMatrix& matrix, const TensorView& y) {
    const LinearArgs product = {.x = x, .weights = {&matrix, 1}, .y = y, .accumulate = true};
    bench_.kernels().Linear({&product, 1});
  }
  static TensorView Shaped(TensorView view, Shape shape) {
    view.shape = shape;
    return view;
  }

  // DeltaMixerStep's parts.
  void Mix(const TensorView& hidden, bool fresh) {
    const DeltaMixer& m = layer_.mixer;
    Kernels& kernels = bench_.kernels();
    std::vector<SegmentSpec> list;
    for (const int slot : slots_) list.push_back({1, slot, 0, fresh});
    const Segments segments = Upload(bench_, list);
    const TensorView x = Normed(hidden, m.norm, m.norm_eps);
    const auto convolved = [&](const PackedMatrix& matrix, const TensorView& weight,
                               const StateView& window) {
      const TensorView y = bench_.NewActivations({p_.rows, matrix.out_features});
      const ShortConvArgs convolution = {.x = Product(x, matrix),
                                         .weight = weight,
                                         .segments = segments,
                                         .window = window,
                                         .y = y};
      kernels.ShortConv({&convolution, 1});
      return y;
    };
    const Shape by_key{p_.rows, p_.kHeads, p_.key_dim};
    const Shape by_value{p_.rows, p_.kValueHeads, p_.kValueDim};
    const TensorView q = Shaped(convolved(m.q_proj, m.q_conv, m.q_window), by_key);
    const TensorView k = Shaped(convolved(k_, m.k_conv, m.k_window), by_key);
    const TensorView v = Shaped(convolved(v_, m.v_conv, m.v_window), by_value);
    kernels.L2Norm({.x = q, .scale = m.norms.q.scale, .eps = m.norms.q.eps, .y = q});
    kernels.L2Norm({.x = k, .scale = m.norms.k.scale, .eps = m.norms.k.eps, .y = k});
    const TensorView log_decay = Product(x, a_), beta = Product(x, b_);
    kernels.DeltaGates({.a = log_decay,
                        .b = beta,
                        .a_log = m.a_log,
                        .dt_bias = m.dt_bias,
                        .log_decay = log_decay,
                        .beta = beta});
    kernels.MatrixMemory({.q = q,
                          .k = k,
                          .v = v,
                          .log_decay = log_decay,
                          .beta = beta,
                          .segments = segments,
                          .state = m.state,
                          .out = v});
    kernels.GatedRmsNorm({.x = v,
                          .gate = Shaped(Product(x, m.g_proj), by_value),
                          .weight = m.out_norm,
                          .eps = m.out_norm_eps,
                          .y = v});
    AddProduct(Shaped(v, {p_.rows, p_.kValues}), m.out_proj, hidden);
  }
  // FeedForwardStep's parts.
  void FeedForward(const TensorView& hidden) {
    const GatedFeedForward& f = layer_.feed_forward;
    const TensorView x = Normed(hidden, f.norm, f.norm_eps);
    const TensorView gate = Product(x, f.gate);
    bench_.kernels().SwiGlu({.gate = gate, .up = Product(x, f.up), .y = gate});
    AddProduct(gate, f.down, hidden);
  }

  const LayerProblem& p_;
  bool fused_ = true;
  Workbench bench_;
  SlabPool q_window_, k_window_, v_window_, written_, state_;
  std::vector<int> slots_;
  PackedMatrix k_, v_, a_, b_;
  TensorView slots_view_;
  DecodeLayer layer_;
  std::unique_ptr<DecodeProgram> program_;
};

StepsResult RunSteps(const LayerProblem& p, Backend& backend, Way way, bool whole_layer) {
  LayerRun run(backend, p);
  StepsResult result;
  for (int step = 0; step < p.kSteps; ++step) {
    const std::vector<double> added = run.Step(step, way, whole_layer);
    result.added.insert(result.added.end(), added.begin(), added.end());
  }
  result.fused = run.fused();
  result.states = run.States();
  return result;
}

class CudaDeltaMixerStepTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (!HasHopperKernels()) GTEST_SKIP() << "only Hopper has these operations";
  }

  // That steps taken `way` are those of the parts in float64, and would not be with one of the four
  // numbers as models have it.
  static void ExpectHonoured(const LayerProblem& p, DType compute, Way way, double bound) {
    const bool whole_layer = way == Way::kLayer;
    const std::unique_ptr<Backend> backend = MakeCuda(compute);
    const std::unique_ptr<Backend> reference = MakeReference();
    const StepsResult want = RunSteps(p, *reference, Way::kParts, whole_layer);
    const StepsResult got = RunSteps(p, *backend, way, whole_layer);
    EXPECT_TRUE(got.fused);
    const double out_error = RelativeError(got.added, want.added);
    const double state_error = RelativeError(got.states, want.states);
    EXPECT_LE(out_error, bound);
    EXPECT_LE(state_error, bound);
    std::printf("  %d rows, keys of %d: relative error %.1e, of states %.1e, bound %.1e\n", p.rows,
                p.key_dim, out_error, state_error, bound);

    std::vector<LayerProblem> assumptions(4, p);
    const QueryKeyNorms usual = {.q = {.scale = 1 / std::sqrt(static_cast<float>(p.key_dim))}};
    assumptions[0].norms.q.scale = usual.q.scale;
    assumptions[1].norms.q.eps = usual.q.eps;
    assumptions[2].norms.k.scale = usual.k.scale;
    assumptions[3].norms.k.eps = usual.k.eps;
    for (size_t i = 0; i < assumptions.size(); ++i) {
      const StepsResult other = RunSteps(assumptions[i], *reference, Way::kParts, whole_layer);
      EXPECT_GT(RelativeError(other.added, want.added), 3 * bound) << "assumption " << i;
    }
  }
};

// As decode_batch_test has it of networks.
constexpr double kExactMixer = 2e-5;

TEST_F(CudaDeltaMixerStepTest, AllOfALayerTakesScalesAndEpsilonsAsTheyAreGiven) {
  uint64_t seed = 0;
  for (const int key_dim : {128, 256}) {
    for (const int rows : {1, 2}) {
      ++seed;
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectHonoured(LayerProblem(seed, rows, key_dim), DType::kF32, Way::kLayer, kExactMixer);
    }
  }
}

// The estimate of docs/numerics.md, "Compute dtype bf16", which takes roundings at half their bound
// and adds them up as if of one sign: of what is multiplied by the projections, what they give, in
// q, k and v, and what is multiplied on the way out.
constexpr double kRoundedMixer = kUnitBF16 / 2 * (1 + 3 + 1);

TEST_F(CudaDeltaMixerStepTest, ManyRowsTakeScalesAndEpsilonsAsTheyAreGiven) {
  uint64_t seed = 10;
  for (const int key_dim : {64, 128, 256}) {
    for (const int rows : {3, 40}) {
      ++seed;
      SCOPED_TRACE("seed " + std::to_string(seed));
      ExpectHonoured(LayerProblem(seed, rows, key_dim), DType::kBF16, Way::kMixer, kRoundedMixer);
    }
  }
}

}  // namespace
}  // namespace mneme
