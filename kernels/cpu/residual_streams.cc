// Residual connections of several streams. This file is built once per instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

constexpr int kSinkhornRounds = 20;
constexpr float kLeastNorm = 1e-12f;
// A stream's row of the mixing matrix is one vector.
static_assert(kMaxResidualStreams <= kLanes);

struct Mix {
  float pre[kMaxResidualStreams];
  float residual[kMaxResidualStreams][kLanes];  // lanes beyond the streams hold zeros
};

// The number that all lanes of a vector have.
MNEME_INLINE float AnyLane(Vec v) {
  float lanes[kLanes];
  Store(lanes, v);
  return lanes[0];
}
MNEME_INLINE float SigmoidOf(float x) { return AnyLane(Sigmoid(Set1(x))); }
MNEME_INLINE float TanhOf(float x) { return AnyLane(Tanh(Set1(x))); }

MNEME_INLINE void MakeDoublyStochastic(Mix& mix, int streams) {
  Vec rows[kMaxResidualStreams];
  Vec largest = Load(mix.residual[0]);
  for (int s = 1; s < streams; ++s) largest = Max(largest, Load(mix.residual[s]));
  for (int s = 0; s < streams; ++s) {
    float row[kLanes] = {};
    StoreFirst(row, Exp(Load(mix.residual[s]) - largest), streams);
    rows[s] = Load(row);
  }
  const Vec least = Set1(kLeastNorm);
  for (int round = 0; round < kSinkhornRounds; ++round) {
    Vec sums = Zero();
    for (int s = 0; s < streams; ++s) sums = sums + rows[s];
    sums = Max(sums, least);
    for (int s = 0; s < streams; ++s) {
      rows[s] = rows[s] / sums;
      const float sum = Sum(rows[s]);
      rows[s] = rows[s] / Set1(sum > kLeastNorm ? sum : kLeastNorm);
    }
  }
  for (int s = 0; s < streams; ++s) Store(mix.residual[s], rows[s]);
}

// Computes the mix of one token, and writes its `post`, where there is one.
MNEME_INLINE void ComputeMix(const StreamMixing& mixing, const float* x, int streams, int64_t dim,
                             Mix& mix, float* post) {
  const float* gain = mixing.gain.as<float>();
  const float* weight = mixing.alpha_weight.as<float>();
  const float* scales = mixing.scales.as<float>();
  const float root = __builtin_sqrtf(static_cast<float>(dim));
  const bool dynamic = mixing.kind == StreamMixing::Kind::kDynamic;
  for (int s = 0; s < streams; ++s, x += dim) {
    Vec squares = Zero();
    ForVectors(dim, [&](int64_t i, int lanes) {
      const Vec v = LoadUpTo(x + i, lanes);
      squares = MulAdd(v, v, squares);
    });
    const float norm = __builtin_sqrtf(Sum(squares));
    const float scale = root / (norm > kLeastNorm ? norm : kLeastNorm);
    const auto product = [&](const float* w) {
      Vec sum = Zero();
      ForVectors(dim, [&](int64_t i, int lanes) {
        const Vec z = LoadUpTo(x + i, lanes) * (Set1(1.0f) + LoadUpTo(gain + i, lanes));
        sum = MulAdd(z, LoadUpTo(w + i, lanes), sum);
      });
      const float t = scale * Sum(sum);
      return dynamic ? TanhOf(t) : t;
    };
    const float* alpha = mixing.alpha.as<float>() + s * (1 + streams);
    const float first = scales[0] * product(weight) + alpha[0];
    mix.pre[s] = dynamic ? first : SigmoidOf(first);
    if (post == nullptr) continue;
    for (int t = 0; t < kLanes; ++t) mix.residual[s][t] = 0.0f;
    for (int t = 0; t < streams; ++t) {
      mix.residual[s][t] = mixing.kind == StreamMixing::Kind::kSum
                               ? 1.0f
                               : scales[1] * product(weight + (1 + t) * dim) + alpha[1 + t];
    }
    const float u =
        scales[2] * product(mixing.beta_weight.as<float>()) + mixing.beta.as<float>()[s];
    post[s] = dynamic ? u : 2.0f * SigmoidOf(u);
  }
  if (post != nullptr && mixing.kind == StreamMixing::Kind::kConstrained) {
    MakeDoublyStochastic(mix, streams);
  }
}

}  // namespace

void ExpandStreams(const ExpandStreamsArgs& args, int64_t begin, int64_t end) {
  const int64_t streams = args.y.shape[1], dim = args.x.shape[1];
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row / streams * dim;
    const float* embedding = args.embedding.as<float>() + row % streams * dim;
    float* y = args.y.as<float>() + row * dim;
    ForVectors(dim, [&](int64_t i, int lanes) {
      StoreUpTo(y + i, LoadUpTo(x + i, lanes) + LoadUpTo(embedding + i, lanes), lanes);
    });
  }
}

void ReadStreams(const ReadStreamsArgs& args, int64_t begin, int64_t end) {
  const int streams = static_cast<int>(args.x.shape[1]);
  const int64_t dim = args.x.shape[2];
  const bool mixes = !args.mixing.beta.empty();
  Mix mix;
  for (int64_t token = begin; token < end; ++token) {
    float* x = args.x.as<float>() + token * streams * dim;
    float* y = args.y.as<float>() + token * dim;
    ComputeMix(args.mixing, x, streams, dim, mix,
               mixes ? args.post.as<float>() + token * streams : nullptr);
    ForVectors(dim, [&](int64_t i, int lanes) {
      Vec input = Zero();
      Vec mixed[kMaxResidualStreams];
      for (int t = 0; t < streams; ++t) mixed[t] = Zero();
      for (int s = 0; s < streams; ++s) {
        const Vec own = LoadUpTo(x + s * dim + i, lanes);
        input = MulAdd(Set1(mix.pre[s]), own, input);
        if (!mixes) continue;
        for (int t = 0; t < streams; ++t) {
          mixed[t] = MulAdd(Set1(mix.residual[s][t]), own, mixed[t]);
        }
      }
      StoreUpTo(y + i, input, lanes);
      if (!mixes) return;
      for (int t = 0; t < streams; ++t) StoreUpTo(x + t * dim + i, mixed[t], lanes);
    });
  }
}

void WriteStreams(const WriteStreamsArgs& args, int64_t begin, int64_t end) {
  const int64_t streams = args.y.shape[1], dim = args.y.shape[2];
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row / streams * dim;
    const Vec post = Set1(args.post.as<float>()[row]);
    float* y = args.y.as<float>() + row * dim;
    ForVectors(dim, [&](int64_t i, int lanes) {
      StoreUpTo(y + i, MulAdd(post, LoadUpTo(x + i, lanes), LoadUpTo(y + i, lanes)), lanes);
    });
  }
}

void SumStreams(const SumStreamsArgs& args, int64_t begin, int64_t end) {
  const int64_t streams = args.x.shape[1], dim = args.x.shape[2];
  for (int64_t token = begin; token < end; ++token) {
    const float* x = args.x.as<float>() + token * streams * dim;
    float* y = args.y.as<float>() + token * dim;
    ForVectors(dim, [&](int64_t i, int lanes) {
      Vec sum = LoadUpTo(x + i, lanes);
      for (int64_t s = 1; s < streams; ++s) sum = sum + LoadUpTo(x + s * dim + i, lanes);
      StoreUpTo(y + i, sum, lanes);
    });
  }
}

void MixViews(const MixViewsArgs& args, int64_t begin, int64_t end) {
  const int64_t count = args.x.shape[0], tokens = args.x.shape[1], dim = args.x.shape[2];
  const int64_t views = args.y.shape[0];
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t v = 0; v < views; ++v) {
      const float* weights = args.weights.as<float>() + (token * views + v) * count;
      float* y = args.y.as<float>() + (v * tokens + token) * dim;
      ForVectors(dim, [&](int64_t i, int lanes) {
        Vec sum = Zero();
        for (int64_t j = 0; j < count; ++j) {
          const float* x = args.x.as<float>() + (j * tokens + token) * dim + i;
          sum = MulAdd(Set1(weights[j]), LoadUpTo(x, lanes), sum);
        }
        StoreUpTo(y + i, sum, lanes);
      });
    }
  }
}

}  // namespace mneme::MNEME_ISA
