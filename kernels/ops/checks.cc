#include "kernels/ops/checks.h"

#include <cstdint>

#include "base/log.h"
#include "kernels/tensor.h"

namespace mneme {
namespace {

void ExpectShape(const TensorView& tensor, const Shape& shape, const char* name) {
  CHECK(tensor.shape == shape) << name << " has shape " << ShapeToString(tensor.shape)
                               << ", expected " << ShapeToString(shape);
  CHECK(!tensor.empty() || shape.elements() == 0) << name << " is missing";
}

void Expect(const TensorView& tensor, DType dtype, const Shape& shape, const char* name) {
  CHECK(tensor.dtype == dtype) << name << " is " << Name(tensor.dtype) << ", expected "
                               << Name(dtype);
  ExpectShape(tensor, shape, name);
}

// A tensor that goes into a product or comes out of one.
void ExpectRoundable(const TensorView& tensor, ActivationTypes types, const Shape& shape,
                     const char* name) {
  const bool rounded = tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16;
  if (!(types.takes_rounded && rounded)) Expect(tensor, types.act, shape, name);
  ExpectShape(tensor, shape, name);
}

// An optional list: entry e reads row [e]; without it row e, of which there have to be as many.
void ExpectEntryRows(const TensorView& entry_rows, int64_t entries, int64_t rows) {
  if (entry_rows.empty()) {
    CHECK_GE(rows, entries) << "rows of as many entries";
  } else {
    Expect(entry_rows, DType::kI32, {entries}, "entry_rows");
  }
}

void Check(const Segments& segments) {
  Expect(segments.offsets, DType::kI32, {segments.count + 1}, "segments.offsets");
  Expect(segments.slots, DType::kI32, {segments.count}, "segments.slots");
  Expect(segments.memories, DType::kI32, {segments.count}, "segments.memories");
  Expect(segments.fresh, DType::kI32, {segments.count}, "segments.fresh");
}

void ExpectRank(const TensorView& tensor, int rank, const char* name) {
  CHECK_EQ(tensor.shape.rank, rank) << name << " has shape " << ShapeToString(tensor.shape);
}

}  // namespace

void Check(const EmbeddingArgs& args, ActivationTypes types) {
  ExpectRank(args.table, 2, "table");
  const int64_t tokens = args.ids.shape[0];
  Expect(args.ids, DType::kI32, {tokens}, "ids");
  Expect(args.y, types.act, {tokens, args.table.shape[1]}, "y");
}

void Check(const GatherRowsArgs& args, ActivationTypes types) {
  const int64_t n = args.indices.shape[0], dim = args.x.shape[1];
  Expect(args.x, types.act, {args.x.shape[0], dim}, "x");
  Expect(args.indices, DType::kI32, {n}, "indices");
  Expect(args.y, types.act, {n, dim}, "y");
}

void Check(const BanTokensArgs& args, ActivationTypes types) {
  Expect(args.logits, types.act, {args.logits.shape[0], args.logits.shape[1]}, "logits");
  Expect(args.tokens, DType::kI32, {args.tokens.shape[0]}, "tokens");
}

void Check(const RmsNormArgs& args, ActivationTypes types) {
  const int64_t tokens = args.x.shape[0], dim = args.x.shape[1];
  Expect(args.x, types.act, {tokens, dim}, "x");
  Expect(args.weight, DType::kF32, {dim}, "weight");
  ExpectRoundable(args.y, types, {tokens, dim}, "y");
}

void Check(const LinearArgs& args, ActivationTypes types) {
  CHECK(!args.weights.empty()) << "a product without weights";
  const PackedMatrix& first = args.weights[0];
  for (const PackedMatrix& matrix : args.weights) {
    CHECK(matrix.out_features == first.out_features && matrix.in_features == first.in_features &&
          matrix.dtype == first.dtype)
        << "weights of one product are " << first.out_features << " x " << first.in_features
        << " and " << matrix.out_features << " x " << matrix.in_features;
  }
  const int64_t rows = args.x.shape[0], entries = args.y.shape[0];
  ExpectRoundable(args.x, types, {rows, first.in_features}, "x");
  ExpectRoundable(args.y, types, {entries, first.out_features}, "y");
  if (args.group_offsets.empty()) {
    CHECK_EQ(args.weights.size(), 1u) << "weights without group_offsets";
    CHECK(args.entry_rows.empty()) << "entry_rows without group_offsets";
    CHECK_EQ(rows, entries) << "rows of x and y";
  } else {
    Expect(args.entry_rows, DType::kI32, {entries}, "entry_rows");
    Expect(args.group_offsets, DType::kI32, {static_cast<int64_t>(args.weights.size()) + 1},
           "group_offsets");
  }
}

void Check(const SwiGluArgs& args, ActivationTypes types) {
  const Shape shape{args.gate.shape[0], args.gate.shape[1]};
  Expect(args.gate, types.act, shape, "gate");
  Expect(args.up, types.act, shape, "up");
  ExpectRoundable(args.y, types, shape, "y");
}

void Check(const L2NormArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types.act, args.x.shape, "x");
  Expect(args.y, types.act, args.x.shape, "y");
}

void Check(const GatedRmsNormArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types.act, args.x.shape, "x");
  if (!args.gate.empty()) ExpectRoundable(args.gate, types, args.x.shape, "gate");
  Expect(args.weight, DType::kF32, {args.x.shape[2]}, "weight");
  ExpectRoundable(args.y, types, args.x.shape, "y");
}

void Check(const RouteTopKArgs& args, ActivationTypes types) {
  const int64_t tokens = args.logits.shape[0], memories = args.logits.shape[1];
  const int64_t top_k = args.indices.shape[1];
  CHECK(top_k >= 1 && top_k <= memories) << "top_k " << top_k << " of " << memories;
  Expect(args.logits, types.act, {tokens, memories}, "logits");
  Expect(args.indices, DType::kI32, {tokens, top_k}, "indices");
  Expect(args.weights, types.act, {tokens, top_k}, "weights");
  if (!args.forced.empty()) Expect(args.forced, DType::kI32, {tokens, top_k}, "forced");
}

void Check(const DispatchArgs& args, ActivationTypes) {
  const int64_t rows = args.slots.shape[0];
  const int64_t tokens = args.token_entries.shape[0], choices = args.token_entries.shape[1];
  const int64_t top_k = choices - (args.shared ? 1 : 0);
  const int64_t groups = args.memories + (args.shared ? 1 : 0);
  CHECK(args.memories > 0 ? top_k >= 1 && top_k <= args.memories : top_k == 0)
      << "top_k " << top_k << " of " << args.memories;
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  if (top_k > 0) Expect(args.indices, DType::kI32, {tokens, top_k}, "indices");
  Expect(args.entry_tokens, DType::kI32, {tokens * choices}, "entry_tokens");
  Expect(args.token_entries, DType::kI32, {tokens, choices}, "token_entries");
  Expect(args.group_offsets, DType::kI32, {groups + 1}, "group_offsets");
  CHECK_EQ(args.segments.count, groups * rows) << "segments";
  Check(args.segments);
  CHECK(args.written.dtype == DType::kU8) << "written is " << Name(args.written.dtype);
}

void Check(const MixMemoriesArgs& args, ActivationTypes types) {
  const int64_t tokens = args.y.shape[0], dim = args.y.shape[1];
  const int64_t columns = args.token_entries.shape[1];
  const int64_t top_k = args.weights.empty() ? 0 : args.weights.shape[1];
  CHECK(columns == top_k || columns == top_k + 1) << columns << " columns, top_k " << top_k;
  Expect(args.x, types.act, {args.x.shape[0], dim}, "x");
  Expect(args.token_entries, DType::kI32, {tokens, columns}, "token_entries");
  if (top_k > 0) Expect(args.weights, types.act, {tokens, top_k}, "weights");
  Expect(args.y, types.act, {tokens, dim}, "y");
}

void Check(const ShortConvArgs& args, ActivationTypes types) {
  const int64_t rows = args.x.shape[0], channels = args.x.shape[1], entries = args.y.shape[0];
  const int64_t width = args.weight.shape[1];
  CHECK(width >= 1 && width <= kMaxConvWidth) << "a convolution " << width << " wide";
  ExpectRoundable(args.x, types, {rows, channels}, "x");
  Expect(args.weight, DType::kF32, {channels, width}, "weight");
  Expect(args.y, types.act, {entries, channels}, "y");
  ExpectEntryRows(args.entry_rows, entries, rows);
  Check(args.segments);
}

void Check(const DeltaGatesArgs& args, ActivationTypes types) {
  const int64_t rows = args.a.shape[0], heads = args.a.shape[1];
  const int64_t entries = args.log_decay.shape[0];
  Expect(args.a, types.act, {rows, heads}, "a");
  Expect(args.b, types.act, {rows, heads}, "b");
  Expect(args.a_log, DType::kF32, {heads}, "a_log");
  Expect(args.dt_bias, DType::kF32, {heads}, "dt_bias");
  Expect(args.log_decay, types.act, {entries, heads}, "log_decay");
  Expect(args.beta, types.act, {entries, heads}, "beta");
  ExpectEntryRows(args.entry_rows, entries, rows);
}

void Check(const GatedDeltaRuleArgs& args, ActivationTypes types) {
  ExpectRank(args.k, 3, "k");
  ExpectRank(args.v, 3, "v");
  const int64_t entries = args.k.shape[0], heads = args.k.shape[1], key_dim = args.k.shape[2];
  const int64_t value_heads = args.v.shape[1], value_dim = args.v.shape[2];
  CHECK(heads > 0 && value_heads % heads == 0) << value_heads << " value heads, " << heads;
  Expect(args.q, types.act, {entries, heads, key_dim}, "q");
  Expect(args.k, types.act, {entries, heads, key_dim}, "k");
  Expect(args.v, types.act, {entries, value_heads, value_dim}, "v");
  Expect(args.log_decay, types.act, {entries, value_heads}, "log_decay");
  Expect(args.beta, types.act, {entries, value_heads}, "beta");
  Expect(args.out, types.act, {entries, value_heads, value_dim}, "out");
  Check(args.segments);
}

void Check(const SampleArgs& args, ActivationTypes types) {
  const size_t rows = args.rows.size();
  Expect(args.logits, types.act, {static_cast<int64_t>(rows), args.logits.shape[1]}, "logits");
  CHECK(args.tokens.size() == rows && args.logprobs.size() == rows) << "outputs of " << rows;
  const size_t top = rows * static_cast<size_t>(args.max_top_logprobs);
  CHECK(args.top_tokens.size() == top && args.top_logprobs.size() == top)
      << "top outputs, expected " << top;
  for (const SamplingRow& row : args.rows) CHECK_LT(row.forced_token, args.logits.shape[1]);
}

}  // namespace mneme
