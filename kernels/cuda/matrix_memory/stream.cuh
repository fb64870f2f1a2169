// One stream of a decoded token between its projection and a memory: what a warp does to four
// channels of each lane.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/field.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/matrix_memory/decay_gates.cuh"
#include "kernels/kernels.h"

namespace mneme::cuda::matrix_memory {

constexpr int kWidth = 4;  // of a convolution, at most

enum class Last : uint8_t { kNothing, kL2Norm, kSumNorm, kRope, kDecay, kKeep };

struct Stream {
  const void* x;  // [rows, channels] f32, or bf16 if `rounded`
  const int32_t* entry_rows;
  const float *conv, *conv_bias;  // [channels, width] and [channels], or null
  Field window;
  float* y;           // [entries, channels]
  float* complement;  // the same, of kDecay, or null
  GateRule gate;      // of kKeep its a_log and dt_bias, or null, by channel
  const int64_t* positions;
  const float* frequencies;  // [half a head], or the same twice: sums of two
  int64_t period;            // of positions, or 0
  int channels, dim;         // of an entry, of a warp
  int width;
  int first_unit;  // warps of an entry before this stream's
  bool rounded, rounded_window;
  bool exact_frequencies, interleaved;
  Last last;
  Activation conv_activation, activation;
  float activation_scale, norm_scale, eps;
};

// matrix_memory/streams.cu: a stream for the device. False if its kernel does not take it.
bool MakeStream(const MemoryStream& stream, Stream& s);

__device__ inline float4 LoadEither(bool rounded, const void* p, int64_t at) {
  return rounded ? LoadFour(static_cast<const __nv_bfloat16*>(p) + at)
                 : LoadFour(static_cast<const float*>(p) + at);
}
template <typename F>
__device__ inline void ForEach(float4& v, const F& f) {
  v.x = f(v.x);
  v.y = f(v.y);
  v.z = f(v.z);
  v.w = f(v.w);
}

// The filters of four channels: weights of all places, [channel][place], places that there are not
// zero.
struct Filters {
  float4 of_channel[4];
  float4 bias;

  __device__ Filters() = default;
  __device__ Filters(const float* weight, int width, const float* biases) {
    bias = biases == nullptr ? float4{} : LoadFour(biases);
    if (width == kWidth) {
#pragma unroll
      for (int i = 0; i < 4; ++i) of_channel[i] = LoadFour(weight + i * kWidth);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto at = [&](int place) {
        const int j = place - (kWidth - width);
        return j < 0 ? 0.0f : weight[i * width + j];
      };
      of_channel[i] = {at(0), at(1), at(2), at(3)};
    }
  }
  __device__ static float Sum(const float4& w, float bias, float a, float b, float c, float d) {
    return fmaf(w.w, d, fmaf(w.z, c, fmaf(w.y, b, fmaf(w.x, a, bias))));
  }
  __device__ float4 Apply(const float4 (&past)[kWidth - 1], const float4& x) const {
    return {Sum(of_channel[0], bias.x, past[0].x, past[1].x, past[2].x, x.x),
            Sum(of_channel[1], bias.y, past[0].y, past[1].y, past[2].y, x.y),
            Sum(of_channel[2], bias.z, past[0].z, past[1].z, past[2].z, x.z),
            Sum(of_channel[3], bias.w, past[0].w, past[1].w, past[2].w, x.w)};
  }
};

struct StreamSegment {
  int first, end, slot, memory, fresh;
};
__device__ inline StreamSegment LoadSegment(const SegmentArrays& p, int s) {
  return {.first = __ldcg(p.offsets + s),
          .end = __ldcg(p.offsets + s + 1),
          .slot = __ldcg(p.slots + s),
          .memory = __ldcg(p.memories + s),
          .fresh = __ldcg(p.fresh + s)};
}

// Four channels of the tokens before, as a window has them. Past the cache of the multiprocessor,
// which may hold an earlier step's.
struct Past {
  float4 x[kWidth - 1];

  __device__ Past() = default;
  __device__ Past(const Stream& s, const StreamSegment& segment, int channel) {
    const void* const window = s.window.At<const void>(segment.slot, segment.memory);
    const int missing = kWidth - s.width;
#pragma unroll
    for (int j = 0; j < kWidth - 1; ++j) {
      x[j] = {};
      if (j < missing || segment.fresh != 0) continue;
      const int64_t at = int64_t{j - missing} * s.channels + channel;
      if (s.rounded_window) {
        union {
          uint2 bits;
          __nv_bfloat16 values[4];
        } four;
        four.bits =
            __ldcg(reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(window) + at));
        x[j] = {ToFloat(four.values[0]), ToFloat(four.values[1]), ToFloat(four.values[2]),
                ToFloat(four.values[3])};
      } else {
        x[j] = __ldcg(reinterpret_cast<const float4*>(static_cast<const float*>(window) + at));
      }
    }
  }
};

// The convolution of four channels of a token, whose window takes it in if `keeps`.
__device__ inline float4 Convolve(const Stream& s, const Filters& filters,
                                  const StreamSegment& segment, int channel, const Past& before,
                                  float4 x, bool keeps = true) {
  if (s.rounded_window) {
    ForEach(x, [](float value) { return ToFloat(FromFloat<__nv_bfloat16>(value)); });
  }
  void* const window = s.window.At<void>(segment.slot, segment.memory);
  const int missing = kWidth - s.width;
  const float4(&past)[kWidth - 1] = before.x;
  const auto keep = [&](int j, const float4& value) {  // as place j
    if (j < missing || !keeps) return;
    const int64_t at = int64_t{j - missing} * s.channels + channel;
    if (s.rounded_window) {
      SaveFour(static_cast<__nv_bfloat16*>(window) + at, value);
    } else {
      SaveFour(static_cast<float*>(window) + at, value);
    }
  };
#pragma unroll
  for (int j = 0; j + 1 < kWidth - 1; ++j) keep(j, past[j + 1]);
  keep(kWidth - 2, x);
  float4 y = filters.Apply(past, x);
  if (s.conv_activation == Activation::kSilu) ForEach(y, [](float value) { return Silu(value); });
  return y;
}

}  // namespace mneme::cuda::matrix_memory
