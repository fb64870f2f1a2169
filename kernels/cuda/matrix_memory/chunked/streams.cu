// Projected tokens of segments of any length to what the delta rule takes, in one pass over them:
// short convolutions and silu, norms of q and k, gates; and beside it, the plan of the chunks.
//
// A warp takes a run of entries of as many channels as a head has keys, all in registers, so that a
// norm is a sum over the warp. Keys and queries of a chunk are only wanted in f16:
// matrix_memory/chunked/plan.h.
#include <algorithm>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/chunked/planning.cuh"
#include "kernels/cuda/matrix_memory/chunked/streams.h"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kLeastRun = 8, kLongestRun = 24;  // entries of a warp
constexpr int kBatch = 4;                       // entries whose inputs are on their way together
constexpr int kWidth = 4;                       // of the convolutions
constexpr int kHistory = kWidth - 1;

struct Stream {
  const void* x;        // of the kernel's X; rounded to bf16 if windows are
  const int32_t* rows;  // of x, for each entry; null: row e
  const float* weight;  // [channels, kWidth]
  StateView window;
  int rounded_window;  // bf16
  float* y;
  int channels;
  int groups;  // of channels, each a warp's
  int is_key;  // to be normalised, and in f16 where it goes to a chunk
  QueryKeyNorms::Norm norm;
};

struct StreamsParams {
  Stream streams[3];
  SegmentArrays segments;
  int entries, run_entries, runs;
  int singles;  // segments to look for those of one entry; 0: runs take these as well
  const float *a, *b, *a_log, *dt_bias;
  const int32_t* gate_rows;
  float beta_scale;
  int value_heads, gate_blocks;
  float *log_decay, *beta;
  ChunkPlanning planning;
};

// What one access of a lane brings.
template <typename X, int kVector>
struct alignas(sizeof(X) * kVector) Piece {
  X values[kVector];
};
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

// What a warp knows of its stream. A lane has kParts pieces of kVector channels; those of a warp's
// piece lie together.
template <int kVector, int kParts>
struct Lane {
  static constexpr int kOwn = kVector * kParts, kPiece = kWarp * kVector;

  __device__ Lane(const Stream& s, int group)
      : s(s), first(group * (kParts * kPiece) + threadIdx.x % kWarp * kVector) {}

  // Channels past the last are computed from another's, and not stored.
  __device__ bool Has(int part) const { return first + part * kPiece < s.channels; }
  __device__ int Channel(int part) const { return Has(part) ? first + part * kPiece : 0; }
  template <typename X>
  __device__ void Load(const X* row, Piece<X, kVector> (&to)[kParts]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      to[part] = *reinterpret_cast<const Piece<X, kVector>*>(row + Channel(part));
    }
  }
  template <typename X>
  __device__ void Unpack(const Piece<X, kVector> (&from)[kParts], float (&to)[kOwn]) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) to[i] = ToFloat(from[i / kVector].values[i % kVector]);
    if (sizeof(X) == 2 || s.rounded_window == 0) return;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) to[i] = ToFloat(FromFloat<__nv_bfloat16>(to[i]));
  }
  template <typename X>
  __device__ void Load(const X* row, float (&to)[kOwn]) const {
    Piece<X, kVector> pieces[kParts];
    Load(row, pieces);
    Unpack(pieces, to);
  }
  // Row j of a memory's window.
  __device__ void LoadWindow(int slot, int memory, int j, float (&to)[kOwn]) const {
    const int64_t at = int64_t{j} * s.channels;
    if (s.rounded_window != 0) {
      Load(MemoryAt<__nv_bfloat16>(s.window, slot, memory) + at, to);
    } else {
      Load(MemoryAt<float>(s.window, slot, memory) + at, to);
    }
  }
  __device__ void LoadWeights(float (&weight)[kWidth][kOwn]) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int64_t at = Channel(i / kVector) + i % kVector;
      const float4 w = *reinterpret_cast<const float4*>(s.weight + at * kWidth);
      weight[0][i] = w.x, weight[1][i] = w.y, weight[2][i] = w.z, weight[3][i] = w.w;
    }
  }
  // y of kCount entries from the inputs before, at and after the first of them.
  template <int kCount>
  __device__ void Outputs(const float (&weight)[kWidth][kOwn],
                          const float (&in)[kHistory + kCount][kOwn],
                          float (&y)[kCount][kOwn]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        float sum = weight[0][c] * in[i][c];
#pragma unroll
        for (int j = 1; j < kWidth; ++j) sum = fmaf(weight[j][c], in[i + j][c], sum);
        y[i][c] = FastSilu(sum);
      }
    }
    if (!s.is_key) return;
    float squares[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      squares[i] = 0;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) squares[i] = fmaf(y[i][c], y[i][c], squares[i]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float factor = s.norm.scale * rsqrtf(WarpSum(squares[i]) + s.norm.eps);
#pragma unroll
      for (int c = 0; c < kOwn; ++c) y[i][c] *= factor;
    }
  }
  __device__ void Store(int entry, bool half, const float (&y)[kOwn]) const {
    float* row = s.y + int64_t{entry} * s.channels;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (!Has(part)) continue;
      if (half) {
        StoreVector<kVector>(reinterpret_cast<__half*>(row) + first + part * kPiece,
                             y + part * kVector);
      } else {
        StoreVector<kVector>(row + first + part * kPiece, y + part * kVector);
      }
    }
  }

  const Stream& s;
  const int first;
};

template <typename X, int kVector, int kParts>
__device__ void RunStream(const StreamsParams& p, const Stream& s, int run, int group) {
  using OwnLane = Lane<kVector, kParts>;
  constexpr int kOwn = OwnLane::kOwn;
  const int begin = run * p.run_entries;
  const int end = min(begin + p.run_entries, min(p.entries, p.segments.offsets[p.segments.count]));
  if (begin >= end) return;
  const OwnLane lane(s, group);

  // Rows of entries from begin - kHistory on, one a lane.
  const int own_entry = begin - kHistory + static_cast<int>(threadIdx.x % kWarp);
  const int own = min(max(own_entry, 0), end - 1);
  const int own_row = s.rows != nullptr ? s.rows[own] : own;
  const auto input = [&](int entry, auto& to) {
    const int row = __shfl_sync(kAllLanes, own_row, entry - begin + kHistory);
    lane.Load(static_cast<const X*>(s.x) + int64_t{row} * s.channels, to);
  };
  // The last inputs, oldest first, and those of a batch; the next batch, as it comes.
  float in[kHistory + kBatch][kOwn];
  Piece<X, kVector> next[kBatch][kParts];
#pragma unroll
  for (int i = 0; i < kBatch; ++i) input(min(begin + i, end - 1), next[i]);
  float weight[kWidth][kOwn];
  lane.LoadWeights(weight);

  // Segments of one entry have warps of their own.
  const auto skips = [&](const Segment& segment) {
    return p.singles != 0 && segment.end - segment.first == 1;
  };
  int number = SegmentOf(p.segments, begin);
  SegmentWalk walk(p.segments, number);
  Segment segment = walk.At(number);
  const auto read_history = [&](int entry) {
    const int at = entry - segment.first;
    const bool window = segment.fresh == 0 && segment.slot >= 0;
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
      const int place = at - (kHistory - j);
      if (place >= 0) {
        input(segment.first + place, in[j]);
      } else if (window) {
        lane.LoadWindow(segment.slot, segment.memory, kHistory + place, in[j]);
      } else {
#pragma unroll
        for (int c = 0; c < kOwn; ++c) in[j][c] = 0;
      }
    }
  };
  if (!skips(segment)) read_history(begin);

  for (int at = begin; at < end; at += kBatch) {
    if (at + kBatch <= min(end, segment.end)) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) lane.Unpack(next[i], in[kHistory + i]);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) input(min(at + kBatch + i, end - 1), next[i]);
      float y[kBatch][kOwn];
      lane.template Outputs<kBatch>(weight, in, y);
      if (segment.slot >= 0) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) lane.Store(at + i, s.is_key != 0, y[i]);
      }
#pragma unroll
      for (int j = 0; j < kHistory; ++j) {
#pragma unroll
        for (int c = 0; c < kOwn; ++c) in[j][c] = in[kBatch + j][c];
      }
      continue;
    }
    // Segments end here: entry by entry.
#pragma unroll 1
    for (int entry = at; entry < min(at + kBatch, end); ++entry) {
      if (entry >= segment.end) {
        do segment = walk.At(++number);
        while (entry >= segment.end);
        if (!skips(segment)) read_history(entry);
      }
      if (skips(segment)) continue;
      float one[kHistory + 1][kOwn], y[1][kOwn];
      input(entry, one[kHistory]);
#pragma unroll
      for (int j = 0; j < kHistory; ++j) {
#pragma unroll
        for (int c = 0; c < kOwn; ++c) one[j][c] = in[j][c];
      }
      lane.template Outputs<1>(weight, one, y);
      const bool single = segment.end - segment.first == 1;
      if (segment.slot >= 0) lane.Store(entry, s.is_key != 0 && !single, y[0]);
#pragma unroll
      for (int j = 0; j < kHistory; ++j) {
#pragma unroll
        for (int c = 0; c < kOwn; ++c) in[j][c] = one[j + 1][c];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) input(min(at + kBatch + i, end - 1), next[i]);
  }
}

// A segment of one entry.
template <typename X, int kVector, int kParts>
__device__ void RunSingle(const StreamsParams& p, const Stream& s, int number, int group) {
  using OwnLane = Lane<kVector, kParts>;
  const OwnLane lane(s, group);
  float weight[kWidth][OwnLane::kOwn];
  lane.LoadWeights(weight);
  const Segment segment(p.segments, number);
  if (segment.end - segment.first != 1 || segment.slot < 0) return;
  const int entry = segment.first;
  float in[kHistory + 1][OwnLane::kOwn] = {}, y[1][OwnLane::kOwn];
  if (segment.fresh == 0) {
#pragma unroll
    for (int j = 0; j < kHistory; ++j) lane.LoadWindow(segment.slot, segment.memory, j, in[j]);
  }
  const int row = s.rows != nullptr ? s.rows[entry] : entry;
  lane.Load(static_cast<const X*>(s.x) + int64_t{row} * s.channels, in[kHistory]);
  lane.template Outputs<1>(weight, in, y);
  lane.Store(entry, /*half=*/false, y[0]);
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

// Blocks: the plan, gates, runs and singles of the three streams.
template <typename X, int kVector, int kParts>
__global__ void __launch_bounds__(kThreads, 3)
    StreamsKernel(const __grid_constant__ StreamsParams p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  int block = static_cast<int>(blockIdx.x);
  if (block == 0) return PlanChunks<kThreads>(p.planning);
  if (--block < p.gate_blocks) return RunGates(p, block);
  int64_t task = int64_t{block - p.gate_blocks} * kWarps + threadIdx.x / kWarp;
  // Runs of all streams, then their singles.
  for (int n = 0; n < 6; ++n) {
    const Stream& stream = p.streams[n % 3];
    const int64_t tasks = int64_t{n < 3 ? p.runs : p.singles} * stream.groups;
    if (task >= tasks) {
      task -= tasks;
      continue;
    }
    const int first = static_cast<int>(task / stream.groups);
    const int group = static_cast<int>(task % stream.groups);
    return n < 3 ? RunStream<X, kVector, kParts>(p, stream, first, group)
                 : RunSingle<X, kVector, kParts>(p, stream, first, group);
  }
}

// `norm`: of keys and queries.
Stream MakeStream(const ShortConvArgs& args, int group_channels,
                  const QueryKeyNorms::Norm* norm = nullptr) {
  const int channels = static_cast<int>(args.x.shape[1]);
  return {.x = args.x.data,
          .rows = args.entry_rows.as<const int32_t>(),
          .weight = args.weight.as<const float>(),
          .window = args.window,
          .rounded_window = args.window.dtype == DType::kBF16,
          .y = args.y.as<float>(),
          .channels = channels,
          .groups = (channels + group_channels - 1) / group_channels,
          .is_key = norm != nullptr,
          .norm = norm != nullptr ? *norm : QueryKeyNorms::Norm{}};
}

template <typename X>
auto KernelFor(int key_dim) {
  return key_dim == 64    ? StreamsKernel<X, 2, 1>
         : key_dim == 128 ? StreamsKernel<X, 4, 1>
                          : StreamsKernel<X, 4, 2>;
}

}  // namespace

bool Supports(const DeltaMemoryPassArgs& args) {
  const int64_t key_dim = args.rule.q.shape[2];
  if (!HasTunedKernels(static_cast<int>(key_dim))) return false;
  for (const ShortConvArgs* conv : {&args.q, &args.k, &args.v}) {
    if (conv->activation != Activation::kSilu || !conv->bias.empty() ||
        conv->x.dtype != args.k.x.dtype || conv->weight.shape[1] != kWidth ||
        conv->window.dtype != args.k.window.dtype || !InFours(*conv)) {
      return false;
    }
  }
  return true;
}

void PrepareDeltaStreams(Device& device, const DeltaMemoryPassArgs& args,
                         const DeltaChunkPlan& plan) {
  const MatrixMemoryArgs& rule = args.rule;
  const Segments& segments = rule.segments;
  const int key_dim = static_cast<int>(rule.q.shape[2]);
  StreamsParams p = {};
  p.streams[0] = MakeStream(args.k, key_dim, &args.norms.k);
  p.streams[1] = MakeStream(args.q, key_dim, &args.norms.q);
  p.streams[2] = MakeStream(args.v, key_dim);
  p.segments = ArraysOf(segments);
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
  p.planning = {plan, p.segments};
  int groups = 0;
  for (const Stream& stream : p.streams) groups += stream.groups;
  // All warps at work at a time, if that makes no run too long: what begins late ends late.
  constexpr int kWarpsAtWork = 10;  // of a multiprocessor, and some to spare
  const int64_t share = int64_t{p.entries} * groups / (kWarpsAtWork * device.multiprocessors()) + 1;
  p.run_entries = static_cast<int>(
      std::clamp<int64_t>((share + kBatch - 1) / kBatch * kBatch, kLeastRun, kLongestRun));
  p.runs = (p.entries + p.run_entries - 1) / p.run_entries;
  // Rows that decode are many short waits one behind the other, for a run.
  p.singles = segments.longer > 0 && segments.longer < segments.count ? segments.count : 0;
  const int64_t tasks = (int64_t{p.runs} + p.singles) * groups;
  const int64_t blocks = 1 + p.gate_blocks + (tasks + kWarps - 1) / kWarps;
  const auto kernel = args.k.x.dtype == DType::kBF16 ? KernelFor<__nv_bfloat16>(key_dim)
                                                     : KernelFor<float>(key_dim);
  LaunchOverlapping(device, "streams of delta chunks", kernel, static_cast<int>(blocks), kThreads,
                    0, 1, p);
}

}  // namespace mneme::cuda::matrix_memory::chunked
