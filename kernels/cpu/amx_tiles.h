// Matrix products of bf16 by bf16 on AMX tiles: the loop, and the instructions it is made of.
//
//   y[e][o] (+)= sum_i x[e][i] w[o][i]
//
// A tile register holds 16 rows of 64 bytes. One of activations is up to 16 entries by 32 inputs,
// one of weights the 1 KB of a panel (packed_layout.h) that belongs to 32 inputs, one of sums the
// entries by the panel's 16 outputs. Both operands are padded with zeros to whole tiles, and an
// output is one chain of TDPBF16PS along its inputs, 32 a step: its bits depend on its own row and
// weights only, not on how many entries share a tile or how many tiles share the weights. That
// holds as long as every number of entries takes this loop; the dot product of vectors sums in
// another order.
//
// MultiplyTiles<Tiles> takes the instructions as a parameter. AmxTiles are the processor's;
// tests/kernels/amx_tiles_test.cc runs the same loop on an emulation of them, on any host.
#pragma once

#include <cstdint>

#include "kernels/cpu/packed_layout.h"

namespace mneme {

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

struct TileProduct {
  const void* x = nullptr;        // [tiles of entries][steps][rows][32] bf16, rows without entry 0
  const void* weights = nullptr;  // [panels][steps][16][16][2] bf16
  int steps = 0;                  // of 32 inputs
  int rows = 0;                   // of one tile of entries, at most 16
  int entries = 0;
  int outputs = 0;     // the last panel may be used in part
  float* y = nullptr;  // [entries][outputs], rows y_stride floats apart
  int64_t y_stride = 0;
  bool accumulate = false;
};

// The block of memory that LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 0;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// The eight registers: up to four of sums, [tile of entries][panel]; one of activations per tile of
// entries; two of weights, taken in turn, so that one is loaded while the other is multiplied.
enum TileRegister : int { kSumTiles = 0, kEntryTiles = 4, kWeightTiles = 6, kAllTiles = 8 };

template <typename Tiles, int kFrom, int kTo>
void ZeroTiles(Tiles& tiles) {
  if constexpr (kFrom < kTo) {
    tiles.template Zero<kFrom>();
    ZeroTiles<Tiles, kFrom + 1, kTo>(tiles);
  }
}

// One step of panels kPanel to P - 1 for E tiles of entries, which are loaded.
template <typename Tiles, int E, int P, int kPanel>
void StepPanels(Tiles& tiles, const char* weights, int64_t panel_bytes) {
  if constexpr (kPanel < P) {
    constexpr int kWeights = kWeightTiles + kPanel % 2;
    tiles.template Load<kWeights>(weights + kPanel * panel_bytes, kTileRowBytes);
    tiles.template DotBF16<kSumTiles + kPanel, kEntryTiles, kWeights>();
    if constexpr (E == 2) {
      tiles.template DotBF16<kSumTiles + P + kPanel, kEntryTiles + 1, kWeights>();
    }
    StepPanels<Tiles, E, P, kPanel + 1>(tiles, weights, panel_bytes);
  }
}

// Writes sums kSum to E * P - 1 where they belong: tile of entries kSum / P, panel kSum % P,
// counted from `tile` and `panel`.
template <typename Tiles, int E, int P, int kSum>
void StoreSums(Tiles& tiles, const TileProduct& product, int tile, int panel) {
  if constexpr (kSum < E * P) {
    const int first_entry = (tile + kSum / P) * product.rows;
    const int first_output = (panel + kSum % P) * kPanelOutputs;
    const int entries_left = product.entries - first_entry;
    const int outputs_left = product.outputs - first_output;
    float* y = product.y + first_entry * product.y_stride + first_output;
    if (entries_left >= product.rows && outputs_left >= kPanelOutputs && !product.accumulate) {
      tiles.template Store<kSumTiles + kSum>(y, product.y_stride * int64_t{sizeof(float)});
    } else {
      alignas(64) float sums[kTileRows][kPanelOutputs];
      tiles.template Store<kSumTiles + kSum>(sums, kTileRowBytes);
      const int entries = entries_left < product.rows ? entries_left : product.rows;
      const int outputs = outputs_left < kPanelOutputs ? outputs_left : kPanelOutputs;
      for (int e = 0; e < entries; ++e, y += product.y_stride) {
        for (int o = 0; o < outputs; ++o)
          y[o] = product.accumulate ? y[o] + sums[e][o] : sums[e][o];
      }
    }
    StoreSums<Tiles, E, P, kSum + 1>(tiles, product, tile, panel);
  }
}

// E tiles of entries by P panels.
template <typename Tiles, int E, int P>
void MultiplyTileBlock(Tiles& tiles, const TileProduct& product, int tile, int panel) {
  static_assert(E <= 2 && E * P <= kEntryTiles - kSumTiles);
  constexpr int64_t kStepBytes = kTileRows * kTileRowBytes;
  const int64_t x_step = int64_t{product.rows} * kTileRowBytes;
  const int64_t x_tile = product.steps * x_step;
  const int64_t panel_bytes = product.steps * kStepBytes;
  const char* x = static_cast<const char*>(product.x) + tile * x_tile;
  const char* weights = static_cast<const char*>(product.weights) + panel * panel_bytes;
  ZeroTiles<Tiles, kSumTiles, kSumTiles + E * P>(tiles);
  for (int step = product.steps; step > 0; --step, x += x_step, weights += kStepBytes) {
    tiles.template Load<kEntryTiles>(x, kTileRowBytes);
    if constexpr (E == 2) tiles.template Load<kEntryTiles + 1>(x + x_tile, kTileRowBytes);
    StepPanels<Tiles, E, P, 0>(tiles, weights, panel_bytes);
  }
  StoreSums<Tiles, E, P, 0>(tiles, product, tile, panel);
}

// Four sums at a time, which hides the latency of a product: four panels by one tile of entries,
// or, so that weights are loaded for more than one, two by two.
template <typename Tiles>
void MultiplyTiles(Tiles& tiles, const TileProduct& product) {
  TileConfig config;
  config.palette = 1;
  for (int t = 0; t < kAllTiles; ++t) {
    config.row_bytes[t] = kTileRowBytes;
    config.rows[t] = static_cast<uint8_t>(t < kWeightTiles ? product.rows : kTileRows);
  }
  tiles.LoadConfig(config);
  const int entry_tiles = (product.entries + product.rows - 1) / product.rows;
  const int panels = Panels(product.outputs);
  for (int panel = 0; panel < panels;) {
    const int left = panels - panel;
    const int count = left >= 4 && entry_tiles == 1 ? 4 : left >= 2 ? 2 : 1;
    for (int tile = 0; tile < entry_tiles; tile += 2) {
      const bool two = tile + 1 < entry_tiles;
      if (count == 4) {
        MultiplyTileBlock<Tiles, 1, 4>(tiles, product, tile, panel);
      } else if (count == 2 && two) {
        MultiplyTileBlock<Tiles, 2, 2>(tiles, product, tile, panel);
      } else if (count == 2) {
        MultiplyTileBlock<Tiles, 1, 2>(tiles, product, tile, panel);
      } else if (two) {
        MultiplyTileBlock<Tiles, 2, 1>(tiles, product, tile, panel);
      } else {
        MultiplyTileBlock<Tiles, 1, 1>(tiles, product, tile, panel);
      }
    }
    panel += count;
  }
  tiles.Release();
}

#if defined(__AMX_BF16__)

// The calling thread's tile registers. The process has to have asked for them (cpu_features.cc).
// Written out because the intrinsics of GCC 12 do not tell the compiler that they access memory,
// and take no template parameter for a register.
class AmxTiles {
 public:
  __attribute__((always_inline)) void LoadConfig(const TileConfig& config) {
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  // Leaves the registers in their initial state, so that no thread switch has to save their 8 KB.
  __attribute__((always_inline)) void Release() { asm volatile("tilerelease"); }
  template <int kTile>
  __attribute__((always_inline)) void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // Rows `stride` bytes apart.
  template <int kTile>
  __attribute__((always_inline)) void Load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  __attribute__((always_inline)) void Store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // sums[m][n] += the pairs of a's row m times those of b's column n.
  template <int kSums, int kA, int kB>
  __attribute__((always_inline)) void DotBF16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }
};

#endif  // defined(__AMX_BF16__)

}  // namespace mneme
