// Attention of a few tokens of one row and of the heads that share keys and values. Built once per
// instruction set.
//
// A token's sums go over the blocks of positions that the table has, in order, however many tokens
// are worked on together: within a block over its positions, between blocks by the running maximum
// (online softmax, arXiv:1805.02867). So its result does not depend on the step that it came in.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

// Queries that share the loads of keys and values, and vectors of a value worked on at a time: as
// many sums as the registers hold.
#if defined(__AVX512F__)
constexpr int kQueries = 4, kKeys = 4, kValueVecs = 4;
#elif defined(__AVX2__)
constexpr int kQueries = 2, kKeys = 2, kValueVecs = 2;
#else
constexpr int kQueries = 1, kKeys = 2, kValueVecs = 2;
#endif

constexpr float kMinusInfinity = -__builtin_inff();

struct Range {
  int begin = kContextBlock, end = 0;  // of positions within a block
};

// The task's working memory: a row for each query, which is a head of a token.
struct Queries {
  float* scores;   // [kContextBlock]
  float* sums;     // [value_dim], of values by weights that are relative to the maximum
  float* largest;  // one number each
  float* total;    // of weights
};

MNEME_INLINE Vec LoadSome(const float* p, int n) { return n >= kLanes ? Load(p) : LoadFirst(p, n); }

// scores[r][j] = scale q_r . k_j for R queries and K keys.
template <int R, int K>
MNEME_INLINE void Score(const float* const* q, const float* const* keys, int key_dim, float scale,
                        float* const* scores, int j) {
  Vec sums[R][K];
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    MNEME_UNROLL
    for (int i = 0; i < K; ++i) sums[r][i] = Zero();
  }
  for (int d = 0; d < key_dim; d += kLanes) {
    Vec k[K];
    MNEME_UNROLL
    for (int i = 0; i < K; ++i) k[i] = LoadSome(keys[j + i] + d, key_dim - d);
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec x = LoadSome(q[r] + d, key_dim - d);
      MNEME_UNROLL
      for (int i = 0; i < K; ++i) sums[r][i] = MulAdd(x, k[i], sums[r][i]);
    }
  }
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    MNEME_UNROLL
    for (int i = 0; i < K; ++i) scores[r][j + i] = scale * Sum(sums[r][i]);
  }
}

// sums[r][d] += sum_j weights[r][j] v_j[d] for R queries, N vectors of d from `first`.
template <int R, int N>
MNEME_INLINE void AddValues(float* const* weights, const float* const* values, const Range* ranges,
                            Range all, int first, int value_dim, float* const* sums) {
  Vec acc[R][N];
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    MNEME_UNROLL
    for (int i = 0; i < N; ++i) {
      const int d = first + i * kLanes;
      acc[r][i] = d < value_dim ? LoadSome(sums[r] + d, value_dim - d) : Zero();
    }
  }
  for (int j = all.begin; j < all.end; ++j) {
    Vec v[N];
    MNEME_UNROLL
    for (int i = 0; i < N; ++i) {
      const int d = first + i * kLanes;
      v[i] = d < value_dim ? LoadSome(values[j] + d, value_dim - d) : Zero();
    }
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) {
      // A value that a query does not see must not reach it, not even times zero.
      if (j < ranges[r].begin || j >= ranges[r].end) continue;
      const Vec weight = Set1(weights[r][j]);
      MNEME_UNROLL
      for (int i = 0; i < N; ++i) acc[r][i] = MulAdd(weight, v[i], acc[r][i]);
    }
  }
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    MNEME_UNROLL
    for (int i = 0; i < N; ++i) {
      const int d = first + i * kLanes;
      if (d >= value_dim) continue;
      if (value_dim - d >= kLanes) {
        Store(sums[r] + d, acc[r][i]);
      } else {
        StoreFirst(sums[r] + d, acc[r][i], value_dim - d);
      }
    }
  }
}

// Scores to weights, relative to the new maximum; what was summed before is made so, too.
MNEME_INLINE void Weigh(float* scores, Range range, int value_dim, float* sums, float* largest,
                        float* total) {
  for (int j = 0; j < range.begin; ++j) scores[j] = kMinusInfinity;
  for (int j = range.end; j < kContextBlock; ++j) scores[j] = kMinusInfinity;
  Vec most = Load(scores);
  for (int j = kLanes; j < kContextBlock; j += kLanes) most = Max(most, Load(scores + j));
  const float before = *largest;
  const float here = MaxLane(most);
  const float now = here > before ? here : before;
  // In a session's first block this is exp(-inf) = 0 times sums that are zero.
  float factor[kLanes];
  Store(factor, Exp(Set1(before - now)));
  Vec sum = Zero();
  for (int j = 0; j < kContextBlock; j += kLanes) {
    const Vec weights = Exp(Load(scores + j) - Set1(now));
    Store(scores + j, weights);
    sum = sum + weights;
  }
  *largest = now;
  *total = *total * factor[0] + Sum(sum);
  if (now == before) return;
  const Vec by = Set1(factor[0]);
  int d = 0;
  for (; d + kLanes <= value_dim; d += kLanes) Store(sums + d, Load(sums + d) * by);
  if (d < value_dim) StoreFirst(sums + d, LoadFirst(sums + d, value_dim - d) * by, value_dim - d);
}

// R queries through one block.
template <int R>
MNEME_INLINE void Block(const AttentionArgs& args, const float* const* q, const float* const* keys,
                        const float* const* values, const Range* ranges, const Queries& queries,
                        int first) {
  const int key_dim = static_cast<int>(args.k.shape[2]);
  const int value_dim = static_cast<int>(args.v.shape[2]);
  Range all;
  float *scores[R], *sums[R];
  for (int r = 0; r < R; ++r) {
    scores[r] = queries.scores + (first + r) * kContextBlock;
    sums[r] = queries.sums + static_cast<int64_t>(first + r) * value_dim;
    all.begin = ranges[r].begin < all.begin ? ranges[r].begin : all.begin;
    all.end = ranges[r].end > all.end ? ranges[r].end : all.end;
  }
  int j = all.begin;
  for (; j + kKeys <= all.end; j += kKeys) {
    Score<R, kKeys>(q, keys, key_dim, args.scale, scores, j);
  }
  for (; j < all.end; ++j) Score<R, 1>(q, keys, key_dim, args.scale, scores, j);
  for (int r = 0; r < R; ++r) {
    if (ranges[r].begin >= ranges[r].end) continue;
    Weigh(scores[r], ranges[r], value_dim, sums[r], queries.largest + first + r,
          queries.total + first + r);
  }
  for (int d = 0; d < value_dim; d += kValueVecs * kLanes) {
    AddValues<R, kValueVecs>(scores, values, ranges, all, d, value_dim, sums);
  }
}

}  // namespace

void Attention(const AttentionArgs& args, const AttentionTask& task, float* scratch) {
  const int heads = static_cast<int>(args.q.shape[1]);
  const int kv_heads = static_cast<int>(args.k.shape[1]);
  const int key_dim = static_cast<int>(args.k.shape[2]);
  const int value_dim = static_cast<int>(args.v.shape[2]);
  const int group = heads / kv_heads;
  const int slot = args.slots.as<int32_t>()[task.row];
  const int64_t begin = args.positions.as<int64_t>()[task.row];  // of the row's first token
  const int row_token = args.row_offsets.as<int32_t>()[task.row];
  const int64_t first_position = begin + task.begin;
  const int count = (task.end - task.begin) * group;

  Queries queries;
  queries.scores = scratch;
  queries.sums = queries.scores + int64_t{count} * kContextBlock;
  queries.largest = queries.sums + int64_t{count} * value_dim;
  queries.total = queries.largest + count;
  for (int64_t i = 0; i < int64_t{count} * value_dim; ++i) queries.sums[i] = 0;
  for (int i = 0; i < count; ++i) {
    queries.largest[i] = kMinusInfinity;
    queries.total[i] = 0;
  }
  const auto query = [&](int i) -> int64_t {  // index of a head of a token
    return (row_token + task.begin + i / group) * int64_t{heads} + task.kv_head * group + i % group;
  };

  const auto run_block = [&](const float* const* keys, const float* const* values, auto range_of) {
    int i = 0;
    const auto run = [&]<int R>() {
      for (; i + R <= count; i += R) {
        const float* q[R];
        Range ranges[R];
        for (int r = 0; r < R; ++r) {
          q[r] = args.q.as<float>() + query(i + r) * key_dim;
          ranges[r] = range_of(i + r);
        }
        Block<R>(args, q, keys, values, ranges, queries, i);
      }
    };
    run.template operator()<kQueries>();
    run.template operator()<1>();
  };

  const int64_t prefix = args.prefix_keys.empty() ? 0 : args.prefix_keys.shape[0];
  for (int64_t begin_row = 0; begin_row < prefix; begin_row += kContextBlock) {
    const float *keys[kContextBlock], *values[kContextBlock];
    const int rows =
        static_cast<int>(prefix - begin_row < kContextBlock ? prefix - begin_row : kContextBlock);
    for (int j = 0; j < kContextBlock; ++j) {
      const int64_t at = (begin_row + (j < rows ? j : rows - 1)) * kv_heads + task.kv_head;
      keys[j] = args.prefix_keys.as<float>() + at * key_dim;
      values[j] = args.prefix_values.as<float>() + at * value_dim;
    }
    run_block(keys, values, [rows](int) { return Range{0, rows}; });
  }

  const auto first_of = [&](int64_t position) {
    if (args.segment > 0) return position - position % args.segment;
    return args.window > 0 && position >= args.window ? position - args.window + 1 : int64_t{0};
  };
  const int64_t oldest = first_of(first_position);
  const int64_t last_position = begin + task.end - 1;
  for (int64_t block = oldest / kContextBlock; block <= last_position / kContextBlock; ++block) {
    // Where the block's rows are: in the table as far as they are older than the step.
    const int64_t block_begin = block * kContextBlock;
    const auto find = [&](const ContextView& kept, const TensorView& own, int dim,
                          const float** rows) {
      const std::byte* const old = kept.At(slot, block_begin);
      for (int j = 0; j < kContextBlock; ++j) {
        const int64_t position = block_begin + j;
        if (position < begin) {
          rows[j] = reinterpret_cast<const float*>(old + j * kept.row_bytes) + task.kv_head * dim;
        } else {
          const int64_t token =
              row_token + (position < last_position ? position : last_position) - begin;
          rows[j] = own.as<float>() + (token * kv_heads + task.kv_head) * dim;
        }
      }
    };
    const auto range_of = [&](int i) {
      const int64_t position = first_position + i / group;
      int64_t from = first_of(position) - block_begin;
      int64_t to = position + 1 - block_begin;
      from = from > 0 ? from : 0;
      to = to < kContextBlock ? to : kContextBlock;
      if (from >= to) return Range();
      return Range{static_cast<int>(from), static_cast<int>(to)};
    };
    const float *keys[kContextBlock], *values[kContextBlock];
    find(args.keys, args.k, key_dim, keys);
    find(args.values, args.v, value_dim, values);
    run_block(keys, values, range_of);
    if (args.other_k.empty()) continue;
    find(args.other_keys, args.other_k, key_dim, keys);
    find(args.other_values, args.other_v, value_dim, values);
    run_block(keys, values, range_of);
  }

  for (int i = 0; i < count; ++i) {
    const float* sums = queries.sums + int64_t{i} * value_dim;
    float* out = args.out.as<float>() + query(i) * value_dim;
    for (int d = 0; d < value_dim; ++d) out[d] = sums[d] / queries.total[i];
  }
}

}  // namespace mneme::MNEME_ISA
