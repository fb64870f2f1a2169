// Operations that divide by a sum over the row: norms, softmax, feature maps. Built once per
// instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

MNEME_INLINE float SumOfSquares(const float* x, int64_t n) {
  Vec sum = Zero();
  ForVectors(n, [&](int64_t i, int lanes) {
    const Vec v = LoadUpTo(x + i, lanes);
    sum = MulAdd(v, v, sum);
  });
  return Sum(sum);
}

MNEME_INLINE float SumOf(const float* x, int64_t n) {
  Vec sum = Zero();
  ForVectors(n, [&](int64_t i, int lanes) { sum = sum + LoadUpTo(x + i, lanes); });
  return Sum(sum);
}

// The largest of n > 0 numbers; of those that a part of a vector lacks, the first stands in.
MNEME_INLINE float LargestOf(const float* x, int64_t n) {
  float largest = x[0];
  int64_t i = 0;
  if (n >= kLanes) {
    Vec best = Load(x);
    for (i = kLanes; i + kLanes <= n; i += kLanes) best = Max(best, Load(x + i));
    largest = MaxLane(best);
  }
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// y /= divisor.
MNEME_INLINE void DivideRow(const float* x, float divisor, float* y, int64_t n) {
  ForVectors(n, [&](int64_t i, int lanes) {
    StoreUpTo(y + i, LoadUpTo(x + i, lanes) / Set1(divisor), lanes);
  });
}

MNEME_INLINE float InverseRoot(float x) { return 1.0f / __builtin_sqrtf(x); }

}  // namespace

void RmsNorm(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[1];
  const float* weight = args.weight.as<float>();
  for (int64_t t = begin; t < end; ++t) {
    const float* x = args.x.as<float>() + t * dim;
    float* y = args.y.as<float>() + t * dim;
    const Vec scale = Set1(InverseRoot(SumOfSquares(x, dim) / static_cast<float>(dim) + args.eps));
    ForVectors(dim, [&](int64_t i, int lanes) {
      StoreUpTo(y + i, LoadUpTo(x + i, lanes) * scale * LoadUpTo(weight + i, lanes), lanes);
    });
  }
}

void GatedRmsNorm(const GatedRmsNormArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.x.shape[1], dim = args.x.shape[2];
  const bool by_head = args.weight.shape.rank == 2;
  const float* gates = args.gate.as<float>();
  const bool silu = args.activation == Activation::kSilu;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row * dim;
    const float* weight = args.weight.as<float>() + (by_head ? row % heads * dim : 0);
    float* y = args.y.as<float>() + row * dim;
    const Vec scale = Set1(InverseRoot(SumOfSquares(x, dim) / static_cast<float>(dim) + args.eps));
    ForVectors(dim, [&](int64_t i, int lanes) {
      Vec value = LoadUpTo(x + i, lanes) * scale * LoadUpTo(weight + i, lanes);
      if (gates != nullptr) {
        const Vec gate = LoadUpTo(gates + row * dim + i, lanes);
        value = value * (silu ? Silu(gate) : Sigmoid(gate));
      }
      StoreUpTo(y + i, value, lanes);
    });
  }
}

void LayerNorm(const LayerNormArgs& args, int64_t begin, int64_t end) {
  const int rank = args.x.shape.rank;
  const int64_t heads = rank == 3 ? args.x.shape[1] : 1, dim = args.x.shape[rank - 1];
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row * dim;
    float* y = args.y.as<float>() + row * dim;
    const float* weight = args.weight.as<float>() + row % heads * dim;
    const float* bias = args.bias.empty() ? nullptr : args.bias.as<float>() + row % heads * dim;
    // Loading part of it leaves zeros in the lanes that part of x has none for.
    float mean[kLanes];
    Store(mean, Set1(SumOf(x, dim) / static_cast<float>(dim)));
    Vec squares = Zero();
    ForVectors(dim, [&](int64_t i, int lanes) {
      const Vec centred = LoadUpTo(x + i, lanes) - LoadUpTo(mean, lanes);
      squares = MulAdd(centred, centred, squares);
    });
    const Vec scale = Set1(InverseRoot(Sum(squares) / static_cast<float>(dim) + args.eps));
    ForVectors(dim, [&](int64_t i, int lanes) {
      const Vec normed = (LoadUpTo(x + i, lanes) - Load(mean)) * scale;
      const Vec shift = bias != nullptr ? LoadUpTo(bias + i, lanes) : Zero();
      StoreUpTo(y + i, MulAdd(normed, LoadUpTo(weight + i, lanes), shift), lanes);
    });
  }
}

void L2Norm(const L2NormArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[2];
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row * dim;
    float* y = args.y.as<float>() + row * dim;
    const Vec scale = Set1(args.scale * InverseRoot(SumOfSquares(x, dim) + args.eps));
    ForVectors(dim, [&](int64_t i, int lanes) {
      StoreUpTo(y + i, LoadUpTo(x + i, lanes) * scale, lanes);
    });
  }
}

void SumNorm(const SumNormArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[2];
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row * dim;
    const float sum = SumOf(x, dim) + args.eps;
    DivideRow(x, sum == 0 ? __builtin_inff() : sum, args.y.as<float>() + row * dim, dim);
  }
}

void Divide(const DivideArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[2];
  for (int64_t row = begin; row < end; ++row) {
    DivideRow(args.x.as<float>() + row * dim, args.z.as<float>()[row] + args.eps,
              args.y.as<float>() + row * dim, dim);
  }
}

void Softmax(const SoftmaxArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[2];
  if (dim == 0) return;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row * dim;
    float* y = args.y.as<float>() + row * dim;
    const Vec largest = Set1(LargestOf(x, dim));
    ForVectors(dim, [&](int64_t i, int lanes) {
      StoreUpTo(y + i, Exp(LoadUpTo(x + i, lanes) - largest), lanes);
    });
    DivideRow(y, SumOf(y, dim), y, dim);
  }
}

namespace {

// softmax([2x, -2x])
void Hedgehog(const float* x, int64_t dim, float* y) {
  const Vec two = Set1(2.0f);
  Vec largest = Zero();  // of |x|
  ForVectors(dim,
             [&](int64_t i, int lanes) { largest = Max(largest, Abs(LoadUpTo(x + i, lanes))); });
  largest = Set1(2.0f * MaxLane(largest));
  ForVectors(dim, [&](int64_t i, int lanes) {
    const Vec twice = two * LoadUpTo(x + i, lanes);
    StoreUpTo(y + i, Exp(twice - largest), lanes);
    StoreUpTo(y + dim + i, Exp(Zero() - twice - largest), lanes);
  });
  DivideRow(y, SumOf(y, 2 * dim), y, 2 * dim);
}

// z = [relu(x), -relu(x)], cyclic over 2 dim.
void Dpfp(const float* x, int64_t dim, float* y) {
  const auto z = [&](int64_t i) {
    const float value = x[i < dim ? i : i - dim];
    const float relu = value > 0 ? value : 0.0f;
    return i < dim ? relu : -relu;
  };
  for (int64_t roll = 1; roll <= 4; ++roll) {
    int64_t other = (4 * dim - roll) % (2 * dim);  // of a short head a roll goes round twice
    for (int64_t i = 0; i < 2 * dim; ++i) {
      y[(roll - 1) * 2 * dim + i] = z(i) * z(other);
      if (++other == 2 * dim) other = 0;
    }
  }
}

}  // namespace

void MapFeatures(const FeatureMapArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[2];
  if (dim == 0) return;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row * dim;
    float* y = args.y.as<float>() + row * dim * FeaturesOf(args.map);
    if (args.map == FeatureMap::kHedgehog) {
      Hedgehog(x, dim, y);
    } else {
      Dpfp(x, dim, y);
    }
  }
}

}  // namespace mneme::MNEME_ISA
