// The fused decode step on Hopper, for bf16 weights and products: kernel by kernel;
// decode/batch/batch.cu puts them together. Made for many rows, but takes any number.
//
// Entry r * columns + j is what row r's token does in the j-th memory it goes to, the shared one
// last, each a segment of its own. Nothing is sorted in memory: a block of a memory's projection
// finds the rows that go there by itself. Activations that a product takes are left in bf16 by the
// kernel that makes them.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::decode::batch {

enum : int {
  kMaxManyChoices = 1024,
  kMaxManyMemories = 15,
  kMaxManyModelDim = 8192,
  kMaxRowGates = 32,
  // Up to so many rows a step is one of decoding: 256 sessions, and a few tokens that a network
  // inserts between theirs.
  kStepRows = 320,
  // From here on the projections are in tiles of 144 rows, and the routes' kernel makes the gates
  // of the memory that all rows go to: together they have all blocks of 512 rows of mom-340m run at
  // a time. Fewer rows gain nothing by either.
  kMinRowsForRouteGates = 385,
};

// What a row's token does, of every entry; in scratch memory.
struct EntryTable {
  int32_t* offsets;  // [entries + 1]: 0, 1, ..
  int32_t *slots, *memories, *fresh;
  int32_t* rows;
  int32_t* folding;  // the delta rule will store all of the memory
};

// RmsNorm; router and choice, where `indices` are wanted; what follows from it, where there is a
// table: memories that are written are marked. A block to a row.
struct ManyRoutesArgs {
  const float* hidden;  // [rows, model_dim]
  const float* norm;
  float norm_eps;
  int rows, model_dim;
  __nv_bfloat16* x;             // [rows, model_dim], normed
  int memories, top_k;          // memories == 0: all rows go to the one shared memory
  const __nv_bfloat16* router;  // [memories, model_dim]
  bool round_logits;
  const int32_t* forced;  // [rows, top_k] or null
  int32_t* indices;       // [rows, top_k]
  float* weights;         // [rows, top_k]
  // The rest is for a `table` that is set.
  EntryTable table;
  int columns;           // entries of a row
  const int32_t* slots;  // [rows]
  StateView written;
  StateView range;  // of PendingWrites
  int capacity;
  // Gates of each row's last entry, which goes to the shared memory, or to the only one there is:
  // products of x with narrow matrices, to be written where that entry's are. At most
  // kMaxRowGates of both; 0: another kernel makes them.
  int gates;                             // of each of the two matrices
  const __nv_bfloat16 *gate_a, *gate_b;  // [gates, model_dim]
  float *first_a, *first_b;              // row 0's
  int gate_stride;                       // from row to row
};
void LaunchManyRoutes(Device& device, const ManyRoutesArgs& args);

// Products of x with 64 rows of weights at a time, from one matrix or 32 each from two.
struct ManyProduct {
  const __nv_bfloat16* x;  // [rows, in_features]
  void* y;                 // [rows or entries, out_features] f32, or bf16 if bf16_y
  bool bf16_y;             // of one matrix, of whole fours
  const float* bias;       // [out_features] of one matrix for all rows, not of kSwiGlu, or null
  Activation
      activation;    // of kStore, of one matrix: StoresActivated; of kActivate: kGeluTanh or none
  float* second_y;   // of the second matrix of a pair
  int in_features;   // a multiple of eight; 0: as the others, ManyProducts::in_features
  int out_features;  // of a matrix
  int first_weight;  // of ManyProducts::weights; pairs lie side by side
  // Each of the first groups takes the rows whose choice it is, in entry order; the last, if
  // all_rows, takes all of them. y's row is row * columns + choice for groups, row for a product
  // without (routed 0, columns 1, all_rows).
  int routed, all_rows, columns, last_choice;
  int first_unit, all_tiles, routed_tiles;  // set by the launch
  // Of kAdd: rows at positions before the first one keep what they have; null: none do.
  const int64_t* positions;  // [rows]
  int64_t first_position;
};
enum : int { kMaxManyProducts = 8, kMaxManyWeights = 64 };
struct ManyProducts {
  int count, rows, in_features, top_k;
  bool pairs_of[kMaxManyProducts];
  const int32_t* indices;  // [rows, top_k]
  ManyProduct products[kMaxManyProducts];
  const __nv_bfloat16* weights[kMaxManyWeights];
  __nv_bfloat16* rounded;  // [rows, out_features], of kSwiGlu
};
enum class ManyEpilogue : uint8_t {
  kStore,     // y = x W^T + bias, or an activation of it
  kAdd,       // y += x W^T + bias, one product without groups
  kSwiGlu,    // rounded = silu(x W0^T) (x W1^T), one pair without groups
  kActivate,  // y = x W^T + bias, or its gelu; products without groups, of whole fours
};
constexpr bool StoresActivated(Activation activation) {
  return activation == Activation::kIdentity || activation == Activation::kTanh ||
         activation == Activation::kSigmoid || activation == Activation::kSquaredRelu;
}
// Of kStore, the kernel behind it starts only after all before it have ended.
void LaunchManyProducts(Device& device, ManyProducts products, ManyEpilogue epilogue);

// Convolutions of one entry each, of width 4, with windows in bf16; `count` of them.
struct ManyConvolution {
  const __nv_bfloat16* x;  // [rows or entries, channels]
  const float* weight;     // [channels, 4]
  StateView window;
  float* y;  // [entries, channels]
  int channels;
  bool by_row;  // x's row is the entry's row, not the entry
};
struct ManyConvolutionsArgs {
  ManyConvolution list[3];
  int count, entries;
  EntryTable table;
};
// False: not for these shapes, nothing was done.
bool LaunchManyConvolutions(Device& device, const ManyConvolutionsArgs& args);

// y = sum_j weight_j read_j (+ the shared memory's);  y <- y / sqrt(mean(y^2) + eps) norm
// silu(gate), head by head.
struct MixArgs {
  const float* read;     // [entries, values]
  const float* weights;  // [rows, top_k]
  const float* gate;     // [rows, values], or null
  const float* norm;     // [value_dim]
  float norm_eps;
  int rows, columns, top_k, value_heads, value_dim;
  __nv_bfloat16* y;  // [rows, values]
};
// decode/batch/mix.cu
void LaunchMix(Device& device, const MixArgs& args);

}  // namespace mneme::cuda::decode::batch
