// The part of a neural memory's step behind its gradient. Included by neural_memory.cc only.
#pragma once

#include <cstdint>

#include "kernels/cpu/memory_network.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/ops/neural_memory.h"

namespace mneme::MNEME_ISA {

// The kinds of momentum that the innermost loops know.
enum class Momenta : uint8_t { kNone, kOne, kMany };

// The numbers of one step of one head.
struct StepGates {
  float keep = 1;
  int orders = 0;
  float momentum[kMaxMomentumOrders] = {};
  float mix[kMaxMomentumOrders + 1] = {};  // of S_0, S_1, ..
  bool mixes = false;
  float factor[kMaxMemoryTensors] = {};  // of a tensor's G in its S_0

  Momenta kind() const {
    if (orders == 0) return Momenta::kNone;
    return orders == 1 && !mixes ? Momenta::kOne : Momenta::kMany;
  }
};

// The orders of a tensor's momentum: S_1, and the distance to the next.
struct MomentaOf {
  float* first = nullptr;
  int64_t pitch = 0;
};

// U of a vector of S_0; momenta go one step on. `load` and `store` take a pointer into S.
template <Momenta kKind, typename Load, typename Store>
MNEME_INLINE Vec UpdateOf(const StepGates& gates, Vec s, const MomentaOf& momenta, int64_t at,
                          Load load, Store store) {
  if constexpr (kKind == Momenta::kOne) {
    s = MulAdd(Set1(gates.momentum[0]), load(momenta.first + at), s);
    store(momenta.first + at, s);
  } else if constexpr (kKind == Momenta::kMany) {
    Vec update = Set1(gates.mix[0]) * s;
    for (int order = 0; order < gates.orders; ++order) {
      float* own = momenta.first + order * momenta.pitch + at;
      s = MulAdd(Set1(gates.momentum[order]), load(own), s);
      store(own, s);
      update = MulAdd(Set1(gates.mix[order + 1]), s, update);
    }
    return update;
  }
  return s;
}

// A vector's step, where `gradient(i, lanes)` is G: W <- keep W + U, or, where W is null, U goes to
// `update`.
template <Momenta kKind, typename Gradient>
MNEME_INLINE void StepVector(const StepGates& gates, float factor, const MomentaOf& momenta,
                             int64_t n, float* weights, float* update, Gradient gradient) {
  ForVectors(n, [&](int64_t i, int lanes) {
    const Vec u = UpdateOf<kKind>(
        gates, Set1(factor) * gradient(i, lanes), momenta, i,
        [&](const float* p) { return LoadUpTo(p, lanes); },
        [&](float* p, Vec value) { StoreUpTo(p, value, lanes); });
    if (weights == nullptr) {
      StoreUpTo(update + i, u, lanes);
    } else {
      StoreUpTo(weights + i, MulAdd(Set1(gates.keep), LoadUpTo(weights + i, lanes), u), lanes);
    }
  });
}

// y = bias + x W, after the step on W, [in, out], whose gradient is the sum of products of `rows`
// rows: z[r], times the step's factor, and delta[r].
template <Momenta kKind, bool kOneRow>
MNEME_INLINE void StepAndMultiply(const StepGates& gates, const MomentaOf& momenta, Rows z,
                                  Rows delta, int rows, const float* x, float* weights, int64_t in,
                                  int64_t out, const float* bias, float* y) {
  ForColumns<kColumns>(out, [&]<int N>(int64_t c, int lanes) {
    Vec sums[N], first[N];
    MNEME_UNROLL
    for (int v = 0; v < N; ++v) {
      sums[v] = bias == nullptr ? Zero() : LoadOf<N>(bias + c, v, lanes);
      first[v] = LoadOf<N>(delta[0] + c, v, lanes);
    }
    for (int64_t i = 0; i < in; ++i) {
      const int64_t at = i * out + c;
      const Vec by = Set1(x[i]), z0 = Set1(z[0][i]);
      Vec s[N];
      MNEME_UNROLL
      for (int v = 0; v < N; ++v) s[v] = z0 * first[v];
      if constexpr (!kOneRow) {
        for (int r = 1; r < rows; ++r) {
          const Vec zr = Set1(z[r][i]);
          MNEME_UNROLL
          for (int v = 0; v < N; ++v) s[v] = MulAdd(zr, LoadOf<N>(delta[r] + c, v, lanes), s[v]);
        }
      }
      MNEME_UNROLL
      for (int v = 0; v < N; ++v) {
        const int own = v == N - 1 ? lanes : kLanes;
        const int64_t from = at + v * kLanes;
        const Vec u = UpdateOf<kKind>(
            gates, s[v], momenta, from, [&](const float* p) { return LoadUpTo(p, own); },
            [&](float* p, Vec value) { StoreUpTo(p, value, own); });
        const Vec w = MulAdd(Set1(gates.keep), LoadUpTo(weights + from, own), u);
        StoreUpTo(weights + from, w, own);
        sums[v] = MulAdd(by, w, sums[v]);
      }
    }
    MNEME_UNROLL
    for (int v = 0; v < N; ++v) StoreOf<N>(y + c, v, sums[v], lanes);
  });
}

// f.template operator()<kind>()
template <typename F>
MNEME_INLINE void WithMomenta(Momenta kind, F f) {
  switch (kind) {
    case Momenta::kNone:
      return f.template operator()<Momenta::kNone>();
    case Momenta::kOne:
      return f.template operator()<Momenta::kOne>();
    case Momenta::kMany:
      return f.template operator()<Momenta::kMany>();
  }
}

inline float NormOf(const float* x, int64_t n) {
  Vec squares = Zero();
  ForVectors(n, [&](int64_t i, int lanes) {
    const Vec part = LoadUpTo(x + i, lanes);
    squares = MulAdd(part, part, squares);
  });
  return __builtin_sqrtf(Sum(squares));
}

inline int64_t OrthogonalScratch(int64_t rows, int64_t cols) {
  const int64_t least = rows < cols ? rows : cols;
  return 2 * PaddedFloats(rows * cols) + 2 * PaddedFloats(least * least);
}

// u = Orthogonal(u), [rows, cols].
inline void Orthogonalise(float* u, int64_t rows, int64_t cols, float* scratch) {
  const bool turned = rows > cols;
  const int64_t least = turned ? cols : rows, most = turned ? rows : cols, n = rows * cols;
  float* x = scratch;
  float* next = x + PaddedFloats(n);
  float* y = next + PaddedFloats(n);
  float* polynomial = y + PaddedFloats(least * least);
  const float norm = NormOf(u, n);
  const float by = 1.0f / (norm < 1e-7f ? 1e-7f : norm);
  for (int64_t i = 0; i < least; ++i) {
    for (int64_t j = 0; j < most; ++j) {
      x[i * most + j] = by * (turned ? u[j * cols + i] : u[i * cols + j]);
    }
  }
  const auto all = static_cast<int>(least);
  for (int step = 0; step < 5; ++step) {
    ProductsOfRows(x, least, most, {x, most}, all, {y, least});
    Products({y, least}, all, y, least, least, nullptr, {polynomial, least});
    ForVectors(least * least, [&](int64_t i, int lanes) {
      const Vec once = Set1(-4.7750f) * LoadUpTo(y + i, lanes);
      StoreUpTo(polynomial + i, MulAdd(Set1(2.0315f), LoadUpTo(polynomial + i, lanes), once),
                lanes);
    });
    Products({polynomial, least}, all, x, least, most, nullptr, {next, most});
    ForVectors(n, [&](int64_t i, int lanes) {
      const Vec more = LoadUpTo(next + i, lanes);
      StoreUpTo(x + i, MulAdd(Set1(3.4445f), LoadUpTo(x + i, lanes), more), lanes);
    });
  }
  for (int64_t i = 0; i < least; ++i) {
    for (int64_t j = 0; j < most; ++j)
      (turned ? u[j * cols + i] : u[i * cols + j]) = x[i * most + j];
  }
}

}  // namespace mneme::MNEME_ISA
