// Gates of memories. Built once per instruction set.
#include "kernels/cpu/decay_rate.h"
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {

void DeltaGates(const DeltaGatesArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.log_decay.shape[1];
  const float* a_log = args.a_log.as<float>();
  const float* dt_bias = args.dt_bias.as<float>();
  const int32_t* rows = args.entry_rows.as<int32_t>();
  for (int64_t e = begin; e < end; ++e) {
    const int64_t row = rows == nullptr ? e : rows[e];
    const float* a = args.a.as<float>() + row * heads;
    const float* b = args.b.as<float>() + row * heads;
    float* log_decay = args.log_decay.as<float>() + e * heads;
    float* beta = args.beta.as<float>() + e * heads;
    ForVectors(heads, [&](int64_t i, int lanes) {
      const Vec rate = DecayRate(LoadUpTo(a_log + i, lanes),
                                 LoadUpTo(a + i, lanes) + LoadUpTo(dt_bias + i, lanes));
      const Vec gate = Set1(args.beta_scale) * Sigmoid(LoadUpTo(b + i, lanes));
      StoreUpTo(log_decay + i, Zero() - rate, lanes);
      StoreUpTo(beta + i, gate, lanes);
    });
  }
}

namespace {

struct Gate {
  Vec log_decay, complement;
};

// Calls gate(x, i, lanes) for the elements of one head's part of a row.
template <typename F>
MNEME_INLINE void GateRow(const float* x, int64_t dim, float* log_decay, float* complement,
                          F gate) {
  const Vec least = Set1(-__FLT_MAX__);  // a product that overflows
  ForVectors(dim, [&](int64_t i, int lanes) {
    const Gate result = gate(LoadUpTo(x + i, lanes), i, lanes);
    StoreUpTo(log_decay + i, Max(least, result.log_decay), lanes);
    if (complement != nullptr) StoreUpTo(complement + i, result.complement, lanes);
  });
}

MNEME_INLINE Gate FromLogDecay(Vec log_decay) { return {log_decay, OneMinusExp(log_decay)}; }

}  // namespace

void DecayGates(const DecayGatesArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.x.shape[1], dim = args.x.shape[2];
  const int32_t* rows = args.entry_rows.as<int32_t>();
  for (int64_t row = begin; row < end; ++row) {
    const int64_t entry = row / heads, head = row % heads;
    const int64_t from = rows == nullptr ? entry : rows[entry];
    const float* x = args.x.as<float>() + (from * heads + head) * dim;
    float* log_decay = args.log_decay.as<float>() + row * dim;
    float* complement = args.complement.empty() ? nullptr : args.complement.as<float>() + row * dim;
    switch (args.gate) {
      case DecayGate::kLogSigmoid: {
        const Vec normalizer = Set1(args.normalizer), least = Set1(args.least);
        GateRow(x, dim, log_decay, complement, [&](Vec v, int64_t, int) {
          return FromLogDecay(Max(least, (Zero() - Softplus(Zero() - v)) / normalizer));
        });
        break;
      }
      case DecayGate::kForget: {
        const Vec least = Set1(kLeastLogDecay);
        const float* lowest = args.lower.empty() ? nullptr : args.lower.as<float>() + head * dim;
        GateRow(x, dim, log_decay, complement, [&](Vec v, int64_t i, int lanes) -> Gate {
          const Vec shut = Sigmoid(Zero() - v);
          // Where nothing is kept for good, log f is log sigmoid(v), which f may be too small for.
          const Vec log_sigmoid = Zero() - Softplus(Zero() - v);
          if (lowest == nullptr) return {Max(least, log_sigmoid), shut};
          const Vec lower = LoadUpTo(lowest + i, lanes), range = Set1(1.0f) - lower;
          const Vec forget = MulAdd(range, Sigmoid(v), lower);
          const Vec log_forget = LogComplement(range * shut, forget);
          return {Max(least, WhereLess(Zero(), lower, log_forget, log_sigmoid)), range * shut};
        });
        break;
      }
      case DecayGate::kSoftplus: {
        const Vec a_log = Set1(args.a_log.as<float>()[head]);
        const float* bias = args.dt_bias.as<float>() + head * dim;
        GateRow(x, dim, log_decay, complement, [&](Vec v, int64_t i, int lanes) {
          return FromLogDecay(Zero() - DecayRate(a_log, v + LoadUpTo(bias + i, lanes)));
        });
        break;
      }
      case DecayGate::kBounded: {
        const Vec rate = BoundedExp(Set1(args.a_log.as<float>()[head]));
        const Vec bound = Set1(args.lower_bound);
        const float* bias = args.dt_bias.as<float>() + head * dim;
        GateRow(x, dim, log_decay, complement, [&](Vec v, int64_t i, int lanes) {
          return FromLogDecay(bound * Sigmoid(rate * (v + LoadUpTo(bias + i, lanes))));
        });
        break;
      }
      case DecayGate::kExponential:
        GateRow(x, dim, log_decay, complement, [&](Vec v, int64_t, int) {
          return FromLogDecay(Max(Set1(kLeastLogDecay), Zero() - Exp(v)));
        });
        break;
    }
  }
}

}  // namespace mneme::MNEME_ISA
