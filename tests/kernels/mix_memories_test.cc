#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/compared_backend.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

struct MixProblem {
  MixProblem(uint64_t seed, int tokens, int top_k, bool shared, int dim)
      : tokens(tokens), top_k(top_k), choices(top_k + (shared ? 1 : 0)), dim(dim) {
    SeededRandom random(seed);
    x = random.NormalValues(static_cast<int64_t>(tokens) * choices * dim);
    weights = random.UniformValues(tokens * top_k, 0, 1);
    token_entries = random.Permutation(tokens * choices);
  }

  std::vector<double> Run(Backend& backend) const {
    Workbench bench(backend);
    MixMemoriesArgs args;
    args.x = bench.Activations(x, {tokens * choices, dim});
    args.token_entries = bench.Ints(token_entries, {tokens, choices});
    args.weights = bench.Activations(weights, {tokens, top_k});
    args.y = bench.NewActivations({tokens, dim});
    bench.kernels().MixMemories(args);
    return bench.Read(args.y);
  }

  // A sum of `choices` products.
  std::vector<double> Bound() const {
    std::vector<double> bound;
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < dim; ++i) {
        double scale = 0;
        for (int j = 0; j < choices; ++j) {
          const double weight = j < top_k ? weights[t * top_k + j] : 1;
          scale += weight * std::abs(x[token_entries[t * choices + j] * dim + i]);
        }
        bound.push_back(SumError(choices) * scale);
      }
    }
    return bound;
  }

  int tokens, top_k, choices, dim;
  std::vector<double> x, weights;
  std::vector<int> token_entries;
};

using MixMemoriesTest = ComparedBackendTest;

TEST_P(MixMemoriesTest, MatchesReference) {
  uint64_t seed = 0;
  for (const int dim : {1, 16, 33, 100}) {
    for (const bool shared : {false, true}) {
      for (const int top_k : {0, 1, 2, 4}) {
        for (const int tokens : {0, 1, 13}) {
          if (top_k == 0 && !shared) continue;
          const MixProblem p(++seed, tokens, top_k, shared, dim);
          EXPECT_THAT(p.Run(*backend_), IsWithin(p.Bound(), p.Run(*reference_)))
              << "seed " << seed << ", " << tokens << " tokens, top_k " << top_k << ", dim " << dim
              << (shared ? ", shared" : "");
        }
      }
    }
  }
}

// A memory that is mixed in with weight zero has still been updated; it must only not be heard.
TEST_P(MixMemoriesTest, AWeightOfOneIsExactAndZeroIsSilent) {
  MixProblem p(100, 8, 2, false, 50);
  for (int t = 0; t < p.tokens; ++t) {
    p.weights[t * 2] = 1;
    p.weights[t * 2 + 1] = 0;
  }
  std::vector<double> want;
  for (int t = 0; t < p.tokens; ++t) {
    const auto first = p.x.begin() + p.token_entries[t * 2] * p.dim;
    want.insert(want.end(), first, first + p.dim);
  }
  EXPECT_THAT(p.Run(*backend_), IsWithin(0, want));
}

TEST_P(MixMemoriesTest, NeitherThreadsNorOtherTokensChangeABit) {
  const MixProblem all(101, 29, 3, true, 70);
  const std::vector<double> want = all.Run(*backend_);
  EXPECT_THAT(all.Run(*GetParam().Make(1)), HasSameBits(want));
  EXPECT_THAT(all.Run(*GetParam().Make(3)), HasSameBits(want));
  MixProblem one(102, 1, 3, true, 70);
  one.token_entries = {3, 1, 0, 2};
  for (int t = 0; t < all.tokens; ++t) {
    for (int j = 0; j < 4; ++j) {
      std::copy_n(all.x.begin() + all.token_entries[t * 4 + j] * 70, 70,
                  one.x.begin() + one.token_entries[j] * 70);
    }
    one.weights.assign(all.weights.begin() + t * 3, all.weights.begin() + (t + 1) * 3);
    EXPECT_THAT(one.Run(*backend_),
                HasSameBits({want.begin() + t * 70, want.begin() + (t + 1) * 70}))
        << "token " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MixMemoriesTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
