// Linear(): which kernel takes which product. Chosen from what the host knows: numbers of entries
// and rows, sizes, dtypes, the compute dtype. bench/cuda_linear_bench.cu measures the alternatives.
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/decode/batch/batch.h"
#include "kernels/cuda/dense/dense.h"
#include "kernels/cuda/linear/batch.h"
#include "kernels/cuda/linear/few_rows.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/round.h"
#include "kernels/cuda/linear/row.h"
#include "kernels/cuda/linear/step.h"

namespace mneme::cuda::linear {
namespace {

// Numbers of entries a group. Up to the first, plain fp32 keeps up with the weights as they come
// from memory, whatever it is told to compute in; up to the second it beats tiles.
constexpr int64_t kFewRows = 2;
// Up to decode::batch::kStepRows rows of matrices that are not large, one launch for all products
// of a call beats one by cuBLAS for each.
constexpr int64_t kStepRowsOfSmall = 1024;
constexpr int64_t kSmall = int64_t{128} << 10;  // weights
constexpr int64_t kFewRowsExact = 8;
// From here on cuBLAS is the fastest for an ungrouped product: one on its own, one of several of a
// call, a large one. It takes one launch for each, but makes more of it. Beside grouped products
// an ungrouped one goes with them.
constexpr int64_t kBlasRows = 65;
constexpr int64_t kBlasRowsOfSeveral = 129;
constexpr int64_t kBlasRowsOfLarge = 33;
constexpr int64_t kLarge = int64_t{8} << 20;  // weights
// A router's few outputs: cuBLAS splits the sums, and adds them up in a second launch.
constexpr int kBlasOutputs = 17;
// cuBLAS fails to launch a product of a decay's low rank (gla's 16) at the sizes of a prompt.
constexpr int kLeastBlasFeatures = 64;
// Fewer rows are better off in one launch with the products beside them.
constexpr int64_t kNarrowRows = 129;
// LinearBulk's tiles are for more entries, and for more output features.
constexpr int64_t kBulkRows = 129;
constexpr int kBulkOutputs = 65;
// Terms of the weights' dtype that make up an activation: three times 8 bits are all its 24.
constexpr int kExactTerms = 3;

enum Path {
  kPathFewRows,
  kPathStep,
  kPathNarrow,
  kPathWarpgroups,
  kPathBulk,
  kPathTiles,
  kPathBlas,
  kPathGeneral
};

// See linear/batch.h.
bool Aligned(const LinearArgs& args) {
  const int piece = SizeOf(args.weights[0].dtype) == 2 ? 8 : 4;
  if (args.weights[0].in_features % piece != 0) return false;
  return AreAligned(args.x, args.y) &&
         std::all_of(args.weights.begin(), args.weights.end(),
                     [](const PackedMatrix& matrix) { return IsAligned(matrix); });
}

// Whether LinearBulk can and should take products of so many entries a group.
bool IsBulk(const Device& device, std::span<const PackedMatrix> weights, int64_t entries) {
  const int out = weights[0].out_features;
  return HasHopperCode(device) && entries >= kBulkRows && out >= kBulkOutputs &&
         out % kBulkOutputPiece == 0 && weights.size() <= size_t{kMaxBulkGroups};
}

int64_t Elements(const PackedMatrix& weights) {
  return int64_t{weights.out_features} * weights.in_features;
}

// Whether LinearStep can and should take products of so many rows, as long as none of the call has
// groups.
bool IsStep(const Device& device, std::span<const PackedMatrix> weights, int64_t rows) {
  const int64_t elements = Elements(weights[0]);
  if (rows <= kFewRows || (elements >= kLarge && rows >= kBlasRowsOfLarge)) return false;
  if (rows > decode::batch::kStepRows && (elements > kSmall || rows > kStepRowsOfSmall))
    return false;
  return device.compute_dtype() == DType::kBF16 && TakesStep(device, weights, rows);
}
bool IsStep(const Device& device, const LinearArgs& args, std::span<const LinearArgs> call) {
  const int64_t entries = args.y.shape[0];
  const PackedMatrix& w = args.weights[0];
  if (call.size() == 1 && entries >= kNarrowRows && IsNarrow(w)) return false;
  if (args.accumulate && (w.out_features % 64 != 0 || !args.bias.empty())) return false;
  return IsStep(device, args.weights, entries) &&
         std::all_of(call.begin(), call.end(),
                     [](const LinearArgs& other) { return other.group_offsets.empty(); });
}

Path ChoosePath(const Device& device, const LinearArgs& args, bool aligned,
                std::span<const LinearArgs> call) {
  const PackedMatrix& w = args.weights[0];
  const bool grouped = !args.group_offsets.empty();
  const bool exact = device.compute_dtype() == DType::kF32 || w.dtype == DType::kF32;
  const int64_t entries = LikelyEntriesPerGroup(args);
  const bool rounded = args.x.dtype != DType::kF32;  // for tensor cores, and nothing else
  CHECK(!rounded || (args.x.dtype == w.dtype && aligned && !exact));
  if (aligned && IsStep(device, args, call)) return kPathStep;
  const bool bulk = aligned && IsBulk(device, args.weights, entries);
  if (args.y.dtype != DType::kF32) {
    CHECK(bulk && rounded && args.y.dtype == DType::kBF16);
    return kPathBulk;
  }
  if (!rounded && entries <= (exact || !aligned ? kFewRowsExact : kFewRows)) return kPathFewRows;
  if (w.dtype == DType::kF32) return grouped ? kPathGeneral : kPathBlas;
  // The range of f16 is too small to hold the terms of any float.
  if (!aligned || (exact && w.dtype == DType::kF16)) return kPathGeneral;
  if (!exact && entries >= kNarrowRows && IsNarrow(w)) return kPathNarrow;
  const bool large = Elements(w) >= kLarge;
  const bool beside_groups = std::any_of(call.begin(), call.end(), [](const LinearArgs& other) {
    return !other.group_offsets.empty();
  });
  const int64_t blas_rows = large             ? kBlasRowsOfLarge
                            : call.size() > 1 ? kBlasRowsOfSeveral
                                              : kBlasRows;
  // Where rows of y begin anywhere, cuBLAS has but old kernels that write number by number.
  const bool avoids_blas = (w.out_features < kBlasOutputs || w.in_features < kLeastBlasFeatures ||
                            w.out_features % 4 != 0) &&
                           HasHopperCode(device);
  if (!exact && !grouped && !avoids_blas && entries >= blas_rows && !(beside_groups && bulk)) {
    return kPathBlas;
  }
  if (!HasHopperCode(device)) return kPathTiles;
  return bulk ? kPathBulk : kPathWarpgroups;
}

// The 16-bit copies of the activations of a call, each x once, and cuBLAS's workspace.
class Copies {
 public:
  explicit Copies(int terms) : terms_(terms) {}

  void Add(const LinearArgs& args) {
    if (args.x.dtype != DType::kF32) return;
    const Key key = KeyOf(args.x);
    // Entries that read rows in their order read none behind the last group.
    const bool ends = !args.group_offsets.empty() && args.entry_rows.empty();
    const int32_t* const rows =
        ends ? args.group_offsets.as<const int32_t>() + args.weights.size() : nullptr;
    if (!offsets_.try_emplace(key, bytes_).second) {
      for (Source& source : sources_) {
        if (KeyOf(source.x) == key && source.rows != rows) source.rows = nullptr;
      }
      return;
    }
    bytes_ += (args.x.shape.elements() * 2 * terms_ + 255) / 256 * 256;
    sources_.push_back({args.x, rows});
  }
  void AddWorkspace() { workspace_bytes_ = kLinearBlasWorkspaceBytes; }

  // False if there is no memory; the device knows.
  bool Make(Device& device, DType dtype) {
    if (bytes_ + workspace_bytes_ == 0) return true;
    base_ = static_cast<char*>(device.Scratch(bytes_ + workspace_bytes_));
    if (base_ == nullptr) return false;
    for (const auto& [x, rows] : sources_) {
      RoundRows(device, x, rows, dtype, terms_, base_ + offsets_.at(KeyOf(x)));
    }
    return true;
  }
  const void* Of(const LinearArgs& args) const {
    return args.x.dtype != DType::kF32 ? args.x.data : base_ + offsets_.at(KeyOf(args.x));
  }
  std::vector<const void*> Of(LinearProducts products) const {
    std::vector<const void*> list;
    for (const LinearArgs* args : products) list.push_back(Of(*args));
    return list;
  }
  void* workspace() const { return base_ + bytes_; }
  int terms() const { return terms_; }

 private:
  using Key = std::pair<const void*, int64_t>;
  static Key KeyOf(const TensorView& x) { return {x.data, x.shape.elements()}; }

  const int terms_;
  std::map<Key, int64_t> offsets_;
  struct Source {
    TensorView x;
    const int32_t* rows;  // as of RoundRows
  };
  std::vector<Source> sources_;
  int64_t bytes_ = 0, workspace_bytes_ = 0;
  char* base_ = nullptr;
};

void AddBiasOf(Device& device, const LinearArgs& args) {
  dense::AddBias(device, {.bias = args.bias, .group_offsets = args.group_offsets, .y = args.y});
}

void LinearOf(Device& device, std::span<const LinearArgs> products, DType dtype) {
  std::vector<const LinearArgs*> by_path[kPathGeneral + 1], unaligned_few_rows, without_bias;
  Copies copies(device.compute_dtype() == DType::kF32 ? kExactTerms : 1);
  for (const LinearArgs& args : products) {
    if (args.weights[0].dtype != dtype || args.y.shape.elements() == 0) continue;
    const bool aligned = Aligned(args);
    const Path path = ChoosePath(device, args, aligned, products);
    (path == kPathFewRows && !aligned ? unaligned_few_rows : by_path[path]).push_back(&args);
    const bool blas = path == kPathBlas && dtype != DType::kF32;
    const bool adds_bias = path == kPathFewRows || path == kPathStep || path == kPathWarpgroups ||
                           path == kPathBulk || blas;
    if (!args.bias.empty() && !adds_bias) without_bias.push_back(&args);
    if (path != kPathFewRows && path != kPathGeneral && (path != kPathBlas || blas)) {
      copies.Add(args);
    }
    if (blas) copies.AddWorkspace();
  }
  if (!copies.Make(device, dtype)) return;

  LinearFewRows(device, unaligned_few_rows, dtype, false);
  // One product by itself is no faster there: bench/measured/tried.md.
  if (by_path[kPathFewRows].size() < 2 || !LinearRow(device, by_path[kPathFewRows])) {
    LinearFewRows(device, by_path[kPathFewRows], dtype, true);
  }
  LinearStep(device, by_path[kPathStep], copies.Of(by_path[kPathStep]));
  LinearNarrow(device, by_path[kPathNarrow], dtype, copies.Of(by_path[kPathNarrow]));
  LinearWarpgroups(device, by_path[kPathWarpgroups], dtype, copies.terms(),
                   copies.Of(by_path[kPathWarpgroups]));
  LinearTiles(device, by_path[kPathTiles], dtype, copies.terms(), copies.Of(by_path[kPathTiles]));
  LinearBulk(device, by_path[kPathBulk], dtype, copies.terms(), copies.Of(by_path[kPathBulk]));
  for (const LinearArgs* args : by_path[kPathBlas]) {
    if (dtype == DType::kF32) {
      LinearBlas(device, *args, nullptr, nullptr);
    } else {
      LinearBlas(device, *args, copies.Of(*args), copies.workspace());
    }
  }
  LinearGeneral(device, by_path[kPathGeneral], dtype);
  for (const LinearArgs* args : without_bias) AddBiasOf(device, *args);
}

}  // namespace

int64_t LikelyEntriesPerGroup(const LinearArgs& args) {
  const int64_t entries = args.y.shape[0];
  return args.group_offsets.empty() ? entries : std::min(entries, args.x.shape[0]);
}

int64_t EntryTileBound(const LinearArgs& args, int64_t size) {
  const int64_t entries = args.y.shape[0];
  if (args.group_offsets.empty()) return (entries + size - 1) / size;
  // Each group that has entries may have one tile that is not full.
  const int64_t groups = std::min(entries, static_cast<int64_t>(args.weights.size()));
  return (entries - groups) / size + groups;
}

bool RoundsActivations(const Device& device, const PackedMatrix& weights, int64_t rows) {
  return device.compute_dtype() == DType::kBF16 && weights.dtype == DType::kBF16 &&
         weights.in_features % 8 == 0 && IsAligned(weights) && rows > kFewRows;
}

bool RoundsOutputs(const Device& device, std::span<const PackedMatrix> weights, int64_t rows) {
  return IsBulk(device, weights, rows);
}

bool RoundsStepOutputs(const Device& device, const PackedMatrix& weights, int64_t rows) {
  return weights.out_features % 4 == 0 && IsStep(device, {&weights, 1}, rows);
}

bool SwiGluProduct(Device& device, const SwiGluProductArgs& args) {
  if (SwiGluRow(device, args)) return true;
  const PackedMatrix weights[] = {args.gate, args.up};
  const LinearArgs products = {.x = args.x, .weights = weights, .y = args.y};
  const auto takes = [](DType dtype) { return dtype == DType::kBF16; };
  if (!takes(args.x.dtype) || !takes(args.gate.dtype) || !takes(args.y.dtype) ||
      !args.gate_bias.empty() || !args.up_bias.empty() || !Aligned(products) ||
      !IsBulk(device, weights, args.x.shape[0])) {
    return false;
  }
  const LinearArgs* const list[] = {&products};
  const void* const x[] = {args.x.data};
  LinearBulk(device, list, DType::kBF16, 1, x);
  return true;
}

bool ActivatedProducts(Device& device, std::span<const ActivatedProduct> products) {
  for (const auto& [args, activation] : products) {
    if (args.weights.size() != 1 || !args.group_offsets.empty() || !args.entry_rows.empty() ||
        !Aligned(args) || !IsStep(device, args.weights, args.y.shape[0])) {
      return false;
    }
  }
  return ActivatedStep(device, products);
}

bool AddToFewRows(Device& device, const ResidualProductStepArgs& args) {
  const PackedMatrix& w = args.product.weights;
  const LinearArgs product = {.x = args.x,
                              .weights = {&w, 1},
                              .y = args.hidden,
                              .accumulate = true,
                              .bias = args.product.bias};
  const int64_t rows = args.hidden.shape[0];
  const bool exact = device.compute_dtype() == DType::kF32 || w.dtype == DType::kF32;
  const bool aligned = Aligned(product);
  if (args.x.dtype != DType::kF32 || rows < 1 ||
      rows > (exact || !aligned ? kFewRowsExact : kFewRows)) {
    return false;
  }
  const LinearArgs* const list[] = {&product};
  const FromPosition from = {args.positions.as<const int64_t>(), args.first};
  LinearFewRows(device, list, w.dtype, aligned, from);
  return true;
}

void Linear(Device& device, std::span<const LinearArgs> products) {
  // A launch takes so many groups; offsets count entries from the first group's on in each part.
  std::vector<LinearArgs> parts, without_bias;
  for (LinearArgs args : products) {
    if (args.weights.size() > kMaxLinearWeights && !args.bias.empty()) {
      without_bias.push_back(args);
      args.bias = {};
    }
    for (; args.weights.size() > kMaxLinearWeights;
         args.weights = args.weights.subspan(kMaxLinearWeights)) {
      parts.push_back(args);
      parts.back().weights = args.weights.first(kMaxLinearWeights);
      args.group_offsets.data = args.group_offsets.as<int32_t>() + kMaxLinearWeights;
    }
    parts.push_back(args);
  }
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    LinearOf(device, parts, dtype);
  }
  for (const LinearArgs& args : without_bias) AddBiasOf(device, args);
}

}  // namespace mneme::cuda::linear
