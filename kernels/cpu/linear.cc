// Matrix products with packed weights (packed_layout.h). Built once per instruction set.
//
// The inner loop holds an R x P block of outputs in registers, R entries by P panels of 16 outputs,
// and runs along in_features once: each weight vector is loaded once for R entries, each activation
// broadcast once for P panels. Every output is a single chain of multiply-adds in the order of its
// inputs, so its bits do not depend on R, P or anything else in the call.
//
// Activations are copied first, to [in_features][R] for each tile of R entries, so that the loop
// reads both operands in sequence; it costs one load and store per activation against
// out_features / 16 multiply-adds. A single entry is read in place.
#include "kernels/cpu/linear.h"

#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/cpu/simd.h"

namespace mneme::MNEME_ISA {
namespace {

enum Form { kExact, kRounded, kPairs };

// ---- weights ------------------------------------------------------------------------------------

struct WeightsF32 {
  using Type = float;
  static MNEME_INLINE void LoadPair(const float* p, Vec* even, Vec* odd) {
    *even = Load(p);
    *odd = Load(p + kLanes);
  }
};
struct WeightsBF16 {
  using Type = uint16_t;
  static MNEME_INLINE void LoadPair(const uint16_t* p, Vec* even, Vec* odd) {
    LoadPairsBF16(p, even, odd);
  }
};
struct WeightsF16 {
  using Type = uint16_t;
  static MNEME_INLINE void LoadPair(const uint16_t* p, Vec* even, Vec* odd) {
    LoadPairsF16(p, even, odd);
  }
};

// ---- inner loops --------------------------------------------------------------------------------

struct Block {
  const void* x;        // [in_features / 2][2][R] f32, or [in_features / 2][R] pairs of bf16
  const void* weights;  // P panels, panel_bytes apart
  int64_t panel_bytes;
  int pairs;
  float* y;  // R rows, y_stride apart
  int64_t y_stride;
  int rows;     // of the R, those that exist
  int outputs;  // of the 16 * P
  bool accumulate;
};

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
  for (int64_t i = 0; i < block.pairs; ++i, x += 2 * R) {
    Vec even[P], odd[P];
    MNEME_UNROLL
    for (int p = 0; p < P; ++p) W::LoadPair(w[p] + i * 2 * kLanes, &even[p], &odd[p]);
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec a = Set1(x[r]);
      MNEME_UNROLL
      for (int p = 0; p < P; ++p) sum[r][p] = MulAdd(a, even[p], sum[r][p]);
    }
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec a = Set1(x[R + r]);
      MNEME_UNROLL
      for (int p = 0; p < P; ++p) sum[r][p] = MulAdd(a, odd[p], sum[r][p]);
    }
  }
  StoreBlock<R, P>(block, sum);
}

#if defined(__AVX512BF16__)
// bf16 by bf16, summed in f32 by the processor's dot product of pairs.
template <int R, int P>
void MultiplyPairs(const Block& block) {
  const uint32_t* x = static_cast<const uint32_t*>(block.x);
  const char* weights = static_cast<const char*>(block.weights);
  Vec sum[R][P];
  MNEME_UNROLL
  for (int r = 0; r < R; ++r) {
    MNEME_UNROLL
    for (int p = 0; p < P; ++p) sum[r][p] = Zero();
  }
  for (int64_t i = 0; i < block.pairs; ++i, x += R) {
    __m512bh w[P];
    MNEME_UNROLL
    for (int p = 0; p < P; ++p) {
      w[p] =
          reinterpret_cast<__m512bh>(_mm512_loadu_si512(weights + p * block.panel_bytes + i * 64));
    }
    MNEME_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x[r])));
      MNEME_UNROLL
      for (int p = 0; p < P; ++p) sum[r][p].v = _mm512_dpbf16_ps(sum[r][p].v, a, w[p]);
    }
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
  return R <= 6 ? 4 : R <= 8 ? 3 : 2;
#elif defined(__AVX2__)
  return R == 1 ? 4 : R <= 3 ? 2 : 1;
#else
  return 1;
#endif
}

using Multiply = void (*)(const Block&);
struct Kernel {
  int panels;
  Multiply many, one;
};

template <int R>
Kernel KernelFor(DType dtype, Form form) {
  constexpr int P = PanelsFor<R>();
#if defined(__AVX512BF16__)
  if (form == kPairs) return {P, MultiplyPairs<R, P>, MultiplyPairs<R, 1>};
#else
  (void)form;
#endif
  if (dtype == DType::kBF16) {
    return {P, MultiplyF32<R, P, WeightsBF16>, MultiplyF32<R, 1, WeightsBF16>};
  }
  if (dtype == DType::kF16) {
    return {P, MultiplyF32<R, P, WeightsF16>, MultiplyF32<R, 1, WeightsF16>};
  }
  return {P, MultiplyF32<R, P, WeightsF32>, MultiplyF32<R, 1, WeightsF32>};
}

Kernel ChooseKernel(int rows, DType dtype, Form form) {
  switch (rows) {
    case 1:
      return KernelFor<1>(dtype, form);
    case 2:
      return KernelFor<2>(dtype, form);
#if defined(__AVX2__)
    case 3:
      return KernelFor<3>(dtype, form);
    case 4:
      return KernelFor<4>(dtype, form);
    case 5:
      return KernelFor<5>(dtype, form);
    case 6:
      return KernelFor<6>(dtype, form);
#endif
#if defined(__AVX512F__)
    case 7:
      return KernelFor<7>(dtype, form);
    case 8:
      return KernelFor<8>(dtype, form);
    case 10:
      return KernelFor<10>(dtype, form);
    case 12:
      return KernelFor<12>(dtype, form);
    case 14:
      return KernelFor<14>(dtype, form);
#endif
  }
  return {};
}

#if defined(__AVX512F__)
constexpr int kMaxRows = 14;
#elif defined(__AVX2__)
constexpr int kMaxRows = 6;
#else
constexpr int kMaxRows = 2;
#endif

// Rows of the tiles that `entries` are cut into: as few tiles as possible, of nearly equal size.
int TileRows(int entries) {
  const int tiles = (entries + kMaxRows - 1) / kMaxRows;
  const int rows = (entries + tiles - 1) / tiles;
  return rows > 8 && rows % 2 == 1 ? rows + 1 : rows;
}

// ---- activations --------------------------------------------------------------------------------

int EvenInputs(int in_features) { return (in_features + 1) / 2 * 2; }

// Copies `entries` rows to tiles of [EvenInputs][rows] floats, zero where there is no input or
// entry.
void CopyActivations(const LinearTask& task, int rows, bool round, float* to) {
  const int in_features = task.weights.in_features;
  const int inputs = EvenInputs(in_features);
  for (int first = 0; first < task.entries; first += rows, to += int64_t{inputs} * rows) {
    for (int r = 0; r < rows; ++r) {
      const int e = first + r;
      if (e >= task.entries) {
        for (int i = 0; i < inputs; ++i) to[i * rows + r] = 0.0f;
        continue;
      }
      const int64_t row = task.entry_rows == nullptr ? e : task.entry_rows[e];
      const float* x = task.x + row * in_features;
      if (round) {
        for (int i = 0; i < in_features; ++i) to[i * rows + r] = mneme::RoundToBF16(x[i]);
      } else {
        for (int i = 0; i < in_features; ++i) to[i * rows + r] = x[i];
      }
      if (inputs > in_features) to[in_features * rows + r] = 0.0f;
    }
  }
}

// The same as pairs of bf16, [EvenInputs / 2][rows][2].
void CopyActivationPairs(const LinearTask& task, int rows, uint16_t* to) {
  const int in_features = task.weights.in_features;
  const int inputs = EvenInputs(in_features);
  for (int first = 0; first < task.entries; first += rows, to += int64_t{inputs} * rows) {
    for (int r = 0; r < rows; ++r) {
      const int e = first + r;
      const int64_t row = e >= task.entries            ? -1
                          : task.entry_rows == nullptr ? e
                                                       : task.entry_rows[e];
      const float* x = task.x + row * in_features;
      for (int i = 0; i < inputs; ++i) {
        to[(int64_t{i / 2} * rows + r) * 2 + i % 2] =
            row >= 0 && i < in_features ? BF16FromF32(x[i]) : 0;
      }
    }
  }
}

}  // namespace

int LinearPanelStep(int entries) {
  return ChooseKernel(TileRows(entries), DType::kBF16, kExact).panels;
}

int64_t LinearScratchBytes(int entries, int in_features) {
  // At most one row of padding per row: TileRows(1) == 1, and more rows waste less.
  return int64_t{2} * entries * EvenInputs(in_features) * sizeof(float);
}

void Linear(const LinearTask& task, LinearScratch& scratch) {
  const PackedMatrix& weights = task.weights;
  const int in_features = weights.in_features;
  const int inputs = EvenInputs(in_features);
  const int rows = TileRows(task.entries);
  const Form form = !task.round_activations                             ? kExact
                    : kHasBF16Products && weights.dtype == DType::kBF16 ? kPairs
                                                                        : kRounded;
  const Kernel kernel = ChooseKernel(rows, weights.dtype, form);

  const char* x;
  int64_t tile_bytes = int64_t{inputs} * rows * (form == kPairs ? 2 : 4);
  if (rows == 1 && form == kExact && inputs == in_features && task.entry_rows == nullptr) {
    x = reinterpret_cast<const char*>(task.x);
  } else {
    if (scratch.x != task.x || scratch.entry_rows != task.entry_rows ||
        scratch.entries != task.entries || scratch.in_features != in_features ||
        scratch.form != form) {
      if (form == kPairs) {
        CopyActivationPairs(task, rows, static_cast<uint16_t*>(scratch.data));
      } else {
        CopyActivations(task, rows, form == kRounded, static_cast<float*>(scratch.data));
      }
      scratch.x = task.x;
      scratch.entry_rows = task.entry_rows;
      scratch.entries = task.entries;
      scratch.in_features = in_features;
      scratch.form = form;
    }
    x = static_cast<const char*>(scratch.data);
  }

  Block block;
  block.panel_bytes = PanelBytes(weights.dtype, in_features);
  block.pairs = inputs / 2;
  block.y_stride = weights.out_features;
  block.accumulate = task.accumulate;
  for (int panel = task.panel_begin; panel < task.panel_end;) {
    const bool many = panel + kernel.panels <= task.panel_end;
    const int panels = many ? kernel.panels : 1;
    block.weights = static_cast<const char*>(weights.data) + panel * block.panel_bytes;
    const int first_output = panel * kPanelOutputs;
    const int left = weights.out_features - first_output;
    block.outputs = left < panels * kPanelOutputs ? left : panels * kPanelOutputs;
    block.x = x;
    for (int first = 0; first < task.entries; first += rows) {
      block.y = task.y + int64_t{first} * weights.out_features + first_output;
      block.rows = task.entries - first < rows ? task.entries - first : rows;
      (many ? kernel.many : kernel.one)(block);
      block.x = static_cast<const char*>(block.x) + tile_bytes;
    }
    panel += panels;
  }
}

}  // namespace mneme::MNEME_ISA
