// A segment on its way to the next one's working engrams, and these on their way into the store.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/engrams/engrams.h"
#include "kernels/cuda/engrams/order.cuh"
#include "kernels/cuda/engrams/store.cuh"

namespace mneme::cuda::engrams {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// Elements of a token and of what it is added to that a lane keeps in registers; of longer ones the
// rest is read and written for every token.
constexpr int kHeld = 24;

struct EncodeProblem {
  const float *h, *queries;
  const int32_t *row_offsets, *slots;
  const int64_t* positions;
  int rows, working, dim, segment;
  Field largest, total, sums;
};

// A warp takes a query and the tokens of a row.
__global__ void __launch_bounds__(kThreads, 2)
    EncodeKernel(const __grid_constant__ EncodeProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t task = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int row = static_cast<int>(task / p.working), w = static_cast<int>(task % p.working);
  if (row >= p.rows) return;
  const int slot = p.slots[row], begin = p.row_offsets[row], end = p.row_offsets[row + 1];
  if (slot < 0 || begin == end) return;
  const int lane = threadIdx.x % kWarp;
  const float* const query = p.queries + int64_t{w} * p.dim;
  float* const sums = p.sums.At<float>(slot, 0) + int64_t{w} * p.dim;
  float* const largest_of = p.largest.At<float>(slot, 0) + w;
  float* const total_of = p.total.At<float>(slot, 0) + w;
  const int64_t position = p.positions[row];

  float held_query[kHeld], held[kHeld];
  float largest = *largest_of, total = *total_of;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = n * kWarp + lane;
    held_query[n] = i < p.dim ? query[i] : 0.0f;
    held[n] = i < p.dim ? sums[i] : 0.0f;
  }
  const int rest = kHeld * kWarp;
  const auto take = [&](int token, const float(&held_h)[kHeld], float score) {
    const float* const h = p.h + int64_t{token} * p.dim;
    if ((position + token - begin) % p.segment == 0) {
      largest = -INFINITY;
      total = 0;
#pragma unroll
      for (int n = 0; n < kHeld; ++n) held[n] = 0;
      for (int i = rest + lane; i < p.dim; i += kWarp) sums[i] = 0;
    }
    const float now = fmaxf(largest, score);
    const float keep = expf(largest - now), weight = expf(score - now);
#pragma unroll
    for (int n = 0; n < kHeld; ++n) held[n] = fmaf(weight, held_h[n], keep * held[n]);
    for (int i = rest + lane; i < p.dim; i += kWarp) sums[i] = fmaf(weight, h[i], keep * sums[i]);
    total = fmaf(total, keep, weight);
    largest = now;
  };
  // Scores of two tokens have their latency in common.
  for (int token = begin; token < end; token += 2) {
    float held_h[2][kHeld], scores[2] = {};
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const float* const h = p.h + int64_t{min(token + t, end - 1)} * p.dim;
#pragma unroll
      for (int n = 0; n < kHeld; ++n) {
        const int i = n * kWarp + lane;
        held_h[t][n] = i < p.dim ? h[i] : 0.0f;
        scores[t] = fmaf(held_query[n], held_h[t][n], scores[t]);
      }
      for (int i = rest + lane; i < p.dim; i += kWarp) scores[t] = fmaf(query[i], h[i], scores[t]);
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) scores[t] = WarpSum(scores[t]);
    take(token, held_h[0], scores[0]);
    if (token + 1 < end) take(token + 1, held_h[1], scores[1]);
  }
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = n * kWarp + lane;
    if (i < p.dim) sums[i] = held[n];
  }
  if (lane == 0) {
    *largest_of = largest;
    *total_of = total;
  }
}

// One block per row.
__global__ void __launch_bounds__(kThreads) CopyKernel(const __grid_constant__ EncodeProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int row = blockIdx.x, slot = p.slots[row];
  const int begin = p.row_offsets[row], count = p.row_offsets[row + 1] - begin;
  if (slot < 0 || count == 0) return;
  const int64_t place = p.positions[row] % p.segment;
  float* const sums = p.sums.At<float>(slot, 0);
  for (int64_t i = threadIdx.x; i < int64_t{count} * p.dim; i += kThreads) {
    sums[place * p.dim + i] = p.h[int64_t{begin} * p.dim + i];
  }
  if (place > 0) return;
  for (int64_t i = int64_t{count} * p.dim + threadIdx.x; i < int64_t{p.segment} * p.dim;
       i += kThreads) {
    sums[i] = 0;
  }
}

// One block per crossing and engram.
__global__ void __launch_bounds__(kThreads)
    ReadKernel(CrossingArrays crossings, int working, int dim, Field total, Field sums, float* x) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int slot = crossings.slots[blockIdx.x / working], w = blockIdx.x % working;
  if (slot < 0) return;
  const float* const from = sums.At<float>(slot, 0) + int64_t{w} * dim;
  const float by = total.base == nullptr ? 1.0f : total.At<float>(slot, 0)[w];
  for (int i = threadIdx.x; i < dim; i += kThreads) x[int64_t{blockIdx.x} * dim + i] = from[i] / by;
}

struct WriteProblem {
  Store store;
  CrossingArrays crossings;
  int working;
  int blocks;  // of a crossing, that fill its slots
  float lifespan;
  const float* x;
  int32_t* chosen;  // [crossings, working]: slots of working engrams, < 0 where none was free
};

// One block per crossing.
__global__ void __launch_bounds__(kThreads) TakeSlots(const __grid_constant__ WriteProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int slot = p.crossings.slots[blockIdx.x];
  if (slot < 0) return;
  EngramType* const types = p.store.types(slot);
  const uint32_t first = FirstBirth(p.crossings.segments[blockIdx.x], p.working);
  int32_t* const chosen = p.chosen + int64_t{blockIdx.x} * p.working;
  const int free = Choose<kThreads>(
      p.store.capacity, [&](int i) { return types[i] == EngramType::kFree; },
      [&](int i, int w) {
        if (w >= p.working) return;
        types[i] = EngramType::kWorking;
        p.store.lifespans(slot)[i] = p.lifespan;
        p.store.gains(slot)[i] = 0;
        p.store.births(slot)[i] = first + static_cast<uint32_t>(w);
        chosen[w] = i;
      });
  for (int w = free + static_cast<int>(threadIdx.x); w < p.working; w += kThreads) chosen[w] = -1;
  if (threadIdx.x == 0) p.store.facts(slot)[kEngramsWorking] = min(free, p.working);
}

constexpr int kRowsOfBlock = 64;

// Blocks of a crossing: one for each working engram, which writes its vector and that it fired with
// nobody, and, with counts of pairs, one for so many slots, which forgets what their engrams
// counted with whoever had the slots of the working ones before.
__global__ void __launch_bounds__(kThreads) FillSlots(const __grid_constant__ WriteProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int capacity = p.store.capacity, dim = p.store.dim;
  const int crossing = blockIdx.x / p.blocks, task = blockIdx.x % p.blocks;
  const int slot = p.crossings.slots[crossing];
  if (slot < 0) return;
  const int32_t* const chosen = p.chosen + int64_t{crossing} * p.working;
  if (task < p.working) {
    const int engram = chosen[task];
    if (engram < 0) return;
    const float* const x = p.x + (int64_t{crossing} * p.working + task) * dim;
    float* const vector = p.store.vector(slot, engram);
    for (int i = threadIdx.x; i < dim; i += kThreads) vector[i] = x[i];
    if (p.store.steps > 0) {
      uint32_t* const fired = p.store.fired(slot, engram);
      for (int i = threadIdx.x; i < p.store.steps / 32; i += kThreads) fired[i] = 0;
      return;
    }
    uint16_t* const counts = p.store.counts(slot, engram);
    for (int i = threadIdx.x; i < capacity; i += kThreads) counts[i] = 0;
    return;
  }
  const EngramType* const types = p.store.types(slot);
  const int first = (task - p.working) * kRowsOfBlock;
  const int rows = min(kRowsOfBlock, capacity - first);
  for (int i = threadIdx.x; i < rows * p.working; i += kThreads) {
    const int engram = first + i / p.working;
    const EngramType type = types[engram];
    if (type == EngramType::kFree || type == EngramType::kWorking) continue;
    const int born = chosen[i % p.working];
    if (born >= 0) p.store.counts(slot, engram)[born] = 0;
  }
}

}  // namespace

void EncodeTokens(Device& device, const EncodeTokensArgs& args) {
  const bool encodes = !args.queries.empty();
  const EncodeProblem problem = {
      .h = args.h.as<const float>(),
      .queries = args.queries.as<const float>(),
      .row_offsets = args.row_offsets.as<const int32_t>(),
      .slots = args.slots.as<const int32_t>(),
      .positions = args.positions.as<const int64_t>(),
      .rows = static_cast<int>(args.slots.shape[0]),
      .working = encodes ? static_cast<int>(args.queries.shape[0]) : args.segment,
      .dim = static_cast<int>(args.h.shape[1]),
      .segment = args.segment,
      .largest = Field(args.largest),
      .total = Field(args.total),
      .sums = Field(args.sums)};
  if (problem.rows == 0) return;
  CHECK(args.sums.dtype == DType::kF32) << "EncodeTokens";
  if (!encodes) {
    LaunchOverlapping(device, "EncodeTokens", CopyKernel, problem.rows, kThreads, 0, 1, problem);
    return;
  }
  const int64_t warps = int64_t{problem.rows} * problem.working;
  LaunchOverlapping(device, "EncodeTokens", EncodeKernel, BlocksFor(warps, kWarps), kThreads, 0, 1,
                    problem);
}

void ReadEncoder(Device& device, const ReadEncoderArgs& args) {
  LaunchOverlapping(device, "ReadEncoder", ReadKernel,
                    static_cast<int>(args.crossings.most()) * args.working, kThreads, 0, 1,
                    CrossingArrays(args.crossings), args.working, static_cast<int>(args.x.shape[1]),
                    Field(args.total), Field(args.sums), args.x.as<float>());
}

void WriteEngrams(Device& device, const WriteEngramsArgs& args) {
  const int most = static_cast<int>(args.crossings.most());
  const int working = args.rules.working;
  auto* const chosen = static_cast<int32_t*>(
      device.Scratch(int64_t{most} * working * static_cast<int64_t>(sizeof(int32_t))));
  if (chosen == nullptr) return;
  const int columns =
      args.store.steps > 0 ? 0 : (args.store.capacity + kRowsOfBlock - 1) / kRowsOfBlock;
  const WriteProblem problem = {.store = Store(args.store),
                                .crossings = CrossingArrays(args.crossings),
                                .working = working,
                                .blocks = working + columns,
                                .lifespan = args.rules.lifespan,
                                .x = args.x.as<const float>(),
                                .chosen = chosen};
  LaunchOverlapping(device, "WriteEngrams, slots", TakeSlots, most, kThreads, 0, 1, problem);
  LaunchOverlapping(device, "WriteEngrams", FillSlots, most * problem.blocks, kThreads, 0, 1,
                    problem);
}

}  // namespace mneme::cuda::engrams
