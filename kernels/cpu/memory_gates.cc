// The gates of a step of a neural memory, made of its tokens. Built once per instruction set.
#include "kernels/cpu/decay_rate.h"
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {

void KeepGate(const KeepGateArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.x.shape[1];
  for (int64_t e = begin; e < end; ++e) {
    ForVectors(heads, [&](int64_t i, int lanes) {
      const Vec x = LoadUpTo(args.x.as<float>() + e * heads + i, lanes);
      Vec keep = Sigmoid(Zero() - x);
      if (!args.a_log.empty()) {
        const Vec bias = LoadUpTo(args.dt_bias.as<float>() + i, lanes);
        keep = Exp(Zero() - DecayRate(LoadUpTo(args.a_log.as<float>() + i, lanes), x + bias));
      }
      StoreUpTo(args.y.as<float>() + e * heads + i, keep, lanes);
    });
  }
}

void ChunkMean(const ChunkMeanArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[1];
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  const Vec chunk = Set1(static_cast<float>(args.chunk));
  for (int s = 0; s < args.segments.count; ++s) {
    const int slot = args.segments.slots.as<int32_t>()[s];
    if (slot < 0 || offsets[s] == offsets[s + 1]) continue;
    float* sums = args.sums.as<float>(slot, args.segments.memories.as<int32_t>()[s]);
    ForVectors(end - begin, [&](int64_t i, int lanes) {
      Vec sum = LoadUpTo(sums + begin + i, lanes);
      for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e) {
        const int64_t at = e * dim + begin + i;
        const Vec x = LoadUpTo(args.x.as<float>() + at, lanes);
        sum = args.positions.as<int64_t>()[e] % args.chunk == 0 ? x : sum + x;
        StoreUpTo(args.y.as<float>() + at, sum / chunk, lanes);
      }
      StoreUpTo(sums + begin + i, sum, lanes);
    });
  }
}

void ChunkPool(const ChunkPoolArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[1];
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  for (int s = 0; s < args.segments.count; ++s) {
    const int slot = args.segments.slots.as<int32_t>()[s];
    if (slot < 0 || offsets[s] == offsets[s + 1]) continue;
    float* sums = args.sums.as<float>(slot, args.segments.memories.as<int32_t>()[s]) + begin;
    ForVectors(end - begin, [&](int64_t i, int lanes) {
      Vec largest = LoadUpTo(sums + i, lanes);
      Vec total = LoadUpTo(sums + dim + i, lanes), weighted = LoadUpTo(sums + 2 * dim + i, lanes);
      for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e) {
        const int64_t at = e * dim + begin + i;
        const Vec logit = LoadUpTo(args.logits.as<float>() + at, lanes);
        const Vec x = LoadUpTo(args.x.as<float>() + at, lanes);
        if (args.positions.as<int64_t>()[e] % args.chunk == 0) {
          largest = logit;
          total = Set1(1.0f);
          weighted = x;
        } else {
          const Vec most = Max(largest, logit);
          const Vec old = Exp(largest - most), own = Exp(logit - most);
          total = MulAdd(total, old, own);
          weighted = MulAdd(weighted, old, own * x);
          largest = most;
        }
        StoreUpTo(args.y.as<float>() + at, weighted / total, lanes);
      }
      StoreUpTo(sums + i, largest, lanes);
      StoreUpTo(sums + dim + i, total, lanes);
      StoreUpTo(sums + 2 * dim + i, weighted, lanes);
    });
  }
}

}  // namespace mneme::MNEME_ISA
