// The fused decode step of a mixer, kernel by kernel; decode_step.cu puts them together.
//
// Few rows: a block needs the norm and the routes of all of them anyway, and takes them for itself.
// Entry r * columns + j is then what row r's token does in the j-th memory it goes to, the shared
// one last: each entry is a segment of its own. Many rows that decode_many.h has no way for:
// entries are sorted by memory, as Dispatch does, so that each memory's projection is one product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda {

// From three rows on, the sorted way is faster: bench/README.md.
enum : int { kMaxFewRows = 2, kMaxStepMemories = 16 };

// What passes between the kernels, in scratch memory.
struct StepBuffers {
  int rows, columns;  // entries = rows * columns
  float *q, *k, *v;   // [entries, channels], after convolution and silu
  float *a, *b;       // [entries, value_heads], raw; then log decay and beta
  float* gate;        // [rows, values], raw
  float* read;        // [entries, values]
  float* mixed;       // [rows, values]
  int32_t* offsets;   // of the segments, with the next three
  int32_t *slots, *memories, *fresh;
  int segments;
  int32_t* token_entries;  // [rows, columns]; null: few rows
  // Many rows.
  float* x;                                      // [rows, model_dim], normed
  float *raw_q, *raw_k, *raw_v, *raw_a, *raw_b;  // before convolution, [rows or entries, ..]
  int32_t *entry_tokens, *group_offsets;
};

// decode_project.cu: norm, router, choice, projections and convolutions of few rows; writes q, k,
// v, a, b, gate, the segments, args.indices and args.weights, and moves the windows.
void LaunchStepProjections(Device& device, const DeltaMixerStepArgs& args,
                           const StepBuffers& buffers);

// decode_route.cu: norm, router and choice of any number of rows; writes x, args.indices and
// args.weights.
void LaunchStepRoutes(Device& device, const DeltaMixerStepArgs& args, const StepBuffers& buffers);

// decode_route.cu: q and k to their length, a and b to decay and writing strength, in place.
//   raw_a, raw_b  [rows of a and b, value_heads]; entry_rows: as DeltaGatesArgs, or null
void LaunchStepGates(Device& device, const DeltaMixerStepArgs& args, const StepBuffers& buffers,
                     const float* raw_a, const float* raw_b, const int32_t* entry_rows);

// decode_emit.cu: mix, gated norm, output projection of few rows; marks memories as written.
void LaunchStepOutput(Device& device, const DeltaMixerStepArgs& args, const StepBuffers& buffers);

}  // namespace mneme::cuda
