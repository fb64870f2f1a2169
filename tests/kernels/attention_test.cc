#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float16.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

struct Dims {
  int heads = 1, kv_heads = 1, key_dim = 16, value_dim = 16;
  int window = 0;
  int64_t blocks = 4;
  int prefix = 0;  // rows, with the numbers of the positions that would be there
  int segment = 0;
  bool others = false;  // a second key and value of each position

  int64_t keys() const { return int64_t{kv_heads} * key_dim; }
  int64_t values() const { return int64_t{kv_heads} * value_dim; }
  std::string Describe() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
           std::to_string(key_dim) + " and " + std::to_string(value_dim) + ", window " +
           std::to_string(window) + ", " + std::to_string(blocks) + " blocks";
  }
};

// One row of a step: `length` tokens of a session that was fed `position` before.
struct RowSpec {
  int slot = 0;
  int64_t position = 0;
  int length = 0;
};

// Contexts of a few slots whose blocks lie anywhere, as pages would, in memory that is all ones:
// NaN, where something is read that was not written.
class Contexts {
 public:
  Contexts(Workbench& bench, const Dims& dims, int slots)
      : bench_(bench),
        dims_(dims),
        dtype_(bench.backend().state_format().context_dtype),
        fields_bytes_(kContextBlock * (dims.keys() + dims.values()) * SizeOf(dtype_)),
        block_bytes_((dims.others ? 2 : 1) * fields_bytes_ + kGap),
        bytes_(static_cast<size_t>(slots * dims.blocks * block_bytes_), std::byte{0xff}) {
    SeededRandom random(static_cast<uint64_t>(slots * 100 + dims.blocks));
    for (const int place : random.Permutation(static_cast<int>(slots * dims.blocks))) {
      offsets_.push_back(place * block_bytes_);
    }
    auto memory =
        Tensor::Allocate(bench.backend(), DType::kU8, {static_cast<int64_t>(bytes_.size())});
    auto table = Tensor::Allocate(bench.backend(), DType::kI64, {slots, dims.blocks});
    memory_ = *std::move(memory);
    table_ = *std::move(table);
    bench.backend().CopyFromHost(table_.view().data, offsets_.data(), table_.view().bytes());
    Upload();
  }

  ContextView keys() const { return View(kGap / 2, dims_.keys()); }
  ContextView values() const {
    return View(kGap / 2 + kContextBlock * dims_.keys() * SizeOf(dtype_), dims_.values());
  }

  ContextView other_keys() const { return View(kGap / 2 + fields_bytes_, dims_.keys()); }
  ContextView other_values() const {
    return View(kGap / 2 + fields_bytes_ + kContextBlock * dims_.keys() * SizeOf(dtype_),
                dims_.values());
  }

  // What `values` has at the position's index becomes its row.
  void Write(int slot, int64_t position, const double* k, const double* v) {
    Store(At(keys(), slot, position), k, dims_.keys());
    Store(At(values(), slot, position), v, dims_.values());
  }
  void Upload() {
    bench_.backend().CopyFromHost(memory_.view().data, bytes_.data(),
                                  static_cast<int64_t>(bytes_.size()));
  }
  void Download() {
    EXPECT_TRUE(bench_.backend().Synchronize().ok());
    bench_.backend().CopyToHost(bytes_.data(), memory_.view().data,
                                static_cast<int64_t>(bytes_.size()));
  }
  // After Download().
  std::vector<double> Row(const ContextView& field, int slot, int64_t position) {
    return Load(At(field, slot, position), field.row_bytes / SizeOf(dtype_));
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  // Makes the rows of a position what `bytes` has there.
  void Restore(std::vector<std::byte>& bytes, int slot, int64_t position) {
    for (const ContextView& field : {keys(), values()}) {
      const int64_t at = At(field, slot, position) - bytes_.data();
      std::copy_n(bytes_.begin() + at, field.row_bytes, bytes.begin() + at);
    }
  }

 private:
  enum : int64_t { kGap = 128 };  // around the rows of a block

  ContextView View(int64_t offset, int64_t width) const {
    return {{static_cast<std::byte*>(memory_.view().data), table_.view()},
            offset,
            width * SizeOf(dtype_),
            dtype_};
  }
  std::byte* At(const ContextView& field, int slot, int64_t position) {
    const int64_t block = position / kContextBlock % dims_.blocks;
    return bytes_.data() + offsets_[static_cast<size_t>(slot * dims_.blocks + block)] +
           field.offset + position % kContextBlock * field.row_bytes;
  }
  void Store(std::byte* to, const double* values, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) {
      const auto f32 = static_cast<float>(values[i]);
      const uint16_t bf16 = BF16FromF32(f32);
      const void* from = dtype_ == DType::kF64   ? static_cast<const void*>(values + i)
                         : dtype_ == DType::kF32 ? static_cast<const void*>(&f32)
                                                 : static_cast<const void*>(&bf16);
      std::memcpy(to + i * SizeOf(dtype_), from, static_cast<size_t>(SizeOf(dtype_)));
    }
  }
  std::vector<double> Load(const std::byte* from, int64_t n) const {
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i) {
      double f64 = 0;
      float f32 = 0;
      uint16_t bf16 = 0;
      if (dtype_ == DType::kF64) std::memcpy(&f64, from + i * 8, 8);
      if (dtype_ == DType::kF32) std::memcpy(&f32, from + i * 4, 4);
      if (dtype_ == DType::kBF16) std::memcpy(&bf16, from + i * 2, 2);
      values.push_back(dtype_ == DType::kF64   ? f64
                       : dtype_ == DType::kF32 ? f32
                                               : F32FromBF16(bf16));
    }
    return values;
  }

  Workbench& bench_;
  Dims dims_;
  DType dtype_;
  int64_t fields_bytes_, block_bytes_;
  std::vector<std::byte> bytes_;
  std::vector<int64_t> offsets_;
  Tensor memory_, table_;
};

// Sessions with a past, and what they are fed. Numbers can be held by bf16, so that every backend
// keeps the same ones. A position's numbers follow from slot and position alone.
struct Problem {
  Dims dims;
  std::vector<RowSpec> rows;
  double spread = 1;  // of the scores, roughly

  std::vector<double> Numbers(int what, int slot, int64_t position, int64_t n, double scale) const {
    SeededRandom random(
        static_cast<uint64_t>(((position + dims.prefix) * 8 + slot) * 3 + what + 1));
    return random.NormalValues(n, scale, DType::kBF16);
  }
  std::vector<double> Keys(int slot, int64_t p) const {
    return Numbers(0, slot, p, dims.keys(), 1);
  }
  std::vector<double> Values(int slot, int64_t p) const {
    return Numbers(1, slot, p, dims.values(), 1);
  }
  static constexpr int64_t kOthers = 1000;  // numbers of second keys are those of positions far on
  std::vector<double> Queries(int slot, int64_t p) const {
    return Numbers(2, slot, p, int64_t{dims.heads} * dims.key_dim, spread);
  }
  int slots() const {
    int most = 0;
    for (const RowSpec& row : rows) most = std::max(most, row.slot + 1);
    return std::max(most, 1);
  }
  // Writes the positions that each row's session was fed, as far as they are held.
  void WritePast(Contexts& contexts) const {
    for (const RowSpec& row : rows) {
      if (row.slot < 0) continue;
      const int64_t held = dims.blocks * kContextBlock;
      for (int64_t p = std::max<int64_t>(0, row.position - held); p < row.position; ++p) {
        contexts.Write(row.slot, p, Keys(row.slot, p).data(), Values(row.slot, p).data());
      }
    }
    contexts.Upload();
  }
};

double ScaleOf(const Dims& dims) { return 1 / std::sqrt(static_cast<double>(dims.key_dim)); }

// One step of `rows`. Outputs of padding rows are left out.
std::vector<double> Step(Workbench& bench, Contexts& contexts, const Problem& problem,
                         const std::vector<RowSpec>& rows) {
  const Dims& dims = problem.dims;
  std::vector<double> q, k, v;
  std::vector<int> offsets = {0}, slots;
  std::vector<double> positions;
  int longest = 0;
  const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const RowSpec& row : rows) {
    const int slot = std::max(row.slot, 0);
    for (int64_t p = row.position; p < row.position + row.length; ++p) {
      append(q, problem.Queries(slot, p));
      append(k, problem.Keys(slot, p));
      append(v, problem.Values(slot, p));
    }
    offsets.push_back(offsets.back() + row.length);
    slots.push_back(row.slot);
    positions.push_back(static_cast<double>(row.position));
    longest = std::max(longest, row.length);
  }
  const int64_t tokens = offsets.back();
  const auto scale = static_cast<float>(ScaleOf(dims));
  std::vector<int64_t> places(positions.begin(), positions.end());
  auto place = Tensor::Allocate(bench.backend(), DType::kI64, {static_cast<int64_t>(rows.size())});
  bench.backend().CopyFromHost(place->view().data, places.data(), place->view().bytes());
  const TensorView out = bench.NewActivations({tokens, dims.heads, dims.value_dim});
  std::vector<double> prefix_keys, prefix_values;
  for (int64_t p = -dims.prefix; p < 0; ++p) {
    append(prefix_keys, problem.Keys(0, p));
    append(prefix_values, problem.Values(0, p));
  }
  TensorView first_keys, first_values, other_k, other_v;
  if (dims.others) {
    std::vector<double> keys, values;
    for (const RowSpec& row : rows) {
      for (int64_t p = row.position; p < row.position + row.length; ++p) {
        append(keys, problem.Keys(std::max(row.slot, 0), p + Problem::kOthers));
        append(values, problem.Values(std::max(row.slot, 0), p + Problem::kOthers));
      }
    }
    other_k = bench.Activations(keys, {tokens, dims.kv_heads, dims.key_dim});
    other_v = bench.Activations(values, {tokens, dims.kv_heads, dims.value_dim});
  }
  if (dims.prefix > 0) {
    first_keys = bench.Activations(prefix_keys, {dims.prefix, dims.kv_heads, dims.key_dim});
    first_values = bench.Activations(prefix_values, {dims.prefix, dims.kv_heads, dims.value_dim});
  }
  bench.kernels().Attention({.q = bench.Activations(q, {tokens, dims.heads, dims.key_dim}),
                             .k = bench.Activations(k, {tokens, dims.kv_heads, dims.key_dim}),
                             .v = bench.Activations(v, {tokens, dims.kv_heads, dims.value_dim}),
                             .row_offsets = bench.Ints(offsets),
                             .slots = bench.Ints(slots),
                             .positions = place->view(),
                             .longest_row = longest,
                             .window = dims.window,
                             .scale = scale,
                             .keys = contexts.keys(),
                             .values = contexts.values(),
                             .prefix_keys = first_keys,
                             .prefix_values = first_values,
                             .segment = dims.segment,
                             .other_k = other_k,
                             .other_v = other_v,
                             .other_keys = dims.others ? contexts.other_keys() : ContextView{},
                             .other_values = dims.others ? contexts.other_values() : ContextView{},
                             .out = out});
  const std::vector<double> all = bench.Read(out);
  std::vector<double> active;
  const int64_t width = int64_t{dims.heads} * dims.value_dim;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].slot < 0) continue;
    active.insert(active.end(), all.begin() + offsets[r] * width,
                  all.begin() + offsets[r + 1] * width);
  }
  return active;
}

// The whole problem as one step.
std::vector<double> Outputs(Backend& backend, const Problem& problem) {
  Workbench bench(backend);
  Contexts contexts(bench, problem.dims, problem.slots());
  problem.WritePast(contexts);
  return Step(bench, contexts, problem, problem.rows);
}

// A new session's `tokens` in steps of the sizes in `chunks`, used cyclically.
std::vector<double> FedInChunks(Backend& backend, const Problem& problem, int tokens,
                                const std::vector<int>& chunks) {
  Workbench bench(backend);
  Contexts contexts(bench, problem.dims, 1);
  std::vector<double> all;
  int fed = 0;
  for (size_t i = 0; fed < tokens; ++i) {
    const int size = std::min(chunks[i % chunks.size()], tokens - fed);
    const std::vector<double> part = Step(bench, contexts, problem, {{0, fed, size}});
    all.insert(all.end(), part.begin(), part.end());
    fed += size;
  }
  return all;
}

// A weight is wrong by the error of its score, of its exponential and of the difference of scores
// that it takes, and again for each block whose maximum it is made relative to; total and sum are
// sums of as many as there are positions.
// `rounding`: relative, of each weight.
std::vector<double> Bound(const Problem& problem, double rounding = 0) {
  const Dims& dims = problem.dims;
  const double scale = ScaleOf(dims);
  std::vector<double> bound;
  for (const RowSpec& row : problem.rows) {
    if (row.slot < 0) continue;
    const auto first_of = [&](int64_t p) {
      return dims.window > 0 ? std::max<int64_t>(0, p - dims.window + 1) : int64_t{0};
    };
    const int64_t oldest = first_of(row.position);
    std::vector<std::vector<double>> all_keys, all_values;
    for (int64_t p = oldest; p < row.position + row.length; ++p) {
      all_keys.push_back(problem.Keys(row.slot, p));
      all_values.push_back(problem.Values(row.slot, p));
    }
    for (int64_t p = row.position; p < row.position + row.length; ++p) {
      const std::vector<double> q = problem.Queries(row.slot, p);
      const auto begin = static_cast<size_t>(first_of(p) - oldest);
      const auto count = static_cast<size_t>(p + 1 - first_of(p));
      const auto keys = std::span(all_keys).subspan(begin, count);
      const auto values = std::span(all_values).subspan(begin, count);
      const auto seen = static_cast<double>(count);
      for (int h = 0; h < dims.heads; ++h) {
        const int g = h / (dims.heads / dims.kv_heads);
        std::vector<double> scores;
        double worst = 0;
        for (const auto& key : keys) {
          double score = 0, terms = 0;
          for (int i = 0; i < dims.key_dim; ++i) {
            const double term = scale * q[h * dims.key_dim + i] * key[g * dims.key_dim + i];
            score += term;
            terms += std::abs(term);
          }
          scores.push_back(score);
          worst = std::max(worst, (SumError(dims.key_dim) + 2 * kUnitF32) * terms);
        }
        const double low = *std::min_element(scores.begin(), scores.end());
        const double high = *std::max_element(scores.begin(), scores.end());
        const double blocks = seen / kContextBlock + 2;
        const double weight = 2 * worst + (blocks + 1) * (kFunctionError + kUnitF32 * (high - low));
        const double relative = 2 * weight + 2 * SumError(seen + blocks) + 4 * kUnitF32 + rounding;
        double total = 0;
        for (double& score : scores) total += score = std::exp(score - high);
        for (int i = 0; i < dims.value_dim; ++i) {
          double sum = 0;
          for (size_t j = 0; j < scores.size(); ++j) {
            sum += scores[j] / total * std::abs(values[j][g * dims.value_dim + i]);
          }
          bound.push_back(relative * sum + kTinyF32);
        }
      }
    }
  }
  return bound;
}

class AttentionTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectReference(const Problem& problem) {
    const std::vector<double> want = Outputs(*reference_, problem);
    EXPECT_THAT(Outputs(*backend_, problem), IsWithin(Bound(problem), want))
        << problem.dims.Describe();
  }
  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

TEST_P(AttentionTest, MatchesReferenceOnRaggedRows) {
  const std::vector<RowSpec> rows = {{2, 0, 1},  {0, 63, 3},  {-1, 0, 4}, {1, 70, 0},
                                     {3, 0, 90}, {4, 130, 1}, {1, 64, 64}};
  for (const Dims& dims :
       {Dims{1, 1, 16, 16}, Dims{4, 2, 16, 16}, Dims{6, 2, 24, 40}, Dims{8, 1, 64, 64},
        Dims{3, 3, 1, 1}, Dims{2, 2, 7, 13}, Dims{5, 1, 128, 128}}) {
    ExpectReference({.dims = dims, .rows = rows});
  }
}

TEST_P(AttentionTest, APrefixIsAsPositionsThatAreAlwaysSeen) {
  for (const int prefix : {1, 5, 64, 130}) {
    for (const Dims& plain : {Dims{1, 1, 16, 16}, Dims{6, 2, 24, 40}}) {
      Dims dims = plain;
      dims.prefix = prefix;
      for (const std::vector<RowSpec>& rows :
           {std::vector<RowSpec>{{0, 0, 20}}, {{0, 0, 1}}, {{0, 40, 1}}, {{0, 40, 30}}}) {
        std::vector<RowSpec> behind = rows;
        behind[0].position += prefix;
        const Problem whole = {.dims = plain, .rows = behind};
        const std::vector<double> want = Outputs(*reference_, whole);
        const Problem problem = {.dims = dims, .rows = rows};
        EXPECT_THAT(Outputs(*backend_, problem), IsWithin(Bound(whole), want)) << prefix;
        EXPECT_THAT(Outputs(*reference_, problem), IsWithin(Bound(whole), want)) << prefix;
      }
      dims.window = 7;
      const Problem windowed = {.dims = dims, .rows = {{0, 40, 30}}};
      const double bound = 16 * (SumError(prefix + 7) + SumError(plain.key_dim) + kFunctionError);
      EXPECT_LE(RelativeError(Outputs(*backend_, windowed), Outputs(*reference_, windowed)), bound);
      Dims unseen = plain;
      unseen.window = 7;
      EXPECT_GT(
          RelativeError(Outputs(*reference_, windowed),
                        Outputs(*reference_, {.dims = unseen, .rows = {{0, 40 + prefix, 30}}})),
          0.01)
          << "the prefix is seen";
    }
  }
}

// Against plain sums, whole and in steps of many sizes.
TEST_P(AttentionTest, ASegmentSeesTwoKeysOfEachOfItsPositions) {
  for (const int segment : {1, 5, 16, 64, 70}) {
    for (const int prefix : {0, 3}) {
      Dims dims = {.heads = 4, .kv_heads = 2, .key_dim = 24, .value_dim = 20, .blocks = 2};
      dims.segment = segment;
      dims.others = true;
      dims.prefix = prefix;
      constexpr int kTokens = 150;
      const Problem problem = {.dims = dims, .rows = {{0, 0, kTokens}}};
      std::vector<double> want;
      for (int64_t p = 0; p < kTokens; ++p) {
        std::vector<std::vector<double>> keys, values;
        for (int64_t m = -prefix; m < 0; ++m) {
          keys.push_back(problem.Keys(0, m));
          values.push_back(problem.Values(0, m));
        }
        for (int64_t m = p - p % segment; m <= p; ++m) {
          for (const int64_t other : {int64_t{0}, Problem::kOthers}) {
            keys.push_back(problem.Keys(0, m + other));
            values.push_back(problem.Values(0, m + other));
          }
        }
        const std::vector<double> q = problem.Queries(0, p);
        for (int h = 0; h < dims.heads; ++h) {
          const int g = h / 2;
          double total = 0;
          std::vector<double> out(static_cast<size_t>(dims.value_dim));
          for (size_t j = 0; j < keys.size(); ++j) {
            double score = 0;
            for (int i = 0; i < dims.key_dim; ++i) {
              score += q[h * dims.key_dim + i] * keys[j][g * dims.key_dim + i];
            }
            const double weight = std::exp(score * ScaleOf(dims));
            total += weight;
            for (int i = 0; i < dims.value_dim; ++i) {
              out[i] += weight * values[j][g * dims.value_dim + i];
            }
          }
          for (const double value : out) want.push_back(value / total);
        }
      }
      const double bound =
          16 * (SumError(2 * segment + prefix) + SumError(dims.key_dim) + kFunctionError);
      EXPECT_LE(RelativeError(Outputs(*reference_, problem), want), 1e-6);
      const std::vector<double> whole = Outputs(*backend_, problem);
      EXPECT_LE(RelativeError(whole, want), bound) << segment;
      const std::vector<double> parts = FedInChunks(*backend_, problem, kTokens, {1, 7, 30, 2});
      EXPECT_LE(RelativeError(parts, want), bound) << segment;
      if (GetParam().bit_exact()) {
        EXPECT_THAT(parts, HasSameBits(whole));
      }
    }
  }
}

TEST_P(AttentionTest, MatchesReferenceWithin256Wide) {
  ExpectReference({.dims = {4, 2, 256, 256}, .rows = {{0, 0, 70}, {1, 100, 1}}});
}

TEST_P(AttentionTest, AWindowSeesItsTokenAndThoseBeforeIt) {
  const std::vector<RowSpec> rows = {{0, 0, 100}, {1, 64, 1}, {2, 200, 70}, {3, 30, 5}, {4, 11, 1}};
  for (const int window : {1, 2, 12, 63, 64, 65, 128, 200}) {
    Dims dims{4, 2, 16, 16, window};
    dims.blocks = (window + kContextBlock - 1) / kContextBlock;
    ExpectReference({.dims = dims, .rows = rows});
  }
}

// More tokens at once than a ring has rows, and rings that went round many times.
TEST_P(AttentionTest, ARingIsReadBeforeItIsOverwritten) {
  for (const int window : {5, 64, 100}) {
    Dims dims{2, 1, 16, 8, window};
    dims.blocks = (window + kContextBlock - 1) / kContextBlock;
    ExpectReference({.dims = dims, .rows = {{0, 1000, 300}, {1, 999, 64}, {2, 1023, 1}}});
  }
}

TEST_P(AttentionTest, PositionsMayBeBeyondAMillion) {
  Dims dims{4, 2, 16, 16, 100};
  dims.blocks = 2;
  const int64_t far = (int64_t{1} << 40) + 17;
  ExpectReference({.dims = dims, .rows = {{0, 1'000'003, 70}, {1, far, 1}, {2, far + 50, 3}}});
}

// Weights from even to one position alone, and scores that f32 has no exponentials of.
TEST_P(AttentionTest, MatchesReferenceFromFlatToPeakedWeights) {
  for (const double spread : {0.0, 0.01, 4.0, 30.0, 1000.0}) {
    ExpectReference({.dims = {4, 2, 16, 16},
                     .rows = {{0, 0, 130}, {1, 200, 1}, {2, 70, 40}},
                     .spread = spread});
  }
}

TEST_P(AttentionTest, LongContextsMatchReference) {
  Dims dims{4, 2, 32, 32};
  dims.blocks = 66;
  ExpectReference({.dims = dims, .rows = {{0, 4200, 1}, {1, 4000, 20}, {2, 1, 1}}});
}

// Nor does the step's own past: keys that are stored are those that are used at once.
TEST_P(AttentionTest, AnySplitIsTheSame) {
  for (const int window : {0, 50, 64}) {
    Dims dims{4, 2, 24, 16, window};
    dims.blocks = window > 0 ? 1 : 4;
    const Problem problem = {.dims = dims, .rows = {{0, 0, 200}}};
    const std::vector<double> whole = Outputs(*backend_, problem);
    for (const std::vector<int>& chunks : {std::vector{1}, {7, 1, 13}, {64}, {63, 2}, {199, 1}}) {
      const std::vector<double> all = FedInChunks(*backend_, problem, 200, chunks);
      EXPECT_THAT(all, IsSame(GetParam().bit_exact(), whole)) << "chunks of " << chunks[0];
    }
  }
}

TEST_P(AttentionTest, NeitherNeighboursNorThreadsChangeABit) {
  const Problem together = {.dims = {8, 2, 32, 32},
                            .rows = {{0, 100, 60}, {-1, 0, 3}, {1, 5, 1}, {2, 0, 64}, {3, 180, 1}}};
  std::vector<double> alone;
  for (const RowSpec& row : together.rows) {
    if (row.slot < 0) continue;
    const std::vector<double> one = Outputs(*backend_, {.dims = together.dims, .rows = {row}});
    alone.insert(alone.end(), one.begin(), one.end());
  }
  EXPECT_THAT(Outputs(*backend_, together), IsSame(GetParam().bit_exact(), alone));
  if (GetParam().device != "cpu") return;
  for (const int threads : {1, 5}) {
    const auto other = GetParam().Make(threads);
    EXPECT_THAT(Outputs(*other, together), HasSameBits(alone)) << threads << " threads";
  }
}

// Rows that the step wrote hold its keys and values; every other byte is as it was.
TEST_P(AttentionTest, StoresTheStepsRowsAndTouchesNothingElse) {
  for (const int window : {0, 100}) {
    Dims dims{4, 2, 16, 24, window};
    dims.blocks = window > 0 ? 2 : 6;
    const Problem problem = {
        .dims = dims, .rows = {{0, 0, 1}, {1, 60, 200}, {-1, 0, 2}, {2, 100, 0}, {3, 127, 1}}};
    Workbench bench(*backend_);
    Contexts contexts(bench, dims, 5);
    problem.WritePast(contexts);
    std::vector<std::byte> want = contexts.bytes();
    Step(bench, contexts, problem, problem.rows);
    contexts.Download();
    const int64_t held = dims.blocks * kContextBlock;
    for (const RowSpec& row : problem.rows) {
      if (row.slot < 0) continue;
      const int64_t end = row.position + row.length;
      for (int64_t p = std::max(row.position, end - held); p < end; ++p) {
        EXPECT_EQ(contexts.Row(contexts.keys(), row.slot, p), problem.Keys(row.slot, p));
        EXPECT_EQ(contexts.Row(contexts.values(), row.slot, p), problem.Values(row.slot, p));
        contexts.Restore(want, row.slot, p);
      }
    }
    EXPECT_TRUE(contexts.bytes() == want) << "a byte that is nobody's was written";
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

// A GPU whose products round to bf16 rounds weights, too: queries, keys and values of these
// problems are held by bf16 as they are.
class RoundedAttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (AvailableBackends().front().device != "cuda") GTEST_SKIP() << "no GPU";
    backend_ = MakeCuda(DType::kBF16);
  }
  void ExpectReference(const Problem& problem) {
    EXPECT_THAT(Outputs(*backend_, problem),
                IsWithin(Bound(problem, kUnitBF16), Outputs(*reference_, problem)))
        << problem.dims.Describe();
  }
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Backend> reference_ = MakeReference();
};

const std::vector<RowSpec> kMixedRows = {{2, 0, 1},   {0, 63, 3},  {-1, 0, 4}, {1, 70, 0},
                                         {3, 0, 250}, {4, 130, 1}, {1, 64, 64}};
const std::vector<RowSpec> kSingleTokens = {{2, 0, 1},   {0, 63, 1},  {-1, 0, 1}, {1, 64, 1},
                                            {3, 200, 1}, {4, 130, 1}, {5, 255, 1}};

TEST_F(RoundedAttentionTest, MatchesReferenceForHeadsOfAnyWidthAndGroup) {
  for (const Dims& dims : {Dims{1, 1, 16, 16}, Dims{4, 2, 64, 64}, Dims{6, 2, 24, 40},
                           Dims{8, 1, 128, 128}, Dims{5, 1, 96, 96}, Dims{12, 4, 64, 128},
                           Dims{40, 2, 32, 32}, Dims{2, 2, 7, 13}, Dims{2, 1, 160, 160}}) {
    ExpectReference({.dims = dims, .rows = kMixedRows});
    ExpectReference({.dims = dims, .rows = kSingleTokens});
  }
}

TEST_F(RoundedAttentionTest, AWindowSeesItsTokenAndThoseBeforeIt) {
  for (const int window : {1, 12, 63, 64, 65, 128, 200}) {
    for (const int more : {0, 5}) {  // blocks of a ring beyond the window's
      Dims dims{4, 2, 64, 64, window};
      dims.blocks = (window + kContextBlock - 1) / kContextBlock + more;
      ExpectReference({.dims = dims, .rows = kMixedRows});
      ExpectReference({.dims = dims, .rows = kSingleTokens});
      ExpectReference({.dims = dims, .rows = {{0, 1000, 300}, {1, 999, 64}, {2, 1023, 1}}});
      ExpectReference({.dims = dims, .rows = {{0, 1'000'003, 1}, {1, int64_t{1} << 40, 1}}});
    }
  }
}

TEST_F(RoundedAttentionTest, ManyBlocksOfThreadsMayShareAToken) {
  Dims dims{4, 2, 32, 32};
  dims.blocks = 66;
  ExpectReference({.dims = dims, .rows = {{0, 4200, 1}, {1, 4000, 20}, {2, 1, 1}}});
  ExpectReference({.dims = dims, .rows = {{0, 4200, 1}, {1, 0, 1}, {2, 1, 1}}});
  for (const double spread : {0.0, 4.0, 30.0, 1000.0}) {
    ExpectReference({.dims = dims, .rows = {{0, 4200, 1}, {1, 900, 1}}, .spread = spread});
  }
}

TEST_F(RoundedAttentionTest, PrefixesSegmentsAndSecondKeysAreSeen) {
  for (const int segment : {0, 5, 64, 70}) {
    for (const int prefix : {0, 3, 64, 70}) {
      for (const bool others : {false, true}) {
        Dims dims{8, 2, 64, 64, 0, 3, prefix, segment, others};
        if (others && segment == 0) continue;
        for (const std::vector<RowSpec>& rows :
             {std::vector<RowSpec>{{0, 0, 190}}, {{0, 0, 1}, {1, 0, 1}, {2, 0, 1}}}) {
          const Problem problem = {.dims = dims, .rows = rows};
          EXPECT_LE(RelativeError(Outputs(*backend_, problem), Outputs(*reference_, problem)),
                    kUnitBF16)
              << dims.Describe() << ", segment " << segment << ", prefix " << prefix;
        }
      }
    }
  }
}

// A text fed in pieces sees the same keys, some of them rounded in the step and some before.
TEST_F(RoundedAttentionTest, AnySplitIsTheSameButForRounding) {
  for (const int window : {0, 50, 64}) {
    Dims dims{4, 2, 64, 64, window};
    dims.blocks = window > 0 ? 1 : 4;
    const Problem problem = {.dims = dims, .rows = {{0, 0, 200}}};
    const std::vector<double> whole = Outputs(*backend_, problem);
    for (const std::vector<int>& chunks : {std::vector{1}, {7, 1, 13}, {64}, {199, 1}}) {
      const std::vector<double> all = FedInChunks(*backend_, problem, 200, chunks);
      EXPECT_LE(RelativeError(all, whole), kUnitBF16) << "chunks of " << chunks[0];
    }
  }
}

// By hand: equal scores weigh equally, and a window of one sees its own value.
class AttentionByHandTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(AttentionByHandTest, FlatScoresGiveTheMeanOfTheValues) {
  const auto backend = GetParam().device == "reference" ? MakeReference() : GetParam().Make();
  Problem problem = {.dims = {2, 1, 4, 1}, .rows = {{0, 0, 3}}, .spread = 0};
  std::vector<double> mean, v;
  for (int p = 0; p < 3; ++p) {
    v.push_back(problem.Values(0, p)[0]);
    mean.insert(mean.end(), 2, std::accumulate(v.begin(), v.end(), 0.0) / (p + 1));
  }
  EXPECT_THAT(Outputs(*backend, problem), IsWithin(8 * kUnitF32 * 4, mean));
  problem.dims.window = 1;
  EXPECT_THAT(Outputs(*backend, problem), HasSameBits({v[0], v[0], v[1], v[1], v[2], v[2]}));
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionByHandTest, testing::ValuesIn(AllBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
