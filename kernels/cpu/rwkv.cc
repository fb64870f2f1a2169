// RWKV's token shift, gates and outputs. This file is built once per instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {

void TokenShift(const TokenShiftArgs& args, int64_t begin, int64_t end) {
  const int64_t entries = args.x.shape[0], dim = args.x.shape[1], mixes = args.mix.shape[0];
  const int64_t channels = end - begin;
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  const float* mix = args.mix.as<float>() + begin;
  const float* token_mix = args.token_mix.empty() ? nullptr : args.token_mix.as<float>() + begin;
  float* y = args.y.as<float>() + begin;
  for (int s = 0; s < args.segments.count; ++s) {
    const int32_t slot = args.segments.slots.as<int32_t>()[s];
    if (slot < 0 || offsets[s] == offsets[s + 1]) continue;
    float* last = args.last.as<float>(slot, args.segments.memories.as<int32_t>()[s]) + begin;
    const float* before = args.segments.fresh.as<int32_t>()[s] != 0 ? nullptr : last;
    const float* x = args.x.as<float>() + begin + offsets[s] * dim;
    for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e, before = x, x += dim) {
      ForVectors(channels, [&](int64_t i, int lanes) {
        const Vec own = LoadUpTo(x + i, lanes);
        const Vec step = (before != nullptr ? LoadUpTo(before + i, lanes) : Zero()) - own;
        for (int64_t m = 0; m < mixes; ++m) {
          const int64_t at = (m * entries + e) * dim + i;
          Vec share = LoadUpTo(mix + m * dim + i, lanes);
          if (token_mix != nullptr) share = share + LoadUpTo(token_mix + at, lanes);
          StoreUpTo(y + at, MulAdd(share, step, own), lanes);
        }
      });
    }
    if (!args.advance) continue;
    ForVectors(channels, [&](int64_t i, int lanes) {
      StoreUpTo(last + i, LoadUpTo(before + i, lanes), lanes);
    });
  }
}

void Rwkv7Gates(const Rwkv7GatesArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.k.shape[1], dim = args.k.shape[2];
  const Vec rate_of_decay = Set1(-0x1.368b3p-1f);  // -exp(-1/2)
  const Vec one = Set1(1.0f);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * dim, channels = row % heads * dim;
    const float* k_k = args.k_k.as<float>() + channels;
    float* k = args.k.as<float>() + at;
    Vec squares = Zero();
    ForVectors(dim, [&](int64_t i, int lanes) {
      const Vec z = LoadUpTo(k + i, lanes) * LoadUpTo(k_k + i, lanes);
      squares = MulAdd(z, z, squares);
    });
    const float root = __builtin_sqrtf(Sum(squares) + args.eps);
    const Vec norm = Set1(root > args.least ? root : args.least);
    ForVectors(dim, [&](int64_t i, int lanes) {
      const auto load = [&](const TensorView& tensor, int64_t first) {
        return LoadUpTo(tensor.as<float>() + first + i, lanes);
      };
      const Vec decay = load(args.decay, at) + load(args.decay_bias, channels);
      const Vec a = Sigmoid(load(args.rate, at) + load(args.rate_bias, channels));
      const Vec key = LoadUpTo(k + i, lanes);
      const Vec c = key * LoadUpTo(k_k + i, lanes) / norm;
      StoreUpTo(args.log_decay.as<float>() + at + i, rate_of_decay * Sigmoid(decay), lanes);
      StoreUpTo(args.c.as<float>() + at + i, c, lanes);
      StoreUpTo(args.e.as<float>() + at + i, Zero() - a * c, lanes);
      StoreUpTo(k + i, key * MulAdd(a - one, load(args.k_a, channels), one), lanes);
    });
  }
}

void ValueResidual(const ValueResidualArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.v.shape[1], gates = args.gate.shape[1], of_gate = dim / gates;
  const float* bias = args.bias.as<float>();
  for (int64_t e = begin; e < end; ++e) {
    const float* first = args.first.as<float>() + e * dim;
    const float* gate = args.gate.as<float>() + e * gates;
    float* v = args.v.as<float>() + e * dim;
    for (int64_t g = 0; of_gate > 1 && g < gates; ++g, first += of_gate, v += of_gate) {
      const Vec share = Sigmoid(Set1(gate[g] + bias[g]));
      ForVectors(of_gate, [&](int64_t i, int lanes) {
        const Vec own = LoadUpTo(v + i, lanes);
        StoreUpTo(v + i, MulAdd(LoadUpTo(first + i, lanes) - own, share, own), lanes);
      });
    }
    if (of_gate > 1) continue;
    ForVectors(dim, [&](int64_t i, int lanes) {
      const Vec own = LoadUpTo(v + i, lanes);
      const Vec share = Sigmoid(LoadUpTo(gate + i, lanes) + LoadUpTo(bias + i, lanes));
      StoreUpTo(v + i, MulAdd(LoadUpTo(first + i, lanes) - own, share, own), lanes);
    });
  }
}

void Rwkv7Output(const Rwkv7OutputArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.x.shape[1], value_dim = args.x.shape[2], key_dim = args.r.shape[2];
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * value_dim, channels = row % heads * value_dim;
    const float* x = args.x.as<float>() + at;
    const float* r = args.r.as<float>() + row * key_dim;
    const float* k = args.k.as<float>() + row * key_dim;
    const float* r_k = args.r_k.as<float>() + row % heads * key_dim;
    Vec bonuses = Zero(), sum = Zero(), squares = Zero();
    ForVectors(key_dim, [&](int64_t j, int lanes) {
      bonuses = MulAdd(LoadUpTo(r + j, lanes) * LoadUpTo(k + j, lanes), LoadUpTo(r_k + j, lanes),
                       bonuses);
    });
    ForVectors(value_dim, [&](int64_t i, int lanes) { sum = sum + LoadUpTo(x + i, lanes); });
    // Loading part of it leaves zeros in the lanes that part of x has none for.
    float mean[kLanes];
    Store(mean, Set1(Sum(sum) / static_cast<float>(value_dim)));
    ForVectors(value_dim, [&](int64_t i, int lanes) {
      const Vec centred = LoadUpTo(x + i, lanes) - LoadUpTo(mean, lanes);
      squares = MulAdd(centred, centred, squares);
    });
    const float variance = Sum(squares) / static_cast<float>(value_dim);
    const Vec scale = Set1(1.0f / __builtin_sqrtf(variance + args.eps));
    const Vec bonus = Set1(Sum(bonuses));
    ForVectors(value_dim, [&](int64_t i, int lanes) {
      const auto load = [&](const TensorView& tensor, int64_t first) {
        return LoadUpTo(tensor.as<float>() + first + i, lanes);
      };
      const Vec normed = MulAdd((LoadUpTo(x + i, lanes) - Load(mean)) * scale,
                                load(args.weight, channels), load(args.bias, channels));
      const Vec y = MulAdd(bonus, load(args.v, at), normed) * load(args.gate, at);
      StoreUpTo(args.y.as<float>() + at + i, y, lanes);
    });
  }
}

}  // namespace mneme::MNEME_ISA
