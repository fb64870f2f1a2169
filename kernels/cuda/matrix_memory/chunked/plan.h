// What the kernels of the chunked gated delta rule hand to each other, all of it in scratch memory.
//
// A chain is a segment of more than one entry; it is cut into chunks of kChunk entries, the last of
// which may be shorter. Only the device knows the chains, so the host sizes everything by bounds.
//
// For each chunk and head, matrix_memory/chunked/prepare.cu leaves images of 16-bit tiles that
// matrix_memory/chunked/chains.cu copies to shared memory as they are. A tile has 64 columns, 128
// bytes a row, and the 16-byte pieces of row r stand in the order piece ^ (r % 8): the 128-byte
// swizzle of the tensor cores. Tiles of a short chunk have its entries rounded up to 8 rows.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::matrix_memory::chunked {

constexpr int kChunk = 64;
constexpr int kRowGroup = 8;        // tiles have a multiple of this many rows
constexpr int kTileRowBytes = 128;  // 64 columns of f16
constexpr int kTileBytes = kChunk * kTileRowBytes;
// Per chunk and value head, f32: for each pair of entries beta, beta, exp(G), exp(G), where G is
// the sum of log decays since the start of the chunk; then exp(G_end - G) of each entry. Zero past
// the end of the chunk.
constexpr int kGateFloats = 3 * kChunk;
__host__ __device__ constexpr int GateOfBeta(int entry) { return entry / 2 * 4 + entry % 2; }
__host__ __device__ constexpr int GateOfDecay(int entry) { return entry / 2 * 4 + 2 + entry % 2; }
__host__ __device__ constexpr int GateOfRest(int entry) { return 2 * kChunk + entry; }
// A token's decay below exp(-100) is zero in f32; clamped there, sums of decays stay accurate.
constexpr float kLeastLogDecay = -100.0f;

// Rows of a chunk's tiles.
__host__ __device__ constexpr int TileRows(int entries) {
  return (entries + kRowGroup - 1) / kRowGroup * kRowGroup;
}

// Written by the planning kernel.
struct ChainPlan {
  int* chains;       // [1] number of chains
  int* taken;        // [1] work items handed out so far, starts at 0
  int* segment;      // [max_chains] segment of each chain, longest chains first
  int* first_chunk;  // [max_chains + 1]
  int* first_row;    // [max_chains + 1] in the images

  int max_chains, max_chunks, max_rows;
};

struct DeltaChunkPlan : ChainPlan {
  // Written by the preparing kernel.
  float* gates;  // [max_chunks, value_heads, kGateFloats]
  // The tiles of the chunk whose first row is r, with n rows, head h: at (r * heads + n * h) * 2 *
  // key_dim begin, for each 64 keys: tile of k, tile of q.
  __half* keys_queries;  // [max_rows, heads, 2 * key_dim]
  // Likewise (r * value_heads + n * h) * 2 * kChunk: tile of T, tile of P T, where
  //   T = (I + A)^-1, A[i, j] = beta_i exp(G_i - G_j) k_i.k_j (j < i)
  //   P[i, j] = exp(G_i - G_j) q_i.k_j (j <= i)
  __half* products;  // [max_rows, value_heads, 2 * kChunk]
};

struct DeltaChunkSizes {
  int heads, key_dim, value_heads, value_dim;
};

// `hopper`: by the kernels that use what only Hopper has. `half_keys`:
// matrix_memory/chunked/streams.h.
void PrepareDeltaChunks(Device& device, const DeltaChunkPlan& plan, const MatrixMemoryArgs& args,
                        const DeltaChunkSizes& sizes, bool hopper, bool half_keys);
void RunDeltaChains(Device& device, const DeltaChunkPlan& plan, const MatrixMemoryArgs& args,
                    const DeltaChunkSizes& sizes, bool hopper);
// Whether such kernels were built and loaded, rather than the PTX for any device.
bool DeltaChunksBuiltForHopper();
// Dynamic shared memory that the kernels need at least, whatever the device.
int DeltaChunkSharedBytes(int key_dim);

}  // namespace mneme::cuda::matrix_memory::chunked
