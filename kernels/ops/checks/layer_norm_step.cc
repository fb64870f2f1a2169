#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {
namespace {

void Check(const StepNorm& norm, int64_t dim) {
  Expect(norm.weight, DType::kF32, {dim}, "norm.weight");
  if (!norm.bias.empty()) Expect(norm.bias, DType::kF32, {dim}, "norm.bias");
  CHECK(norm.centred || norm.bias.empty()) << "RmsNorm with a bias";
}

void Check(const StepProduct& product, int64_t out, int64_t in, const char* name) {
  CHECK(product.weights.out_features == out && product.weights.in_features == in)
      << name << " is " << product.weights.out_features << " x " << product.weights.in_features
      << ", expected " << out << " x " << in;
  if (!product.bias.empty()) Expect(product.bias, DType::kF32, {1, out}, "bias");
}

// The rows and the width of what a step is of.
Shape CheckHidden(const TensorView& hidden, ActivationTypes types) {
  ExpectRank(hidden, 2, "hidden");
  Expect(hidden, types.act, hidden.shape, "hidden");
  return hidden.shape;
}

}  // namespace

void Check(const NormedProductsStepArgs& args, ActivationTypes types) {
  const Shape shape = CheckHidden(args.hidden, types);
  Check(args.norm, shape[1]);
  CHECK(!args.products.empty()) << "a step without products";
  for (const auto& [product, y] : args.products) {
    Check(product, product.weights.out_features, shape[1], "a product's matrix");
    Expect(y, types, {shape[0], product.weights.out_features}, "y");
  }
}

void Check(const ResidualProductStepArgs& args, ActivationTypes types) {
  const Shape shape = CheckHidden(args.hidden, types);
  ExpectRank(args.x, 2, "x");
  Expect(args.x, types, {shape[0], args.x.shape[1]}, "x");
  Check(args.product, shape[1], args.x.shape[1], "the product's matrix");
  if (!args.positions.empty()) Expect(args.positions, DType::kI64, {shape[0]}, "positions");
}

void Check(const EngramReadStepArgs& args, ActivationTypes types) {
  const Shape shape = CheckHidden(args.hidden, types);
  Check(args.norm, shape[1]);
  CHECK(args.norm.centred) << "RmsNorm ahead of engrams";
  Check(args.engrams, types);
  const TensorView& q = args.engrams.q;
  CHECK_EQ(q.shape[0], shape[0]) << "tokens of attention";
  Check(args.q, q.shape[1] * q.shape[2], shape[1], "q's matrix");
}

void Check(const NormedConvolutionStepArgs& args, ActivationTypes types) {
  const Shape shape = CheckHidden(args.hidden, types);
  Check(args.norm, shape[1]);
  CHECK(!args.norm.centred) << "LayerNorm ahead of a convolution";
  Check(args.convolution, types);
  Expect(args.convolution.x, types.act, shape, "convolution.x");
  Expect(args.convolution.y, types.act, shape, "convolution.y");
}

void Check(const NormedGateStepArgs& args, ActivationTypes types) {
  const Shape shape = CheckHidden(args.hidden, types);
  for (const NormedGateStepArgs::Factor& factor : args.factors) {
    Check(factor.norm, shape[1]);
    CHECK(!factor.norm.centred) << "LayerNorm of a factor";
    Expect(factor.x, types.act, shape, "x");
  }
}

}  // namespace mneme
