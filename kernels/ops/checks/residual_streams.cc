#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {

void Check(const ExpandStreamsArgs& args, ActivationTypes types) {
  ExpectRank(args.y, 3, "y");
  const Shape& shape = args.y.shape;
  Expect(args.x, types, {shape[0], shape[2]}, "x");
  Expect(args.embedding, DType::kF32, {shape[1], shape[2]}, "embedding");
  Expect(args.y, types, shape, "y");
}

void Check(const ReadStreamsArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  const int64_t tokens = args.x.shape[0], streams = args.x.shape[1], dim = args.x.shape[2];
  CHECK(streams >= 1 && streams <= kMaxResidualStreams) << streams << " streams";
  Expect(args.mixing.gain, DType::kF32, {dim}, "gain");
  Expect(args.mixing.alpha, DType::kF32, {streams, 1 + streams}, "alpha");
  Expect(args.mixing.alpha_weight, DType::kF32, {1 + streams, dim}, "alpha_weight");
  Expect(args.mixing.scales, DType::kF32, {3}, "scales");
  Expect(args.x, types, {tokens, streams, dim}, "x");
  Expect(args.y, types, {tokens, dim}, "y");
  if (args.mixing.beta.empty()) return;
  Expect(args.mixing.beta, DType::kF32, {streams}, "beta");
  Expect(args.mixing.beta_weight, DType::kF32, {dim}, "beta_weight");
  Expect(args.post, types, {tokens, streams}, "post");
}

void Check(const WriteStreamsArgs& args, ActivationTypes types) {
  ExpectRank(args.y, 3, "y");
  const Shape& shape = args.y.shape;
  Expect(args.x, types, {shape[0], shape[2]}, "x");
  Expect(args.post, types, {shape[0], shape[1]}, "post");
  Expect(args.y, types, shape, "y");
}

void Check(const SumStreamsArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  Expect(args.x, types, args.x.shape, "x");
  Expect(args.y, types, {args.x.shape[0], args.x.shape[2]}, "y");
}

void Check(const MixViewsArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  const int64_t count = args.x.shape[0], tokens = args.x.shape[1], dim = args.x.shape[2];
  const int64_t views = args.y.shape[0];
  Expect(args.x, types, {count, tokens, dim}, "x");
  Expect(args.weights, types, {tokens, views, count}, "weights");
  Expect(args.y, types, {views, tokens, dim}, "y");
}

}  // namespace mneme
