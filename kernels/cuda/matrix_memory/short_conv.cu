// Depthwise causal convolutions along segments. A thread owns a few channels, so that neighbouring
// threads touch neighbouring memory.
//
// Short segments (a decode step): one block per segment and tile of channels goes through the
// entries in order and leaves the new window. Long ones: blocks take runs of entries wherever they
// lie, reading windows only, and a second launch replaces the windows. Both add in the same order.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/log.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/matrix_memory/matrix_memory.h"

namespace mneme::cuda::matrix_memory {
namespace {

constexpr int kThreads = 128;        // of a block; each has kVector channels
constexpr int kRun = 32;             // entries of a block, for long segments
constexpr int kLongestShort = 4;     // entries of a segment that one block goes through
constexpr int kMaxConvolutions = 6;  // in one launch

struct Convolution {
  const void* x;  // f32, or bf16 if `rounded`
  const int32_t* entry_rows;
  const float* weight;
  const float* bias;  // or null
  SegmentArrays segments;
  StateView window;
  float* y;
  int entries, channels, width;
  int rounded;
  int rounded_window;  // bf16, and so is what it is to keep
  int silu;
  int tiles;           // of channels
  int64_t blocks_end;  // the launch's blocks up to here are this or an earlier convolution's
};
struct Convolutions {
  Convolution list[kMaxConvolutions];
};

template <int kVector>
struct Values {
  float v[kVector];
};

template <int kVector, typename T>
__device__ inline Values<kVector> Load(const T* p) {
  if constexpr (kVector == 4) {
    const float4 four = LoadFour(p);
    return {{four.x, four.y, four.z, four.w}};
  } else {
    return {{ToFloat(*p)}};
  }
}
template <int kVector>
__device__ inline Values<kVector> LoadEither(bool rounded, const void* p, int64_t at) {
  if (rounded) return Load<kVector>(static_cast<const __nv_bfloat16*>(p) + at);
  return Load<kVector>(static_cast<const float*>(p) + at);
}
template <int kVector, typename T>
__device__ inline void Store(T* p, const Values<kVector>& values) {
  if constexpr (kVector == 4) {
    SaveFour(p, {values.v[0], values.v[1], values.v[2], values.v[3]});
  } else {
    *p = FromFloat<T>(values.v[0]);
  }
}

// One thread's channels of a convolution. kWidth 0: any width, by way of memory.
template <int kWidth, int kVector>
struct Channels {
  using Vector = Values<kVector>;

  __device__ Channels(const Convolution& conv, int channel)
      : c(conv), channel(channel), width(kWidth > 0 ? kWidth : conv.width) {
    if constexpr (kWidth == 4 && kVector == 4) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const Values<4> four = Load<4>(conv.weight + int64_t{channel + i} * 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) weight[i * 4 + j] = four.v[j];
      }
    } else if constexpr (kWidth > 0) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          weight[i * kWidth + j] = conv.weight[int64_t{channel + i} * kWidth + j];
        }
      }
    }
  }

  __device__ float Weight(int i, int j) const {
    if constexpr (kWidth > 0) return weight[i * kWidth + j];
    return c.weight[int64_t{channel + i} * width + j];
  }
  __device__ float Bias(int i) const { return c.bias != nullptr ? c.bias[channel + i] : 0.0f; }
  __device__ Vector Input(int entry) const {
    const int64_t row = c.entry_rows != nullptr ? c.entry_rows[entry] : entry;
    const int64_t at = row * c.channels + channel;
    Vector values = LoadEither<kVector>(c.rounded != 0, c.x, at);
    if (c.rounded_window != 0) {
#pragma unroll
      for (float& value : values.v) value = ToFloat(FromFloat<__nv_bfloat16>(value));
    }
    return values;
  }
  // Row j of a segment's window.
  __device__ Vector Window(const Segment& segment, int j) const {
    return LoadEither<kVector>(c.rounded_window != 0,
                               MemoryAt<void>(c.window, segment.slot, segment.memory),
                               int64_t{j} * c.channels + channel);
  }
  __device__ void StoreWindow(const Segment& segment, int j, const Vector& values) const {
    void* const window = MemoryAt<void>(c.window, segment.slot, segment.memory);
    const int64_t at = int64_t{j} * c.channels + channel;
    if (c.rounded_window != 0) {
      Store<kVector>(static_cast<__nv_bfloat16*>(window) + at, values);
    } else {
      Store<kVector>(static_cast<float*>(window) + at, values);
    }
  }
  // The input `ahead` places before the segment's entry number `at`, from the window if that lies
  // before the segment.
  __device__ Vector History(const Segment& segment, int at, int ahead) const {
    const int place = at - ahead;
    if (place >= 0) return Input(segment.first + place);
    if (segment.fresh != 0) return {};
    return Window(segment, width - 1 + place);
  }

  const Convolution& c;
  const int channel, width;
  float weight[kWidth > 0 ? kWidth* kVector : 1];
};

// The last width - 1 inputs, newest last.
template <int kWidth, int kVector>
struct History {
  static constexpr int kRows = kWidth > 1 ? kWidth - 1 : 1;
  Values<kVector> rows[kRows];

  __device__ void Read(const Channels<kWidth, kVector>& channels, const Segment& segment, int at) {
#pragma unroll
    for (int j = 0; j + 1 < kWidth; ++j) {
      rows[j] = channels.History(segment, at, kWidth - 1 - j);
    }
  }
  __device__ void Push(const Values<kVector>& x) {
#pragma unroll
    for (int j = 0; j + 2 < kWidth; ++j) rows[j] = rows[j + 1];
    if constexpr (kWidth > 1) rows[kWidth - 2] = x;
  }
};

// y of one entry, `at` its number in the segment.
template <int kWidth, int kVector>
__device__ inline void WriteOutput(const Channels<kWidth, kVector>& channels,
                                   History<kWidth, kVector>& history, const Segment& segment,
                                   int at, const Values<kVector>& x) {
  Values<kVector> sum;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum.v[i] = channels.Bias(i);
  if constexpr (kWidth > 0) {
#pragma unroll
    for (int j = 0; j + 1 < kWidth; ++j) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum.v[i] = fmaf(channels.Weight(i, j), history.rows[j].v[i], sum.v[i]);
      }
    }
    history.Push(x);
  } else {
    for (int j = 0; j + 1 < channels.width; ++j) {
      const Values<kVector> past = channels.History(segment, at, channels.width - 1 - j);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum.v[i] = fmaf(channels.Weight(i, j), past.v[i], sum.v[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float y = fmaf(channels.Weight(i, channels.width - 1), x.v[i], sum.v[i]);
    sum.v[i] = channels.c.silu != 0 ? Silu(y) : y;
  }
  Store<kVector>(
      channels.c.y + int64_t{segment.first + at} * channels.c.channels + channels.channel, sum);
}

// Replaces a window by the last width - 1 inputs. Rows move towards older places, so going up never
// reads what was written.
template <int kWidth, int kVector>
__device__ inline void MoveWindow(const Channels<kWidth, kVector>& channels,
                                  const Segment& segment) {
  const int count = segment.end - segment.first;
  for (int j = 0; j + 1 < channels.width; ++j) {
    channels.StoreWindow(segment, j, channels.History(segment, count, channels.width - 1 - j));
  }
}

// Which convolution this block belongs to; `block` becomes its number there.
__device__ inline const Convolution& Find(const Convolutions& convolutions, int64_t* block) {
  int n = 0;
  while (*block >= convolutions.list[n].blocks_end) ++n;
  if (n > 0) *block -= convolutions.list[n - 1].blocks_end;
  return convolutions.list[n];
}

// One block per segment and tile. kMoveOnly: no outputs, only the windows.
template <int kWidth, int kVector, bool kMoveOnly>
__global__ void __launch_bounds__(kThreads)
    BySegment(const __grid_constant__ Convolutions convolutions) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  int64_t block = blockIdx.x;
  const Convolution& conv = Find(convolutions, &block);
  const Segment segment(conv.segments, static_cast<int>(block / conv.tiles));
  const int tile = static_cast<int>(block % conv.tiles);
  const int count = segment.end - segment.first;
  const int channel = (tile * kThreads + static_cast<int>(threadIdx.x)) * kVector;
  if ((count == 0) | (segment.slot < 0) | (channel >= conv.channels)) return;
  const Channels<kWidth, kVector> channels(conv, channel);
  if constexpr (!kMoveOnly) {
    History<kWidth, kVector> history;
    history.Read(channels, segment, 0);
    for (int at = 0; at < count; ++at) {
      WriteOutput(channels, history, segment, at, channels.Input(segment.first + at));
    }
    if constexpr (kWidth > 0) {
#pragma unroll
      for (int j = 0; j + 1 < kWidth; ++j) {
        channels.StoreWindow(segment, j, history.rows[j]);
      }
      return;
    }
  }
  MoveWindow(channels, segment);
}

// One block per run of entries and tile.
template <int kWidth, int kVector>
__global__ void __launch_bounds__(kThreads)
    ByEntry(const __grid_constant__ Convolutions convolutions) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  int64_t block = blockIdx.x;
  const Convolution& conv = Find(convolutions, &block);
  const int begin = static_cast<int>(block / conv.tiles) * kRun;
  const int tile = static_cast<int>(block % conv.tiles);
  const int end = min(begin + kRun, conv.segments.offsets[conv.segments.count]);
  if (begin >= end) return;
  int number = SegmentOf(conv.segments, begin);
  const int channel = (tile * kThreads + static_cast<int>(threadIdx.x)) * kVector;
  if (channel >= conv.channels) return;
  const Channels<kWidth, kVector> channels(conv, channel);
  for (int entry = begin; entry < end; ++number) {
    const Segment segment(conv.segments, number);
    const int stop = min(end, segment.end);
    if (entry < stop && segment.slot >= 0) {
      History<kWidth, kVector> history;
      history.Read(channels, segment, entry - segment.first);
      while (entry < stop) {
        // Several inputs on their way at a time.
        constexpr int kTogether = 4;
        Values<kVector> x[kTogether];
        const int together = min(kTogether, stop - entry);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (i < together) x[i] = channels.Input(entry + i);
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (i < together) {
            WriteOutput(channels, history, segment, entry + i - segment.first, x[i]);
          }
        }
        entry += together;
      }
    }
    entry = max(entry, stop);
  }
}

enum class Pass { kShort, kOutputs, kWindows };

template <int kWidth, int kVector>
void Launch(Device& device, Pass pass, int64_t blocks, const Convolutions& convolutions) {
  const auto kernel = pass == Pass::kShort     ? BySegment<kWidth, kVector, false>
                      : pass == Pass::kOutputs ? ByEntry<kWidth, kVector>
                                               : BySegment<kWidth, kVector, true>;
  LaunchOverlapping(device, "ShortConv", kernel, static_cast<int>(blocks), kThreads, 0, 1,
                    convolutions);
}

// Convolutions of one width and vector size.
void LaunchAll(Device& device, Pass pass, int width, bool fours,
               std::span<const Convolution> list) {
  while (!list.empty()) {
    const size_t n = std::min<size_t>(list.size(), kMaxConvolutions);
    Convolutions convolutions = {};
    int64_t blocks = 0;
    for (size_t i = 0; i < n; ++i) {
      Convolution& conv = convolutions.list[i];
      conv = list[i];
      conv.tiles = (conv.channels + kThreads * (fours ? 4 : 1) - 1) / (kThreads * (fours ? 4 : 1));
      const int64_t places =
          pass == Pass::kOutputs ? (conv.entries + kRun - 1) / kRun : conv.segments.count;
      blocks += places * conv.tiles;
      conv.blocks_end = blocks;
    }
    list = list.subspan(n);
    if (blocks == 0) continue;
    const auto launch = fours ? (width == 2   ? Launch<2, 4>
                                 : width == 3 ? Launch<3, 4>
                                 : width == 4 ? Launch<4, 4>
                                              : Launch<0, 4>)
                              : (width == 4 ? Launch<4, 1> : Launch<0, 1>);
    launch(device, pass, blocks, convolutions);
  }
}

// The convolutions that are not `done` and can be launched with the first of them: they have
// one width and one vector size, usually all of them do. Says which they are.
struct Alike {
  int width;
  bool fours;
  bool short_segments;
  std::vector<Convolution> list;
};
Alike TakeAlike(std::span<const ShortConvArgs> convolutions, size_t first,
                std::vector<bool>& done) {
  const int64_t width = convolutions[first].weight.shape[1];
  Alike alike = {static_cast<int>(width), InFours(convolutions[first]), true, {}};
  for (size_t i = first; i < convolutions.size(); ++i) {
    const ShortConvArgs& args = convolutions[i];
    if (done[i] || args.weight.shape[1] != width || InFours(args) != alike.fours) continue;
    done[i] = true;
    CHECK(args.window.dtype == DType::kF32 || args.window.dtype == DType::kBF16);
    CHECK(args.x.dtype == DType::kF32 || args.x.dtype == DType::kBF16);
    CHECK(args.activation == Activation::kSilu || args.activation == Activation::kIdentity);
    const Segments& segments = args.segments;
    alike.short_segments &= segments.longest >= 1 && segments.longest <= kLongestShort;
    alike.list.push_back({.x = args.x.data,
                          .entry_rows = args.entry_rows.as<const int32_t>(),
                          .weight = args.weight.as<const float>(),
                          .bias = args.bias.as<const float>(),
                          .segments = ArraysOf(segments),
                          .window = args.window,
                          .y = args.y.as<float>(),
                          .entries = static_cast<int>(args.y.shape[0]),
                          .channels = static_cast<int>(args.x.shape[1]),
                          .width = static_cast<int>(width),
                          .rounded = args.x.dtype == DType::kBF16,
                          .rounded_window = args.window.dtype == DType::kBF16,
                          .silu = args.activation == Activation::kSilu});
  }
  return alike;
}

}  // namespace

void ShortConv(Device& device, std::span<const ShortConvArgs> convolutions) {
  std::vector<bool> done(convolutions.size(), false);
  for (size_t first = 0; first < convolutions.size(); ++first) {
    if (done[first]) continue;
    const Alike alike = TakeAlike(convolutions, first, done);
    if (alike.short_segments) {
      LaunchAll(device, Pass::kShort, alike.width, alike.fours, alike.list);
      continue;
    }
    LaunchAll(device, Pass::kOutputs, alike.width, alike.fours, alike.list);
    if (alike.width > 1) {
      LaunchAll(device, Pass::kWindows, alike.width, alike.fours, alike.list);
    }
  }
}

void MoveWindows(Device& device, std::span<const ShortConvArgs> convolutions) {
  std::vector<bool> done(convolutions.size(), false);
  for (size_t first = 0; first < convolutions.size(); ++first) {
    if (done[first]) continue;
    const Alike alike = TakeAlike(convolutions, first, done);
    if (alike.width > 1) {
      LaunchAll(device, Pass::kWindows, alike.width, alike.fours, alike.list);
    }
  }
}

}  // namespace mneme::cuda::matrix_memory
