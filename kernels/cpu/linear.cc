// Matrix products with packed weights (packed_layout.h). Built once per instruction set.
//
// The inner loop holds an R x P block of outputs in registers, R entries by P panels of 16 outputs,
// and runs along in_features once: each weight vector is loaded once for R entries, each activation
// broadcast once for P panels. Every output is a single chain of multiply-adds in the order of its
// inputs, so its bits do not depend on R, P or anything else in the call.
//
// Activations are copied first, a cache line of each of the R entries after the other, so that the
// loop reads both operands in sequence (rows a power of two apart would share a few sets of the
// first-level cache). A single entry is read in place.
//
// On tile registers (amx_tiles.h) bf16 by bf16 takes another loop, for any number of entries.
#include "kernels/cpu/linear.h"

#include <cstring>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/cpu/simd.h"

namespace mneme::MNEME_ISA {
namespace {

// The last two multiply bf16 by bf16; an instruction set has at most one of them.
enum Form { kExact, kRounded, kPairs, kTiles };

Form FormOf(const LinearTask& task) {
  if (!task.round_activations) return kExact;
  if (!kHasBF16Products || task.weights.dtype != DType::kBF16) return kRounded;
#if defined(MNEME_TILE_PRODUCTS)
  return kTiles;
#else
  return kPairs;
#endif
}

// ---- weights ------------------------------------------------------------------------------------

// The weights of 16 outputs for the even or the odd input of a pair.
struct WeightsF32 {
  using Type = float;
  static MNEME_INLINE Vec Even(const float* p) { return Load(p); }
  static MNEME_INLINE Vec Odd(const float* p) { return Load(p + kLanes); }
};
struct WeightsBF16 {
  using Type = uint16_t;
  static MNEME_INLINE Vec Even(const uint16_t* p) { return LoadEvenBF16(p); }
  static MNEME_INLINE Vec Odd(const uint16_t* p) { return LoadOddBF16(p); }
};
struct WeightsF16 {
  using Type = uint16_t;
  static MNEME_INLINE Vec Even(const uint16_t* p) { return LoadEvenF16(p); }
  static MNEME_INLINE Vec Odd(const uint16_t* p) { return LoadOddF16(p); }
};

// ---- inner loops --------------------------------------------------------------------------------

constexpr int kLineFloats = 16;

struct Block {
  const void* x;        // [inputs / 16][R][16] f32, or [inputs / 32][R][16] pairs of bf16
  const void* weights;  // P panels, panel_bytes apart
  int64_t panel_bytes;
  int pairs;  // of inputs
  float* y;   // R rows, y_stride apart
  int64_t y_stride;
  int rows;     // of the R, those that exist
  int outputs;  // of the 16 * P
  bool accumulate;
  const char* fetch;  // this tile's part of the next P panels, or any readable memory
  int fetch_step;     // bytes to fetch per pair of inputs and panel
};

// With many rows to a weight, arithmetic takes longer than reading, and the memory would idle while
// the next panels are not asked for: each tile of rows fetches its share of them, evenly along its
// inputs. With few rows the loop is one long read, which the hardware looks ahead of by itself.
template <int R>
constexpr bool kFetchesNext = R >= 5;

template <int R, int P>
MNEME_INLINE void StoreBlock(const Block& block, const Vec (&sum)[R][P]) {
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    if (r >= block.rows) break;
    MNEME_UNROLL
    for (int p = 0; p < P; ++p) {
      float* y = block.y + r * block.y_stride + p * kLanes;
      const int lanes = block.outputs - p * kLanes;
      if (lanes >= kLanes) {
        Store(y, block.accumulate ? Load(y) + sum[r][p] : sum[r][p]);
      } else if (lanes > 0) {
        StoreFirst(y, block.accumulate ? LoadFirst(y, lanes) + sum[r][p] : sum[r][p], lanes);
      }
    }
  }
}

// Exact f32 arithmetic on weights of any type.
template <int R, int P, typename W>
void MultiplyF32(const Block& block) {
  using Type = typename W::Type;
  const float* x = static_cast<const float*>(block.x);
  const char* fetch = block.fetch;
  const Type* w[P];
  MNEME_UNROLL
  for (int p = 0; p < P; ++p) {
    w[p] = reinterpret_cast<const Type*>(static_cast<const char*>(block.weights) +
                                         p * block.panel_bytes);
  }
  Vec sum[R][P];
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    MNEME_UNROLL
    for (int p = 0; p < P; ++p) sum[r][p] = Zero();
  }
  for (int left = block.pairs; left > 0; left -= kLineFloats / 2) {
    const int pairs = left < kLineFloats / 2 ? left : kLineFloats / 2;
    for (int i = 0; i < pairs; ++i, x += 2) {
      Vec weights[P];
      MNEME_UNROLL
      for (int p = 0; p < P; ++p) weights[p] = W::Even(w[p]);
      MNEME_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec a = Set1(x[r * kLineFloats]);
        MNEME_UNROLL
        for (int p = 0; p < P; ++p) Accumulate(&sum[r][p], a, weights[p]);
      }
      MNEME_UNROLL
      for (int p = 0; p < P; ++p) weights[p] = W::Odd(w[p]);
      MNEME_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec a = Set1(x[r * kLineFloats + 1]);
        MNEME_UNROLL
        for (int p = 0; p < P; ++p) Accumulate(&sum[r][p], a, weights[p]);
      }
      MNEME_UNROLL
      for (int p = 0; p < P; ++p) {
        if constexpr (kFetchesNext<R>) Prefetch(fetch + p * block.panel_bytes);
        w[p] += 2 * kLanes;
      }
      fetch += block.fetch_step;
    }
    x += (R - 1) * kLineFloats;
  }
  StoreBlock<R, P>(block, sum);
}

#if defined(MNEME_PAIR_PRODUCTS)
constexpr int kLinePairs = 16;

// bf16 by bf16, summed in f32 by the processor's dot product of pairs.
template <int R, int P>
void MultiplyPairs(const Block& block) {
  const uint32_t* x = static_cast<const uint32_t*>(block.x);
  const char* fetch = block.fetch;
  const char* w[P];
  MNEME_UNROLL
  for (int p = 0; p < P; ++p) {
    w[p] = static_cast<const char*>(block.weights) + p * block.panel_bytes;
  }
  Vec sum[R][P];
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    MNEME_UNROLL
    for (int p = 0; p < P; ++p) sum[r][p] = Zero();
  }
  // Inputs are padded to whole lines in both operands.
  for (int pair = 0; pair < block.pairs; pair += kLinePairs) {
    for (int i = 0; i < kLinePairs; ++i) {
      __m512i weights[P];
      MNEME_UNROLL
      for (int p = 0; p < P; ++p) {
        weights[p] = _mm512_loadu_si512(w[p] + i * 64);
        if constexpr (kFetchesNext<R>) Prefetch(fetch + p * block.panel_bytes);
      }
      fetch += block.fetch_step;
      MNEME_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512i a = _mm512_set1_epi32(static_cast<int>(x[r * kLinePairs + i]));
        MNEME_UNROLL
        for (int p = 0; p < P; ++p) AccumulatePairs(&sum[r][p], a, weights[p]);
      }
    }
    x += R * kLinePairs;
    MNEME_UNROLL
    for (int p = 0; p < P; ++p) w[p] += kLinePairs * 64;
  }
  StoreBlock<R, P>(block, sum);
}
#endif

// ---- the choice of R and P ----------------------------------------------------------------------

// P is the most panels that fit into the registers beside R; a single entry needs several chains of
// additions to keep the multipliers busy.
template <int R>
constexpr int PanelsFor() {
#if defined(__AVX512F__)
  return R <= 6 ? 4 : 3;
#elif defined(__AVX2__)
  return R == 1 ? 4 : R <= 3 ? 2 : 1;
#else
  return 1;
#endif
}

#if defined(__AVX512F__)
constexpr int kMaxRows = 8;
#elif defined(__AVX2__)
constexpr int kMaxRows = 6;
#else
constexpr int kMaxRows = 2;
#endif

using MultiplyBlock = void (*)(const Block&);
struct Kernel {
  int panels = 0;
  MultiplyBlock many = nullptr, two = nullptr, one = nullptr;
};

template <int R, typename W>
constexpr Kernel ExactKernel() {
  return {PanelsFor<R>(), MultiplyF32<R, PanelsFor<R>(), W>, MultiplyF32<R, 2, W>,
          MultiplyF32<R, 1, W>};
}

template <int R>
Kernel KernelFor(DType dtype, Form form) {
#if defined(MNEME_PAIR_PRODUCTS)
  if (form == kPairs) {
    return {PanelsFor<R>(), MultiplyPairs<R, PanelsFor<R>()>, MultiplyPairs<R, 2>,
            MultiplyPairs<R, 1>};
  }
#else
  (void)form;
#endif
  if (dtype == DType::kBF16) return ExactKernel<R, WeightsBF16>();
  if (dtype == DType::kF16) return ExactKernel<R, WeightsF16>();
  return ExactKernel<R, WeightsF32>();
}

template <int R>
Kernel ChooseKernel(int rows, DType dtype, Form form) {
  if constexpr (R == 0) {
    return {};
  } else {
    return rows == R ? KernelFor<R>(dtype, form) : ChooseKernel<R - 1>(rows, dtype, form);
  }
}

// Rows of the tiles that `entries` are cut into: as few tiles as possible, of nearly equal size.
int TileRows(int entries, Form form) {
  const int most = form == kTiles ? kTileRows : kMaxRows;
  const int tiles = (entries + most - 1) / most;
  return (entries + tiles - 1) / tiles;
}

// ---- activations --------------------------------------------------------------------------------

// Inputs of a copied row: whole cache lines of floats, or of pairs of bf16.
int64_t CopiedInputs(int in_features) { return (in_features + 31) / 32 * 32; }

// Calls copy(x, to, inputs) for each line of each entry, `to` walking over tiles of
// [CopiedInputs / kInputs][rows][kInputs] elements, and clears the lines of absent entries.
template <int kInputs, typename T, typename Copy>
void CopyLines(const LinearTask& task, int rows, T* to, Copy copy) {
  const int in_features = task.weights.in_features;
  const int64_t tile = CopiedInputs(in_features) * rows;
  for (int first = 0; first < task.entries; first += rows, to += tile) {
    for (int r = 0; r < rows; ++r) {
      const int e = first + r;
      T* line = to + r * kInputs;
      if (e >= task.entries) {
        for (int64_t i = 0; i < CopiedInputs(in_features); i += kInputs, line += rows * kInputs) {
          std::memset(line, 0, sizeof(T) * kInputs);
        }
        continue;
      }
      const int64_t row = task.entry_rows == nullptr ? e : task.entry_rows[e];
      const float* x = task.x + row * in_features;
      for (int64_t i = 0; i < CopiedInputs(in_features); i += kInputs, line += rows * kInputs) {
        const int64_t left = in_features - i;
        copy(x + i, line, left < 0 ? 0 : left < kInputs ? static_cast<int>(left) : kInputs);
      }
    }
  }
}

void CopyActivations(const LinearTask& task, int rows, Form form, void* data) {
  if (form == kPairs || form == kTiles) {
#if defined(MNEME_BF16_PRODUCTS)
    CopyLines<32>(task, rows, static_cast<uint16_t*>(data),
                  [](const float* x, uint16_t* to, int inputs) {
                    const Vec low = inputs >= 16 ? Load(x) : LoadFirst(x, inputs);
                    const Vec high = inputs == 32  ? Load(x + 16)
                                     : inputs > 16 ? LoadFirst(x + 16, inputs - 16)
                                                   : Zero();
                    StoreBF16(to, low, high);
                  });
#endif
    return;
  }
  CopyLines<16>(task, rows, static_cast<float*>(data), [form](const float* x, float* to, int n) {
    const Vec line = n == 16 ? Load(x) : LoadFirst(x, n);
    Store(to, form == kRounded ? RoundToBF16(line) : line);
  });
}

#if defined(MNEME_TILE_PRODUCTS)
void MultiplyOnTiles(const LinearTask& task, int rows, const void* x) {
  const PackedMatrix& weights = task.weights;
  const int64_t panel_bytes = PanelBytes(weights.dtype, weights.in_features);
  const int first_output = task.panel_begin * kPanelOutputs;
  const int last_output = task.panel_end * kPanelOutputs;
  TileProduct product;
  product.x = x;
  product.weights = static_cast<const char*>(weights.data) + task.panel_begin * panel_bytes;
  product.steps = PaddedInputs(weights.dtype, weights.in_features) / kTileDepth;
  product.rows = rows;
  product.entries = task.entries;
  product.outputs =
      (last_output < weights.out_features ? last_output : weights.out_features) - first_output;
  product.y = task.y + first_output;
  product.y_stride = weights.out_features;
  product.accumulate = task.accumulate;
  AmxTiles tiles;
  MultiplyTiles(tiles, product);
}
#endif

}  // namespace

int LinearPanelStep(const LinearTask& task) {
  if (FormOf(task) == kTiles) return 4;
  return ChooseKernel<kMaxRows>(TileRows(task.entries, kExact), DType::kBF16, kExact).panels;
}

// The copies in bf16, with rows for absent entries up to twice as many, are never larger.
int64_t LinearScratchBytes(int entries, int in_features) {
  const int rows = TileRows(entries, kExact);
  const int tiles = (entries + rows - 1) / rows;
  return CopiedInputs(in_features) * rows * tiles * static_cast<int64_t>(sizeof(float));
}

void Linear(const LinearTask& task, LinearScratch& scratch) {
  const PackedMatrix& weights = task.weights;
  const int in_features = weights.in_features;
  const Form form = FormOf(task);
  const int rows = TileRows(task.entries, form);

  const char* x;
  const int64_t tile_bytes = CopiedInputs(in_features) * rows * (form == kPairs ? 2 : 4);
  if (rows == 1 && form == kExact && in_features % 2 == 0) {
    const int64_t row = task.entry_rows == nullptr ? 0 : task.entry_rows[0];
    x = reinterpret_cast<const char*>(task.x + row * in_features);
  } else {
    if (scratch.x != task.x || scratch.entry_rows != task.entry_rows ||
        scratch.entries != task.entries || scratch.in_features != in_features ||
        scratch.form != form) {
      CopyActivations(task, rows, form, scratch.data);
      scratch.x = task.x;
      scratch.entry_rows = task.entry_rows;
      scratch.entries = task.entries;
      scratch.in_features = in_features;
      scratch.form = form;
    }
    x = static_cast<const char*>(scratch.data);
  }
#if defined(MNEME_TILE_PRODUCTS)
  if (form == kTiles) return MultiplyOnTiles(task, rows, x);
#endif

  const Kernel kernel = ChooseKernel<kMaxRows>(rows, weights.dtype, form);
  Block block;
  block.panel_bytes = PanelBytes(weights.dtype, in_features);
  block.pairs = (in_features + 1) / 2;
  block.y_stride = weights.out_features;
  block.accumulate = task.accumulate;
  const int tiles = (task.entries + rows - 1) / rows;
  block.fetch_step = SizeOf(weights.dtype) * 2 * kPanelOutputs / tiles;
  for (int panel = task.panel_begin; panel < task.panel_end;) {
    // A rest of one panel would be slow: before it, two and two are taken instead of three and one.
    const int rest = task.panel_end - panel;
    const bool many = rest >= kernel.panels && !(kernel.panels == 3 && rest == 4);
    const int panels = many ? kernel.panels : rest >= 2 ? 2 : 1;
    const MultiplyBlock multiply = many ? kernel.many : panels == 2 ? kernel.two : kernel.one;
    block.weights = static_cast<const char*>(weights.data) + panel * block.panel_bytes;
    const int first_output = panel * kPanelOutputs;
    const int left = weights.out_features - first_output;
    block.outputs = left < panels * kPanelOutputs ? left : panels * kPanelOutputs;
    block.x = x;
    const char* next = static_cast<const char*>(block.weights) + panels * block.panel_bytes;
    for (int first = 0; first < task.entries; first += rows) {
      block.y = task.y + int64_t{first} * weights.out_features + first_output;
      block.rows = task.entries - first < rows ? task.entries - first : rows;
      block.fetch = next + first / rows * (block.panel_bytes / tiles);
      multiply(block);
      block.x = static_cast<const char*>(block.x) + tile_bytes;
    }
    panel += panels;
  }
}

}  // namespace mneme::MNEME_ISA
