// Linear(): which kernel takes which product. Chosen from what the host knows: numbers of entries
// and rows, sizes, dtypes, the compute dtype. bench/cuda_linear_bench.cu measures the alternatives.
#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "base/log.h"
#include "kernels/cuda/linear_batch.h"
#include "kernels/cuda/operations.h"

namespace mneme::cuda {
namespace {

// Numbers of entries a group. Up to the first, plain fp32 keeps up with the weights as they come
// from memory, whatever it is told to compute in; up to the second it beats tiles.
constexpr int64_t kFewRows = 2;
constexpr int64_t kFewRowsExact = 8;
// From here on cuBLAS is the fastest for an ungrouped product: one on its own, one of several of a
// call, one beside grouped ones, a large one. It takes one launch for each, but makes more of it.
constexpr int64_t kBlasRows = 65;
constexpr int64_t kBlasRowsOfSeveral = 129;
constexpr int64_t kBlasRowsBesideGroups = 257;
constexpr int64_t kBlasRowsOfLarge = 33;
// The one group of a grouped product that has all rows.
constexpr int64_t kBlasRowsOfGroup = 4096;
constexpr int64_t kLarge = int64_t{8} << 20;  // weights
// A router's few outputs: cuBLAS splits the sums, and adds them up in a second launch.
constexpr int kBlasOutputs = 16;
// LinearBulk's tiles are for more entries, and for more output features.
constexpr int64_t kBulkRows = 129;
constexpr int kBulkOutputs = 65;
// Terms of the weights' dtype that make up an activation: three times 8 bits are all its 24.
constexpr int kExactTerms = 3;

enum Path { kPathFewRows, kPathWarpgroups, kPathBulk, kPathTiles, kPathBlas, kPathGeneral };

// See linear_batch.h.
bool Aligned(const LinearArgs& args) {
  const int piece = SizeOf(args.weights[0].dtype) == 2 ? 8 : 4;
  if (args.weights[0].in_features % piece != 0) return false;
  uintptr_t address =
      reinterpret_cast<uintptr_t>(args.x.data) | reinterpret_cast<uintptr_t>(args.y.data);
  for (const PackedMatrix& matrix : args.weights) {
    address |= reinterpret_cast<uintptr_t>(matrix.data);
  }
  return address % 16 == 0;
}

Path ChoosePath(const Device& device, const LinearArgs& args, bool aligned,
                std::span<const LinearArgs> call) {
  const PackedMatrix& w = args.weights[0];
  const bool grouped = !args.group_offsets.empty();
  const bool exact = device.compute_dtype() == DType::kF32 || w.dtype == DType::kF32;
  const int64_t entries = LikelyEntriesPerGroup(args);
  const bool rounded = args.x.dtype != DType::kF32;  // for tensor cores, and nothing else
  CHECK(!rounded || (args.x.dtype == w.dtype && aligned && !exact));
  if (!rounded && entries <= (exact || !aligned ? kFewRowsExact : kFewRows)) return kPathFewRows;
  if (w.dtype == DType::kF32) return grouped ? kPathGeneral : kPathBlas;
  // The range of f16 is too small to hold the terms of any float.
  if (!aligned || (exact && w.dtype == DType::kF16)) return kPathGeneral;
  const bool large = int64_t{w.out_features} * w.in_features >= kLarge;
  const bool beside_groups = std::any_of(call.begin(), call.end(), [](const LinearArgs& other) {
    return !other.group_offsets.empty();
  });
  const int64_t blas_rows = large             ? kBlasRowsOfLarge
                            : beside_groups   ? kBlasRowsBesideGroups
                            : call.size() > 1 ? kBlasRowsOfSeveral
                                              : kBlasRows;
  const bool narrow = w.out_features < kBlasOutputs && HasHopperCode(device);
  if (!exact && !grouped && !narrow && entries >= blas_rows) return kPathBlas;
  if (!HasHopperCode(device)) return kPathTiles;
  const bool bulk = entries >= kBulkRows && w.out_features >= kBulkOutputs &&
                    args.weights.size() <= size_t{kMaxBulkGroups};
  return bulk ? kPathBulk : kPathWarpgroups;
}

// The 16-bit copies of the activations of a call, each x once, and cuBLAS's workspace.
class Copies {
 public:
  explicit Copies(int terms) : terms_(terms) {}

  // Of x as it is, or in the order of the entries.
  void Add(const LinearArgs& args, bool gather) {
    const Key key = KeyOf(args, gather);
    if (IsCopy(args, key)) return;
    if (!offsets_.try_emplace(key, bytes_).second) return;
    const int64_t rows = key.entry_rows != nullptr ? args.entry_rows.shape[0] : args.x.shape[0];
    bytes_ += (rows * args.x.shape[1] * 2 * terms_ + 255) / 256 * 256;
    sources_.push_back({args.x, key.entry_rows != nullptr ? args.entry_rows : TensorView{}, key});
  }
  void AddWorkspace() { workspace_bytes_ = kLinearBlasWorkspaceBytes; }

  // False if there is no memory; the device knows.
  bool Make(Device& device, DType dtype) {
    if (bytes_ + workspace_bytes_ == 0) return true;
    base_ = static_cast<char*>(device.Scratch(bytes_ + workspace_bytes_));
    if (base_ == nullptr) return false;
    for (const Source& source : sources_) {
      RoundActivations(device, source.x, source.entry_rows, dtype, terms_,
                       base_ + offsets_.at(source.key));
    }
    return true;
  }
  const void* Of(const LinearArgs& args, bool gather) const {
    const Key key = KeyOf(args, gather);
    return IsCopy(args, key) ? args.x.data : base_ + offsets_.at(key);
  }
  std::vector<const void*> Of(LinearProducts products, bool gather) const {
    std::vector<const void*> list;
    for (const LinearArgs* args : products) list.push_back(Of(*args, gather));
    return list;
  }
  void* workspace() const { return base_ + bytes_; }
  int terms() const { return terms_; }

 private:
  struct Key {
    const void* x;
    const void* entry_rows;
    int64_t elements;
    auto operator<=>(const Key&) const = default;
  };
  struct Source {
    TensorView x, entry_rows;
    Key key;
  };
  // Whether x itself is what is wanted.
  static bool IsCopy(const LinearArgs& args, const Key& key) {
    return args.x.dtype != DType::kF32 && key.entry_rows == nullptr;
  }
  static Key KeyOf(const LinearArgs& args, bool gather) {
    return {args.x.data, gather ? args.entry_rows.data : nullptr, args.x.shape.elements()};
  }

  const int terms_;
  std::map<Key, int64_t> offsets_;
  std::vector<Source> sources_;
  int64_t bytes_ = 0, workspace_bytes_ = 0;
  char* base_ = nullptr;
};

void LinearOf(Device& device, std::span<const LinearArgs> products, DType dtype) {
  std::vector<const LinearArgs*> by_path[kPathGeneral + 1], unaligned_few_rows;
  Copies copies(device.compute_dtype() == DType::kF32 ? kExactTerms : 1);
  for (const LinearArgs& args : products) {
    if (args.weights[0].dtype != dtype || args.y.shape.elements() == 0) continue;
    const bool aligned = Aligned(args);
    const Path path = ChoosePath(device, args, aligned, products);
    (path == kPathFewRows && !aligned ? unaligned_few_rows : by_path[path]).push_back(&args);
    if (path == kPathWarpgroups || path == kPathTiles) copies.Add(args, false);
    if (path == kPathBulk) copies.Add(args, true);
    if (path == kPathBlas && dtype != DType::kF32) {
      copies.Add(args, false);
      copies.AddWorkspace();
    }
  }
  if (!copies.Make(device, dtype)) return;

  LinearFewRows(device, unaligned_few_rows, dtype, false);
  LinearFewRows(device, by_path[kPathFewRows], dtype, true);
  LinearWarpgroups(device, by_path[kPathWarpgroups], dtype, copies.terms(),
                   copies.Of(by_path[kPathWarpgroups], false));
  LinearTiles(device, by_path[kPathTiles], dtype, copies.terms(),
              copies.Of(by_path[kPathTiles], false));
  LinearBulk(device, by_path[kPathBulk], dtype, copies.terms(),
             copies.Of(by_path[kPathBulk], true));
  for (const LinearArgs* args : by_path[kPathBlas]) {
    if (dtype == DType::kF32) {
      LinearBlas(device, *args, nullptr, nullptr);
    } else {
      LinearBlas(device, *args, copies.Of(*args, false), copies.workspace());
    }
  }
  LinearGeneral(device, by_path[kPathGeneral], dtype);
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

void Linear(Device& device, std::span<const LinearArgs> products) {
  // A launch takes so many groups; offsets count entries from the first group's on in each part.
  std::vector<LinearArgs> parts;
  for (LinearArgs args : products) {
    const int64_t rest = args.y.shape[0] - args.x.shape[0];
    if (args.last_has_all_rows && args.x.shape[0] >= kBlasRowsOfGroup &&
        args.weights[0].out_features >= kBulkOutputs && device.compute_dtype() == DType::kBF16) {
      LinearArgs last = {
          .x = args.x, .weights = args.weights.last(1), .accumulate = args.accumulate};
      last.y = args.y;
      last.y.data = args.y.as<float>() + rest * args.y.shape[1];
      last.y.shape = {args.x.shape[0], args.y.shape[1]};
      parts.push_back(last);
      args.weights = args.weights.first(args.weights.size() - 1);
      args.y.shape = {rest, args.y.shape[1]};
      args.entry_rows.shape = {rest};
      if (rest == 0) continue;
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
}

}  // namespace mneme::cuda
