// Activate, and what goes element by element beside it: AddBias and Multiply.
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

constexpr Activation kActivations[] = {
    Activation::kIdentity,    Activation::kSilu,       Activation::kSigmoid,
    Activation::kRelu,        Activation::kEluPlusOne, Activation::kTanh,
    Activation::kSquaredRelu, Activation::kGeluTanh,   Activation::kGelu};
constexpr int kActivatedDims[] = {1, 3, 16, 33, 65, 300};

struct ActivateProblem {
  ActivateProblem(uint64_t seed, int rows, int dim) : rows(rows), dim(dim) {
    SeededRandom random(seed);
    x = random.NormalValues(static_cast<int64_t>(rows) * dim, 5);
  }

  int entries() const { return entry_rows.empty() ? rows : static_cast<int>(entry_rows.size()); }

  ActivateArgs Load(Workbench& bench, bool in_place = false) const {
    ActivateArgs args;
    args.x = bench.Activations(x, {rows, dim});
    if (!entry_rows.empty()) args.entry_rows = bench.Ints(entry_rows);
    args.activation = activation;
    args.scale = static_cast<float>(scale);
    args.y = in_place ? args.x : bench.NewActivations({entries(), dim});
    return args;
  }
  std::vector<double> Run(Backend& backend, bool in_place = false) const {
    Workbench bench(backend);
    const ActivateArgs args = Load(bench, in_place);
    bench.kernels().Activate({&args, 1});
    return bench.Read(args.y);
  }

  // At most one exp, one sum, one division, and the product with the scale; where exp(-x) overflows
  // f32 the result may be zero. The argument of kGeluTanh's exp is rounded four times, and what
  // that moves it by, the exponential moves by relative to itself. In kGelu's distribution that of
  // exp(-z^2/2) is rounded twice, and a polynomial of ten terms follows.
  std::vector<double> Bound(const std::vector<double>& want) const {
    std::vector<double> bound;
    for (size_t i = 0; i < want.size(); ++i) {
      const double z = entry_rows.empty() ? x[i] : x[entry_rows[i / dim] * dim + i % dim];
      double relative = kFunctionError + 4 * kUnitF32, tiny = kTinyF32 * scale;
      if (activation == Activation::kGeluTanh && want[i] != 0 && z < 0) {
        relative += 5 * kUnitF32 * std::abs(z * (kGeluFirst + kGeluThird * z * z));
      }
      if (activation == Activation::kGelu) {
        relative += 16 * kUnitF32 + 2 * kUnitF32 * z * z;
        tiny *= std::max(1.0, std::abs(z));
      }
      bound.push_back(relative * std::abs(want[i]) + tiny);
    }
    return bound;
  }

  int rows, dim;
  double scale = 0.375;
  Activation activation = Activation::kSilu;
  std::vector<double> x;
  std::vector<int> entry_rows;
};

class ActivateTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectMatch(const ActivateProblem& p) {
    SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(p.activation) << ", "
                                    << p.rows << " x " << p.dim);
    const std::vector<double> want = p.Run(*reference_);
    EXPECT_THAT(p.Run(*backend_), IsWithin(p.Bound(want), want));
  }

  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

TEST_P(ActivateTest, MatchesReference) {
  for (const Activation activation : kActivations) {
    for (const int dim : kActivatedDims) {
      for (const int rows : {0, 1, 7}) {
        ActivateProblem p(dim, rows, dim);
        p.activation = activation;
        ExpectMatch(p);
      }
    }
  }
}

TEST_P(ActivateTest, ReadsTheRowOfEachEntry) {
  for (const Activation activation : kActivations) {
    for (const int dim : kActivatedDims) {
      ActivateProblem p(dim, 9, dim);
      p.activation = activation;
      p.entry_rows = {8, 0, 0, 3, 7, 7, 7, 1, 2, 4, 8};
      ExpectMatch(p);
    }
  }
}

TEST_P(ActivateTest, HoldsFromSaturationToSaturation) {
  for (const Activation activation : kActivations) {
    ActivateProblem p(1, 0, 1);
    p.activation = activation;
    p.scale = 1;
    for (double z = -90; z <= 90; z += 0.0625) p.x.push_back(z);
    for (const double z : {1e4, -1e4, 1e30, -1e30, 1e-8, -1e-8, 0.0}) {
      if (activation == Activation::kSquaredRelu && z == 1e30) continue;  // no f32
      p.x.push_back(RoundTo(z, DType::kF32));
    }
    p.rows = static_cast<int>(p.x.size());
    const std::vector<double> want = p.Run(*reference_);
    std::vector<double> bound = p.Bound(want);
    // silu of numbers below -87 divides by what overflows: z times a number below 2^-126.
    for (size_t i = 0; i < bound.size(); ++i)
      bound[i] += kTinyF32 * std::min(200.0, std::abs(p.x[i]));
    EXPECT_THAT(p.Run(*backend_), IsWithin(bound, want)) << static_cast<int>(activation);
  }
}

TEST_P(ActivateTest, SeveralAtOnceAreEachAsAlone) {
  const std::vector<ActivateProblem> problems = [] {
    std::vector<ActivateProblem> list;
    int seed = 10;
    for (const Activation activation : kActivations) {
      list.emplace_back(seed, seed % 3 == 0 ? 0 : 4, 700);
      list.back().activation = activation;
      list.emplace_back(++seed, 5, 33);
      list.back().activation = activation;
      list.back().entry_rows = {4, 2, 2, 0};
      ++seed;
    }
    return list;
  }();
  Workbench bench(*backend_);
  std::vector<ActivateArgs> args;
  for (const ActivateProblem& p : problems) args.push_back(p.Load(bench));
  bench.kernels().Activate(args);
  for (size_t i = 0; i < problems.size(); ++i) {
    EXPECT_THAT(bench.Read(args[i].y), HasSameBits(problems[i].Run(*backend_))) << i;
  }
}

TEST_P(ActivateTest, OutputMayAliasInput) {
  for (const Activation activation : kActivations) {
    ActivateProblem p(20, 11, 65);
    p.activation = activation;
    EXPECT_THAT(p.Run(*backend_, true), HasSameBits(p.Run(*backend_)));
  }
}

TEST_P(ActivateTest, NeitherPlaceNorThreadsChangeABit) {
  ActivateProblem all(21, 64, 300);
  all.activation = Activation::kEluPlusOne;
  const std::vector<double> want = all.Run(*backend_);
  for (const int threads : {1, 3}) {
    EXPECT_THAT(all.Run(*GetParam().Make(threads)), HasSameBits(want));
  }
  for (const int row : {0, 5, 63}) {
    ActivateProblem one = all;
    one.entry_rows = {row};
    EXPECT_THAT(one.Run(*backend_),
                HasSameBits({want.begin() + row * 300, want.begin() + (row + 1) * 300}));
  }
}

std::vector<double> AddBias(Backend& backend, const std::vector<double>& y, int dim,
                            const std::vector<double>& bias, const std::vector<int>& offsets) {
  Workbench bench(backend);
  AddBiasArgs args;
  args.bias = bench.Floats(bias, {static_cast<int64_t>(bias.size()) / dim, dim});
  if (!offsets.empty()) args.group_offsets = bench.Ints(offsets);
  args.y = bench.Activations(y, {static_cast<int64_t>(y.size()) / dim, dim});
  bench.kernels().AddBias(args);
  return bench.Read(args.y);
}

TEST_P(ActivateTest, AddBiasMatchesReference) {
  for (const int dim : kActivatedDims) {
    SeededRandom random(dim);
    // Groups of no entries first, in between and last; none at all; one for all.
    for (const std::vector<int>& offsets :
         {std::vector<int>{}, {0, 9}, {0, 0, 4, 4, 5, 9, 9}, {0, 0, 0, 9}, {0, 3, 9, 9}}) {
      const int groups = offsets.empty() ? 1 : static_cast<int>(offsets.size()) - 1;
      const std::vector<double> bias = random.NormalValues(groups * dim);
      const std::vector<double> y = random.NormalValues(9 * dim);
      const std::vector<double> want = AddBias(*reference_, y, dim, bias, offsets);
      std::vector<double> bound;
      for (const double value : want) bound.push_back(kUnitF32 * std::abs(value) + kTinyF32);
      const std::vector<double> got = AddBias(*backend_, y, dim, bias, offsets);
      EXPECT_THAT(got, IsWithin(bound, want)) << groups << " groups of " << dim;
      EXPECT_THAT(AddBias(*GetParam().Make(3), y, dim, bias, offsets), HasSameBits(got));
    }
    EXPECT_TRUE(AddBias(*backend_, {}, dim, random.NormalValues(dim), {}).empty());
    EXPECT_TRUE(AddBias(*backend_, {}, dim, random.NormalValues(2 * dim), {0, 0, 0}).empty());
  }
}

enum class Alias { kNone, kA, kB };

std::vector<double> Multiply(Backend& backend, const std::vector<double>& a,
                             const std::vector<double>& b, int dim, Alias alias = Alias::kNone) {
  Workbench bench(backend);
  const Shape shape = {static_cast<int64_t>(a.size()) / dim, dim};
  MultiplyArgs args;
  args.a = bench.Activations(a, shape);
  args.b = bench.Activations(b, shape);
  args.y = alias == Alias::kA ? args.a : alias == Alias::kB ? args.b : bench.NewActivations(shape);
  bench.kernels().Multiply(args);
  return bench.Read(args.y);
}

TEST_P(ActivateTest, MultiplyMatchesReference) {
  for (const int dim : kActivatedDims) {
    for (const int rows : {0, 1, 400}) {
      SeededRandom random(dim);
      const std::vector<double> a = random.NormalValues(rows * dim);
      const std::vector<double> b = random.NormalValues(rows * dim);
      const std::vector<double> want = Multiply(*reference_, a, b, dim);
      std::vector<double> bound;
      for (const double value : want) bound.push_back(kUnitF32 * std::abs(value) + kTinyF32);
      const std::vector<double> got = Multiply(*backend_, a, b, dim);
      EXPECT_THAT(got, IsWithin(bound, want)) << rows << " x " << dim;
      EXPECT_THAT(Multiply(*backend_, a, b, dim, Alias::kA), HasSameBits(got));
      EXPECT_THAT(Multiply(*backend_, a, b, dim, Alias::kB), HasSameBits(got));
    }
  }
}

TEST_P(ActivateTest, MultiplyAddsToWhatIsThere) {
  const auto run = [](Backend& backend, int rows, int dim) {
    SeededRandom random(dim);
    Workbench bench(backend);
    MultiplyArgs args;
    args.a = bench.Activations(random.NormalValues(rows * dim), {rows, dim});
    args.b = bench.Activations(random.NormalValues(rows * dim), {rows, dim});
    args.y = bench.Activations(random.NormalValues(rows * dim), {rows, dim});
    args.accumulate = true;
    bench.kernels().Multiply(args);
    return bench.Read(args.y);
  };
  for (const int dim : kActivatedDims) {
    for (const int rows : {0, 1, 400}) {
      const std::vector<double> want = run(*reference_, rows, dim);
      // Products of two normal numbers stay below 40.
      const std::vector<double> bound(want.size(), 2 * 40 * kUnitF32);
      EXPECT_THAT(run(*backend_, rows, dim), IsWithin(bound, want)) << rows << " x " << dim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ActivateTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
