// The short convolution. Built once per instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

constexpr int64_t kConvChannels = 1024;  // at a time: windows are read in runs of 4 KB

float* Window(const ShortConvArgs& args, int segment) {
  return args.window.as<float>(args.segments.slots.as<int32_t>()[segment],
                               args.segments.memories.as<int32_t>()[segment]);
}

// Channels [first, first + count) of one segment; weight[j] holds tap j of each, oldest first.
// The width is kWidth, or args' where that is 0. Meanwhile the same channels of `next`, another
// window, are fetched, evenly, for requests in a bunch would wait for each other.
template <int kWidth>
void ConvolveSegment(const ShortConvArgs& args, int segment, int64_t first, int64_t count,
                     const float (*weight)[kConvChannels], const float* next) {
  const int width = kWidth > 0 ? kWidth : static_cast<int>(args.weight.shape[1]);
  const int64_t channels = args.x.shape[1];
  const float* x = args.x.as<float>() + first;
  const float* bias = args.bias.as<float>();
  const int32_t* entry_rows = args.entry_rows.as<int32_t>();
  const int begin = args.segments.offsets.as<int32_t>()[segment];
  const int end = args.segments.offsets.as<int32_t>()[segment + 1];
  const bool silu = args.activation == Activation::kSilu;
  const bool fresh = args.segments.fresh.as<int32_t>()[segment] != 0;
  float* window = Window(args, segment) + first;
  next += first;
  float* y = args.y.as<float>() + first;
  ForVectors(count, [&](int64_t c, int lanes) {
    constexpr int kTaps = kWidth > 0 ? kWidth : kMaxConvWidth;
    Vec tap[kTaps], history[kTaps];  // history: the last width values, oldest first
    MNEME_UNROLL
    for (int j = 0; j < width; ++j) tap[j] = LoadUpTo(weight[j] + c, lanes);
    const Vec offset = bias != nullptr ? LoadUpTo(bias + first + c, lanes) : Zero();
    MNEME_UNROLL
    for (int j = 0; j + 1 < width; ++j) {
      history[j + 1] = fresh ? Zero() : LoadUpTo(window + j * channels + c, lanes);
      Prefetch(next + j * channels + c);
    }
    for (int e = begin; e < end; ++e) {
      MNEME_UNROLL
      for (int j = 0; j + 1 < width; ++j) history[j] = history[j + 1];
      const int64_t row = entry_rows == nullptr ? e : entry_rows[e];
      history[width - 1] = LoadUpTo(x + row * channels + c, lanes);
      Vec sum = offset;
      MNEME_UNROLL
      for (int j = 0; j < width; ++j) sum = MulAdd(tap[j], history[j], sum);
      StoreUpTo(y + e * channels + c, silu ? Silu(sum) : sum, lanes);
    }
    MNEME_UNROLL
    for (int j = 0; j + 1 < width; ++j) {
      StoreUpTo(window + j * channels + c, history[j + 1], lanes);
    }
  });
}

// The first segment from `s` on that has entries and a slot, or the number of segments.
int NextActive(const Segments& segments, int s) {
  const int32_t* offsets = segments.offsets.as<int32_t>();
  while (s < segments.count &&
         (offsets[s] == offsets[s + 1] || segments.slots.as<int32_t>()[s] < 0)) {
    ++s;
  }
  return s;
}

}  // namespace

void ShortConv(const ShortConvArgs& args, int64_t begin, int64_t end) {
  const int width = static_cast<int>(args.weight.shape[1]);
  const auto convolve = width == 4 ? ConvolveSegment<4> : ConvolveSegment<0>;

  for (int64_t first = begin; first < end; first += kConvChannels) {
    const int64_t count = end - first < kConvChannels ? end - first : kConvChannels;
    float weight[kMaxConvWidth][kConvChannels];
    for (int64_t c = 0; c < count; ++c) {
      for (int j = 0; j < width; ++j) {
        weight[j][c] = args.weight.as<float>()[(first + c) * width + j];
      }
    }
    for (int s = NextActive(args.segments, 0); s < args.segments.count;) {
      const int next = NextActive(args.segments, s + 1);
      const int fetched = next < args.segments.count ? next : s;
      convolve(args, s, first, count, weight, Window(args, fetched));
      s = next;
    }
  }
}

}  // namespace mneme::MNEME_ISA
