#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {

void Check(const TokenShiftArgs& args, ActivationTypes types) {
  const int64_t entries = args.x.shape[0], dim = args.x.shape[1], mixes = args.mix.shape[0];
  Expect(args.x, types, {entries, dim}, "x");
  Expect(args.mix, DType::kF32, {mixes, dim}, "mix");
  if (!args.token_mix.empty()) {
    Expect(args.token_mix, types, {mixes, entries, dim}, "token_mix");
  }
  Expect(args.y, types, {mixes, entries, dim}, "y");
  Check(args.segments);
}

void Check(const Rwkv7GatesArgs& args, ActivationTypes types) {
  ExpectRank(args.k, 3, "k");
  const Shape& shape = args.k.shape;
  const Shape channels = {shape[1], shape[2]};
  Expect(args.k, types, shape, "k");
  Expect(args.decay, types, shape, "decay");
  Expect(args.rate, types, shape, "rate");
  Expect(args.decay_bias, DType::kF32, channels, "decay_bias");
  Expect(args.rate_bias, DType::kF32, channels, "rate_bias");
  Expect(args.k_k, DType::kF32, channels, "k_k");
  Expect(args.k_a, DType::kF32, channels, "k_a");
  Expect(args.log_decay, types, shape, "log_decay");
  Expect(args.c, types, shape, "c");
  Expect(args.e, types, shape, "e");
}

void Check(const ValueResidualArgs& args, ActivationTypes types) {
  const Shape shape{args.v.shape[0], args.v.shape[1]};
  Expect(args.v, types, shape, "v");
  Expect(args.first, types, shape, "first");
  const int64_t gates = args.gate.shape[1];
  CHECK(gates >= 1 && shape[1] % gates == 0) << gates << " gates of " << shape[1] << " channels";
  Expect(args.gate, types, {shape[0], gates}, "gate");
  Expect(args.bias, DType::kF32, {gates}, "bias");
}

void Check(const Rwkv7OutputArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  ExpectRank(args.r, 3, "r");
  const Shape& shape = args.x.shape;
  const int64_t entries = shape[0], heads = shape[1], key_dim = args.r.shape[2];
  Expect(args.x, types, shape, "x");
  Expect(args.weight, DType::kF32, {heads, shape[2]}, "weight");
  Expect(args.bias, DType::kF32, {heads, shape[2]}, "bias");
  Expect(args.r, types, {entries, heads, key_dim}, "r");
  Expect(args.k, types, {entries, heads, key_dim}, "k");
  Expect(args.r_k, DType::kF32, {heads, key_dim}, "r_k");
  Expect(args.v, types, shape, "v");
  Expect(args.gate, types, shape, "gate");
  Expect(args.y, types, shape, "y");
}

}  // namespace mneme
