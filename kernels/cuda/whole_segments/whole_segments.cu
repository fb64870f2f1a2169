// A token's result depends on its own row only, and every sum has a fixed order.
#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/exponentials.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/row_at.cuh"
#include "kernels/cuda/whole_segments/whole_segments.h"

namespace mneme::cuda::whole_segments {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

struct IndexProblem {
  const int32_t *ids, *types, *offsets, *picks;  // no types: 0
  const int64_t* row_positions;
  int64_t segment, first_position;
  int32_t skipped;
  int pick_count;
  int64_t *positions, *token_types, *next_positions;
  int32_t *seen, *firsts;
};

// A block for each row.
__global__ void __launch_bounds__(kThreads) IndexKernel(const __grid_constant__ IndexProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  __shared__ int seen_of[kWarps], counted_of[kWarps];
  const int row = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first = p.offsets[row], end = p.offsets[row + 1];
  for (int i = threadIdx.x; i < p.pick_count; i += kThreads) {
    if (p.picks[i] >= first && p.picks[i] < end) p.firsts[i] = first;
  }
  int seen = 0, counted = 0;  // of the tokens before `base`
  for (int base = first; base < end; base += kThreads) {
    const int token = base + static_cast<int>(threadIdx.x);
    const bool in = token < end;
    const int type = in && p.types != nullptr ? p.types[token] : 0;
    const bool counts = in && (p.skipped < 0 || p.ids[token] != p.skipped);
    const unsigned seen_votes = __ballot_sync(kAllLanes, in && type >= 0);
    const unsigned votes = __ballot_sync(kAllLanes, counts);
    if (lane == 0) {
      seen_of[warp] = __popc(seen_votes);
      counted_of[warp] = __popc(votes);
    }
    __syncthreads();
    int place = counted + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) place += counted_of[w];
      counted += counted_of[w];
      seen += seen_of[w];
    }
    if (in) {
      p.token_types[token] = max(type, 0);
      p.positions[token] = p.first_position + (counts ? place : -1);
    }
    __syncthreads();
  }
  if (threadIdx.x > 0) return;
  p.seen[row] = seen;
  p.next_positions[row] = p.row_positions[row] + p.segment;
}

struct AttentionProblem {
  const float *q, *k, *v;
  const int32_t *offsets, *slots, *seen;
  int rows, heads, dim;
  int64_t queries;  // heads of tokens
  float scale;
  float* out;
};

// Numbers of a query in shared memory: whole reads of four.
__host__ __device__ constexpr int QueryPitch(int dim) { return (dim + 3) / 4 * 4; }

// A warp for each head of each token: a lane has a key at a time, then each lane has some channels
// of the values. Shared memory: a query and a sum for each warp.
__global__ void __launch_bounds__(kThreads)
    AttentionKernel(const __grid_constant__ AttentionProblem p) {
  extern __shared__ float shared[];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t query = int64_t{blockIdx.x} * kWarps + warp;
  if (query >= p.queries) return;
  const int token = static_cast<int>(query / p.heads), head = static_cast<int>(query % p.heads);
  if (token >= p.offsets[p.rows]) return;
  const int row = RowAt(p.offsets, p.rows, token);
  if (p.slots[row] < 0) return;
  const int64_t pitch = int64_t{p.heads} * p.dim;
  const int64_t begin = p.offsets[row] * pitch + head * p.dim;
  float* const q = shared + warp * 2 * QueryPitch(p.dim);
  float* const sums = q + QueryPitch(p.dim);
  for (int i = lane; i < p.dim; i += kWarp) {
    q[i] = p.scale * p.q[query * p.dim + i];
    sums[i] = 0;
  }
  __syncwarp();
  float largest = -INFINITY, total = 0;
  const int seen = p.seen[row];
  for (int tile = 0; tile < seen; tile += kWarp) {
    const int count = min(kWarp, seen - tile);
    float score = -INFINITY;
    if (lane < count) {
      const float* key = p.k + begin + (tile + lane) * pitch;
      score = 0;
      for (int i = 0; i < p.dim; ++i) score = fmaf(q[i], key[i], score);
    }
    const float now = fmaxf(largest, WarpMax(score));
    const float keep = expf(largest - now), weight = expf(score - now);
    total = total * keep + WarpSum(weight);
    largest = now;
    for (int i = lane; i < p.dim; i += kWarp) sums[i] *= keep;
    for (int j = 0; j < count; ++j) {
      const float by = __shfl_sync(kAllLanes, weight, j);
      const float* value = p.v + begin + (tile + j) * pitch;
      for (int i = lane; i < p.dim; i += kWarp) sums[i] = fmaf(by, value[i], sums[i]);
    }
  }
  for (int i = lane; i < p.dim; i += kWarp) {
    p.out[query * p.dim + i] = seen > 0 ? sums[i] / total : 0.0f;
  }
}

}  // namespace

void IndexWholeSegments(Device& device, const IndexWholeSegmentsArgs& args) {
  const int rows = static_cast<int>(args.row_positions.shape[0]);
  if (rows == 0) return;
  const IndexProblem problem = {.ids = args.token_ids.as<const int32_t>(),
                                .types = args.token_types.as<const int32_t>(),
                                .offsets = args.row_offsets.as<const int32_t>(),
                                .picks = args.picks.as<const int32_t>(),
                                .row_positions = args.row_positions.as<const int64_t>(),
                                .segment = args.segment,
                                .first_position = args.first_position,
                                .skipped = args.skipped,
                                .pick_count = static_cast<int>(args.picks.shape[0]),
                                .positions = args.positions.as<int64_t>(),
                                .token_types = args.types.as<int64_t>(),
                                .next_positions = args.next_positions.as<int64_t>(),
                                .seen = args.seen.as<int32_t>(),
                                .firsts = args.firsts.as<int32_t>()};
  LaunchOverlapping(device, "IndexWholeSegments", IndexKernel, rows, kThreads, 0, 1, problem);
}

void SegmentAttention(Device& device, const SegmentAttentionArgs& args) {
  const Shape& shape = args.q.shape;
  const int64_t queries = shape[0] * shape[1];
  if (queries == 0 || args.slots.shape[0] == 0) return;
  const AttentionProblem problem = {.q = args.q.as<const float>(),
                                    .k = args.k.as<const float>(),
                                    .v = args.v.as<const float>(),
                                    .offsets = args.row_offsets.as<const int32_t>(),
                                    .slots = args.slots.as<const int32_t>(),
                                    .seen = args.seen.as<const int32_t>(),
                                    .rows = static_cast<int>(args.slots.shape[0]),
                                    .heads = static_cast<int>(shape[1]),
                                    .dim = static_cast<int>(shape[2]),
                                    .queries = queries,
                                    .scale = args.scale,
                                    .out = args.out.as<float>()};
  const int64_t shared_bytes =
      int64_t{kWarps} * 2 * QueryPitch(problem.dim) * int64_t{sizeof(float)};
  LaunchOverlapping(device, "SegmentAttention", AttentionKernel, BlocksFor(queries, kWarps),
                    kThreads, shared_bytes, 1, problem);
}

}  // namespace mneme::cuda::whole_segments
