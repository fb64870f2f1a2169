// The work that each token costs with engrams, and their distances. Built once per instruction set.
#include "kernels/cpu/attend.h"
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// The same for one number as for sixteen.
MNEME_INLINE float Exp(float x) {
  float y[kLanes];
  Store(y, Exp(Set1(x)));
  return y[0];
}

}  // namespace

void EncodeTokens(const EncodeTokensArgs& args, int row, int64_t begin, int64_t end) {
  const int64_t dim = args.h.shape[1];
  const int slot = args.slots.as<int32_t>()[row];
  const int32_t first = args.row_offsets.as<int32_t>()[row];
  const int32_t last = args.row_offsets.as<int32_t>()[row + 1];
  float* const largest = args.largest.as<float>(slot, 0);
  float* const total = args.total.as<float>(slot, 0);
  for (int32_t token = first; token < last; ++token) {
    const float* h = args.h.as<float>() + token * dim;
    const bool fresh = (args.positions.as<int64_t>()[row] + token - first) % args.segment == 0;
    for (int64_t query = begin; query < end; ++query) {
      float* const sums = args.sums.as<float>(slot, 0) + query * dim;
      if (fresh) {
        largest[query] = kMinusInfinity;
        total[query] = 0;
        for (int64_t i = 0; i < dim; ++i) sums[i] = 0;
      }
      const float score = Dot(args.queries.as<float>() + query * dim, h, dim);
      const float before = largest[query];
      const float now = score > before ? score : before;
      const float keep = Exp(before - now), p = Exp(score - now);
      const Vec kept = Set1(keep), added = Set1(p);
      ForVectors(dim, [&](int64_t i, int lanes) {
        const Vec sum = LoadUpTo(sums + i, lanes) * kept;
        StoreUpTo(sums + i, MulAdd(added, LoadUpTo(h + i, lanes), sum), lanes);
      });
      total[query] = total[query] * keep + p;
      largest[query] = now;
    }
  }
}

void SquaredDistances(const float* x, const float* others, int64_t count, int64_t dim,
                      double* distances) {
  for (int64_t j = 0; j < count; ++j) {
    const float* other = others + j * dim;
    Vec sum = Zero();
    ForVectors(dim, [&](int64_t i, int lanes) {
      const Vec difference = LoadUpTo(x + i, lanes) - LoadUpTo(other + i, lanes);
      sum = MulAdd(difference, difference, sum);
    });
    distances[j] = Sum(sum);
  }
}

void EngramAttention(const EngramAttentionArgs& args, int row, int head, int count, float* scores) {
  const int64_t heads = args.q.shape[1], dim = args.q.shape[2];
  const int slot = args.slots.as<int32_t>()[row];
  const int64_t pitch = heads * dim;
  const float* const keys = args.keys.as<float>(slot, 0) + args.first * pitch + head * dim;
  const float* const values = args.values.as<float>(slot, 0) + args.first * pitch + head * dim;
  float* const sums = args.sums.base == nullptr
                          ? nullptr
                          : args.sums.as<float>(slot, args.layer) + head * args.recalled;
  for (int32_t token = args.row_offsets.as<int32_t>()[row];
       token < args.row_offsets.as<int32_t>()[row + 1]; ++token) {
    const float* q = args.q.as<float>() + token * pitch + head * dim;
    float* out = args.out.as<float>() + token * pitch + head * dim;
    Attend(q, keys, values, pitch, count, dim, args.scale, scores, sums, out);
  }
}

void AddFrom(const AddFromArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[1];
  for (int64_t t = begin; t < end; ++t) {
    if (args.positions.as<int64_t>()[t] < args.first) continue;
    const float* x = args.x.as<float>() + t * dim;
    float* y = args.y.as<float>() + t * dim;
    ForVectors(dim, [&](int64_t i, int lanes) {
      StoreUpTo(y + i, LoadUpTo(y + i, lanes) + LoadUpTo(x + i, lanes), lanes);
    });
  }
}

}  // namespace mneme::MNEME_ISA
