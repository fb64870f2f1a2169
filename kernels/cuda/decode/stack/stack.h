// All layers of a decode step of a few rows as one kernel; decode/stack/stack.cu says how it works.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/matrix_memory/memory.cuh"
#include "kernels/kernels.h"

namespace mneme::cuda::decode::stack {

// A stage of the ring holds kUnitRows outputs' weights of kStageFeatures features; a warp
// multiplies kWarpOutputs of them by kPartFeatures, so that all warps are through with a stage soon
// after it came.
enum : int {
  kMaxRows = 2,  // from three on, decode/batch/batch.cu is faster: bench/README.md
  kWarps = 16,
  kComputeThreads = 32 * kWarps,
  kThreads = kComputeThreads + 128,  // and a warp that loads
  kUnitRows = 8,
  kStageFeatures = 1024,
  kPartFeatures = 256,
  kParts = 4,
  kWarpOutputs = kUnitRows * kParts / kWarps,
  kStageBytes = kUnitRows * kStageFeatures * 2,
  kInFlight = 2,                 // stages on their way to a block
  kMaxStages = 24,               // of a block in one phase
  kMaxTasks = 128,               // outputs of projections for a row, a thread each
  kHeadStages = kMaxStages / 2,  // of the head at a time
  kMaxItems = 8,
  kMaxOwnUnits = 8,   // of the hidden state
  kMaxMemories = 16,  // of a layer, with the shared one
  kMaxKeyDim = 256,
  kMaxHistory = 3,
  kMaxHeadParts = 128,  // 64 channels each
  kRouterSums = 4,      // memories at a time
};

// Stages in the ring.
constexpr int RingSlots(int rows) { return rows == 1 ? 12 : 10; }

// What a layer has of its own. Weights are bf16, [outputs, features].
struct alignas(16) Layer {
  const float* norm;   // [model_dim]
  const void* router;  // [memories, model_dim]
  const void *q, *gate_out;
  // One for each memory, the shared one's last; or the first one for all.
  const void *k[kMaxMemories], *v[kMaxMemories], *a[kMaxMemories], *b[kMaxMemories];
  const float *q_conv, *k_conv, *v_conv;  // [channels, conv_width]
  const float *a_log, *dt_bias;           // [value_heads]
  Field q_window, k_window, v_window, written, state;
  Field range, keys, updates, decays;
  const float* out_norm;  // [value_dim]
  const void* out;
  const float* mlp_norm;  // [model_dim]
  const void *gate, *up, *down;
};
static_assert(sizeof(Layer) == 848, "padding would make equal layers differ");

// A value and the number of the layer that it is of, counted over all launches, in one word of
// memory: who needs it reads it until it has the right number. That costs one way to L2 and one
// back, where a barrier of the grid costs four, and nobody waits for more than he needs.
//
// A word is written once a layer. Nobody can be so far behind as to miss it: all blocks have a part
// of `act` (the grid is no larger), and whoever writes a word again has, since, read what followed
// from the readings of its last value.
struct alignas(8) Word {
  float value;
  uint32_t layer;
};

struct Params {
  const Layer* layers;
  int count;
  // [rows, top_k], or null: of a layer that is alone.
  const int32_t* forced;
  int32_t* indices;
  float* weights;
  float* hidden;         // [rows, model_dim]
  const int32_t* slots;  // [rows]
  int rows, model_dim, mlp_dim;
  int heads, value_heads, value_dim, conv_width;
  int memories, top_k, columns;  // columns: memories that a row's token goes to
  bool per_memory;               // k, v, a, b; else one for all
  bool shared, gated, round_logits;
  bool rounded_windows;  // bf16, and so are inputs of convolutions
  float norm_eps, out_norm_eps, mlp_norm_eps, beta_scale;
  QueryKeyNorms norms;
  int capacity;  // of pending writes
  Field phase;   // of sessions
  int widest;    // features of the widest input of a product
  // What blocks tell each other. Entry r * columns + j: row r's token in the j-th memory it goes
  // to.
  Word *q, *k, *v;             // [entries, channels], after convolution and silu
  Word *decay, *beta;          // [entries, value_heads]
  Word* gate;                  // [rows, values], raw
  Word* read;                  // [entries, values]
  Word *middle, *act, *after;  // [rows, model_dim], [rows, mlp_dim], [rows, model_dim]
  // What follows the last layer; head null: nothing.
  const void* head;        // [vocab, model_dim] bf16
  const float* head_norm;  // [model_dim]
  const int32_t* tokens;   // [drawn]: whose logits are wanted
  float* logits;           // [drawn, vocab]
  int vocab, drawn;
  float head_norm_eps;
  unsigned* counters;  // layers since the start, blocks that have ended
};

// Rows of one head of what one entry goes to: a block works on one such item at a time.
struct MatrixItem {
  int entry, head, key_head, row, column;
  int begin, end;  // rows of the head's matrix
};

// Where a memory of a row is: nowhere yet; in its matrices; in those and in writes held back.
enum class Written : uint8_t { kNever, kAll, kHeldBack };

// What a block does in every layer, found out once: divisions take much code.
struct Plan {
  int keys, values;          // channels
  int hidden_units, pairs;   // units of the hidden state; of gate and of up
  int known_units;           // of projections that do not depend on the router
  int memory_units;          // of those of one memory that do
  int all_units, all_tasks;  // known ones whose outputs are for all columns
  int head_units;
  int item_count;
  MatrixItem items[kMaxItems];
};

// What an output needs besides the product: the window and filter of its convolution, newest last,
// or what makes a decay of it, each in its four bytes; a bf16 one in those of a pair, PastValue().
// An odd number of words, so that threads read different banks.
struct Past {
  float window[kMaxHistory], filter[kMaxHistory + 1];
};

// Shared memory, less the ring and the inputs of a product.
template <int kRows>
struct Shared {
  uint64_t full[RingSlots(kRows)], empty[RingSlots(kRows)], routed;
  Plan plan;
  Layer layers[2];
  float partial[kMaxStages][kParts][kUnitRows * kRows];
  float residual[kMaxOwnUnits][kUnitRows * kRows];  // this block's part of the hidden state
  Past past[kMaxTasks * kRows];                     // of threads' outputs
  float k[kMaxKeyDim], q[kMaxKeyDim];               // of the head that the block works on
  float squares[kRows][kWarps];
  float head_squares[kRows][kMaxHeadParts];
  float router_sums[kRows][kWarps][kMaxMemories];
  float logits[kRows][kMaxMemories];
  float weights[kRows][kMaxMemories];  // of columns
  int memories[kRows][kMaxMemories];   // of columns
  int slots[kRows];
  int tokens[kRows];
  Written written[2][kRows][kMaxMemories];  // of two layers, as `layers`
};

// Each block has a part of `act`: Word.
inline int Blocks(const Device& device, const Params& p) {
  const int units = (p.mlp_dim + kUnitRows - 1) / kUnitRows;
  return units < device.multiprocessors() ? units : device.multiprocessors();
}

// Bytes of shared memory: the ring, x [kRows, widest] f32, Shared.
template <int kRows>
constexpr int64_t SharedBytes(int64_t widest) {
  return int64_t{RingSlots(kRows)} * kStageBytes + widest * kRows * 4 + sizeof(Shared<kRows>);
}

// decode/stack/kernel_f32.cu, decode/stack/kernel_f16.cu: by the dtype of the state. False: no such
// kernel.
bool LaunchF32(Device& device, const Params& p, int key_dim);
bool LaunchF16(Device& device, const Params& p, int key_dim);

}  // namespace mneme::cuda::decode::stack
