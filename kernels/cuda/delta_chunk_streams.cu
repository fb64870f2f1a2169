// Projected tokens of segments of any length to what the delta rule takes, in one pass over them:
// short convolutions and silu, norms of q and k, gates; and beside it, the plan of the chunks.
//
// A warp takes a run of entries of as many channels as a head has keys, all in registers, so that a
// norm is a sum over the warp. Keys and queries of a chunk are only wanted in f16:
// delta_chunk_plan.h.
#include <algorithm>

#include "kernels/cuda/delta_chunk_planning.cuh"
#include "kernels/cuda/delta_chunk_streams.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/cuda/overlap.cuh"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kLongRun = 16, kShortRun = 8;  // entries of a warp: many in all, or few
constexpr int kBatch = 4;                    // entries whose inputs are on their way together
constexpr int kWidth = 4;                    // of the convolutions
constexpr int kHistory = kWidth - 1;

struct Stream {
  const float* x;
  const int32_t* rows;  // of x, for each entry; null: row e
  const float* weight;  // [channels, kWidth]
  StateView window;
  float* y;
  int channels;
  int groups;  // of channels, each a warp's
  int is_key;  // to be normalised, and in f16 where it goes to a chunk
  float scale;
};

struct StreamsParams {
  Stream streams[3];
  const int *offsets, *slots, *memories, *fresh;
  int segments, entries, run_entries, runs;
  const float *a, *b, *a_log, *dt_bias;
  const int32_t* gate_rows;
  float beta_scale;
  int value_heads, gate_blocks;
  float *log_decay, *beta;
  ChunkPlanning planning;
};

struct Segment {
  __device__ Segment(const StreamsParams& p, int s)
      : first(p.offsets[s]),
        end(p.offsets[s + 1]),
        slot(p.slots[s]),
        memory(p.memories[s]),
        fresh(p.fresh[s]) {}
  int first, end, slot, memory, fresh;
};

// The segment that has an entry: the last one that starts at or before it. Called by whole warps.
__device__ inline int SegmentOf(const StreamsParams& p, int entry) {
  const int lane = threadIdx.x % kWarp;
  int low = 0, high = p.segments;  // offsets[low] <= entry < offsets[high]
  while (high - low > 1) {
    const int step = (high - low + kWarp - 1) / kWarp;
    const int probe = low + lane * step;
    const bool starts = probe < high && p.offsets[probe] <= entry;
    low += (__popc(__ballot_sync(kAllLanes, starts)) - 1) * step;
    high = min(high, low + step);
  }
  return low;
}

template <int kVector>
__device__ inline void LoadVector(const float* p, float* to) {
  if constexpr (kVector == 4) {
    const float4 x = *reinterpret_cast<const float4*>(p);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  } else {
    const float2 x = *reinterpret_cast<const float2*>(p);
    to[0] = x.x, to[1] = x.y;
  }
}
template <int kVector>
__device__ inline void StoreVector(float* p, const float* from) {
  if constexpr (kVector == 4) {
    *reinterpret_cast<float4*>(p) = {from[0], from[1], from[2], from[3]};
  } else {
    *reinterpret_cast<float2*>(p) = {from[0], from[1]};
  }
}
template <int kVector>
__device__ inline void StoreVector(__half* p, const float* from) {
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    *reinterpret_cast<__half2*>(p + i) = __floats2half2_rn(from[i], from[i + 1]);
  }
}

// To within a few units of the last place, without the branches of an exact division.
__device__ inline float FastSilu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// A lane has kParts pieces of kVector channels; those of a warp's piece lie together.
template <int kVector, int kParts>
__device__ void RunStream(const StreamsParams& p, const Stream& s, int run, int group) {
  constexpr int kOwn = kVector * kParts, kPiece = kWarp * kVector;
  const int lane = threadIdx.x % kWarp;
  const int channel = group * (kParts * kPiece) + lane * kVector;
  const int begin = run * p.run_entries;
  const int end = min(begin + p.run_entries, min(p.entries, p.offsets[p.segments]));
  if (begin >= end) return;
  bool has[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) has[part] = channel + part * kPiece < s.channels;
  const auto load = [&](const float* row, float(&to)[kOwn]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (has[part]) LoadVector<kVector>(row + channel + part * kPiece, to + part * kVector);
    }
  };

  // Rows of entries from begin - kHistory on, one a lane.
  const int own = min(max(begin - kHistory + lane, 0), p.entries - 1);
  const int own_row = s.rows != nullptr ? s.rows[own] : own;
  const auto input = [&](int entry, float(&to)[kOwn]) {
    const int row = __shfl_sync(kAllLanes, own_row, entry - begin + kHistory);
    load(s.x + int64_t{row} * s.channels, to);
  };
  float next[kBatch][kOwn] = {};
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (begin + i < end) input(begin + i, next[i]);
  }
  float weight[kWidth][kOwn] = {};
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int at = channel + i / kVector * kPiece + i % kVector;
    if (!has[i / kVector]) continue;
    const float4 w = *reinterpret_cast<const float4*>(s.weight + int64_t{at} * kWidth);
    weight[0][i] = w.x, weight[1][i] = w.y, weight[2][i] = w.z, weight[3][i] = w.w;
  }

  int number = SegmentOf(p, begin);
  Segment segment(p, number);
  float history[kHistory][kOwn];  // oldest first
  const auto read_history = [&](int entry) {
    const float* window = nullptr;
    if (segment.slot >= 0) window = MemoryAt<float>(s.window, segment.slot, segment.memory);
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) history[j][i] = 0;
      const int place = entry - segment.first - (kHistory - j);
      if (place >= 0) {
        input(segment.first + place, history[j]);
      } else if (segment.fresh == 0 && window != nullptr) {
        load(window + int64_t{kHistory + place} * s.channels, history[j]);
      }
    }
  };
  read_history(begin);

  for (int at = begin; at < end; at += kBatch) {
    float y[kBatch][kOwn];
    bool single[kBatch], kept[kBatch];
    float x[kBatch][kOwn];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) x[i][c] = next[i][c];
      if (at + kBatch + i < end) input(at + kBatch + i, next[i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (at + i >= end) continue;
      if (at + i >= segment.end) {
        do segment = Segment(p, ++number);
        while (at + i >= segment.end);
        read_history(at + i);
      }
      single[i] = segment.end - segment.first == 1;
      kept[i] = segment.slot >= 0;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kHistory; ++j) {
          sum = fmaf(weight[j][c], history[j][c], sum);
          history[j][c] = j + 1 < kHistory ? history[j + 1][c] : x[i][c];
        }
        y[i][c] = FastSilu(fmaf(weight[kHistory][c], x[i][c], sum));
      }
    }
    if (s.is_key) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float squares = 0;
#pragma unroll
        for (int c = 0; c < kOwn; ++c) squares = fmaf(y[i][c], y[i][c], squares);
        const float factor = s.scale * rsqrtf(WarpSum(squares) + 1e-6f);
#pragma unroll
        for (int c = 0; c < kOwn; ++c) y[i][c] *= factor;
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (at + i >= end || !kept[i]) continue;
      float* row = s.y + int64_t{at + i} * s.channels;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (!has[part]) continue;
        const int place = channel + part * kPiece;
        if (s.is_key && !single[i]) {
          StoreVector<kVector>(reinterpret_cast<__half*>(row) + place, y[i] + part * kVector);
        } else {
          StoreVector<kVector>(row + place, y[i] + part * kVector);
        }
      }
    }
  }
}

__device__ inline void RunGates(const StreamsParams& p, int block) {
  const int64_t i = int64_t{block} * kThreads + threadIdx.x;
  if (i >= int64_t{p.entries} * p.value_heads) return;
  const int64_t entry = i / p.value_heads;
  const int head = static_cast<int>(i - entry * p.value_heads);
  const int64_t row = p.gate_rows != nullptr ? p.gate_rows[entry] : entry;
  const int64_t from = row * p.value_heads + head;
  p.log_decay[i] = LogDecay(p.a[from], p.a_log[head], p.dt_bias[head]);
  p.beta[i] = p.beta_scale * Sigmoid(p.b[from]);
}

// Blocks: the plan, gates, runs of the three streams.
template <int kVector, int kParts>
__global__ void __launch_bounds__(kThreads, 3)
    StreamsKernel(const __grid_constant__ StreamsParams p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  int block = static_cast<int>(blockIdx.x);
  if (block == 0) return PlanChunks<kThreads>(p.planning);
  if (--block < p.gate_blocks) return RunGates(p, block);
  int64_t task = int64_t{block - p.gate_blocks} * kWarps + threadIdx.x / kWarp;
  int n = 0;
  while (n < 3 && task >= int64_t{p.runs} * p.streams[n].groups) {
    task -= int64_t{p.runs} * p.streams[n++].groups;
  }
  if (n == 3) return;
  const int groups = p.streams[n].groups;
  RunStream<kVector, kParts>(p, p.streams[n], static_cast<int>(task / groups),
                             static_cast<int>(task % groups));
}

bool InFours(const ShortConvArgs& args) {
  const auto whole = [](int64_t bytes) { return bytes % 16 == 0; };
  return args.x.shape[1] % 4 == 0 && whole(reinterpret_cast<intptr_t>(args.weight.data)) &&
         whole(reinterpret_cast<intptr_t>(args.x.data)) &&
         whole(reinterpret_cast<intptr_t>(args.y.data)) &&
         whole(reinterpret_cast<intptr_t>(args.window.base)) && whole(args.window.slab_bytes) &&
         whole(args.window.offset) && whole(args.window.memory_bytes);
}

Stream MakeStream(const ShortConvArgs& args, int group_channels, bool is_key, float scale) {
  const int channels = static_cast<int>(args.x.shape[1]);
  return {.x = args.x.as<const float>(),
          .rows = args.entry_rows.as<const int32_t>(),
          .weight = args.weight.as<const float>(),
          .window = args.window,
          .y = args.y.as<float>(),
          .channels = channels,
          .groups = (channels + group_channels - 1) / group_channels,
          .is_key = is_key,
          .scale = scale};
}

}  // namespace

bool DeltaStreamsSupported(const DeltaMemoryPassArgs& args) {
  const int64_t key_dim = args.rule.q.shape[2];
  if (key_dim != 64 && key_dim != 128 && key_dim != 256) return false;
  for (const ShortConvArgs* conv : {&args.q, &args.k, &args.v}) {
    if (conv->weight.shape[1] != kWidth || conv->window.dtype != DType::kF32 || !InFours(*conv)) {
      return false;
    }
  }
  return true;
}

void PrepareDeltaStreams(Device& device, const DeltaMemoryPassArgs& args,
                         const DeltaChunkPlan& plan) {
  const GatedDeltaRuleArgs& rule = args.rule;
  const Segments& segments = rule.segments;
  const int key_dim = static_cast<int>(rule.q.shape[2]);
  StreamsParams p = {};
  p.streams[0] = MakeStream(args.k, key_dim, true, 1.0f);
  p.streams[1] = MakeStream(args.q, key_dim, true, args.q_scale);
  p.streams[2] = MakeStream(args.v, key_dim, false, 1.0f);
  p.offsets = segments.offsets.as<const int>();
  p.slots = segments.slots.as<const int>();
  p.memories = segments.memories.as<const int>();
  p.fresh = segments.fresh.as<const int>();
  p.segments = segments.count;
  p.entries = static_cast<int>(rule.q.shape[0]);
  p.a = args.gates.a.as<const float>();
  p.b = args.gates.b.as<const float>();
  p.a_log = args.gates.a_log.as<const float>();
  p.dt_bias = args.gates.dt_bias.as<const float>();
  p.gate_rows = args.gates.entry_rows.as<const int32_t>();
  p.beta_scale = args.gates.beta_scale;
  p.value_heads = static_cast<int>(rule.v.shape[1]);
  p.gate_blocks = (p.entries * p.value_heads + kThreads - 1) / kThreads;
  p.log_decay = rule.log_decay.as<float>();
  p.beta = rule.beta.as<float>();
  p.planning = {plan, p.offsets, p.slots, p.segments};
  int groups = 0;
  for (const Stream& stream : p.streams) groups += stream.groups;
  // Fewer warps than could be at work: shorter runs, of which each waits for less.
  constexpr int kBusyWarps = 12;  // of a multiprocessor
  const bool few =
      int64_t{p.entries} * groups < int64_t{kLongRun} * kBusyWarps * device.multiprocessors();
  p.run_entries = few ? kShortRun : kLongRun;
  p.runs = (p.entries + p.run_entries - 1) / p.run_entries;
  const int64_t tasks = int64_t{p.runs} * groups;
  const int64_t blocks = 1 + p.gate_blocks + (tasks + kWarps - 1) / kWarps;
  const auto kernel = key_dim == 64    ? StreamsKernel<2, 1>
                      : key_dim == 128 ? StreamsKernel<4, 1>
                                       : StreamsKernel<4, 2>;
  LaunchOverlapping(device, "streams of delta chunks", kernel, static_cast<int>(blocks), kThreads,
                    0, 1, p);
}

}  // namespace mneme::cuda
