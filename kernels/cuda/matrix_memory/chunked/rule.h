// What the kernels that take matrix memories other than the gated delta rule in chunks hand to each
// other, all of it in scratch memory. matrix_memory/chunked/plan.h says what chains, chunks and
// tiles are; tiles here are bf16 and have all of their kChunk rows, those past the end of a chain
// being zero. G is the sum of log decays since the start of the chunk, per key or per value where
// decays are; all exponents that are ever taken are at most 0.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/matrix_memory/chunked/plan.h"
#include "kernels/kernels.h"

namespace mneme::cuda::matrix_memory::chunked {

// With S the matrix at the start of a chunk, sums over the tokens j of the chunk up to token i:
enum class ChunkForm : uint8_t {
  // Decays none, constant or of the head.
  //   o_i = exp(G_i) S q_i + sum_j A[i, j] v_j         A[i, j] = exp(G_i - G_j) q_i.k_j
  //   S <- exp(G_end) S + sum_j exp(G_end - G_j) v_j k_j^T
  kHead,
  // Decays of keys. q~ = exp(G) q, k^ = exp(G_end - G) k. Where a read comes before the write, q~
  // and
  // A have G of the entry before, and A[i, i] = q_i . (bonus * k_i).
  //   o_i = S q~_i + sum_j A[i, j] v_j                 A[i, j] = sum_d exp(G_i - G_j) q_i k_j
  //   S <- S exp(G_end) + sum_j v_j k^_j^T
  kKey,
  // Decays of values. v^ = exp(G_end - G) v.
  //   o_i = exp(G_i) S q_i + sum_j (q_i.k_j) exp(G_i - G_j) v_j
  //   S <- exp(G_end) S + sum_j v^_j k_j^T
  kValue,
  // Decays of keys and the delta correction. k~ = exp(G) k; T, P as in plan.h, of decays of keys.
  //   V' = beta (v - S k~)     U = V' T^T     o = S q~ + V' (P T)^T
  // P is scaled as what is read is.
  //   S <- S exp(G_end) + sum_j U_j k^_j^T
  kDeltaKey,
  // Decays of keys and the general correction, c~ = exp(G of the entry before) c, e^ as k^.
  //   A[i, j] = sum_d exp(G_(i-1) - G_j) c_i e_j       B likewise of c and k          j < i
  //   P[i, j] = sum_d exp(G_i - G_j) q_i e_j           R likewise of q and k          j <= i
  //   T = (I - A)^-1     U = (S c~) T^T + V (T B)^T    o = S q~ + (S c~) (P T)^T + V (R + P T B)^T
  // P and R are scaled as what is read is.
  //   S <- S exp(G_end) + sum_j U_j e^_j^T + v_j k^_j^T
  kGeneralKey,
};

// Whether what the matrix holds changes what is written, so that chunks do not add up.
__host__ __device__ constexpr bool Corrects(ChunkForm form) {
  return form == ChunkForm::kDeltaKey || form == ChunkForm::kGeneralKey;
}
// Tiles for each 64 keys of a chunk and head: q~ and k^, or k~, q~ and k^, or c~, q~, e^ and k^.
__host__ __device__ constexpr int KeyTiles(ChunkForm form) {
  return form == ChunkForm::kGeneralKey ? 4 : form == ChunkForm::kDeltaKey ? 3 : 2;
}
// Tiles for each chunk and head: A, or T and P T, or T, P T, T B and R + P T B.
__host__ __device__ constexpr int ProductTiles(ChunkForm form) {
  return form == ChunkForm::kGeneralKey ? 4
         : form == ChunkForm::kDeltaKey ? 2
         : form == ChunkForm::kValue    ? 0
                                        : 1;
}
// Numbers for each chunk and head. kHead: exp(G) and exp(G_end - G) of each entry. Decays of keys:
// exp(G_end) of each key, then, with the delta correction, beta of each entry.
__host__ __device__ constexpr int GateFloats(ChunkForm form, int key_dim) {
  return form == ChunkForm::kHead       ? 2 * kChunk
         : form == ChunkForm::kValue    ? 0
         : form == ChunkForm::kDeltaKey ? key_dim + kChunk
                                        : key_dim;
}

struct RuleSizes {
  int heads, key_dim, value_dim;  // of S
  // Heads of the tensors.
  int query_heads, key_heads, value_heads, decay_heads, beta_heads;  // a missing one's are 1
  // Heads of tiles of keys, and of products and gates, of which each of the former's has several.
  int image_heads, product_heads;
};

// Chains cut into spans of some chunks each, where that is done.
struct ChainSpans {
  int chunks = 0;  // of a span; 0: chains are whole
  int count = 0;   // of spans, at most
  // What a span adds to S, then S at its start.
  float* states = nullptr;  // [count, heads, value_dim, key_dim]
  // What a span leaves of S: kHead [count, heads], else also [.., key_dim] or [.., value_dim].
  float* decays = nullptr;
};
__host__ __device__ constexpr int SpanDecays(ChunkForm form, const RuleSizes& sizes) {
  return form == ChunkForm::kKey ? sizes.key_dim : form == ChunkForm::kValue ? sizes.value_dim : 1;
}

struct RuleChunks {
  ChainPlan plan;
  RuleSizes sizes;
  ChainSpans spans;
  __nv_bfloat16* keys;      // [max_chunks, image_heads, key_dim / 64, KeyTiles, kChunk, 64]
  __nv_bfloat16* products;  // [max_chunks, product_heads, ProductTiles, kChunk, 64]
  float* gates;             // [max_chunks, product_heads, GateFloats]
  // kValue: v^ and exp(G) of each entry.
  float *values, *decays;  // [entries, heads, value_dim]
};

// matrix_memory/chunked/rule_heads.cu: kHead and kValue, of which it also writes to args.out what
// does not depend on S.
void PrepareHeadChunks(Device& device, ChunkForm form, const RuleChunks& chunks,
                       const MatrixMemoryArgs& args);
// matrix_memory/chunked/rule_before.cu: kGeneralKey, and kKey where a read comes before the write.
void PrepareBeforeChunks(Device& device, ChunkForm form, const RuleChunks& chunks,
                         const MatrixMemoryArgs& args);
// matrix_memory/chunked/rule_keys.cu: kKey otherwise, and kDeltaKey.
void PrepareKeyChunks(Device& device, ChunkForm form, const RuleChunks& chunks,
                      const MatrixMemoryArgs& args);
// matrix_memory/chunked/rule_chains.cu
bool HasRuleChains(ChunkForm form, int key_dim);
void RunRuleChains(Device& device, ChunkForm form, const RuleChunks& chunks,
                   const MatrixMemoryArgs& args);

}  // namespace mneme::cuda::matrix_memory::chunked
