// Selective state spaces. Built once per instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

// A vector of channels at c, through all segments. States and rates stay close by while a segment
// lasts: in memory their rows are far apart.
void ScanChannels(const SelectiveScanArgs& args, int64_t c, int lanes) {
  const int64_t channels = args.u.shape[1];
  const int states = static_cast<int>(args.a.shape[0]);
  const Segments& segments = args.segments;
  const int32_t* offsets = segments.offsets.as<int32_t>();
  Vec a[kMaxScanStates], h[kMaxScanStates];
  for (int n = 0; n < states; ++n) a[n] = LoadUpTo(args.a.as<float>() + n * channels + c, lanes);
  const Vec dt_bias = LoadUpTo(args.dt_bias.as<float>() + c, lanes);
  const Vec skip = LoadUpTo(args.skip.as<float>() + c, lanes);
  for (int s = 0; s < segments.count; ++s) {
    const int slot = segments.slots.as<int32_t>()[s];
    if (slot < 0 || offsets[s] == offsets[s + 1]) continue;
    float* state = args.state.as<float>(slot, segments.memories.as<int32_t>()[s]) + c;
    const bool fresh = segments.fresh.as<int32_t>()[s] != 0;
    for (int n = 0; n < states; ++n) {
      h[n] = fresh ? Zero() : LoadUpTo(state + n * channels, lanes);
    }
    for (int64_t e = offsets[s]; e < offsets[s + 1]; ++e) {
      const int64_t at = e * channels + c;
      const float* b = args.b.as<float>() + e * states;
      const float* read = args.c.as<float>() + e * states;
      const Vec u = LoadUpTo(args.u.as<float>() + at, lanes);
      const Vec gate = LoadUpTo(args.gate.as<float>() + at, lanes);
      const Vec step = Softplus(LoadUpTo(args.dt.as<float>() + at, lanes) + dt_bias);
      const Vec input = step * u;
      Vec y = skip * u;
      for (int n = 0; n < states; ++n) {
        h[n] = MulAdd(Exp(step * a[n]), h[n], input * Set1(b[n]));
        y = MulAdd(Set1(read[n]), h[n], y);
      }
      StoreUpTo(args.y.as<float>() + at, y * Silu(gate), lanes);
    }
    for (int n = 0; n < states; ++n) StoreUpTo(state + n * channels, h[n], lanes);
  }
}

}  // namespace

void SelectiveScan(const SelectiveScanArgs& args, int64_t begin, int64_t end) {
  ForVectors(end - begin, [&](int64_t i, int lanes) { ScanChannels(args, begin + i, lanes); });
}

void Discretize(const DiscretizeArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.u.shape[1], dim = args.u.shape[2];
  const Vec least = Set1(args.least_step), most = Set1(args.most_step);
  for (int64_t e = begin; e < end; ++e) {
    ForVectors(heads, [&](int64_t i, int lanes) {
      const int64_t at = e * heads + i;
      const Vec dt = LoadUpTo(args.dt.as<float>() + at, lanes);
      const Vec free = Softplus(dt + LoadUpTo(args.dt_bias.as<float>() + i, lanes));
      const Vec step = Min(most, Max(least, free));
      StoreUpTo(args.log_decay.as<float>() + at, step * LoadUpTo(args.a.as<float>() + i, lanes),
                lanes);
      float steps[kLanes];
      Store(steps, step);
      for (int j = 0; j < lanes; ++j) {
        const float* u = args.u.as<float>() + (at + j) * dim;
        float* v = args.v.as<float>() + (at + j) * dim;
        ForVectors(dim, [&](int64_t d, int count) {
          StoreUpTo(v + d, Set1(steps[j]) * LoadUpTo(u + d, count), count);
        });
      }
    });
  }
}

}  // namespace mneme::MNEME_ISA
