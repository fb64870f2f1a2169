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

#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/chunked/copy.cuh"
#include "kernels/cuda/matrix_memory/chunked/mma.cuh"
#include "kernels/cuda/matrix_memory/chunked/rule.h"
#include "kernels/cuda/matrix_memory/chunked/rule_chain.cuh"
#include "kernels/cuda/matrix_memory/chunked/state.cuh"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

using Element = __nv_bfloat16;

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
      static_cast<int64_t>(places) * sizes.heads * BlocksFor(sizes.value_dim, kRows);
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

// The part of S that registers hold beside the sums of a form.
constexpr int MostKeyDim(ChunkForm form) {
  return form == ChunkForm::kGeneralKey ? 128 : form == ChunkForm::kDeltaKey ? 256 : 512;
}

template <ChunkForm kForm, int kKeyBlocks>
void LaunchFor(Device& device, const RuleChainParams& params, DType state_dtype) {
  constexpr int kParts = kKeyBlocks == 8 ? 2 : 1;
  using One = RuleLayout<kForm, kKeyBlocks / kParts, kParts, 1>;
  if constexpr (!Corrects(kForm)) {
    if (params.spans.chunks > 0) {
      Launch<One, true>(device, params, state_dtype);
      JoinSpans(device, kForm, params, state_dtype);
      return Launch<One, false>(device, params, state_dtype);
    }
  }
  if constexpr (kParts == 1) {
    // Few chains: one group of warps has a multiprocessor to itself. Many: two share the copies.
    const RuleSizes& sizes = params.chunks.sizes;
    const int64_t groups = static_cast<int64_t>(params.chunks.plan.max_chains) * sizes.heads *
                           BlocksFor(sizes.value_dim, kGroupRows);
    if (groups > device.multiprocessors() && sizes.value_dim > kGroupRows) {
      return Launch<RuleLayout<kForm, kKeyBlocks, 1, 2>, false>(device, params, state_dtype);
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
