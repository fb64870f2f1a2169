// Matrix memories under every rule. Built once per instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

using Decay = MatrixRule::Decay;
using Correction = MatrixRule::Correction;
using Read = MatrixRule::Read;

// Rows of a memory that are worked on together: they share the loads of keys and queries, and their
// sums are as many independent chains as the registers hold.
#if defined(__AVX512F__)
constexpr int kRows = 8;
#elif defined(__AVX2__)
constexpr int kRows = 2;
#else
constexpr int kRows = 1;
#endif

// Tokens whose per-token numbers are worked out ahead of the rows.
constexpr int kTokens = 64;

// With d the decay of a row, or of each of its keys, a token takes a row s of S to
//
//   o = scale (d (s . q) + u (k . q) + w (e . q)),   s <- d s + u k + w e
//   kNone: u = v, w = 0.  kDelta: u = beta (v - d (s . k)), w = 0.  kGeneral: u = v, w = s . c
//
// all of the row before: reading first and correcting the result is the same sum as reading the
// row that was written, and S is read once. Decays of keys go into the vectors that s is multiplied
// by; `decay` is then 1. Before a token is written, the read is o = scale (s . q + v pass).
struct Token {
  const float* k;
  const float* e;
  const float* recall;     // k, decayed like s, or c
  const float* read;       // q, decayed like s unless read before
  const float* key_decay;  // [key_dim], of kKey
  const float* row_decay;  // [value_dim], of kValue, else null
  const float* v;
  float* out;
  float decay;
  float beta;
  float kq;  // k . q, or q . (bonus * k)
  float eq;  // e . q
};

// What is known when a loop is compiled: how a row is corrected, and whether keys have decays of
// their own.
template <Correction kHow, bool kKeyDecay>
struct Loop {
  static constexpr bool kRecalls = kHow != Correction::kNone;
  static constexpr bool kErases = kHow == Correction::kGeneral;

  struct Write {
    float decay, u, w;
  };

  // Finishes a row's sums: gives its output and what is to be written.
  static MNEME_INLINE Write Finish(const MatrixMemoryArgs& args, const Token& token, int row,
                                   float recalled, float read) {
    const float decay = token.row_decay == nullptr ? token.decay : token.row_decay[row];
    const float v = token.v[row];
    Write write = {decay, v, 0.0f};
    if (kHow == Correction::kDelta) write.u = token.beta * (v - decay * recalled);
    if (kErases) write.w = recalled;
    float out;
    if (args.rule.read == Read::kAfter) {
      out = decay * read + write.u * token.kq;
      if (kErases) out += write.w * token.eq;
    } else {
      out = read + v * token.kq;
    }
    token.out[row] = args.scale * out;
    return write;
  }

  static MNEME_INLINE Vec Written(Vec s, Vec decay, Vec u, Vec k, Vec w, Vec e) {
    const Vec kept = kErases ? MulAdd(w, e, decay * s) : decay * s;
    return MulAdd(u, k, kept);
  }

  // One token through R rows side by side, of any length, which are read again, from the
  // first-level cache, for the update. Meanwhile the rows after the next few are fetched, evenly
  // over both passes: left alone, the processor would see R short streams.
  template <int R, bool kFetchNext>
  static MNEME_INLINE void Step(const MatrixMemoryArgs& args, float* state, int key_dim,
                                const Token& token, int row) {
    const int whole = key_dim / kLanes * kLanes;
    const int tail = key_dim - whole;
    const float* ahead = state + (R + R / 2) * key_dim;
    Vec recalled[R], read[R];
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) recalled[r] = read[r] = Zero();
    for (int i = 0; i < whole; i += kLanes) {
      const Vec k = kRecalls ? Load(token.recall + i) : Zero(), q = Load(token.read + i);
      MNEME_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec s = Load(state + r * key_dim + i);
        if (kFetchNext && r < R / 2) Prefetch(ahead + r * key_dim + i);
        if (kRecalls) recalled[r] = MulAdd(s, k, recalled[r]);
        read[r] = MulAdd(s, q, read[r]);
      }
    }
    if (tail > 0) {
      const Vec k = kRecalls ? LoadFirst(token.recall + whole, tail) : Zero();
      const Vec q = LoadFirst(token.read + whole, tail);
      for (int r = 0; r < R; ++r) {
        const Vec s = LoadFirst(state + r * key_dim + whole, tail);
        if (kRecalls) recalled[r] = MulAdd(s, k, recalled[r]);
        read[r] = MulAdd(s, q, read[r]);
      }
    }

    Vec u[R], w[R], decay[R];
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) {
      const Write write =
          Finish(args, token, row + r, kRecalls ? Sum(recalled[r]) : 0.0f, Sum(read[r]));
      u[r] = Set1(write.u);
      w[r] = Set1(write.w);
      decay[r] = Set1(write.decay);
    }

    for (int i = 0; i < whole; i += kLanes) {
      const Vec k = Load(token.k + i), e = kErases ? Load(token.e + i) : Zero();
      const Vec key_decay = kKeyDecay ? Load(token.key_decay + i) : Zero();
      MNEME_UNROLL
      for (int r = 0; r < R; ++r) {
        float* s = state + r * key_dim + i;
        Store(s, Written(Load(s), kKeyDecay ? key_decay : decay[r], u[r], k, w[r], e));
        if (kFetchNext && r >= R / 2) Prefetch(ahead + r * key_dim + i);
      }
    }
    if (tail > 0) {
      const Vec k = LoadFirst(token.k + whole, tail);
      const Vec e = kErases ? LoadFirst(token.e + whole, tail) : Zero();
      const Vec key_decay = kKeyDecay ? LoadFirst(token.key_decay + whole, tail) : Zero();
      for (int r = 0; r < R; ++r) {
        float* s = state + r * key_dim + whole;
        const Vec d = kKeyDecay ? key_decay : decay[r];
        StoreFirst(s, Written(LoadFirst(s, tail), d, u[r], k, w[r], e), tail);
      }
    }
  }

  // The same for one row of N vectors, which stay in registers in between. Where memory is the
  // limit that is a third faster than tiles: one stream from end to end of a head, which the
  // processor's own prefetching follows better than any of ours. Sums add in the order of Step.
  template <int N>
  static MNEME_INLINE void StepHeldRow(const MatrixMemoryArgs& args, float* state,
                                       const Token& token, int row) {
    Vec held[N], recalled = Zero(), read = Zero();
    MNEME_UNROLL
    for (int i = 0; i < N; ++i) {
      held[i] = Load(state + i * kLanes);
      if (kRecalls) recalled = MulAdd(held[i], Load(token.recall + i * kLanes), recalled);
      read = MulAdd(held[i], Load(token.read + i * kLanes), read);
    }
    const Write write = Finish(args, token, row, kRecalls ? Sum(recalled) : 0.0f, Sum(read));
    const Vec u = Set1(write.u), w = Set1(write.w), decay = Set1(write.decay);
    MNEME_UNROLL
    for (int i = 0; i < N; ++i) {
      const Vec d = kKeyDecay ? Load(token.key_decay + i * kLanes) : decay;
      const Vec e = kErases ? Load(token.e + i * kLanes) : Zero();
      Store(state + i * kLanes, Written(held[i], d, u, Load(token.k + i * kLanes), w, e));
    }
  }

  // False: no registers for rows of this length.
  template <int N>
  static bool StepHeldRows(const MatrixMemoryArgs& args, float* state, int key_dim, bool zero,
                           const Token& token, int begin, int end) {
    if constexpr (N == 0) {
      return false;
    } else {
      if (key_dim != N * kLanes) {
        return StepHeldRows<N / 2>(args, state, key_dim, zero, token, begin, end);
      }
      for (int row = begin; row < end; ++row) {
        float* s = state + int64_t{row} * key_dim;
        if (zero) __builtin_memset(s, 0, sizeof(float) * key_dim);
        StepHeldRow<N>(args, s, token, row);
      }
      return true;
    }
  }

  template <int R>
  static MNEME_INLINE void Rows(const MatrixMemoryArgs& args, float* state, int key_dim, bool zero,
                                const Token* tokens, int count, int row) {
    if (zero) __builtin_memset(state, 0, sizeof(float) * R * key_dim);
    Step<R, true>(args, state, key_dim, tokens[0], row);
    for (int t = 1; t < count; ++t) Step<R, false>(args, state, key_dim, tokens[t], row);
  }

  // Tokens [0, count) through rows [begin, end), those of a fresh memory being zero.
  static void Run(const MatrixMemoryArgs& args, float* state, int key_dim, bool zero,
                  const Token* tokens, int count, int begin, int end) {
#if defined(__AVX512F__)
    constexpr int kMostHeld = 16;
#else
    constexpr int kMostHeld = 0;  // too few registers
#endif
    if (count == 1 && StepHeldRows<kMostHeld>(args, state, key_dim, zero, tokens[0], begin, end)) {
      return;
    }
    int row = begin;
    for (; row + kRows <= end; row += kRows) {
      Rows<kRows>(args, state + int64_t{row} * key_dim, key_dim, zero, tokens, count, row);
    }
    for (; row < end; ++row) {
      Rows<1>(args, state + int64_t{row} * key_dim, key_dim, zero, tokens, count, row);
    }
  }
};

using RunFunction = void (*)(const MatrixMemoryArgs&, float*, int, bool, const Token*, int, int,
                             int);

RunFunction LoopOf(MatrixRule rule) {
  const bool key_decay = rule.decay == Decay::kKey;
  switch (rule.correction) {
    case Correction::kNone:
      break;
    case Correction::kDelta:
      return key_decay ? Loop<Correction::kDelta, true>::Run : Loop<Correction::kDelta, false>::Run;
    case Correction::kGeneral:
      return key_decay ? Loop<Correction::kGeneral, true>::Run
                       : Loop<Correction::kGeneral, false>::Run;
  }
  return key_decay ? Loop<Correction::kNone, true>::Run : Loop<Correction::kNone, false>::Run;
}

MNEME_INLINE float Dot(const float* a, const float* b, int n) {
  Vec sum = Zero();
  ForVectors(n, [&](int64_t i, int lanes) {
    sum = MulAdd(LoadUpTo(a + i, lanes), LoadUpTo(b + i, lanes), sum);
  });
  return Sum(sum);
}

// sum of a b c
MNEME_INLINE float Dot3(const float* a, const float* b, const float* c, int n) {
  Vec sum = Zero();
  ForVectors(n, [&](int64_t i, int lanes) {
    sum = MulAdd(LoadUpTo(a + i, lanes) * LoadUpTo(b + i, lanes), LoadUpTo(c + i, lanes), sum);
  });
  return Sum(sum);
}

MNEME_INLINE void Exps(const float* x, float* y, int n) {
  ForVectors(n,
             [&](int64_t i, int lanes) { StoreUpTo(y + i, Exp(LoadUpTo(x + i, lanes)), lanes); });
}

MNEME_INLINE void Products(const float* a, const float* b, float* y, int n) {
  ForVectors(n, [&](int64_t i, int lanes) {
    StoreUpTo(y + i, LoadUpTo(a + i, lanes) * LoadUpTo(b + i, lanes), lanes);
  });
}

MNEME_INLINE float ExpOf(float x) {
  float lanes[kLanes];
  Store(lanes, Exp(Set1(x)));
  return lanes[0];
}

// One entry's part of a tensor for a head, `width` numbers; null without the tensor.
MNEME_INLINE float* Part(const MatrixMemoryArgs& args, const TensorView& tensor, int64_t entry,
                         int head, int width) {
  if (tensor.empty()) return nullptr;
  const int64_t n = tensor.shape[1], heads = args.out.shape[1];
  return tensor.as<float>() + (entry * n + head / (heads / n)) * width;
}

// Floats of scratch that a token needs: of kKey d, d k and d q; of kValue d.
int64_t TokenScratch(const MatrixMemoryArgs& args) {
  const int64_t key_dim = args.k.shape[2], value_dim = args.out.shape[2];
  return args.rule.decay == Decay::kKey     ? 3 * key_dim
         : args.rule.decay == Decay::kValue ? value_dim
                                            : 0;
}

// `scratch` is the token's own.
Token MakeToken(const MatrixMemoryArgs& args, int64_t entry, int head, int begin, int end,
                float* scratch) {
  const int key_dim = static_cast<int>(args.k.shape[2]);
  const int value_dim = static_cast<int>(args.out.shape[2]);
  const bool before = args.rule.read == Read::kBeforeWithBonus;
  const float* q = Part(args, args.q, entry, head, key_dim);
  Token token = {};
  token.k = Part(args, args.k, entry, head, key_dim);
  token.e = Part(args, args.e, entry, head, key_dim);
  token.v = Part(args, args.v, entry, head, value_dim);
  token.out = Part(args, args.out, entry, head, value_dim);
  token.recall = args.rule.correction == Correction::kDelta
                     ? token.k
                     : Part(args, args.c, entry, head, key_dim);
  token.read = q;
  token.decay = 1.0f;
  switch (args.rule.decay) {
    case Decay::kNone:
      break;
    case Decay::kConstant:
      token.decay = ExpOf(args.log_decay.as<float>()[head]);
      break;
    case Decay::kHead:
      token.decay = ExpOf(*Part(args, args.log_decay, entry, head, 1));
      break;
    case Decay::kKey: {
      Exps(Part(args, args.log_decay, entry, head, key_dim), scratch, key_dim);
      token.key_decay = scratch;
      if (args.rule.correction == Correction::kDelta) {
        Products(scratch, token.k, scratch + key_dim, key_dim);
        token.recall = scratch + key_dim;
      }
      if (!before) {
        Products(scratch, q, scratch + 2 * key_dim, key_dim);
        token.read = scratch + 2 * key_dim;
      }
      break;
    }
    case Decay::kValue:
      Exps(Part(args, args.log_decay, entry, head, value_dim) + begin, scratch + begin,
           end - begin);
      token.row_decay = scratch;
      break;
  }
  if (token.e != nullptr) token.eq = Dot(token.e, q, key_dim);
  if (args.rule.correction == Correction::kDelta) {
    token.beta = *Part(args, args.beta, entry, head, 1);
  }
  token.kq = before ? Dot3(q, args.bonus.as<float>() + int64_t{head} * key_dim, token.k, key_dim)
                    : Dot(token.k, q, key_dim);
  return token;
}

}  // namespace

int64_t MatrixMemoryScratch(const MatrixMemoryArgs& args) { return kTokens * TokenScratch(args); }

void MatrixMemory(const MatrixMemoryArgs& args, int segment, int head, int begin, int end,
                  float* scratch) {
  const int key_dim = static_cast<int>(args.k.shape[2]);
  const int64_t value_dim = args.out.shape[2], token_scratch = TokenScratch(args);
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  const int slot = args.segments.slots.as<int32_t>()[segment];
  const int memory = args.segments.memories.as<int32_t>()[segment];
  bool zero = args.segments.fresh.as<int32_t>()[segment] != 0;
  float* state = args.state.as<float>(slot, memory) + head * value_dim * key_dim;
  const RunFunction run = LoopOf(args.rule);

  Token tokens[kTokens];
  for (int first = offsets[segment]; first < offsets[segment + 1]; first += kTokens) {
    const int left = offsets[segment + 1] - first;
    const int count = left < kTokens ? left : kTokens;
    for (int t = 0; t < count; ++t) {
      tokens[t] = MakeToken(args, first + t, head, begin, end, scratch + t * token_scratch);
    }
    run(args, state, key_dim, zero, tokens, count, begin, end);
    zero = false;
  }
}

}  // namespace mneme::MNEME_ISA
