#include "kernels/ops/checks.h"

#include <algorithm>
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

void Check(const AddPositionsArgs& args, ActivationTypes types) {
  ExpectRank(args.table, 2, "table");
  const int64_t tokens = args.positions.shape[0];
  Expect(args.positions, DType::kI64, {tokens}, "positions");
  CHECK_GE(args.period, 0);
  Expect(args.y, types.act, {tokens, args.table.shape[1]}, "y");
}

void Check(const PositionLayerArgs& args, ActivationTypes types) {
  const int64_t tokens = args.positions.shape[0], dim = args.weight.shape[0];
  Expect(args.positions, DType::kI64, {tokens}, "positions");
  CHECK_GE(args.period, 1);
  Expect(args.weight, DType::kF32, {dim}, "weight");
  Expect(args.bias, DType::kF32, {dim}, "bias");
  Expect(args.y, types.act, {tokens, dim}, "y");
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

void Check(const LayerNormArgs& args, ActivationTypes types) {
  const Shape& shape = args.x.shape;
  CHECK(shape.rank == 2 || shape.rank == 3) << "x has shape " << ShapeToString(shape);
  const Shape channels = shape.rank == 2 ? Shape{shape[1]} : Shape{shape[1], shape[2]};
  Expect(args.x, types.act, shape, "x");
  Expect(args.weight, DType::kF32, channels, "weight");
  if (!args.bias.empty()) Expect(args.bias, DType::kF32, channels, "bias");
  ExpectRoundable(args.y, types, shape, "y");
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
    ExpectEntryRows(args.entry_rows, entries, rows);
    Expect(args.group_offsets, DType::kI32, {static_cast<int64_t>(args.weights.size()) + 1},
           "group_offsets");
  }
  if (args.bias.empty()) return;
  Expect(args.y, types.act, args.y.shape, "y, to which a bias is added,");
  Expect(args.bias, DType::kF32, {static_cast<int64_t>(args.weights.size()), first.out_features},
         "bias");
}

void Check(const AddBiasArgs& args, ActivationTypes types) {
  const int64_t entries = args.y.shape[0], dim = args.y.shape[1], groups = args.bias.shape[0];
  Expect(args.y, types.act, {entries, dim}, "y");
  Expect(args.bias, DType::kF32, {groups, dim}, "bias");
  if (args.group_offsets.empty()) {
    CHECK_EQ(groups, 1) << "biases without group_offsets";
  } else {
    Expect(args.group_offsets, DType::kI32, {groups + 1}, "group_offsets");
  }
}

void Check(const ActivateArgs& args, ActivationTypes types) {
  const int64_t rows = args.x.shape[0], entries = args.y.shape[0], dim = args.x.shape[1];
  ExpectRoundable(args.x, types, {rows, dim}, "x");
  ExpectRoundable(args.y, types, {entries, dim}, "y");
  ExpectEntryRows(args.entry_rows, entries, rows);
}

void Check(const MultiplyArgs& args, ActivationTypes types) {
  const Shape shape{args.a.shape[0], args.a.shape[1]};
  Expect(args.a, types.act, shape, "a");
  const int64_t factors = args.b.shape[1];
  CHECK(factors >= 1 && shape[1] % factors == 0) << factors << " factors of " << shape[1];
  Expect(args.b, types.act, {shape[0], factors}, "b");
  Expect(args.y, types.act, shape, "y");
}

void Check(const AddScaledArgs& args, ActivationTypes types) {
  const Shape shape{args.x.shape[0], args.x.shape[1]};
  Expect(args.x, types.act, shape, "x");
  Expect(args.scale, DType::kF32, {shape[1]}, "scale");
  Expect(args.y, types.act, shape, "y");
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

void Check(const SumNormArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types.act, args.x.shape, "x");
  Expect(args.y, types.act, args.x.shape, "y");
}

void Check(const DivideArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types.act, args.x.shape, "x");
  Expect(args.z, types.act, {args.x.shape[0], args.x.shape[1]}, "z");
  Expect(args.y, types.act, args.x.shape, "y");
}

void Check(const SoftmaxArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types.act, args.x.shape, "x");
  Expect(args.y, types.act, args.x.shape, "y");
}

void Check(const FeatureMapArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  const auto& dims = args.x.shape;
  Expect(args.x, types.act, dims, "x");
  Expect(args.y, types.act, {dims[0], dims[1], FeaturesOf(args.map) * dims[2]}, "y");
}

void Check(const RopeArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  CHECK_EQ(args.x.shape[2] % 2, 0) << "pairs of a head of " << args.x.shape[2];
  Expect(args.x, types.act, args.x.shape, "x");
  Expect(args.positions, DType::kI64, {args.x.shape[0]}, "positions");
  const int64_t half = args.x.shape[2] / 2;
  Expect(args.frequencies, DType::kF32,
         args.frequencies.shape.rank == 2 ? Shape{2, half} : Shape{half}, "frequencies");
  CHECK_GE(args.period, 0) << "period";
  Expect(args.y, types.act, args.x.shape, "y");
}

void Check(const GatedRmsNormArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types.act, args.x.shape, "x");
  if (!args.gate.empty()) ExpectRoundable(args.gate, types, args.x.shape, "gate");
  const int64_t heads = args.x.shape[1], dim = args.x.shape[2];
  Expect(args.weight, DType::kF32, args.weight.shape.rank == 2 ? Shape{heads, dim} : Shape{dim},
         "weight");
  CHECK(args.activation == Activation::kSilu || args.activation == Activation::kSigmoid)
      << "a gate that is neither silu nor sigmoid";
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

void Check(const IndexRowsArgs& args, ActivationTypes) {
  const int64_t rows = args.slots.shape[0];
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  Expect(args.positions, DType::kI64, {rows}, "positions");
  Expect(args.token_positions, DType::kI64, {args.token_positions.shape[0]}, "token_positions");
  CHECK_EQ(args.segments.count, rows) << "segments";
  Check(args.segments);
}

void Check(const CutRowsArgs& args, ActivationTypes) {
  const int64_t rows = args.slots.shape[0], tokens = args.places.shape[0];
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  Expect(args.positions, DType::kI64, {rows}, "positions");
  CHECK(args.segment >= 1 && args.round >= 0)
      << "round " << args.round << " of segments of " << args.segment;
  CHECK_GE(args.part_tokens.shape[0], std::min(tokens, rows * args.segment)) << "room";
  Expect(args.part_offsets, DType::kI32, {rows + 2}, "part_offsets");
  Expect(args.part_slots, DType::kI32, {rows + 1}, "part_slots");
  Expect(args.part_positions, DType::kI64, {rows + 1}, "part_positions");
  Expect(args.part_tokens, DType::kI32, {args.part_tokens.shape[0]}, "part_tokens");
  Expect(args.places, DType::kI32, {tokens}, "places");
}

void Check(const ExpandRowsArgs& args, ActivationTypes) {
  const int64_t rows = args.slots.shape[0];
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  Expect(args.positions, DType::kI64, {rows}, "positions");
  CHECK(args.tokens >= 0 && args.sources.shape[0] >= args.tokens)
      << args.sources.shape[0] << " places for " << args.tokens << " tokens";
  Expect(args.picks, DType::kI32, {args.picks.shape[0]}, "picks");
  Expect(args.wide_offsets, DType::kI32, {rows + 2}, "wide_offsets");
  Expect(args.wide_slots, DType::kI32, {rows + 1}, "wide_slots");
  Expect(args.wide_positions, DType::kI64, {rows + 1}, "wide_positions");
  Expect(args.sources, DType::kI32, {args.sources.shape[0]}, "sources");
  Expect(args.wide_picks, DType::kI32, {args.picks.shape[0]}, "wide_picks");
  if (!args.places.empty()) Expect(args.places, DType::kI32, {args.tokens}, "places");
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
  if (!args.bias.empty()) Expect(args.bias, DType::kF32, {channels}, "bias");
  Expect(args.y, types.act, {entries, channels}, "y");
  ExpectEntryRows(args.entry_rows, entries, rows);
  CHECK(args.activation == Activation::kSilu || args.activation == Activation::kIdentity)
      << "a convolution followed by neither silu nor nothing";
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

void Check(const DecayGatesArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  const int64_t rows = args.x.shape[0], heads = args.x.shape[1], dim = args.x.shape[2];
  const int64_t entries = args.log_decay.shape[0];
  Expect(args.x, types.act, {rows, heads, dim}, "x");
  if (!args.lower.empty()) Expect(args.lower, DType::kF32, {heads, dim}, "lower");
  if (args.gate == DecayGate::kSoftplus || args.gate == DecayGate::kBounded) {
    Expect(args.a_log, DType::kF32, {heads}, "a_log");
    Expect(args.dt_bias, DType::kF32, {heads, dim}, "dt_bias");
  }
  Expect(args.log_decay, types.act, {entries, heads, dim}, "log_decay");
  if (!args.complement.empty()) {
    Expect(args.complement, types.act, {entries, heads, dim}, "complement");
  }
  ExpectEntryRows(args.entry_rows, entries, rows);
}

void Check(const MatrixMemoryArgs& args, ActivationTypes types) {
  using Rule = MatrixRule;
  ExpectRank(args.k, 3, "k");
  ExpectRank(args.out, 3, "out");
  const int64_t entries = args.out.shape[0], heads = args.out.shape[1];
  const int64_t value_dim = args.out.shape[2], key_dim = args.k.shape[2];
  // width 0: a number for each head, without a dimension of its own.
  const auto expect = [&](const TensorView& tensor, int64_t width, const char* name) {
    ExpectRank(tensor, width > 0 ? 3 : 2, name);
    const int64_t n = tensor.shape[1];
    CHECK(n > 0 && heads % n == 0) << name << " has " << n << " heads, the memory " << heads;
    Expect(tensor, types.act, width > 0 ? Shape{entries, n, width} : Shape{entries, n}, name);
  };
  const auto expect_none = [](const TensorView& tensor, bool none, const char* name) {
    CHECK(!none || tensor.empty()) << name << " that the rule has no use for";
  };
  expect(args.q, key_dim, "q");
  expect(args.k, key_dim, "k");
  expect(args.v, value_dim, "v");
  Expect(args.out, types.act, args.out.shape, "out");
  switch (args.rule.decay) {
    case Rule::Decay::kNone:
      expect_none(args.log_decay, true, "log_decay");
      break;
    case Rule::Decay::kConstant:
      Expect(args.log_decay, DType::kF32, {heads}, "log_decay");
      break;
    case Rule::Decay::kHead:
      expect(args.log_decay, 0, "log_decay");
      break;
    case Rule::Decay::kKey:
      expect(args.log_decay, key_dim, "log_decay");
      break;
    case Rule::Decay::kValue:
      expect(args.log_decay, value_dim, "log_decay");
      break;
  }
  const bool delta = args.rule.correction == Rule::Correction::kDelta;
  const bool general = args.rule.correction == Rule::Correction::kGeneral;
  const bool bonus = args.rule.read == Rule::Read::kBeforeWithBonus;
  if (delta) expect(args.beta, 0, "beta");
  if (general) {
    expect(args.c, key_dim, "c");
    expect(args.e, key_dim, "e");
  }
  if (bonus) Expect(args.bonus, DType::kF32, {heads, key_dim}, "bonus");
  expect_none(args.beta, !delta, "beta");
  expect_none(args.c, !general, "c");
  expect_none(args.e, !general, "e");
  expect_none(args.bonus, !bonus, "bonus");
  Check(args.segments);
}

void Check(const TokenShiftArgs& args, ActivationTypes types) {
  const int64_t entries = args.x.shape[0], dim = args.x.shape[1], mixes = args.mix.shape[0];
  Expect(args.x, types.act, {entries, dim}, "x");
  Expect(args.mix, DType::kF32, {mixes, dim}, "mix");
  if (!args.token_mix.empty()) {
    Expect(args.token_mix, types.act, {mixes, entries, dim}, "token_mix");
  }
  ExpectRoundable(args.y, types, {mixes, entries, dim}, "y");
  Check(args.segments);
}

void Check(const Rwkv7GatesArgs& args, ActivationTypes types) {
  ExpectRank(args.k, 3, "k");
  const Shape& shape = args.k.shape;
  const Shape channels = {shape[1], shape[2]};
  Expect(args.k, types.act, shape, "k");
  Expect(args.decay, types.act, shape, "decay");
  Expect(args.rate, types.act, shape, "rate");
  Expect(args.decay_bias, DType::kF32, channels, "decay_bias");
  Expect(args.rate_bias, DType::kF32, channels, "rate_bias");
  Expect(args.k_k, DType::kF32, channels, "k_k");
  Expect(args.k_a, DType::kF32, channels, "k_a");
  Expect(args.log_decay, types.act, shape, "log_decay");
  Expect(args.c, types.act, shape, "c");
  Expect(args.e, types.act, shape, "e");
}

void Check(const ValueResidualArgs& args, ActivationTypes types) {
  const Shape shape{args.v.shape[0], args.v.shape[1]};
  Expect(args.v, types.act, shape, "v");
  Expect(args.first, types.act, shape, "first");
  const int64_t gates = args.gate.shape[1];
  CHECK(gates >= 1 && shape[1] % gates == 0) << gates << " gates of " << shape[1] << " channels";
  Expect(args.gate, types.act, {shape[0], gates}, "gate");
  Expect(args.bias, DType::kF32, {gates}, "bias");
}

void Check(const Rwkv7OutputArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  ExpectRank(args.r, 3, "r");
  const Shape& shape = args.x.shape;
  const int64_t entries = shape[0], heads = shape[1], key_dim = args.r.shape[2];
  Expect(args.x, types.act, shape, "x");
  Expect(args.weight, DType::kF32, {heads, shape[2]}, "weight");
  Expect(args.bias, DType::kF32, {heads, shape[2]}, "bias");
  Expect(args.r, types.act, {entries, heads, key_dim}, "r");
  Expect(args.k, types.act, {entries, heads, key_dim}, "k");
  Expect(args.r_k, DType::kF32, {heads, key_dim}, "r_k");
  Expect(args.v, types.act, shape, "v");
  Expect(args.gate, types.act, shape, "gate");
  ExpectRoundable(args.y, types, shape, "y");
}

void Check(const SelectiveScanArgs& args, ActivationTypes types) {
  const int64_t entries = args.u.shape[0], channels = args.u.shape[1], states = args.a.shape[0];
  CHECK(states >= 1 && states <= kMaxScanStates) << "a scan of " << states << " states";
  Expect(args.u, types.act, {entries, channels}, "u");
  Expect(args.dt, types.act, {entries, channels}, "dt");
  Expect(args.b, types.act, {entries, states}, "b");
  Expect(args.c, types.act, {entries, states}, "c");
  Expect(args.a, DType::kF32, {states, channels}, "a");
  Expect(args.dt_bias, DType::kF32, {channels}, "dt_bias");
  Expect(args.skip, DType::kF32, {channels}, "skip");
  Expect(args.gate, types.act, {entries, channels}, "gate");
  Check(args.segments);
  CHECK(args.state.dtype == types.act) << "state is " << Name(args.state.dtype);
  ExpectRoundable(args.y, types, {entries, channels}, "y");
}

void Check(const DiscretizeArgs& args, ActivationTypes types) {
  ExpectRank(args.u, 3, "u");
  const int64_t entries = args.u.shape[0], heads = args.u.shape[1];
  Expect(args.u, types.act, args.u.shape, "u");
  Expect(args.dt, types.act, {entries, heads}, "dt");
  Expect(args.dt_bias, DType::kF32, {heads}, "dt_bias");
  Expect(args.a, DType::kF32, {heads}, "a");
  CHECK(args.least_step <= args.most_step)
      << "steps from " << args.least_step << " to " << args.most_step;
  Expect(args.log_decay, types.act, {entries, heads}, "log_decay");
  Expect(args.v, types.act, args.u.shape, "v");
}

void Check(const AttentionArgs& args, ActivationTypes types) {
  ExpectRank(args.q, 3, "q");
  ExpectRank(args.k, 3, "k");
  ExpectRank(args.v, 3, "v");
  const int64_t tokens = args.q.shape[0], heads = args.q.shape[1], key_dim = args.q.shape[2];
  const int64_t kv_heads = args.k.shape[1], value_dim = args.v.shape[2];
  const int64_t rows = args.slots.shape[0];
  CHECK(kv_heads > 0 && heads % kv_heads == 0) << "k has " << kv_heads << " heads, q " << heads;
  Expect(args.q, types.act, {tokens, heads, key_dim}, "q");
  Expect(args.k, types.act, {tokens, kv_heads, key_dim}, "k");
  Expect(args.v, types.act, {tokens, kv_heads, value_dim}, "v");
  Expect(args.out, types.act, {tokens, heads, value_dim}, "out");
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  Expect(args.positions, DType::kI64, {rows}, "positions");
  const ContextTable& table = args.keys.table;
  ExpectRank(table.offsets, 2, "table");
  Expect(table.offsets, DType::kI64, table.offsets.shape, "table");
  CHECK(table.base != nullptr && table.base == args.values.table.base &&
        table.offsets.data == args.values.table.offsets.data)
      << "keys and values of different tables";
  CHECK_GE(args.keys.row_bytes, kv_heads * key_dim * SizeOf(args.keys.dtype)) << "keys";
  CHECK_GE(args.values.row_bytes, kv_heads * value_dim * SizeOf(args.values.dtype)) << "values";
  const int64_t prefix = args.prefix_keys.empty() ? 0 : args.prefix_keys.shape[0];
  if (prefix > 0) {
    Expect(args.prefix_keys, types.act, {prefix, kv_heads, key_dim}, "prefix_keys");
    Expect(args.prefix_values, types.act, {prefix, kv_heads, value_dim}, "prefix_values");
  }
  if (!args.other_k.empty()) {
    Expect(args.other_k, types.act, {tokens, kv_heads, key_dim}, "other_k");
    Expect(args.other_v, types.act, {tokens, kv_heads, value_dim}, "other_v");
    CHECK(args.other_keys.table.offsets.data == table.offsets.data &&
          args.other_values.table.offsets.data == table.offsets.data)
        << "the other keys and values of other tables";
  }
  CHECK(args.segment >= 0 && args.segment <= table.positions() &&
        (args.segment == 0 || args.window == 0))
      << "segments of " << args.segment << " over " << table.positions() << " positions";
  CHECK(args.window >= 0 && args.window <= table.positions())
      << "a window of " << args.window << " over " << table.positions() << " positions";
}

void Check(const NeuralMemoryArgs& args, ActivationTypes types) {
  using Read = NeuralMemoryArgs::Read;
  const MemoryNetwork& network = args.network;
  ExpectRank(args.q, 3, "q");
  const int64_t entries = args.q.shape[0], heads = args.q.shape[1], dim = args.q.shape[2];
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  CHECK(network.depth >= 1 && network.depth <= kMaxMemoryDepth) << "depth " << network.depth;
  CHECK(network.depth == 1 || network.hidden >= 1) << "hidden " << network.hidden;
  CHECK(normed || !network.trains_gain) << "a gain without a norm";
  Expect(args.q, types.act, args.q.shape, "q");
  Expect(args.out, types.act, args.q.shape, "out");
  if (!args.gain.empty()) {
    CHECK(normed && !network.trains_gain) << "a gain beside a trained one, or without a norm";
    Expect(args.gain, DType::kF32, {heads, dim}, "gain");
    Expect(args.shift, DType::kF32, {heads, dim}, "shift");
  }
  CHECK(!normed || network.trains_gain || !args.gain.empty()) << "a norm without a gain";
  Expect(args.positions, DType::kI64, {entries}, "positions");
  Check(args.segments);
  CHECK_GE(args.step, 1) << "step";
  CHECK(args.anchor_period % args.step == 0) << "anchor_period " << args.anchor_period;
  const auto expect_copy = [&](const MemoryCopy& copy, const char* name) {
    for (int i = 0; i < network.tensors(); ++i) {
      CHECK(copy.at[i].base != nullptr && copy.at[i].dtype == types.act) << name << " " << i;
    }
  };
  const auto expect_initial = [&](const MemoryInitial& initial, bool needed, const char* name,
                                  int64_t rows) {
    for (int i = 0; i < network.tensors(); ++i) {
      const TensorView& tensor = initial.at[i];
      if (tensor.empty() && !needed) continue;
      const Shape one = network.shape(i, dim);
      CHECK(tensor.dtype == DType::kF32 || tensor.dtype == types.act) << name << " " << i;
      ExpectShape(tensor, one.rank == 2 ? Shape{rows, one[0], one[1]} : Shape{rows, one[0]}, name);
    }
  };
  expect_copy(args.weights, "weights");
  expect_initial(args.initial_weights, true, "initial weights", heads);
  if (args.frozen_period != 0) expect_copy(args.frozen, "frozen");
  CHECK(args.read != Read::kFrozen || args.frozen_period != 0) << "no F to read";
  if (args.stores_anchor()) expect_copy(args.anchors, "anchors");
  if (!args.trains()) return;
  CHECK_GE(args.keys, 1) << "keys";
  const int64_t pairs = heads * args.keys;
  Expect(args.k, types.act, {entries, pairs, dim}, "k");
  Expect(args.v, types.act, {entries, pairs, dim}, "v");
  Expect(args.rate, types.act, {entries, pairs}, "rate");
  if (!args.loss.empty()) Expect(args.loss, types.act, {entries, pairs}, "loss");
  const int64_t orders = args.orders();
  if (orders > 0) {
    CHECK_LE(orders, kMaxMomentumOrders) << "orders of momentum";
    Expect(args.momentum, types.act, {entries, heads * orders}, "momentum");
    expect_copy(args.momenta, "momenta");
  }
  if (!args.momentum_mix.empty()) {
    CHECK_GE(orders, 1) << "a mix of no momenta";
    const bool zeroth = args.momentum_mix.shape[1] == heads * (orders + 1);
    Expect(args.momentum_mix, types.act, {entries, heads * (orders + (zeroth ? 1 : 0))},
           "momentum_mix");
  }
  if (!args.keep.empty()) Expect(args.keep, types.act, {entries, heads}, "keep");
  if (!args.tensor_rates.empty()) {
    Expect(args.tensor_rates, types.act, {entries, heads * network.tensors()}, "tensor_rates");
  }
  if (args.has_residual()) {
    Expect(args.residual_mix, types.act, {entries, heads}, "residual_mix");
    expect_copy(args.residual, "residual");
  }
  if (!args.transition.empty()) Expect(args.transition, DType::kF32, {1}, "transition");
  if (args.before.at[0].base != nullptr) expect_copy(args.before, "before");
  if (!args.step_scale.empty()) {
    Expect(args.step_scale, DType::kF32, {args.step}, "step_scale");
  }
  CHECK_GE(args.max_grad_norm, 0) << "max_grad_norm";
  CHECK(args.read != Read::kAhead ||
        (args.momentum.empty() && args.keep.empty() && args.tensor_rates.empty() &&
         args.max_grad_norm == 0 && !args.spectral_norm && !args.has_residual() &&
         args.transition.empty() && args.step > 1))
      << "reading ahead of a step that does not only take G off W, or of one token";
  if (args.anchor_period == 0) expect_initial(args.initial_anchor, true, "initial anchor", heads);
  if (args.read == Read::kAhead) expect_copy(args.gradients, "gradients");
  if (args.stores_pairs()) {
    const int64_t held = (args.step - 1) * args.keys;
    const auto expect_pairs = [&](const StateView& view, const TensorView& initial,
                                  const Shape& shape, const char* name) {
      CHECK(view.base != nullptr && view.dtype == types.act) << "pending " << name;
      if (initial.empty()) return;
      CHECK(initial.dtype == DType::kF32 || initial.dtype == types.act) << "initial " << name;
      ExpectShape(initial, shape, name);
    };
    expect_pairs(args.pending.k, args.initial_pending.k, {heads, held, dim}, "keys");
    expect_pairs(args.pending.v, args.initial_pending.v, {heads, held, dim}, "values");
    expect_pairs(args.pending.rate, args.initial_pending.rate, {heads, held}, "rates");
  }
  expect_initial(args.initial_momenta, false, "initial momenta", heads * orders);
  expect_initial(args.initial_anchors, false, "initial anchors", heads);
  expect_initial(args.initial_frozen, false, "initial frozen", heads);
  expect_initial(args.initial_gradients, false, "initial gradients", heads);
}

void Check(const KeepGateArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 2, "x");
  Expect(args.x, types.act, args.x.shape, "x");
  if (!args.a_log.empty()) {
    Expect(args.a_log, DType::kF32, {args.x.shape[1]}, "a_log");
    Expect(args.dt_bias, DType::kF32, {args.x.shape[1]}, "dt_bias");
  }
  Expect(args.y, types.act, args.x.shape, "y");
}

void Check(const ChunkMeanArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 2, "x");
  CHECK_GE(args.chunk, 1) << "chunk";
  Expect(args.x, types.act, args.x.shape, "x");
  Expect(args.positions, DType::kI64, {args.x.shape[0]}, "positions");
  Check(args.segments);
  CHECK(args.sums.dtype == types.act) << "sums are " << Name(args.sums.dtype);
  Expect(args.y, types.act, args.x.shape, "y");
}

namespace {

void CheckRows(const TensorView& row_offsets, const TensorView& slots, const TensorView& positions,
               int segment) {
  const int64_t rows = slots.shape[0];
  Expect(row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(slots, DType::kI32, {rows}, "slots");
  Expect(positions, DType::kI64, {rows}, "positions");
  CHECK_GE(segment, 1) << "segment";
}

void Check(const Crossings& crossings) {
  Expect(crossings.slots, DType::kI32, {crossings.most()}, "crossings.slots");
  Expect(crossings.segments, DType::kI32, {crossings.most()}, "crossings.segments");
}

void ExpectState(const StateView& field, DType dtype, const char* name) {
  CHECK(field.base != nullptr) << name << " are missing";
  CHECK(field.dtype == dtype) << name << " are " << Name(field.dtype) << ", expected "
                              << Name(dtype);
}

void Check(const EngramRules& rules, const EngramStore& store, ActivationTypes types) {
  CHECK_GE(rules.working, 1) << "working";
  CHECK_GE(rules.recalled_short, 1) << "recalled_short";
  CHECK_GE(rules.recalled_long, 0) << "recalled_long";
  CHECK_GE(store.capacity, rules.least_capacity()) << "capacity";
  ExpectState(store.types, DType::kU8, "types");
  ExpectState(store.vectors, types.act, "vectors");
  ExpectState(store.lifespans, types.act, "lifespans");
  ExpectState(store.births, DType::kI32, "births");
  ExpectState(store.counts, DType::kU16, "counts");
  ExpectState(store.recalled, DType::kI32, "recalled");
  ExpectState(store.facts, DType::kI32, "facts");
}

}  // namespace

void Check(const FindCrossingsArgs& args, ActivationTypes) {
  CheckRows(args.row_offsets, args.slots, args.positions, args.segment);
  Check(args.crossings);
  CHECK_GE(args.first, 0) << "first";
  Expect(args.working_entries, DType::kI32, {2}, "working_entries");
  Expect(args.attended_entries, DType::kI32, {2}, "attended_entries");
}

void Check(const CommitEngramsArgs& args, ActivationTypes types) {
  Check(args.rules, args.store, types);
  Check(args.crossings);
  ExpectState(args.sums, types.act, "sums");
}

void Check(const EncodeTokensArgs& args, ActivationTypes types) {
  ExpectRank(args.h, 2, "h");
  Expect(args.h, types.act, args.h.shape, "h");
  CheckRows(args.row_offsets, args.slots, args.positions, args.segment);
  ExpectState(args.sums, types.act, "sums");
  if (args.queries.empty()) return;
  Expect(args.queries, DType::kF32, {args.queries.shape[0], args.h.shape[1]}, "queries");
  ExpectState(args.largest, types.act, "largest");
  ExpectState(args.total, types.act, "total");
}

void Check(const ReadEncoderArgs& args, ActivationTypes types) {
  Check(args.crossings);
  ExpectState(args.sums, types.act, "sums");
  Expect(args.x, types.act, {args.crossings.most() * args.working, args.x.shape[1]}, "x");
}

void Check(const WriteEngramsArgs& args, ActivationTypes types) {
  Check(args.rules, args.store, types);
  Check(args.crossings);
  Expect(args.x, types.act, {args.crossings.most() * args.rules.working, args.store.dim}, "x");
}

void Check(const ScoreEngramsArgs& args, ActivationTypes types) {
  Check(args.rules, args.store, types);
  Check(args.crossings);
  Expect(args.scores, types.act, {args.crossings.most(), args.store.capacity + 1}, "scores");
}

void Check(const RetrieveEngramsArgs& args, ActivationTypes types) {
  Check(args.rules, args.store, types);
  Check(args.crossings);
  Expect(args.scores, types.act, {args.crossings.most(), args.store.capacity + 1}, "scores");
}

void Check(const GatherEngramsArgs& args, ActivationTypes types) {
  Check(args.rules, args.store, types);
  Check(args.crossings);
  Expect(args.x, types.act, {args.crossings.most() * args.rules.attended(), args.store.dim}, "x");
}

void Check(const StoreEngramContextArgs& args, ActivationTypes types) {
  Check(args.crossings);
  ExpectRank(args.k, 3, "k");
  Expect(args.k, types.act, args.k.shape, "k");
  Expect(args.v, types.act, args.k.shape, "v");
  CHECK_EQ(args.k.shape[0] % args.crossings.most(), 0) << "engrams of a crossing";
  ExpectState(args.keys, types.act, "keys");
  ExpectState(args.values, types.act, "values");
}

void Check(const EngramAttentionArgs& args, ActivationTypes types) {
  ExpectRank(args.q, 3, "q");
  Expect(args.q, types.act, args.q.shape, "q");
  Expect(args.out, types.act, args.q.shape, "out");
  CheckRows(args.row_offsets, args.slots, args.positions, args.segment);
  ExpectState(args.keys, types.act, "keys");
  ExpectState(args.values, types.act, "values");
  if (args.sums.base == nullptr) return;
  ExpectState(args.sums, types.act, "sums");
  CHECK_LE(args.count, args.recalled) << "count";
}

void Check(const AddFromArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 2, "x");
  Expect(args.x, types.act, args.x.shape, "x");
  Expect(args.positions, DType::kI64, {args.x.shape[0]}, "positions");
  Expect(args.y, types.act, args.x.shape, "y");
}

void Check(const ChunkPoolArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 2, "x");
  CHECK_GE(args.chunk, 1) << "chunk";
  Expect(args.x, types.act, args.x.shape, "x");
  Expect(args.logits, types.act, args.x.shape, "logits");
  Expect(args.positions, DType::kI64, {args.x.shape[0]}, "positions");
  Check(args.segments);
  CHECK(args.sums.dtype == types.act) << "sums are " << Name(args.sums.dtype);
  Expect(args.y, types.act, args.x.shape, "y");
}

void Check(const SurpriseArgs& args, ActivationTypes types) {
  ExpectRank(args.loss, 2, "loss");
  ExpectRank(args.read, 3, "read");
  CHECK_GE(args.loss.shape[1], 1) << "loss";
  const int64_t entries = args.loss.shape[0];
  Expect(args.loss, types.act, args.loss.shape, "loss");
  Expect(args.read, types.act, {entries, args.read.shape[1], args.read.shape[2]}, "read");
  const int64_t tokens = args.surprise.shape[0];
  Expect(args.surprise, DType::kF32, {tokens}, "surprise");
  if (args.places.empty() && args.outer.empty()) {
    CHECK_EQ(tokens, entries) << "entries, without places";
  }
  if (!args.outer.empty()) Expect(args.outer, DType::kI32, {tokens}, "outer");
  if (!args.places.empty()) {
    const int64_t places = args.outer.empty() ? tokens : args.places.shape[0];
    Expect(args.places, DType::kI32, {places}, "places");
  }
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

void Check(const ExpandStreamsArgs& args, ActivationTypes types) {
  ExpectRank(args.y, 3, "y");
  const Shape& shape = args.y.shape;
  Expect(args.x, types.act, {shape[0], shape[2]}, "x");
  Expect(args.embedding, DType::kF32, {shape[1], shape[2]}, "embedding");
  Expect(args.y, types.act, shape, "y");
}

void Check(const ReadStreamsArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  const int64_t tokens = args.x.shape[0], streams = args.x.shape[1], dim = args.x.shape[2];
  CHECK(streams >= 1 && streams <= kMaxResidualStreams) << streams << " streams";
  Expect(args.mixing.gain, DType::kF32, {dim}, "gain");
  Expect(args.mixing.alpha, DType::kF32, {streams, 1 + streams}, "alpha");
  Expect(args.mixing.alpha_weight, DType::kF32, {1 + streams, dim}, "alpha_weight");
  Expect(args.mixing.scales, DType::kF32, {3}, "scales");
  Expect(args.x, types.act, {tokens, streams, dim}, "x");
  Expect(args.y, types.act, {tokens, dim}, "y");
  if (args.mixing.beta.empty()) return;
  Expect(args.mixing.beta, DType::kF32, {streams}, "beta");
  Expect(args.mixing.beta_weight, DType::kF32, {dim}, "beta_weight");
  Expect(args.post, types.act, {tokens, streams}, "post");
}

void Check(const WriteStreamsArgs& args, ActivationTypes types) {
  ExpectRank(args.y, 3, "y");
  const Shape& shape = args.y.shape;
  Expect(args.x, types.act, {shape[0], shape[2]}, "x");
  Expect(args.post, types.act, {shape[0], shape[1]}, "post");
  Expect(args.y, types.act, shape, "y");
}

void Check(const SumStreamsArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types.act, args.x.shape, "x");
  Expect(args.y, types.act, {args.x.shape[0], args.x.shape[2]}, "y");
}

void Check(const MixViewsArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  const int64_t count = args.x.shape[0], tokens = args.x.shape[1], dim = args.x.shape[2];
  const int64_t views = args.y.shape[0];
  Expect(args.x, types.act, {count, tokens, dim}, "x");
  Expect(args.weights, types.act, {tokens, views, count}, "weights");
  Expect(args.y, types.act, {views, tokens, dim}, "y");
}

void Check(const IndexWholeSegmentsArgs& args, ActivationTypes) {
  const int64_t rows = args.row_positions.shape[0], tokens = args.token_ids.shape[0];
  Expect(args.token_ids, DType::kI32, {tokens}, "token_ids");
  if (!args.token_types.empty()) Expect(args.token_types, DType::kI32, {tokens}, "token_types");
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.row_positions, DType::kI64, {rows}, "row_positions");
  CHECK_GE(args.segment, 1) << "segment";
  Expect(args.picks, DType::kI32, {args.picks.shape[0]}, "picks");
  Expect(args.positions, DType::kI64, {tokens}, "positions");
  Expect(args.types, DType::kI64, {tokens}, "types");
  Expect(args.seen, DType::kI32, {rows}, "seen");
  Expect(args.next_positions, DType::kI64, {rows}, "next_positions");
  Expect(args.firsts, DType::kI32, {args.picks.shape[0]}, "firsts");
}

void Check(const SegmentAttentionArgs& args, ActivationTypes types) {
  ExpectRank(args.q, 3, "q");
  const int64_t rows = args.slots.shape[0];
  Expect(args.q, types.act, args.q.shape, "q");
  Expect(args.k, types.act, args.q.shape, "k");
  Expect(args.v, types.act, args.q.shape, "v");
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  Expect(args.seen, DType::kI32, {rows}, "seen");
  Expect(args.out, types.act, args.q.shape, "out");
}

}  // namespace mneme
