// Prompts. A segment is cut into chunks of kChunk entries, which all go at once: first each from a
// state of zero, for what it adds to the state and the sum of its steps; then each segment's states
// from chunk to chunk,
//   h <- exp(a sum(step)) h + what the chunk adds
// and last each chunk again, from its state, for its outputs. Segments of one chunk take the last
// part alone, and have the bits of token after token. A thread has a channel and all of its states.
#include <algorithm>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/scratch_layout.h"
#include "kernels/cuda/scan/launch.h"
#include "kernels/cuda/scan/token.cuh"

namespace mneme::cuda::scan {
namespace {

constexpr int kChunk = 64;
constexpr int kAhead = 4;  // entries whose inputs are on their way
constexpr int kJoinThreads = 256;

// States at each place of a chunk; a segment's follow each other.
struct ChunkStates {
  float* states;  // [places, states, channels]: what a chunk adds, then that at its start
  float* steps;   // [places, channels]: sums
};

// The place of a segment's first chunk; places in between may stay empty.
__device__ inline int FirstPlace(const SegmentArrays& segments, int s) {
  return segments.offsets[s] / kChunk + s;
}

struct Chunk {
  int first, count;  // entries; count 0: nothing is there
  bool only, last;   // of its segment
  Segment segment;
};

__device__ inline Chunk FindChunk(const SegmentArrays& segments, int place) {
  const int s = LastSegment(segments, [&](int i) { return FirstPlace(segments, i) <= place; });
  Chunk chunk = {0, 0, false, false, Segment(segments, s)};
  const Segment& segment = chunk.segment;
  chunk.first = segment.first + (place - FirstPlace(segments, s)) * kChunk;
  if (segment.slot < 0 || chunk.first >= segment.end) return chunk;
  chunk.count = min(kChunk, segment.end - chunk.first);
  chunk.only = segment.end - segment.first <= kChunk;
  chunk.last = chunk.first + chunk.count == segment.end;
  return chunk;
}

// b or c of a chunk, zero past the last state.
__device__ inline void LoadSelection(const ScanParams& p, const Chunk& chunk, const float* from,
                                     float (*to)[kFewStates]) {
  for (int i = threadIdx.x; i < chunk.count * kFewStates; i += kThreads) {
    const int entry = i / kFewStates, n = i % kFewStates;
    to[entry][n] = n < p.states ? from[(int64_t{chunk.first} + entry) * p.states + n] : 0.0f;
  }
}

__device__ inline void TakeSelection(const float* from, float (&to)[kFewStates]) {
#pragma unroll
  for (int n = 0; n < kFewStates; n += 4) {
    *reinterpret_cast<float4*>(to + n) = *reinterpret_cast<const float4*>(from + n);
  }
}

// Inputs that a thread's channel gets of an entry.
struct Inputs {
  float u, dt, gate;
};

// Calls use(i, inputs) for all entries of a chunk, in order.
template <bool kGate, typename Use>
__device__ inline void ForEntries(const ScanParams& p, const Chunk& chunk, int channel,
                                  const Use& use) {
  const int64_t first = int64_t{chunk.first} * p.channels + channel;
  const auto load = [&](int group, Inputs(&in)[kAhead]) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t at = first + int64_t{min(group + i, chunk.count - 1)} * p.channels;
      in[i] = {p.u[at], p.dt[at], kGate ? p.gate[at] : 0.0f};
    }
  };
  Inputs next[kAhead];
  load(0, next);
  int group = 0;
  for (; group + kAhead <= chunk.count; group += kAhead) {  // nothing to test between entries
    Inputs now[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) now[i] = next[i];
    if (group + kAhead < chunk.count) load(group + kAhead, next);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) use(group + i, now[i]);
  }
#pragma unroll
  for (int i = 0; i < kAhead - 1; ++i) {
    if (group + i < chunk.count) use(group + i, next[i]);
  }
}

__device__ inline void LoadRates(const ScanParams& p, int channel, float (&rates)[kFewStates]) {
#pragma unroll
  for (int n = 0; n < kFewStates; ++n) {
    rates[n] = n < p.states ? Rate(p.a[int64_t{n} * p.channels + channel]) : 0.0f;
  }
}

// The states that each chunk but the last of its segment adds.
__global__ void __launch_bounds__(kThreads)
    AddedKernel(const __grid_constant__ ScanParams p, ChunkStates chunks) {
  __shared__ alignas(16) float b[kChunk][kFewStates];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int place = static_cast<int>(blockIdx.x) / p.tiles;
  const int channel =
      static_cast<int>(blockIdx.x) % p.tiles * kThreads + static_cast<int>(threadIdx.x);
  const Chunk chunk = FindChunk(p.segments, place);
  if (chunk.count == 0 || chunk.last) return;
  LoadSelection(p, chunk, p.b, b);
  __syncthreads();
  if (channel >= p.channels) return;
  float h[kFewStates] = {}, rates[kFewStates];
  LoadRates(p, channel, rates);
  const float dt_bias = p.dt_bias[channel];
  float steps = 0;
  ForEntries<false>(p, chunk, channel, [&](int i, const Inputs& in) {
    const float step = Softplus(in.dt + dt_bias), input = step * in.u;
    float own_b[kFewStates];
    TakeSelection(b[i], own_b);
    steps += step;
#pragma unroll
    for (int n = 0; n < kFewStates; ++n) h[n] = NextState(h[n], rates[n], step, input, own_b[n]);
  });
  float* const states = chunks.states + int64_t{place} * p.states * p.channels + channel;
#pragma unroll
  for (int n = 0; n < kFewStates; ++n) {
    if (n < p.states) states[int64_t{n} * p.channels] = h[n];
  }
  chunks.steps[int64_t{place} * p.channels + channel] = steps;
}

// States at the starts of the chunks of the segments that have several; a thread takes one number
// through a segment.
__global__ void __launch_bounds__(kJoinThreads)
    JoinKernel(const __grid_constant__ ScanParams p, ChunkStates chunks) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int elements = p.states * p.channels;
  const int blocks = (elements + kJoinThreads - 1) / kJoinThreads;
  const int lane = threadIdx.x % kWarp;
  // The segment that is number `skipped` among those of several chunks.
  int skipped = static_cast<int>(blockIdx.x) / blocks, s = -1;
  for (int base = 0; s < 0; base += kWarp) {
    if (base >= p.segments.count) return;
    const int own = base + lane;
    const bool several = own < p.segments.count && p.segments.slots[own] >= 0 &&
                         p.segments.offsets[own + 1] - p.segments.offsets[own] > kChunk;
    unsigned found = __ballot_sync(kAllLanes, several);
    if (skipped >= __popc(found)) {
      skipped -= __popc(found);
      continue;
    }
    for (; skipped > 0; --skipped) found &= found - 1;
    s = base + __ffs(static_cast<int>(found)) - 1;
  }
  const int at = static_cast<int>(blockIdx.x) % blocks * kJoinThreads + threadIdx.x;
  if (at >= elements) return;
  const Segment segment(p.segments, s);
  const float rate = Rate(p.a[at]);
  float h = segment.fresh == 0 ? MemoryAt<float>(p.state, segment.slot, segment.memory)[at] : 0.0f;
  const int count = (segment.end - segment.first + kChunk - 1) / kChunk;
  const int64_t place = FirstPlace(p.segments, s);
  float* states = chunks.states + place * elements + at;
  const float* steps = chunks.steps + place * p.channels + at % p.channels;
  constexpr int kTogether = 8;
  for (int chunk = 0; chunk < count; chunk += kTogether) {
    float added[kTogether], sums[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      added[i] = sums[i] = 0;
      if (chunk + i >= count - 1) continue;
      added[i] = states[int64_t{i} * elements];
      sums[i] = steps[int64_t{i} * p.channels];
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (chunk + i < count) states[int64_t{i} * elements] = h;
      h = fmaf(Exp2(rate * sums[i]), h, added[i]);
    }
    states += int64_t{kTogether} * elements;
    steps += int64_t{kTogether} * p.channels;
  }
}

template <typename Y>
__global__ void __launch_bounds__(kThreads)
    OutputKernel(const __grid_constant__ ScanParams p, ChunkStates chunks) {
  __shared__ alignas(16) float b[kChunk][kFewStates], c[kChunk][kFewStates];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int place = static_cast<int>(blockIdx.x) / p.tiles;
  const int channel =
      static_cast<int>(blockIdx.x) % p.tiles * kThreads + static_cast<int>(threadIdx.x);
  const Chunk chunk = FindChunk(p.segments, place);
  if (chunk.count == 0) return;
  LoadSelection(p, chunk, p.b, b);
  LoadSelection(p, chunk, p.c, c);
  __syncthreads();
  if (channel >= p.channels) return;
  float* const state = MemoryAt<float>(p.state, chunk.segment.slot, chunk.segment.memory) + channel;
  const float* const start =
      chunk.only ? state : chunks.states + int64_t{place} * p.states * p.channels + channel;
  const bool zero = chunk.only && chunk.segment.fresh != 0;
  float h[kFewStates], rates[kFewStates];
  LoadRates(p, channel, rates);
#pragma unroll
  for (int n = 0; n < kFewStates; ++n) {
    h[n] = n < p.states && !zero ? start[int64_t{n} * p.channels] : 0.0f;
  }
  const float dt_bias = p.dt_bias[channel], skip = p.skip[channel];
  Y* const y = static_cast<Y*>(p.y) + int64_t{chunk.first} * p.channels + channel;
  ForEntries<true>(p, chunk, channel, [&](int i, const Inputs& in) {
    const float step = Softplus(in.dt + dt_bias), input = step * in.u;
    float own_b[kFewStates], own_c[kFewStates], sums[kSlices] = {};
    TakeSelection(b[i], own_b);
    TakeSelection(c[i], own_c);
#pragma unroll
    for (int n = 0; n < kFewStates; ++n) {
      h[n] = NextState(h[n], rates[n], step, input, own_b[n]);
      sums[n % kSlices] = fmaf(own_c[n], h[n], sums[n % kSlices]);
    }
    const float read = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    y[int64_t{i} * p.channels] = Output<Y>(read, skip, in.u, in.gate);
  });
  if (!chunk.last) return;
#pragma unroll
  for (int n = 0; n < kFewStates; ++n) {
    if (n < p.states) state[int64_t{n} * p.channels] = h[n];
  }
}

}  // namespace

void LaunchChunks(Device& device, ScanParams p, DType output, int entries) {
  p.tiles = (p.channels + kThreads - 1) / kThreads;
  const int places = entries / kChunk + p.segments.count;
  const int most_several = std::min(p.segments.count, entries / (kChunk + 1));
  ChunkStates chunks = {};
  if (most_several > 0) {
    const auto lay_out = [&](std::byte* base) {
      ScratchLayout layout(base);
      chunks.states = layout.Take<float>(int64_t{places} * p.states * p.channels);
      chunks.steps = layout.Take<float>(int64_t{places} * p.channels);
      return layout.bytes();
    };
    auto* const scratch = static_cast<std::byte*>(device.Scratch(lay_out(nullptr)));
    if (scratch == nullptr) return;
    lay_out(scratch);
    LaunchOverlapping(device, "what chunks of a scan add", AddedKernel, places * p.tiles, kThreads,
                      0, 1, p, chunks);
    const int blocks = (p.states * p.channels + kJoinThreads - 1) / kJoinThreads;
    LaunchOverlapping(device, "states of chunks of a scan", JoinKernel, most_several * blocks,
                      kJoinThreads, 0, 1, p, chunks);
  }
  const auto kernel = output == DType::kBF16 ? OutputKernel<__nv_bfloat16> : OutputKernel<float>;
  LaunchOverlapping(device, "chunks of a scan", kernel, places * p.tiles, kThreads, 0, 1, p,
                    chunks);
}

}  // namespace mneme::cuda::scan
