// How a block's shared memory is divided where tokens under one anchor are taken together.
#pragma once

#include "kernels/cuda/neural_memory/resident/head.cuh"
#include "kernels/cuda/neural_memory/resident/split_products.cuh"

namespace mneme::cuda::neural_memory::resident {

// A product's rows come in tiles of as many, of hidden units as of tokens.
constexpr int kWindowTile = 16;
// Most tiles of tokens: as many rows as a warp has lanes.
constexpr int kMostWindowTiles = 2;

// Where arrays begin, in floats. T = 16 `tiles` tokens are taken at once, of which `units` of the
// hidden units are this block's. Arrays of vectors have rows so far apart that what a warp reads of
// them at once is in different banks: of sources of rows, and of sources of columns.
struct WindowLayout {
  int tokens, owned;  // T, and those whose outputs a block sees
  int owner_bits;     // token t has block t % blocks, at t >> owner_bits
  int units;          // of a block
  int weights[2], momenta[2];
  int dim_pitch, unit_pitch, delta_pitch, token_pitch;
  int q, k, v;     // [T, dim]
  int error;       // likewise; in place of v where that is not needed any more
  int z, z_of_q;   // [T, units]
  int delta;       // likewise
  int reach;       // g: what token t reads of the gradient of token i, [T, T]
  int scores;      // and what of it times z_i z(q_t)
  int outputs[2];  // of the network: by block, what to add, [owned, dim]
  int answers;     // of this block's units, [T, dim]
  int rates, momentum, keep, kept, moved, slowed, last;  // of tokens, [T]
  int gain, gain_momenta, anchor_gain, shift;            // [dim]
  int floats;

  WindowLayout(const MemoryNetwork& network, int dim, int blocks, int tiles);
};

// resident/anchored_windows.cu: segments of several tokens whose steps are of one, under anchors.
// There are at most `segments` of them; those of one token are left to others.
void LaunchAnchoredWindows(Device& device, const Plan& plan, const Params& p, int segments);

}  // namespace mneme::cuda::neural_memory::resident
