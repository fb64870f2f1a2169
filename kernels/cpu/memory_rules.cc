// Rules by which matrix memories are read and written. Built once per instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

// Rows of a memory that are worked on together: they share the loads of k and q, and their sums
// are as many independent chains as the registers hold.
#if defined(__AVX512F__)
constexpr int kRows = 8;
#elif defined(__AVX2__)
constexpr int kRows = 2;
#else
constexpr int kRows = 1;
#endif

// Tokens whose per-token numbers are worked out ahead of the rows.
constexpr int kTokens = 64;

struct Token {
  const float* k;
  const float* q;
  const float* v;
  float* out;
  float decay;  // exp(log_decay)
  float beta;
  float kq;  // k . q
};

MNEME_INLINE float Dot(const float* a, const float* b, int n) {
  Vec sum = Zero();
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = MulAdd(Load(a + i), Load(b + i), sum);
  if (i < n) sum = MulAdd(LoadFirst(a + i, n - i), LoadFirst(b + i, n - i), sum);
  return Sum(sum);
}

// One token through rows of S. Reading first and correcting the result is the same sum:
//   u = beta (v - decay (S k));   o = decay (S q) + u (k . q);   S <- decay S + u k^T
// so that S is read once. Step does so for R rows side by side, of any length, and reads them
// again, from the first-level cache, for the update. Meanwhile the rows after the next few are
// fetched, evenly over both passes: left alone, the processor would see R short streams.
template <int R, bool kFetchNext>
MNEME_INLINE void Step(float* state, int key_dim, const Token& token, int row) {
  const int whole = key_dim / kLanes * kLanes;
  const int tail = key_dim - whole;
  const float* ahead = state + (R + R / 2) * key_dim;
  Vec sk[R], sq[R];
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) sk[r] = sq[r] = Zero();
  for (int i = 0; i < whole; i += kLanes) {
    const Vec k = Load(token.k + i), q = Load(token.q + i);
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec s = Load(state + r * key_dim + i);
      if (kFetchNext && r < R / 2) Prefetch(ahead + r * key_dim + i);
      sk[r] = MulAdd(s, k, sk[r]);
      sq[r] = MulAdd(s, q, sq[r]);
    }
  }
  if (tail > 0) {
    const Vec k = LoadFirst(token.k + whole, tail), q = LoadFirst(token.q + whole, tail);
    for (int r = 0; r < R; ++r) {
      const Vec s = LoadFirst(state + r * key_dim + whole, tail);
      sk[r] = MulAdd(s, k, sk[r]);
      sq[r] = MulAdd(s, q, sq[r]);
    }
  }

  Vec u[R];
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    const float value = token.beta * (token.v[row + r] - token.decay * Sum(sk[r]));
    token.out[row + r] = token.decay * Sum(sq[r]) + value * token.kq;
    u[r] = Set1(value);
  }

  const Vec decay = Set1(token.decay);
  for (int i = 0; i < whole; i += kLanes) {
    const Vec k = Load(token.k + i);
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) {
      float* s = state + r * key_dim + i;
      Store(s, MulAdd(u[r], k, decay * Load(s)));
      if (kFetchNext && r >= R / 2) Prefetch(ahead + r * key_dim + i);
    }
  }
  if (tail > 0) {
    const Vec k = LoadFirst(token.k + whole, tail);
    for (int r = 0; r < R; ++r) {
      float* s = state + r * key_dim + whole;
      StoreFirst(s, MulAdd(u[r], k, decay * LoadFirst(s, tail)), tail);
    }
  }
}

#if defined(__AVX512F__)
constexpr int kMostHeld = 16;

// The same for one row of N vectors, which stay in registers in between. Where memory is the limit
// that is a third faster than tiles: one stream from end to end of a head, which the processor's
// own prefetching follows better than any of ours. Sums add in the order of Step.
template <int N>
MNEME_INLINE void StepHeldRow(float* state, const Token& token, int row) {
  Vec held[N], sk = Zero(), sq = Zero();
  MNEME_UNROLL
  for (int i = 0; i < N; ++i) {
    held[i] = Load(state + i * kLanes);
    sk = MulAdd(held[i], Load(token.k + i * kLanes), sk);
    sq = MulAdd(held[i], Load(token.q + i * kLanes), sq);
  }
  const float value = token.beta * (token.v[row] - token.decay * Sum(sk));
  token.out[row] = token.decay * Sum(sq) + value * token.kq;
  const Vec u = Set1(value), decay = Set1(token.decay);
  MNEME_UNROLL
  for (int i = 0; i < N; ++i) {
    Store(state + i * kLanes, MulAdd(u, Load(token.k + i * kLanes), decay * held[i]));
  }
}

template <int N>
bool StepHeldRows(float* state, int key_dim, bool zero, const Token& token, int begin, int end) {
  if constexpr (N == 0) {
    return false;
  } else {
    if (key_dim != N * kLanes) {
      return StepHeldRows<N / 2>(state, key_dim, zero, token, begin, end);
    }
    for (int row = begin; row < end; ++row) {
      float* s = state + int64_t{row} * key_dim;
      if (zero) __builtin_memset(s, 0, sizeof(float) * key_dim);
      StepHeldRow<N>(s, token, row);
    }
    return true;
  }
}
#else
constexpr int kMostHeld = 0;  // too few registers

template <int N>
bool StepHeldRows(float*, int, bool, const Token&, int, int) {
  return false;
}
#endif

template <int R>
MNEME_INLINE void Rows(float* state, int key_dim, bool zero, const Token* tokens, int count,
                       int row) {
  if (zero) __builtin_memset(state, 0, sizeof(float) * R * key_dim);
  Step<R, true>(state, key_dim, tokens[0], row);
  for (int t = 1; t < count; ++t) Step<R, false>(state, key_dim, tokens[t], row);
}

}  // namespace

void GatedDeltaRule(const MatrixMemoryArgs& args, int segment, int value_head, int begin, int end) {
  const int heads = static_cast<int>(args.k.shape[1]);
  const int key_dim = static_cast<int>(args.k.shape[2]);
  const int value_heads = static_cast<int>(args.v.shape[1]);
  const int value_dim = static_cast<int>(args.v.shape[2]);
  const int head = value_head / (value_heads / heads);
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  const int slot = args.segments.slots.as<int32_t>()[segment];
  const int memory = args.segments.memories.as<int32_t>()[segment];
  bool zero = args.segments.fresh.as<int32_t>()[segment] != 0;
  float* state = args.state.as<float>(slot, memory) + int64_t{value_head} * value_dim * key_dim;

  Token tokens[kTokens];
  for (int first = offsets[segment]; first < offsets[segment + 1]; first += kTokens) {
    const int left = offsets[segment + 1] - first;
    const int count = left < kTokens ? left : kTokens;
    for (int t = 0; t < count; ++t) {
      const int64_t entry = first + t;
      const int64_t gate = entry * value_heads + value_head;
      Token& token = tokens[t];
      token.k = args.k.as<float>() + (entry * heads + head) * key_dim;
      token.q = args.q.as<float>() + (entry * heads + head) * key_dim;
      token.v = args.v.as<float>() + gate * value_dim;
      token.out = args.out.as<float>() + gate * value_dim;
      float decay[kLanes];
      Store(decay, Exp(Set1(args.log_decay.as<float>()[gate])));
      token.decay = decay[0];
      token.beta = args.beta.as<float>()[gate];
      token.kq = Dot(token.k, token.q, key_dim);
    }
    if (count == 1 && StepHeldRows<kMostHeld>(state, key_dim, zero, tokens[0], begin, end)) {
      zero = false;
      continue;
    }
    int row = begin;
    for (; row + kRows <= end; row += kRows) {
      Rows<kRows>(state + int64_t{row} * key_dim, key_dim, zero, tokens, count, row);
    }
    for (; row < end; ++row) {
      Rows<1>(state + int64_t{row} * key_dim, key_dim, zero, tokens, count, row);
    }
    zero = false;
  }
}

}  // namespace mneme::MNEME_ISA
