// Engrams: vectors that Memoria (Park and Bak, arXiv:2310.03052) makes of a session's segments, and
// the graph of which of them were recalled together. kernels/kernels.h has the conventions.
//
// A session's positions are cut into segments of a fixed number. Between two of them
//   commit    engrams that were attended to live longer, all age, some move or die (CommitEngrams)
//   encode    the segment becomes `working` new engrams (ReadEncoder, products, WriteEngrams)
//   retrieve  the new ones recall others, which fire with them (ScoreEngrams, RetrieveEngrams)
// and within a segment tokens attend to the working and the recalled engrams (EngramAttention) and
// are gathered for the next ones (EncodeTokens). A session goes from one segment to the next right
// before the next one's first token is fed; the *crossings* of a step are the sessions that do so
// (FindCrossings). All that concerns crossings leaves other sessions alone.
//
// Engrams lie in slots [0, capacity) of a store, in no order: what is older follows from births
// alone, and every choice with a tie takes the older one, unless it says otherwise. "Number" is
// kF32, kF64 in the reference.
#pragma once

#include <cstdint>

#include "kernels/tensor_view.h"

namespace mneme {

enum class EngramType : uint8_t { kFree, kWorking, kShortTerm, kLongTerm };

// What a store says of itself, i32 each.
enum EngramFact : int {
  kEngramsRecalled,       // engrams in `recalled`
  kEngramColumns,         // R of CommitEngrams
  kEngramsFound,          // by the last walk
  kEngramNullCandidate,   // 1: the last walk ran out of engrams, and nothing took part as one
  kEngramNullRecalled,    // 1: and took a place
  kEngramsEvicted,        // since the session's birth: with the first one it leaves upstream's ways
  kEngramHistoryWrapped,  // steps that EngramStore::fired no longer has: with the first one
                          // likewise
  kEngramsWorking,        // W, or fewer where some were forgotten since
  kEngramFacts,
};

struct EngramRules {
  enum class Score : uint8_t {
    kExpMean,    // log( 1/W sum_j exp(-|x - w_j|^2) )
    kNegSquare,  // 1/W sum_j -|x - w_j|^2
  };

  int working = 1;           // W
  int short_term = 1;        // S: those that stay short-term
  int recalled_short = 1;    // Rs
  int recalled_long = 0;     // Rl
  int depth = 0;             // D
  float lifespan = 1;        // L0
  float lifespan_scale = 1;  // alpha
  Score score = Score::kExpMean;
  bool extra_seeds = false;     // short-term engrams that are not recalled seed the walk, too
  bool recalls_oldest = false;  // the oldest engram is recalled where none is long-term
  bool null_candidate = false;  // a walk that runs out of engrams finds a vector of zeros
  bool null_column = false;     // R counts one more where one was left out
  bool deaths_last = false;
  bool random_ties = true;
  uint64_t seed = 0;  // of sessions that bring none

  constexpr int recalled() const { return recalled_short + recalled_long; }  // at most
  constexpr int attended() const { return working + recalled(); }
  // Without room for these the next segment's engrams have no place.
  constexpr int least_capacity() const { return 2 * working + short_term; }
};

// What SplitMix64 adds to its state for each output.
constexpr uint64_t kEngramDrawStep = 0x9E3779B97F4A7C15u;

// SplitMix64's output number s 2^32 + b + 1 from `seed`, as a number below n: the draw of the
// engram born b-th in segment s.
constexpr int64_t EngramDraw(uint64_t seed, uint64_t segment, uint32_t birth, int64_t n) {
  uint64_t z = seed + kEngramDrawStep * ((segment << 32) + birth + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<int64_t>(((z >> 32) * static_cast<uint64_t>(n)) >> 32);
}

// Every session's engrams. In a new session all bytes of `types`, `recalled` and `facts` are zero;
// what the other fields hold of slots whose type is kFree means nothing.
//
// Count_ij is the number of steps in which both i and j fired. A store has either
//   counts  of every pair, which stay at 65535, or
//   fired   its *history*: whether an engram fired at the start of segment s is bit s % 32 of word
//           s % steps / 32. Count_ij = popcount(fired_i and fired_j), which is exact for a session
//           of up to `steps` segments, and of longer ones counts the last `steps`.
struct EngramStore {
  int capacity = 0;
  int dim = 0;
  int steps = 0;        // of a history, a multiple of 64; 0: `counts`
  StateView types;      // [capacity] kU8: EngramType
  StateView vectors;    // [capacity, dim] number
  StateView lifespans;  // [capacity] number
  StateView gains;      // [capacity] number: what the lifespan last gained, 0 if never recalled
  StateView births;     // [capacity] kI32: the bits of a u32, block * W + index
  StateView counts;     // [capacity, capacity] kU16
  StateView fired;      // [capacity, steps / 32] kI32: the bits of u32s
  StateView recalled;   // [rules.recalled()] kI32: slots, oldest first
  StateView facts;      // [kEngramFacts] kI32
  // [2] kI32: the bits of a u64, lower half first, by which what the session draws from differs
  // from EngramRules::seed (xor). Without memory: nobody's does.
  StateView seed;
};

// Sessions that begin a segment in this step, those that there are first.
struct Crossings {
  TensorView slots;     // [most] i32; < 0: none
  TensorView segments;  // [most] i32: the segment that begins, from 1 on

  int64_t most() const { return slots.shape[0]; }
};

// What a crossing says of its session: words, and behind them, of each engram that was recalled in
// the segment that ended, oldest first, its birth, its type and its weight: the sum over tokens of
// attention's weights, mean over layers and heads. Of what is no integer these are the bits as f32.
enum EngramReportWord : int {
  kReportSlot,
  kReportSegment,   // that begins
  kReportAttended,  // engrams behind the words
  // Once the segment has begun:
  kReportShortTerm,
  kReportLongTerm,
  kReportFound,         // by the walk
  kReportRecalled,      // engrams
  kReportRecalledLong,  // long-term ones among them
  kReportRecalledAges,  // f32: the sum of their ages, segment - 1 - birth div W
  kReportLifespans,     // f32: the sum of all
  kReportEvicted,       // since the session's birth
  kEngramReportWords,
};
constexpr int64_t EngramReportSize(int recalled) {
  return kEngramReportWords + int64_t{3} * recalled;
}

// The reports of a step, in the order in which its sessions cross.
struct EngramReports {
  TensorView words;  // [most, EngramReportSize(rules.recalled())] i32, or empty: nobody wants any
  TensorView range;  // [2] i32: of the crossings that were found last; 0 where a step begins
};

// Finds the rows with tokens whose first one is at a multiple of `segment` other than 0: from the
// first-th of them on, in order, `most`.
struct FindCrossingsArgs {
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32, < 0: padding
  TensorView positions;    // [rows] i64
  int segment = 1;         // positions of one
  int first = 0;
  int working = 1, attended = 1;  // of EngramRules
  Crossings crossings;            // out
  // Outputs, [2] i32: 0, and the number of crossings times `working` or `attended`: group offsets
  // of products whose entries are the engrams of crossings, one session's behind the other's.
  TensorView working_entries, attended_entries;
  // Unless it is empty, EngramReports::range, updated in place: as many behind those before.
  TensorView report_range;
};

// The end of a segment; nothing is done at that of segment 0, in which there were no engrams. For
// the recalled engrams i, the sums being of attention's weights over the segment's tokens,
//   w_i = sum over layers and heads of sums_i / (layers heads segment)
//   gain_i = w_i R alpha                         rounded, as is
//   lifespan_i += gain_i                         and then
//   lifespan -= 1                                of all engrams
// Working engrams become short-term ones, and of these the oldest, all but S, long-term ones.
// Engrams whose lifespan is not above 0 die: before that, or `deaths_last` after it. Then, until W
// slots are free, the long-term engram of the lowest lifespan is evicted. `sums` become 0.
struct CommitEngramsArgs {
  EngramRules rules;
  EngramStore store;
  Crossings crossings;
  int segment = 1;
  int layers = 1, heads = 1;
  StateView sums;         // [layers, heads, rules.recalled()] number
  EngramReports reports;  // words [0, kReportAttended], and what is behind all words
};

// Tokens on their way into the next segment's working engrams. For each query w, over the tokens t
// of the segment so far:
//   largest_w = max_t queries_w . h_t;   p_wt = exp(queries_w . h_t - largest_w)
//   total_w = sum_t p_wt;   sums_w = sum_t p_wt h_t
// Without queries there are as many working engrams as positions in a segment: sums_t = h_t.
struct EncodeTokensArgs {
  TensorView h;            // [tokens, dim] act
  TensorView queries;      // [working, dim] f32, or empty
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32, < 0: padding
  TensorView positions;    // [rows] i64: a row's tokens are all of one segment
  int segment = 1;
  StateView largest, total;  // [working] number; with queries
  StateView sums;            // [working, dim] number
};

// x = sums_w / total_w, or sums_w where `total` has no memory, for the working engrams of each
// crossing. Rows behind those of crossings are not written.
struct ReadEncoderArgs {
  Crossings crossings;
  int working = 1;
  StateView total;  // as in EncodeTokens
  StateView sums;
  TensorView x;  // [most * working, dim] act, out
};

// New working engrams, in the lowest free slots: lifespan L0, births (segment - 1) W + index, no
// counts and no gain. There are none but these, W of them.
struct WriteEngramsArgs {
  EngramRules rules;
  EngramStore store;
  Crossings crossings;
  TensorView x;  // [most * working, dim] act
};

// The score of every short-term and long-term engram against the working ones, and behind them that
// of a vector of zeros. What others get is unspecified.
struct ScoreEngramsArgs {
  EngramRules rules;
  EngramStore store;
  Crossings crossings;
  TensorView scores;  // [most, capacity + 1] act, out
};

// Recalls engrams, at the start of segment s. Best are those of the highest score.
//   short-term  the Rs best
//   seeds       each recalled short-term engram i, oldest first, seeds the long-term engram j of
//               the largest Count_ij. With extra_seeds each other one seeds any long-term engram.
//               Of n that are equal it is number EngramDraw(seed, s, birth of i, n), oldest first,
//               with the session's seed, or the oldest without random_ties.
//   walk        D times: from each engram c that was found in the round before, or seeded, to the
//               engram of the largest Count_c among the long-term ones that were not found before
//               this round. A round that begins with none of them ends the walk: null candidate.
//   long-term   the Rl best of what was found, the null candidate with the score of zeros
// With recalls_oldest and Rl > 0 the oldest engram joins them where there are short-term engrams
// and no long-term ones.
// The recalled and the working engrams fire: Count += 1 between all of them, each with itself too;
// in a history bit s % steps becomes 1 of these and 0 of all others.
//   R = engrams recalled, + 1 with null_column, where a short-term engram was not recalled or the
//   null candidate was
struct RetrieveEngramsArgs {
  EngramRules rules;
  EngramStore store;
  Crossings crossings;
  TensorView scores;      // [most, capacity + 1] act
  EngramReports reports;  // the other words
};

// The vectors of each crossing's working and recalled engrams, oldest first, then zeros.
struct GatherEngramsArgs {
  EngramRules rules;
  EngramStore store;
  Crossings crossings;
  TensorView x;  // [most * rules.attended(), dim] act, out; behind those of crossings not written
};

// Keys and values of the same engrams, as one layer projected them, into the slabs.
struct StoreEngramContextArgs {
  Crossings crossings;
  TensorView k, v;         // [most * attended, heads, head_dim] act
  StateView keys, values;  // [1, attended, heads, head_dim] number
};

// Attention to a session's engrams, all of which are seen: as many rows of its context, from
// `first` on, as the fact `counted` of its store says.
//   w_i = softmax_i( scale q . k_i );   out = sum_i w_i v_i, 0 without engrams
//   sums_i += w_i of every token, in order
// In segment 0, whose tokens see none, out = 0.
struct EngramAttentionArgs {
  TensorView q;            // [tokens, heads, head_dim] act
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32, < 0: padding
  TensorView positions;    // [rows] i64: a row's tokens are all of one segment
  int segment = 1;
  float scale = 1.0f;
  StateView keys, values;  // [1, attended, heads, head_dim] number
  int first = 0;
  int most = 0;     // rows that there may be
  StateView facts;  // of EngramStore
  EngramFact counted = kEngramsRecalled;
  StateView sums;  // [layers, heads, recalled] number, or without memory
  int layer = 0;
  int recalled = 0;  // of EngramRules, with `sums`
  TensorView out;    // [tokens, heads, head_dim] act
};

// y[t] += x[t] of the tokens at positions from `first` on.
struct AddFromArgs {
  TensorView x;          // [tokens, dim] act
  TensorView positions;  // [tokens] i64
  int64_t first = 0;
  TensorView y;  // [tokens, dim] act, updated in place
};

class EngramKernels {
 public:
  virtual ~EngramKernels() = default;

  virtual void FindCrossings(const FindCrossingsArgs& args) = 0;
  virtual void CommitEngrams(const CommitEngramsArgs& args) = 0;
  virtual void EncodeTokens(const EncodeTokensArgs& args) = 0;
  virtual void ReadEncoder(const ReadEncoderArgs& args) = 0;
  virtual void WriteEngrams(const WriteEngramsArgs& args) = 0;
  virtual void ScoreEngrams(const ScoreEngramsArgs& args) = 0;
  virtual void RetrieveEngrams(const RetrieveEngramsArgs& args) = 0;
  virtual void GatherEngrams(const GatherEngramsArgs& args) = 0;
  virtual void StoreEngramContext(const StoreEngramContextArgs& args) = 0;
  virtual void EngramAttention(const EngramAttentionArgs& args) = 0;
  virtual void AddFrom(const AddFromArgs& args) = 0;
};

}  // namespace mneme
