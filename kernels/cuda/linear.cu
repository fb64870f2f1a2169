// Linear(): which kernel takes which product. Chosen from what the host knows: numbers of entries
// and rows, sizes, dtypes, the compute dtype. bench/cuda_linear_bench.cu measures the alternatives.
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cuda/linear_batch.h"
#include "kernels/cuda/operations.h"

namespace mneme::cuda {
namespace {

// Numbers of entries a group. Up to the first, plain fp32 keeps up with the weights as they come
// from memory, whatever it is told to compute in; up to the second it beats tiles.
constexpr int64_t kFewRows = 2;
constexpr int64_t kFewRowsExact = 8;
// From here on cuBLAS is the fastest for a product on its own, one of several of a call, or a large
// one: it takes one launch for each, but makes more of it.
constexpr int64_t kBlasRows = 65;
constexpr int64_t kBlasRowsOfSeveral = 129;
constexpr int64_t kBlasRowsOfLarge = 33;
constexpr int64_t kLarge = int64_t{8} << 20;  // weights
// Terms of the weights' dtype that make up an activation: three times 8 bits are all its 24.
constexpr int kExactTerms = 3;

enum Path { kPathFewRows, kPathRounded, kPathBlas, kPathGeneral };

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

// `several`: products of the call.
Path ChoosePath(const Device& device, const LinearArgs& args, bool aligned, bool several) {
  const PackedMatrix& w = args.weights[0];
  const bool grouped = !args.group_offsets.empty();
  const bool exact = device.compute_dtype() == DType::kF32 || w.dtype == DType::kF32;
  const int64_t entries = LikelyEntriesPerGroup(args);
  if (entries <= (exact || !aligned ? kFewRowsExact : kFewRows)) return kPathFewRows;
  if (w.dtype == DType::kF32) return grouped ? kPathGeneral : kPathBlas;
  // The range of f16 is too small to hold the terms of any float.
  if (!aligned || (exact && w.dtype == DType::kF16)) return kPathGeneral;
  if (exact || grouped) return kPathRounded;
  const bool large = int64_t{w.out_features} * w.in_features >= kLarge;
  const int64_t blas_rows = large ? kBlasRowsOfLarge : several ? kBlasRowsOfSeveral : kBlasRows;
  return entries < blas_rows ? kPathRounded : kPathBlas;
}

// The 16-bit copies of the activations of a call, each x once, and cuBLAS's workspace.
class Copies {
 public:
  void Add(const TensorView& x) {
    if (offsets_.try_emplace(Key(x), bytes_).second) {
      bytes_ += (x.shape.elements() * 2 * terms_ + 255) / 256 * 256;
      unique_.push_back(x);
    }
  }
  void set_terms(int terms) { terms_ = terms; }
  int terms() const { return terms_; }
  void AddWorkspace() { workspace_ = true; }
  void Make(Device& device, DType dtype) {
    const int64_t bytes = bytes_ + (workspace_ ? int64_t{kLinearBlasWorkspaceBytes} : 0);
    if (bytes == 0) return;
    base_ = static_cast<char*>(device.Scratch(bytes));
    if (base_ == nullptr) return;
    for (const TensorView& x : unique_) {
      RoundActivations(device, x, {}, dtype, terms_, base_ + offsets_.at(Key(x)));
    }
  }
  const void* Of(const TensorView& x) const { return base_ + offsets_.at(Key(x)); }
  void* workspace() const { return base_ + bytes_; }
  bool failed() const { return base_ == nullptr && (bytes_ > 0 || workspace_); }

 private:
  static std::pair<const void*, int64_t> Key(const TensorView& x) {
    return {x.data, x.shape.elements()};
  }

  std::map<std::pair<const void*, int64_t>, int64_t> offsets_;
  std::vector<TensorView> unique_;
  int64_t bytes_ = 0;
  int terms_ = 1;
  bool workspace_ = false;
  char* base_ = nullptr;
};

void LinearOf(Device& device, std::span<const LinearArgs> products, DType dtype) {
  std::vector<const LinearArgs*> by_path[kPathGeneral + 1], unaligned_few_rows;
  Copies copies;
  if (device.compute_dtype() == DType::kF32) copies.set_terms(kExactTerms);
  for (const LinearArgs& args : products) {
    if (args.weights[0].dtype != dtype || args.y.shape.elements() == 0) continue;
    const bool aligned = Aligned(args);
    const Path path = ChoosePath(device, args, aligned, products.size() > 1);
    if (path == kPathFewRows && !aligned) {
      unaligned_few_rows.push_back(&args);
    } else {
      by_path[path].push_back(&args);
    }
  }
  for (const LinearArgs* args : by_path[kPathRounded]) copies.Add(args->x);
  if (dtype != DType::kF32) {
    for (const LinearArgs* args : by_path[kPathBlas]) {
      copies.Add(args->x);
      copies.AddWorkspace();
    }
  }
  copies.Make(device, dtype);
  if (copies.failed()) return;  // the device knows why
  const auto rounded = [&](Path path) {
    std::vector<const void*> list;
    for (const LinearArgs* args : by_path[path]) list.push_back(copies.Of(args->x));
    return list;
  };

  LinearFewRows(device, unaligned_few_rows, dtype, false);
  LinearFewRows(device, by_path[kPathFewRows], dtype, true);
  if (HasHopperCode(device)) {
    LinearWarpgroups(device, by_path[kPathRounded], dtype, copies.terms(), rounded(kPathRounded));
  } else {
    LinearTiles(device, by_path[kPathRounded], dtype, copies.terms(), rounded(kPathRounded));
  }
  for (const LinearArgs* args : by_path[kPathBlas]) {
    if (dtype == DType::kF32) {
      LinearBlas(device, *args, nullptr, nullptr);
    } else {
      LinearBlas(device, *args, copies.Of(args->x), copies.workspace());
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
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    LinearOf(device, products, dtype);
  }
}

}  // namespace mneme::cuda
