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
// by. Read before, o = scale (s . q + v (q . (bonus k))).
struct Token {
  const float* k;
  const float* e;
  const float* recall;  // k, decayed like s, or c
  const float* read;    // q, decayed like s unless read before
  const float* decays;  // of keys or of values, where those have their own
  const float* v;
  float* out;
  float decay;       // 1 where keys or values have their own
  float read_scale;  // scale, and decay unless read before
  float beta;
  float kq;  // scale (k . q), or scale (q . (bonus k))
  float eq;  // scale (e . q), or 0
  bool before;
};

// What decays of their own there are.
enum class Own { kNone, kKeys, kValues };

// The loop over rows, for what has to be known when it is compiled; rules differ in numbers beyond.
template <Correction kHow, Own kOwn>
struct Loop {
  static constexpr bool kRecalls = kHow != Correction::kNone;
  static constexpr bool kErases = kHow == Correction::kGeneral;
  static constexpr bool kKeyDecay = kOwn == Own::kKeys;

  struct Write {
    float decay, u, w;
  };

  // Finishes a row's sums: gives its output and what is to be written.
  static MNEME_INLINE Write Finish(const Token& token, int row, float recalled, float read) {
    const float decay = kOwn == Own::kValues ? token.decays[row] : token.decay;
    float read_scale = token.read_scale;
    if (kOwn == Own::kValues && !token.before) read_scale = read_scale * decay;
    const float v = token.v[row];
    if (kHow == Correction::kDelta) {
      const float u = token.beta * (v - decay * recalled);
      token.out[row] = read_scale * read + (token.before ? v : u) * token.kq;
      return {decay, u, 0.0f};
    }
    const float out = read_scale * read + v * token.kq;
    token.out[row] = kErases ? out + recalled * token.eq : out;
    return {decay, v, recalled};
  }

  static MNEME_INLINE Vec Written(Vec s, Vec decay, Vec u, Vec k, Vec w, Vec e) {
    const Vec kept = kErases ? MulAdd(w, e, decay * s) : decay * s;
    return MulAdd(u, k, kept);
  }

  // One token through R rows side by side, of any length, which are read again, from the
  // first-level cache, for the update. Meanwhile the rows after the next few are fetched, evenly
  // over both passes: left alone, the processor would see R short streams.
  template <int R, bool kFetchNext>
  static MNEME_INLINE void Step(float* state, int key_dim, const Token& token, int row) {
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

    Vec u[R], w[R], decays[R];
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) {
      const Write write = Finish(token, row + r, kRecalls ? Sum(recalled[r]) : 0.0f, Sum(read[r]));
      u[r] = Set1(write.u);
      w[r] = Set1(write.w);
      decays[r] = Set1(write.decay);
    }
    const Vec decay = Set1(token.decay);

    for (int i = 0; i < whole; i += kLanes) {
      const Vec k = Load(token.k + i), e = kErases ? Load(token.e + i) : Zero();
      const Vec key_decay = kKeyDecay ? Load(token.decays + i) : Zero();
      MNEME_UNROLL
      for (int r = 0; r < R; ++r) {
        float* s = state + r * key_dim + i;
        const Vec d = kKeyDecay ? key_decay : kOwn == Own::kValues ? decays[r] : decay;
        Store(s, Written(Load(s), d, u[r], k, w[r], e));
        if (kFetchNext && r >= R / 2) Prefetch(ahead + r * key_dim + i);
      }
    }
    if (tail > 0) {
      const Vec k = LoadFirst(token.k + whole, tail);
      const Vec e = kErases ? LoadFirst(token.e + whole, tail) : Zero();
      const Vec key_decay = kKeyDecay ? LoadFirst(token.decays + whole, tail) : Zero();
      for (int r = 0; r < R; ++r) {
        float* s = state + r * key_dim + whole;
        const Vec d = kKeyDecay ? key_decay : kOwn == Own::kValues ? decays[r] : decay;
        StoreFirst(s, Written(LoadFirst(s, tail), d, u[r], k, w[r], e), tail);
      }
    }
  }

  // The same for one row of N vectors, which stay in registers in between. Where memory is the
  // limit that is a third faster than tiles: one stream from end to end of a head, which the
  // processor's own prefetching follows better than any of ours, but for heads of short rows, which
  // are over before it has begun: those fetch 4 KB ahead, into the next head. Sums add in the order
  // of Step.
  template <int N>
  static MNEME_INLINE void StepHeldRow(float* state, const Token& token, int row) {
    constexpr int kFetched = 4, kAhead = 64;
    Vec held[N], recalled = Zero(), read = Zero();
    MNEME_UNROLL
    for (int i = 0; i < N; ++i) {
      held[i] = Load(state + i * kLanes);
      if (N <= kFetched) Prefetch(state + (i + kAhead) * kLanes);
      if (kRecalls) recalled = MulAdd(held[i], Load(token.recall + i * kLanes), recalled);
      read = MulAdd(held[i], Load(token.read + i * kLanes), read);
    }
    const Write write = Finish(token, row, kRecalls ? Sum(recalled) : 0.0f, Sum(read));
    const Vec u = Set1(write.u), w = Set1(write.w), decay = Set1(write.decay);
    MNEME_UNROLL
    for (int i = 0; i < N; ++i) {
      const Vec d = kKeyDecay ? Load(token.decays + i * kLanes) : decay;
      const Vec e = kErases ? Load(token.e + i * kLanes) : Zero();
      Store(state + i * kLanes, Written(held[i], d, u, Load(token.k + i * kLanes), w, e));
    }
  }

  // False: no registers for rows of this length.
  template <int N>
  static bool StepHeldRows(float* state, int key_dim, bool zero, const Token& shared, int begin,
                           int end) {
    if constexpr (N == 0) {
      return false;
    } else {
      if (key_dim != N * kLanes) {
        return StepHeldRows<N / 2>(state, key_dim, zero, shared, begin, end);
      }
      const Token token = shared;  // which no write to S can change
      for (int row = begin; row < end; ++row) {
        float* s = state + int64_t{row} * key_dim;
        if (zero) __builtin_memset(s, 0, sizeof(float) * key_dim);
        StepHeldRow<N>(s, token, row);
      }
      return true;
    }
  }

  template <int R>
  static MNEME_INLINE void Rows(float* state, int key_dim, bool zero, const Token* tokens,
                                int count, int row) {
    if (zero) __builtin_memset(state, 0, sizeof(float) * R * key_dim);
    Step<R, true>(state, key_dim, tokens[0], row);
    for (int t = 1; t < count; ++t) Step<R, false>(state, key_dim, tokens[t], row);
  }

  // Tokens [0, count) through rows [begin, end), those of a fresh memory being zero.
  static void Run(float* state, int key_dim, bool zero, const Token* tokens, int count, int begin,
                  int end) {
#if defined(__AVX512F__)
    constexpr int kMostHeld = 16;
#else
    constexpr int kMostHeld = 0;  // too few registers
#endif
    if (count == 1 && StepHeldRows<kMostHeld>(state, key_dim, zero, tokens[0], begin, end)) {
      return;
    }
    int row = begin;
    for (; row + kRows <= end; row += kRows) {
      Rows<kRows>(state + int64_t{row} * key_dim, key_dim, zero, tokens, count, row);
    }
    for (; row < end; ++row) {
      Rows<1>(state + int64_t{row} * key_dim, key_dim, zero, tokens, count, row);
    }
  }
};

using RunFunction = void (*)(float*, int, bool, const Token*, int, int, int);

template <Correction kHow>
RunFunction LoopOf(Decay decay) {
  return decay == Decay::kKey     ? Loop<kHow, Own::kKeys>::Run
         : decay == Decay::kValue ? Loop<kHow, Own::kValues>::Run
                                  : Loop<kHow, Own::kNone>::Run;
}

RunFunction LoopOf(MatrixRule rule) {
  switch (rule.correction) {
    case Correction::kNone:
      break;
    case Correction::kDelta:
      return LoopOf<Correction::kDelta>(rule.decay);
    case Correction::kGeneral:
      return LoopOf<Correction::kGeneral>(rule.decay);
  }
  return LoopOf<Correction::kNone>(rule.decay);
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

// What one head reads of a tensor: `width` numbers of each entry, or none without the tensor.
struct Part {
  float* first = nullptr;
  int64_t pitch = 0;  // from entry to entry

  Part(const MatrixMemoryArgs& args, const TensorView& tensor, int head, int64_t width) {
    if (tensor.empty()) return;
    const auto n = static_cast<int>(tensor.shape[1]), heads = static_cast<int>(args.out.shape[1]);
    first = tensor.as<float>() + (n == heads ? head : head / (heads / n)) * width;
    pitch = n * width;
  }
  float* At(int64_t entry) const { return first == nullptr ? nullptr : first + entry * pitch; }
};

// Floats of scratch that a token needs: of kKey d, d k and d q; of kValue d.
int64_t TokenScratch(const MatrixMemoryArgs& args) {
  const int64_t key_dim = args.k.shape[2], value_dim = args.out.shape[2];
  return args.rule.decay == Decay::kKey     ? 3 * key_dim
         : args.rule.decay == Decay::kValue ? value_dim
                                            : 0;
}

// What one head reads.
struct Head {
  Head(const MatrixMemoryArgs& args, int head)
      : q(args, args.q, head, args.k.shape[2]),
        k(args, args.k, head, args.k.shape[2]),
        v(args, args.v, head, args.out.shape[2]),
        beta(args, args.beta, head, 1),
        c(args, args.c, head, args.k.shape[2]),
        e(args, args.e, head, args.k.shape[2]),
        out(args, args.out, head, args.out.shape[2]),
        log_decay(args, args.rule.decay == Decay::kConstant ? TensorView() : args.log_decay, head,
                  args.rule.decay == Decay::kKey     ? args.k.shape[2]
                  : args.rule.decay == Decay::kValue ? args.out.shape[2]
                                                     : 1) {
    if (args.rule.decay == Decay::kConstant) constant = ExpOf(args.log_decay.as<float>()[head]);
    if (!args.bonus.empty()) bonus = args.bonus.as<float>() + head * args.k.shape[2];
  }

  Part q, k, v, beta, c, e, out, log_decay;
  float constant = 1.0f;
  const float* bonus = nullptr;
};

// `scratch` is the token's own.
Token MakeToken(const MatrixMemoryArgs& args, const Head& head, int64_t entry, int begin, int end,
                float* scratch) {
  const int key_dim = static_cast<int>(args.k.shape[2]);
  const float* q = head.q.At(entry);
  const bool delta = args.rule.correction == Correction::kDelta;
  Token token = {};
  token.k = head.k.At(entry);
  token.e = head.e.At(entry);
  token.v = head.v.At(entry);
  token.out = head.out.At(entry);
  token.recall = delta ? token.k : head.c.At(entry);
  token.read = q;
  token.before = args.rule.read == Read::kBeforeWithBonus;
  token.decay = head.constant;
  const float* log_decay = head.log_decay.At(entry);
  if (args.rule.decay == Decay::kHead) token.decay = ExpOf(*log_decay);
  if (args.rule.decay == Decay::kKey) {
    Exps(log_decay, scratch, key_dim);
    token.decays = scratch;
    if (delta) {
      Products(scratch, token.k, scratch + key_dim, key_dim);
      token.recall = scratch + key_dim;
    }
    if (!token.before) {
      Products(scratch, q, scratch + 2 * key_dim, key_dim);
      token.read = scratch + 2 * key_dim;
    }
  }
  if (args.rule.decay == Decay::kValue) {
    Exps(log_decay + begin, scratch + begin, end - begin);
    token.decays = scratch;
  }
  if (delta) token.beta = *head.beta.At(entry);
  token.read_scale = token.before ? args.scale : args.scale * token.decay;
  token.kq = args.scale *
             (token.before ? Dot3(q, head.bonus, token.k, key_dim) : Dot(token.k, q, key_dim));
  if (token.e != nullptr && !token.before) token.eq = args.scale * Dot(token.e, q, key_dim);
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
  const Head parts(args, head);

  Token tokens[kTokens];
  for (int first = offsets[segment]; first < offsets[segment + 1]; first += kTokens) {
    const int left = offsets[segment + 1] - first;
    const int count = left < kTokens ? left : kTokens;
    for (int t = 0; t < count; ++t) {
      tokens[t] = MakeToken(args, parts, first + t, begin, end, scratch + t * token_scratch);
    }
    run(state, key_dim, zero, tokens, count, begin, end);
    zero = false;
  }
}

}  // namespace mneme::MNEME_ISA
