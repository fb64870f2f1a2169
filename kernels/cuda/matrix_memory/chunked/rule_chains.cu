// The sequential half of matrix memories in chunks: carries a memory's matrix from chunk to chunk
// by the equations of matrix_memory/chunked/rule.h. Hopper alone.
//
// Rows of S, one a value, do not mix. A warp keeps 16 of them in f32 as the sums of the last
// product; rounded to bf16, they are the left operand of the next chunk's first one. Values
// likewise go from registers into products, so that the four warps of a group only share what they
// read. Keys of more than 256 are divided among two groups, whose sums of S q are then added.
//
// Without a correction, what a run of chunks does to S is linear: S <- D S + C. So where few chains
// would leave most of the device idle, they are cut into spans: first C of all spans but the last
// of each chain at once, then S at the start of each, then what all spans read at once.
#include <algorithm>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/chunked/copy.cuh"
#include "kernels/cuda/matrix_memory/chunked/mma.cuh"
#include "kernels/cuda/matrix_memory/chunked/rule.h"
#include "kernels/cuda/matrix_memory/chunked/state.cuh"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

using Element = __nv_bfloat16;

constexpr int kGroupThreads = 128;  // four warps that issue a wgmma
constexpr int kMostShared = 227 * 1024;

struct RuleChainParams {
  RuleChunks chunks;
  float scale;
  const float* v;
  float* out;
  int value_heads;  // of v
  SegmentArrays segments;
  StateView state;
  ChainSpans spans;
};

// What a block works on: a segment or a span of it, a head and some rows of the matrix.
struct RuleChain {
  int entry, entries;
  int head, value, fresh;
  int span;          // its place among those of all chains; -1: chains are whole
  bool last;         // of its chain
  std::byte* state;  // of the memory
  // These are of the first chunk.
  const uint8_t *keys, *products;
  const float* gates;
};

// kParts groups share rows and divide keys, kRowGroups have rows of their own.
template <ChunkForm kForm_, int kKeyBlocks_, int kParts_, int kRowGroups_>
struct Layout {
  static constexpr ChunkForm kForm = kForm_;
  static constexpr int kKeyBlocks = kKeyBlocks_, kParts = kParts_, kRowGroups = kRowGroups_;
  static constexpr int kGroups = kParts * kRowGroups, kThreads = kGroups * kGroupThreads;
  static constexpr int kKeyDim = 64 * kKeyBlocks * kParts;
  static constexpr bool kValuesDecay = kForm == ChunkForm::kValue;
  static constexpr int kKeyTiles = KeyTiles(kForm), kProductTiles = ProductTiles(kForm);
  static constexpr int kGates = GateFloats(kForm, kKeyDim);

  struct alignas(1024) Stage {
    uint8_t keys[kParts * kKeyBlocks * kKeyTiles * kTileBytes];
    uint8_t products[kProductTiles > 0 ? kProductTiles* kTileBytes : 1024];
  };
  struct alignas(16) ValueTile {
    float x[kChunk * kValuePitch];
  };
  template <int kStages, int kValueStages>
  struct Memory {
    Stage stages[kStages];
    alignas(16) float gates[kStages][kGates > 0 ? kGates : 4];
    ValueTile values[kValueStages][kGroups];
    ValueTile decays[kValuesDecay ? kValueStages : 1][kValuesDecay ? kGroups : 1];
    float parts[kParts > 1 ? kChunk / 2 : 1][kParts > 1 ? kGroupThreads : 4];
    alignas(8) uint64_t full[kStages];
    RuleChain chain;
    int item;
  };
  // Chunks whose images, and whose values, are on their way or in use.
  static constexpr int kStages = sizeof(Memory<2, 1>) <= kMostShared ? 2 : 1;
  static constexpr int kValueStages = sizeof(Memory<kStages, 2>) <= kMostShared ? 2 : 1;
  using Shared = Memory<kStages, kValueStages>;
};

// The place of a chain's first span; places in between may be left empty.
__device__ int FirstSpan(const RuleChainParams& p, int chain) {
  return p.chunks.plan.first_chunk[chain] / p.spans.chunks + chain;
}

// One thread: looks up what the block's item is. False: nothing.
template <typename L>
__device__ bool FindRuleChain(const RuleChainParams& p, int item, int tiles, RuleChain* chain) {
  const RuleSizes& sizes = p.chunks.sizes;
  const ChainPlan& plan = p.chunks.plan;
  const int place = item / (sizes.heads * tiles), head = item / tiles % sizes.heads;
  int index = place, skipped = 0;  // chunks
  chain->span = -1;
  if (p.spans.chunks > 0) {
    index = *plan.chains - 1;
    if (index < 0) return false;
    while (index > 0 && FirstSpan(p, index) > place) --index;
    chain->span = place;
    skipped = (place - FirstSpan(p, index)) * p.spans.chunks;
  }
  const int segment = plan.segment[index];
  const int64_t chunk = plan.first_chunk[index] + skipped;
  chain->entry = p.segments.offsets[segment] + skipped * kChunk;
  chain->entries = p.segments.offsets[segment + 1] - chain->entry;
  if (chain->entries <= 0) return false;
  chain->last = p.spans.chunks == 0 || chain->entries <= p.spans.chunks * kChunk;
  if (!chain->last) chain->entries = p.spans.chunks * kChunk;
  chain->value = item % tiles * (L::kRowGroups * kGroupRows);
  chain->head = head;
  chain->fresh = p.segments.fresh[segment];
  chain->state =
      MemoryAt<std::byte>(p.state, p.segments.slots[segment], p.segments.memories[segment]);
  const int image_head = head / (sizes.heads / sizes.image_heads);
  const int product_head = head / (sizes.heads / sizes.product_heads);
  const int64_t product = chunk * sizes.product_heads + product_head;
  chain->keys = reinterpret_cast<const uint8_t*>(p.chunks.keys) +
                (chunk * sizes.image_heads + image_head) * int64_t{sizeof(L::Stage::keys)};
  chain->products = reinterpret_cast<const uint8_t*>(p.chunks.products) +
                    product * (L::kProductTiles * kTileBytes);
  chain->gates = p.chunks.gates + product * L::kGates;
  return true;
}

// One thread: starts the copy of what was prepared of chunk n, or of that what an update takes.
template <typename L, bool kUpdates, typename Memory>
__device__ void StartRuleCopy(Memory& memory, const RuleSizes& sizes, int stage, int n) {
  constexpr int kKeyBytes = sizeof(L::Stage::keys), kProductBytes = L::kProductTiles * kTileBytes;
  constexpr int kGateBytes = L::kGates * sizeof(float);
  const RuleChain& chain = memory.chain;
  uint64_t* full = &memory.full[stage];
  const uint8_t* from = chain.keys + n * (static_cast<int64_t>(sizes.image_heads) * kKeyBytes);
  uint8_t* keys = memory.stages[stage].keys;
  if constexpr (kUpdates) {
    constexpr int kBlockBytes = L::kKeyTiles * kTileBytes;
    ArriveAndExpect(full, kKeyBytes / L::kKeyTiles + kGateBytes);
    for (int at = kBlockBytes - kTileBytes; at < kKeyBytes; at += kBlockBytes) {
      BulkLoad(keys + at, from + at, kTileBytes, full);
    }
  } else {
    ArriveAndExpect(full, kKeyBytes + kProductBytes + kGateBytes);
    BulkLoad(keys, from, kKeyBytes, full);
    if constexpr (kProductBytes > 0) {
      BulkLoad(memory.stages[stage].products,
               chain.products + n * (static_cast<int64_t>(sizes.product_heads) * kProductBytes),
               kProductBytes, full);
    }
  }
  if constexpr (kGateBytes > 0) {
    BulkLoad(memory.gates[stage],
             chain.gates + n * (static_cast<int64_t>(sizes.product_heads) * L::kGates), kGateBytes,
             full);
  }
}

// S at the start of each span, from what ChainKernels left of each: C and D. One block a chain, a
// head and 4 kJoinThreads elements.
constexpr int kJoinThreads = 256;
template <ChunkForm kForm, typename State>
__global__ __launch_bounds__(kJoinThreads) void JoinSpansKernel(RuleChainParams p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const RuleSizes& sizes = p.chunks.sizes;
  const ChainPlan& plan = p.chunks.plan;
  if (blockIdx.x == 0 && threadIdx.x == 0) *plan.taken = 0;
  const int elements = sizes.value_dim * sizes.key_dim;
  const int blocks = (elements + 4 * kJoinThreads - 1) / (4 * kJoinThreads);
  const int chain = blockIdx.x / (sizes.heads * blocks);
  const int head = blockIdx.x / blocks % sizes.heads;
  const int at = (blockIdx.x % blocks * kJoinThreads + threadIdx.x) * 4;
  if (chain >= *plan.chains || at >= elements) return;
  const int segment = plan.segment[chain];
  const int chunks = plan.first_chunk[chain + 1] - plan.first_chunk[chain];
  const int count = (chunks + p.spans.chunks - 1) / p.spans.chunks, first = FirstSpan(p, chain);
  float2 low = {0, 0}, high = {0, 0};
  if (p.segments.fresh[segment] == 0) {
    const State* state =
        MemoryAt<State>(p.state, p.segments.slots[segment], p.segments.memories[segment]) +
        static_cast<int64_t>(head) * elements + at;
    low = LoadPair(state), high = LoadPair(state + 2);
  }
  for (int i = 0; i < count; ++i) {
    const int64_t span = static_cast<int64_t>(first + i) * sizes.heads + head;
    float4* const own = reinterpret_cast<float4*>(p.spans.states + span * elements + at);
    float4 added = {0, 0, 0, 0}, decay = {1, 1, 1, 1};
    if (i + 1 < count) {
      added = *own;
      const float* decays = p.spans.decays + span * SpanDecays(kForm, sizes);
      if (kForm == ChunkForm::kKey) {
        decay = *reinterpret_cast<const float4*>(decays + at % sizes.key_dim);
      } else {
        decay.x = decays[kForm == ChunkForm::kValue ? at / sizes.key_dim : 0];
        decay.y = decay.z = decay.w = decay.x;
      }
    }
    *own = {low.x, low.y, high.x, high.y};
    low = {low.x * decay.x + added.x, low.y * decay.y + added.y};
    high = {high.x * decay.z + added.z, high.y * decay.w + added.w};
  }
}

// kUpdates: what spans add to S, and how much they leave of it; nothing is read.
template <typename L, typename State, bool kUpdates>
__global__ __launch_bounds__(L::kThreads, 1) void RuleChainKernel(RuleChainParams p) {
#ifdef MNEME_HOPPER_MMA
  constexpr int kStages = L::kStages, kKeyBlocks = L::kKeyBlocks;
  constexpr bool kDelta = L::kForm == ChunkForm::kDeltaKey;
  constexpr bool kGeneral = L::kForm == ChunkForm::kGeneralKey;
  constexpr bool kCorrects = Corrects(L::kForm);
  constexpr bool kKeysDecay = kCorrects || L::kForm == ChunkForm::kKey;
  constexpr int kSums = 32 * kKeyBlocks;      // of the matrix, per lane
  constexpr int kRead = kCorrects ? 64 : 32;  // of S q, and S k or S c in front of it
  constexpr int kReadTiles = kRead / 32, kKeyTiles = L::kKeyTiles;
  constexpr int kPartBytes = kKeyBlocks * kKeyTiles * kTileBytes;
  using Memory = typename L::Shared;
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ __align__(1024) uint8_t shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  const RuleSizes& sizes = p.chunks.sizes;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, group = warp / 4;
  const int part = group % L::kParts, row_group = group / L::kParts;
  // Rows l / 4 and l / 4 + 8 of fragments are rows `row` and `row` + 1 of the warp's; columns
  // `pair` and the next.
  const int row = lane / 4 * 2, pair = lane % 4 * 2;
  const int tiles =
      (sizes.value_dim + L::kRowGroups * kGroupRows - 1) / (L::kRowGroups * kGroupRows);
  const int places = p.spans.chunks > 0 ? p.spans.count : *p.chunks.plan.chains;
  const int items = places * sizes.heads * tiles;
  const int value_pitch = p.value_heads * sizes.value_dim;
  const int out_pitch = sizes.heads * sizes.value_dim;
  const auto values_of = [&](int n) {
    return memory.values[n % L::kValueStages][group].x + warp % 4 * 16;
  };
  const auto decays_of = [&](int n) {
    constexpr bool kAny = L::kValuesDecay;
    return memory.decays[kAny ? n % L::kValueStages : 0][kAny ? group : 0].x + warp % 4 * 16;
  };
  const int own = pair * kValuePitch + row;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) InitBulkBarrier(&memory.full[stage]);
    FenceBulkBarriers();
  }
  uint32_t copied = 0;  // chunks that this block has been through
  for (int item = blockIdx.x; item < items; item = memory.item) {
    if (threadIdx.x == 0) {
      const bool found = FindRuleChain<L>(p, item, tiles, &memory.chain);
      if (!found || (kUpdates && memory.chain.last)) memory.chain.entries = 0;
      for (int n = 0; n < kStages && n * kChunk < memory.chain.entries; ++n) {
        StartRuleCopy<L, kUpdates>(memory, sizes, (copied + n) % kStages, n);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) memory.item = gridDim.x + atomicAdd(p.chunks.plan.taken, 1);
    if (memory.chain.entries == 0) {
      __syncthreads();
      continue;
    }
    const int head = memory.chain.head;
    const int first_value = memory.chain.value + (row_group * 4 + warp % 4) * 16;  // first row
    const bool active = first_value < sizes.value_dim;
    int rest = memory.chain.entries, own_rest = active ? rest : 0;
    const int64_t entry = memory.chain.entry;
    const int column = head / (sizes.heads / p.value_heads) * sizes.value_dim + first_value;
    const float* from =
        active ? p.v + (entry + lane / 4) * value_pitch + column + lane % 4 * 4 : p.v;
    const float* decays_from = nullptr;
    if (L::kValuesDecay) decays_from = active ? p.chunks.decays + (from - p.v) : p.chunks.decays;
    // Starts the copy of a chunk's values, and goes on to the next chunk.
    const auto start_values = [&](int chunk, int left, int own_left) {
      if (left > 0) {
        StartValues(from, value_pitch, own_left, values_of(chunk));
        if (active) from += static_cast<int64_t>(kChunk) * value_pitch;
        if (L::kValuesDecay) {
          StartValues(decays_from, value_pitch, own_left, decays_of(chunk));
          if (active) decays_from += static_cast<int64_t>(kChunk) * value_pitch;
        }
      }
      CommitCopies();
    };
    float* to = p.out + (entry + pair) * out_pitch + head * sizes.value_dim + first_value + row;
    for (int n = 0; n < L::kValueStages; ++n) {
      start_values(n, rest - n * kChunk, own_rest - n * kChunk);
    }
    float s[kSums];
    State* const state =
        reinterpret_cast<State*>(memory.chain.state) +
        (static_cast<int64_t>(head) * sizes.value_dim + first_value + row) * L::kKeyDim +
        part * (64 * kKeyBlocks) + pair;
    float* const start =
        p.spans.states +
        (static_cast<int64_t>(max(memory.chain.span, 0)) * sizes.heads * sizes.value_dim +
         static_cast<int64_t>(head) * sizes.value_dim + first_value + row) *
            L::kKeyDim +
        part * (64 * kKeyBlocks) + pair;
    const auto load = [&](const auto* from, bool any) {
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        const float2 zero = {0, 0};
        const float2 x = any ? LoadPair(from + 2 * i) : zero;
        const float2 y = any ? LoadPair(from + 2 * i + L::kKeyDim) : zero;
        s[i] = x.x, s[i + 1] = x.y, s[i + 2] = y.x, s[i + 3] = y.y;
      }
    };
    if (!kUpdates && memory.chain.span >= 0) {
      load(start, active);
    } else {
      load(state, !kUpdates && active && memory.chain.fresh == 0);
    }
    // What is left of S: kHead and kValue of this lane's rows, kKey of this thread's keys.
    float span_decay[kUpdates ? 4 : 1];
    for (float& decay : span_decay) decay = 1;

    for (int n = 0; rest > 0; ++n, ++copied) {
      const int stage = copied % kStages;
      BulkWait(&memory.full[stage], copied / kStages % 2);
      WaitCopies<L::kValueStages - 1>();
      __syncwarp();
      const float *values = values_of(n), *decays = decays_of(n);
      auto& images = memory.stages[stage];
      const float* gates = memory.gates[stage];
      const RightTiles keys(images.keys, kKeyTiles * kTileBytes);
      const RightTiles products(images.products, 0);
      const RightTiles updating(images.keys + part * kPartBytes + (kKeyTiles - 1) * kTileBytes,
                                kKeyTiles * kTileBytes);
      const RightTiles erasing(images.keys + part * kPartBytes + (kKeyTiles - 2) * kTileBytes,
                               kKeyTiles * kTileBytes);

      // S q, and S k or S c in front of it.
      float sums[kRead];
#pragma unroll
      for (int i = 0; i < kRead; ++i) sums[i] = 0;
#pragma unroll
      for (int block = 0; block < (kUpdates ? 0 : kKeyBlocks); ++block) {
        uint32_t left[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          left[i / 4][i % 4] = PackPair<Element>(s[32 * block + 2 * i], s[32 * block + 2 * i + 1]);
        }
        BeginProducts<true>();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          MultiplyRows<true, kReadTiles, Element>(
              sums, left[step], keys, part * kPartBytes + block * kKeyTiles * kTileBytes, step);
        }
        CommitProducts<true>();
        if (block + 1 < kKeyBlocks) WaitForProducts<true, 1>();
      }

      if constexpr (!kUpdates) {
        WaitForProducts<true, 0>();
        HoldSums(sums);
      }
      // Values, V' or S c as the left operand of what tokens of the chunk read of each other.
      uint32_t left[4][4];
      uint32_t written[kGeneral ? 4 : 1][4];  // values, beside S c
      float end_decay[2] = {1, 1};
      if constexpr (kDelta) {
        const float* betas = gates + L::kKeyDim;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float2 beta = LoadPair(betas + 8 * i + pair);
          const float2 x = LoadPair(values + own + 8 * i * kValuePitch);
          const float2 y = LoadPair(values + own + (8 * i + 1) * kValuePitch);
          float* known = sums + 4 * i;
          left[i / 2][i % 2 * 2] =
              PackPair<Element>(beta.x * (x.x - known[0]), beta.y * (y.x - known[1]));
          left[i / 2][i % 2 * 2 + 1] =
              PackPair<Element>(beta.x * (x.y - known[2]), beta.y * (y.y - known[3]));
          known[0] = known[1] = known[2] = known[3] = 0;
          for (int j = 32; j < 36; ++j) known[j] *= p.scale;
        }
      } else if constexpr (kGeneral) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float2 x = LoadPair(values + own + 8 * i * kValuePitch);
          const float2 y = LoadPair(values + own + (8 * i + 1) * kValuePitch);
          float* known = sums + 4 * i;
          left[i / 2][i % 2 * 2] = PackPair<Element>(known[0], known[1]);
          left[i / 2][i % 2 * 2 + 1] = PackPair<Element>(known[2], known[3]);
          written[i / 2][i % 2 * 2] = PackPair<Element>(x.x, y.x);
          written[i / 2][i % 2 * 2 + 1] = PackPair<Element>(x.y, y.y);
          known[0] = known[1] = known[2] = known[3] = 0;
          for (int j = 32; j < 36; ++j) known[j] *= p.scale;
        }
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float2 x = LoadPair(values + own + 8 * i * kValuePitch);
          const float2 y = LoadPair(values + own + (8 * i + 1) * kValuePitch);
          left[i / 2][i % 2 * 2] = PackPair<Element>(x.x, y.x);
          left[i / 2][i % 2 * 2 + 1] = PackPair<Element>(x.y, y.y);
          if constexpr (L::kForm == ChunkForm::kHead) {
            const float2 decay = LoadPair(gates + 8 * i + pair);
            sums[4 * i] *= decay.x, sums[4 * i + 1] *= decay.y;
            sums[4 * i + 2] *= decay.x, sums[4 * i + 3] *= decay.y;
          } else if constexpr (L::kValuesDecay) {
            const float2 z = LoadPair(decays + own + 8 * i * kValuePitch);
            const float2 w = LoadPair(decays + own + (8 * i + 1) * kValuePitch);
            sums[4 * i] *= z.x, sums[4 * i + 1] *= w.x;
            sums[4 * i + 2] *= z.y, sums[4 * i + 3] *= w.y;
          }
        }
        if constexpr (L::kForm == ChunkForm::kHead) end_decay[0] = end_decay[1] = gates[kChunk - 1];
        if constexpr (L::kValuesDecay) {
          const float2 end = LoadPair(decays + (min(kChunk, rest) - 1) * kValuePitch + row);
          end_decay[0] = end.x, end_decay[1] = end.y;
        }
      }

      // What tokens of the chunk read of each other; U.
      const bool reads = !kUpdates && (L::kParts == 1 || part == 0);
      float2 within[L::kValuesDecay && !kUpdates ? 16 : 1];
      if constexpr (L::kValuesDecay && !kUpdates) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int token = i / 2 * 8 + i % 2;
          within[i] = {0, 0};
          if (reads && own_rest > token + pair) within[i] = LoadPair(to + token * out_pitch);
        }
      }
      if (L::kProductTiles > 0 && reads) {
        HoldSums(sums);
        BeginProducts<true>();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          MultiplyRows<true, kReadTiles, Element>(sums, left[step], products, 0, step);
        }
        if constexpr (kGeneral) {
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            MultiplyRows<true, kReadTiles, Element>(sums, written[step], products, 2 * kTileBytes,
                                                    step);
          }
        }
        CommitProducts<true>();
      }
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        float2 decay = {1, 1};
        if (kKeysDecay) decay = LoadPair(gates + part * (64 * kKeyBlocks) + 2 * i + pair);
        s[i] *= decay.x * end_decay[0], s[i + 1] *= decay.y * end_decay[0];
        s[i + 2] *= decay.x * end_decay[1], s[i + 3] *= decay.y * end_decay[1];
      }
      if constexpr (kUpdates) {
        if constexpr (kKeysDecay) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = i * L::kThreads + threadIdx.x;
            if (key < L::kKeyDim) span_decay[i] *= gates[key];
          }
        } else {
          span_decay[0] *= end_decay[0], span_decay[1] *= end_decay[1];
        }
      }
      uint32_t update[4][4];
      if constexpr (L::kForm == ChunkForm::kHead) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float2 x = LoadPair(values + own + 8 * i * kValuePitch);
          const float2 y = LoadPair(values + own + (8 * i + 1) * kValuePitch);
          const float2 decay = LoadPair(gates + kChunk + 8 * i + pair);
          update[i / 2][i % 2 * 2] = PackPair<Element>(x.x * decay.x, y.x * decay.y);
          update[i / 2][i % 2 * 2 + 1] = PackPair<Element>(x.y * decay.x, y.y * decay.y);
        }
      }
      __syncwarp();
      start_values(n, rest - L::kValueStages * kChunk, own_rest - L::kValueStages * kChunk);
      if constexpr (kCorrects) {
        WaitForProducts<true, 0>();
        HoldSums(sums);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          update[i / 2][i % 2 * 2] = PackPair<Element>(sums[4 * i], sums[4 * i + 1]);
          update[i / 2][i % 2 * 2 + 1] = PackPair<Element>(sums[4 * i + 2], sums[4 * i + 3]);
        }
      }

      // Update.
      HoldSums(s);
      BeginProducts<true>();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        // Values that decay as keys do, or on their own, go into both products alike.
        if constexpr (kGeneral) {
          MultiplyColumns<true, kKeyBlocks, Element>(s, update[step], erasing, step);
          MultiplyColumns<true, kKeyBlocks, Element>(s, written[step], updating, step);
        } else if constexpr (kDelta || L::kForm == ChunkForm::kHead) {
          MultiplyColumns<true, kKeyBlocks, Element>(s, update[step], updating, step);
        } else {
          MultiplyColumns<true, kKeyBlocks, Element>(s, left[step], updating, step);
        }
      }
      CommitProducts<true>();
      if constexpr (!kCorrects && !kUpdates) {
        WaitForProducts<true, 1>();
        HoldSums(sums);
      }
      if constexpr (L::kParts > 1 && !kUpdates) {
        if (part == 1) {
#pragma unroll
          for (int i = 0; i < 32; ++i) memory.parts[i][threadIdx.x % kGroupThreads] = sums[i];
        }
        __syncthreads();
        if (part == 0) {
#pragma unroll
          for (int i = 0; i < 32; ++i) sums[i] += memory.parts[i][threadIdx.x];
        }
      }
      if (reads) {
        float* line = to;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float* read = sums + kRead - 32 + 4 * i;
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            if (own_rest <= 8 * i + pair + j) continue;
            float2 o = {read[j], read[2 + j]};
            if (!kCorrects) o.x *= p.scale, o.y *= p.scale;
            if constexpr (L::kValuesDecay && !kUpdates)
              o.x += within[2 * i + j].x, o.y += within[2 * i + j].y;
            StorePair(line + j * out_pitch, o.x, o.y);
          }
          line += 8 * out_pitch;
        }
      }
      to += static_cast<int64_t>(kChunk) * out_pitch;
      WaitForProducts<true, 0>();
      HoldSums(s);
      FenceForProducts<true>();  // a copy replaces gates that were read
      __syncthreads();
      if (threadIdx.x == 0 && rest > kStages * kChunk) {
        StartRuleCopy<L, kUpdates>(memory, sizes, stage, n + kStages);
      }
      rest -= kChunk, own_rest -= kChunk;
    }
    const auto store = [&](auto* to) {
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        StorePair(to + 2 * i, s[i], s[i + 1]);
        StorePair(to + 2 * i + L::kKeyDim, s[i + 2], s[i + 3]);
      }
    };
    if constexpr (kUpdates) {
      if (active) store(start);
      float* const decays =
          p.spans.decays + (static_cast<int64_t>(memory.chain.span) * sizes.heads + head) *
                               SpanDecays(L::kForm, sizes);
      if constexpr (kKeysDecay) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = i * L::kThreads + threadIdx.x;
          if (key < L::kKeyDim && memory.chain.value == 0) decays[key] = span_decay[i];
        }
      } else if constexpr (L::kValuesDecay) {
        if (active && part == 0 && pair == 0) {
          StorePair(decays + first_value + row, span_decay[0], span_decay[1]);
        }
      } else if (memory.chain.value == 0 && threadIdx.x == 0) {
        decays[0] = span_decay[0];
      }
    } else if (active && memory.chain.last) {
      store(state);
    }
    __syncthreads();
  }
#endif
}

template <typename L, bool kUpdates>
void Launch(Device& device, const RuleChainParams& params, DType state_dtype) {
  const RuleSizes& sizes = params.chunks.sizes;
  constexpr int kRows = L::kRowGroups * kGroupRows;
  const int places = params.spans.chunks > 0 ? params.spans.count : params.chunks.plan.max_chains;
  const int64_t items =
      static_cast<int64_t>(places) * sizes.heads * ((sizes.value_dim + kRows - 1) / kRows);
  // Small memories leave room for several blocks on a multiprocessor.
  const int blocks = static_cast<int>(std::min<int64_t>(items, 3 * device.multiprocessors()));
  constexpr int64_t kShared = sizeof(typename L::Shared);
  static_assert(kShared <= kMostShared);
  auto kernel = RuleChainKernel<L, float, kUpdates>;
  if constexpr (!kUpdates) {
    if (state_dtype == DType::kF16) kernel = RuleChainKernel<L, __half, false>;
  }
  LaunchOverlapping(device, "chains of chunks", kernel, blocks, L::kThreads, kShared, 1, params);
}

template <typename L>
void LaunchSpans(Device& device, const RuleChainParams& params, DType state_dtype) {
  Launch<L, true>(device, params, state_dtype);
  const RuleSizes& sizes = params.chunks.sizes;
  const int elements = sizes.value_dim * sizes.key_dim;
  const int blocks = params.chunks.plan.max_chains * sizes.heads *
                     ((elements + 4 * kJoinThreads - 1) / (4 * kJoinThreads));
  const auto kernel = state_dtype == DType::kF16 ? JoinSpansKernel<L::kForm, __half>
                                                 : JoinSpansKernel<L::kForm, float>;
  LaunchOverlapping(device, "joins of spans", kernel, blocks, kJoinThreads, 0, 1, params);
  Launch<L, false>(device, params, state_dtype);
}

// The part of S that registers hold beside the sums of a form.
constexpr int MostKeyDim(ChunkForm form) {
  return form == ChunkForm::kGeneralKey ? 128 : form == ChunkForm::kDeltaKey ? 256 : 512;
}

template <ChunkForm kForm, int kKeyBlocks>
void LaunchFor(Device& device, const RuleChainParams& params, DType state_dtype) {
  constexpr int kParts = kKeyBlocks == 8 ? 2 : 1;
  using One = Layout<kForm, kKeyBlocks / kParts, kParts, 1>;
  if constexpr (!Corrects(kForm)) {
    if (params.spans.chunks > 0) return LaunchSpans<One>(device, params, state_dtype);
  }
  if constexpr (kParts == 1) {
    // Few chains: one group of warps has a multiprocessor to itself. Many: two share the copies.
    const RuleSizes& sizes = params.chunks.sizes;
    const int64_t groups = static_cast<int64_t>(params.chunks.plan.max_chains) * sizes.heads *
                           ((sizes.value_dim + kGroupRows - 1) / kGroupRows);
    if (groups > device.multiprocessors() && sizes.value_dim > kGroupRows) {
      return Launch<Layout<kForm, kKeyBlocks, 1, 2>, false>(device, params, state_dtype);
    }
  }
  Launch<One, false>(device, params, state_dtype);
}

template <ChunkForm kForm>
void LaunchForm(Device& device, const RuleChainParams& params, DType state_dtype) {
  constexpr int kMost = MostKeyDim(kForm);
  const int key_dim = params.chunks.sizes.key_dim;
  if (key_dim == 64) return LaunchFor<kForm, 1>(device, params, state_dtype);
  if (key_dim == 128) return LaunchFor<kForm, 2>(device, params, state_dtype);
  if constexpr (kMost >= 256) {
    if (key_dim == 256) return LaunchFor<kForm, 4>(device, params, state_dtype);
  }
  if constexpr (kMost >= 512) LaunchFor<kForm, 8>(device, params, state_dtype);
}

}  // namespace

bool HasRuleChains(ChunkForm form, int key_dim) {
  return key_dim <= MostKeyDim(form) &&
         (key_dim == 64 || key_dim == 128 || key_dim == 256 || key_dim == 512);
}

void RunRuleChains(Device& device, ChunkForm form, const RuleChunks& chunks,
                   const MatrixMemoryArgs& args) {
  RuleChainParams params = {chunks,
                            args.scale,
                            args.v.as<const float>(),
                            args.out.as<float>(),
                            chunks.sizes.value_heads,
                            ArraysOf(args.segments),
                            args.state,
                            chunks.spans};
  switch (form) {
    case ChunkForm::kHead:
      return LaunchForm<ChunkForm::kHead>(device, params, args.state.dtype);
    case ChunkForm::kKey:
      return LaunchForm<ChunkForm::kKey>(device, params, args.state.dtype);
    case ChunkForm::kValue:
      params.v = chunks.values;
      params.value_heads = chunks.sizes.heads;
      return LaunchForm<ChunkForm::kValue>(device, params, args.state.dtype);
    case ChunkForm::kDeltaKey:
      return LaunchForm<ChunkForm::kDeltaKey>(device, params, args.state.dtype);
    case ChunkForm::kGeneralKey:
      return LaunchForm<ChunkForm::kGeneralKey>(device, params, args.state.dtype);
  }
}

}  // namespace mneme::cuda::matrix_memory::chunked
