#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"
#include "kernels/tensor.h"

namespace mneme {

void Check(const EmbeddingArgs& args, ActivationTypes types) {
  ExpectRank(args.table, 2, "table");
  const int64_t tokens = args.ids.shape[0];
  Expect(args.ids, DType::kI32, {tokens}, "ids");
  Expect(args.y, types, {tokens, args.table.shape[1]}, "y");
}

void Check(const AddPositionsArgs& args, ActivationTypes types) {
  ExpectRank(args.table, 2, "table");
  const int64_t tokens = args.positions.shape[0];
  Expect(args.positions, DType::kI64, {tokens}, "positions");
  CHECK_GE(args.period, 0);
  Expect(args.y, types, {tokens, args.table.shape[1]}, "y");
}

void Check(const PositionLayerArgs& args, ActivationTypes types) {
  const int64_t tokens = args.positions.shape[0], dim = args.weight.shape[0];
  Expect(args.positions, DType::kI64, {tokens}, "positions");
  CHECK_GE(args.period, 1);
  Expect(args.weight, DType::kF32, {dim}, "weight");
  Expect(args.bias, DType::kF32, {dim}, "bias");
  Expect(args.y, types, {tokens, dim}, "y");
}

void Check(const GatherRowsArgs& args, ActivationTypes types) {
  const int64_t n = args.indices.shape[0], dim = args.x.shape[1];
  Expect(args.x, types, {args.x.shape[0], dim}, "x");
  Expect(args.indices, DType::kI32, {n}, "indices");
  Expect(args.y, types, {n, dim}, "y");
}

void Check(const RmsNormArgs& args, ActivationTypes types) {
  const int64_t tokens = args.x.shape[0], dim = args.x.shape[1];
  Expect(args.x, types, {tokens, dim}, "x");
  Expect(args.weight, DType::kF32, {dim}, "weight");
  Expect(args.y, types, {tokens, dim}, "y");
}

void Check(const LayerNormArgs& args, ActivationTypes types) {
  const Shape& shape = args.x.shape;
  CHECK(shape.rank == 2 || shape.rank == 3) << "x has shape " << ShapeToString(shape);
  const Shape channels = shape.rank == 2 ? Shape{shape[1]} : Shape{shape[1], shape[2]};
  Expect(args.x, types, shape, "x");
  Expect(args.weight, DType::kF32, channels, "weight");
  if (!args.bias.empty()) Expect(args.bias, DType::kF32, channels, "bias");
  Expect(args.y, types, shape, "y");
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
  Expect(args.x, types, {rows, first.in_features}, "x");
  Expect(args.y, types, {entries, first.out_features}, "y");
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
  Expect(args.y, types, args.y.shape, "y, to which a bias is added,");
  Expect(args.bias, DType::kF32, {static_cast<int64_t>(args.weights.size()), first.out_features},
         "bias");
}

void Check(const AddBiasArgs& args, ActivationTypes types) {
  const int64_t entries = args.y.shape[0], dim = args.y.shape[1], groups = args.bias.shape[0];
  Expect(args.y, types, {entries, dim}, "y");
  Expect(args.bias, DType::kF32, {groups, dim}, "bias");
  if (args.group_offsets.empty()) {
    CHECK_EQ(groups, 1) << "biases without group_offsets";
  } else {
    Expect(args.group_offsets, DType::kI32, {groups + 1}, "group_offsets");
  }
}

void Check(const ActivateArgs& args, ActivationTypes types) {
  const int64_t rows = args.x.shape[0], entries = args.y.shape[0], dim = args.x.shape[1];
  Expect(args.x, types, {rows, dim}, "x");
  Expect(args.y, types, {entries, dim}, "y");
  ExpectEntryRows(args.entry_rows, entries, rows);
}

void Check(const MultiplyArgs& args, ActivationTypes types) {
  const Shape shape{args.a.shape[0], args.a.shape[1]};
  Expect(args.a, types, shape, "a");
  const int64_t factors = args.b.shape[1];
  CHECK(factors >= 1 && shape[1] % factors == 0) << factors << " factors of " << shape[1];
  Expect(args.b, types, {shape[0], factors}, "b");
  Expect(args.y, types, shape, "y");
}

void Check(const AddScaledArgs& args, ActivationTypes types) {
  const Shape shape{args.x.shape[0], args.x.shape[1]};
  Expect(args.x, types, shape, "x");
  Expect(args.scale, DType::kF32, {shape[1]}, "scale");
  Expect(args.y, types, shape, "y");
}

void Check(const SwiGluArgs& args, ActivationTypes types) {
  const Shape shape{args.gate.shape[0], args.gate.shape[1]};
  Expect(args.gate, types, shape, "gate");
  Expect(args.up, types, shape, "up");
  Expect(args.y, types, shape, "y");
}

void Check(const L2NormArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types, args.x.shape, "x");
  Expect(args.y, types, args.x.shape, "y");
}

void Check(const SumNormArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types, args.x.shape, "x");
  Expect(args.y, types, args.x.shape, "y");
}

void Check(const DivideArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types, args.x.shape, "x");
  Expect(args.z, types, {args.x.shape[0], args.x.shape[1]}, "z");
  Expect(args.y, types, args.x.shape, "y");
}

void Check(const SoftmaxArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types, args.x.shape, "x");
  Expect(args.y, types, args.x.shape, "y");
}

void Check(const FeatureMapArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  const auto& dims = args.x.shape;
  Expect(args.x, types, dims, "x");
  Expect(args.y, types, {dims[0], dims[1], FeaturesOf(args.map) * dims[2]}, "y");
}

void Check(const RopeArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  CHECK_EQ(args.x.shape[2] % 2, 0) << "pairs of a head of " << args.x.shape[2];
  Expect(args.x, types, args.x.shape, "x");
  Expect(args.positions, DType::kI64, {args.x.shape[0]}, "positions");
  const int64_t half = args.x.shape[2] / 2;
  Expect(args.frequencies, DType::kF32,
         args.frequencies.shape.rank == 2 ? Shape{2, half} : Shape{half}, "frequencies");
  CHECK_GE(args.period, 0) << "period";
  Expect(args.y, types, args.x.shape, "y");
}

void Check(const GatedRmsNormArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types, args.x.shape, "x");
  if (!args.gate.empty()) Expect(args.gate, types, args.x.shape, "gate");
  const int64_t heads = args.x.shape[1], dim = args.x.shape[2];
  Expect(args.weight, args.weight.dtype == types.act ? types.act : DType::kF32,
         args.weight.shape.rank == 2 ? Shape{heads, dim} : Shape{dim}, "weight");
  CHECK(args.activation == Activation::kSilu || args.activation == Activation::kSigmoid)
      << "a gate that is neither silu nor sigmoid";
  Expect(args.y, types, args.x.shape, "y");
}

}  // namespace mneme
