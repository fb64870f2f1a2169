// Attention in tests: sessions with contexts whose blocks lie anywhere, what they are fed, and how
// far off f32 may be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernels/float16.h"
#include "kernels/ops/attention.h"
#include "tests/support/bounds.h"
#include "tests/support/random_values.h"
#include "tests/support/workbench.h"

namespace mneme {

struct AttentionDims {
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

// AttentionContexts of a few slots whose blocks lie anywhere, as pages would, in memory that is all
// ones: NaN, where something is read that was not written.
class AttentionContexts {
 public:
  AttentionContexts(Workbench& bench, const AttentionDims& dims, int slots)
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
  AttentionDims dims_;
  DType dtype_;
  int64_t fields_bytes_, block_bytes_;
  std::vector<std::byte> bytes_;
  std::vector<int64_t> offsets_;
  Tensor memory_, table_;
};

// Sessions with a past, and what they are fed. Numbers can be held by bf16, so that every backend
// keeps the same ones. A position's numbers follow from slot and position alone.
struct AttentionProblem {
  AttentionDims dims;
  std::vector<RowSpec> rows;
  double spread = 1;  // of the scores, roughly
  // Outputs are bf16, but in the reference; of single tokens.
  bool rounds = false;

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
  void WritePast(AttentionContexts& contexts) const {
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

inline double ScaleOf(const AttentionDims& dims) {
  return 1 / std::sqrt(static_cast<double>(dims.key_dim));
}

// One step of `rows`. Outputs of padding rows are left out.
inline std::vector<double> Step(Workbench& bench, AttentionContexts& contexts,
                                const AttentionProblem& problem, const std::vector<RowSpec>& rows) {
  const AttentionDims& dims = problem.dims;
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
  const Shape out_shape{tokens, dims.heads, dims.value_dim};
  const bool rounds = problem.rounds && bench.backend().activation_dtype() != DType::kF64;
  const TensorView out =
      rounds ? bench.Values(std::vector<double>(static_cast<size_t>(out_shape.elements())),
                            out_shape, DType::kBF16)
             : bench.NewActivations(out_shape);
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
        append(keys, problem.Keys(std::max(row.slot, 0), p + AttentionProblem::kOthers));
        append(values, problem.Values(std::max(row.slot, 0), p + AttentionProblem::kOthers));
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
inline std::vector<double> Outputs(Backend& backend, const AttentionProblem& problem) {
  Workbench bench(backend);
  AttentionContexts contexts(bench, problem.dims, problem.slots());
  problem.WritePast(contexts);
  return Step(bench, contexts, problem, problem.rows);
}

// A new session's `tokens` in steps of the sizes in `chunks`, used cyclically.
inline std::vector<double> FedInChunks(Backend& backend, const AttentionProblem& problem,
                                       int tokens, const std::vector<int>& chunks) {
  Workbench bench(backend);
  AttentionContexts contexts(bench, problem.dims, 1);
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
inline std::vector<double> Bound(const AttentionProblem& problem, double rounding = 0) {
  const AttentionDims& dims = problem.dims;
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

}  // namespace mneme
