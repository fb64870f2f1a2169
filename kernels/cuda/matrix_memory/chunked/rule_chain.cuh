// A block's share of the chains of chunks (rule_chains.cu): a segment or a span of one, a head,
// some rows of its matrix, and the shared memory that chunks come to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/matrix_memory/chunked/copy.cuh"
#include "kernels/cuda/matrix_memory/chunked/mma.cuh"
#include "kernels/cuda/matrix_memory/chunked/rule.h"

namespace mneme::cuda::matrix_memory::chunked {

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

// A block works on a segment or a span of it, a head and some rows of the matrix.
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
struct RuleLayout {
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
__device__ inline int FirstSpan(const RuleChainParams& p, int chain) {
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

// rule_spans.cu: finds S at the start of each span, from what each adds and leaves: C and D.
void JoinSpans(Device& device, ChunkForm form, const RuleChainParams& params, DType state_dtype);

}  // namespace mneme::cuda::matrix_memory::chunked
