#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {

void Check(const ShortConvArgs& args, ActivationTypes types) {
  const int64_t rows = args.x.shape[0], channels = args.x.shape[1], entries = args.y.shape[0];
  const int64_t width = args.weight.shape[1];
  CHECK(width >= 1 && width <= kMaxConvWidth) << "a convolution " << width << " wide";
  Expect(args.x, types, {rows, channels}, "x");
  Expect(args.weight, DType::kF32, {channels, width}, "weight");
  if (!args.bias.empty()) Expect(args.bias, DType::kF32, {channels}, "bias");
  Expect(args.y, types, {entries, channels}, "y");
  ExpectEntryRows(args.entry_rows, entries, rows);
  CHECK(args.activation == Activation::kSilu || args.activation == Activation::kIdentity)
      << "a convolution followed by neither silu nor nothing";
  Check(args.segments);
}

void Check(const DeltaGatesArgs& args, ActivationTypes types) {
  const int64_t rows = args.a.shape[0], heads = args.a.shape[1];
  const int64_t entries = args.log_decay.shape[0];
  Expect(args.a, types, {rows, heads}, "a");
  Expect(args.b, types, {rows, heads}, "b");
  Expect(args.a_log, DType::kF32, {heads}, "a_log");
  Expect(args.dt_bias, DType::kF32, {heads}, "dt_bias");
  Expect(args.log_decay, types, {entries, heads}, "log_decay");
  Expect(args.beta, types, {entries, heads}, "beta");
  ExpectEntryRows(args.entry_rows, entries, rows);
}

void Check(const DecayGatesArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 3, "x");
  const int64_t rows = args.x.shape[0], heads = args.x.shape[1], dim = args.x.shape[2];
  const int64_t entries = args.log_decay.shape[0];
  Expect(args.x, types, {rows, heads, dim}, "x");
  if (!args.lower.empty()) Expect(args.lower, DType::kF32, {heads, dim}, "lower");
  if (args.gate == DecayGate::kSoftplus || args.gate == DecayGate::kBounded) {
    Expect(args.a_log, DType::kF32, {heads}, "a_log");
    Expect(args.dt_bias, DType::kF32, {heads, dim}, "dt_bias");
  }
  Expect(args.log_decay, types, {entries, heads, dim}, "log_decay");
  if (!args.complement.empty()) {
    Expect(args.complement, types, {entries, heads, dim}, "complement");
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
    Expect(tensor, types, width > 0 ? Shape{entries, n, width} : Shape{entries, n}, name);
  };
  const auto expect_none = [](const TensorView& tensor, bool none, const char* name) {
    CHECK(!none || tensor.empty()) << name << " that the rule has no use for";
  };
  expect(args.q, key_dim, "q");
  expect(args.k, key_dim, "k");
  expect(args.v, value_dim, "v");
  Expect(args.out, types, args.out.shape, "out");
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

}  // namespace mneme
