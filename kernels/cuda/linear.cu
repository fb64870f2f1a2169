// Linear(): which kernel takes which product. Chosen from what the host knows: numbers of entries
// and rows, sizes, dtypes, the compute dtype.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/linear_batch.h"
#include "kernels/cuda/operations.h"

namespace mneme::cuda {
namespace {

enum class Path { kFewRows, kGeneral };

// Up to this many entries a group, reading the weights takes longer than multiplying by them.
constexpr int64_t kFewRows = 8;

bool Aligned(const LinearArgs& args) {
  const int piece = SizeOf(args.weights[0].dtype) == 2 ? 8 : 4;
  if (args.weights[0].in_features % piece != 0) return false;
  uintptr_t address = reinterpret_cast<uintptr_t>(args.x.data);
  for (const PackedMatrix& matrix : args.weights) {
    address |= reinterpret_cast<uintptr_t>(matrix.data);
  }
  return address % 16 == 0;
}

Path ChoosePath(const Device&, const LinearArgs& args, bool) {
  if (LikelyEntriesPerGroup(args) <= kFewRows) return Path::kFewRows;
  return Path::kGeneral;
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
    std::vector<const LinearArgs*> few_rows[2], general;  // few_rows[aligned]
    for (const LinearArgs& args : products) {
      if (args.weights[0].dtype != dtype || args.y.shape.elements() == 0) continue;
      const bool aligned = Aligned(args);
      switch (ChoosePath(device, args, aligned)) {
        case Path::kFewRows:
          few_rows[aligned].push_back(&args);
          break;
        case Path::kGeneral:
          general.push_back(&args);
          break;
      }
    }
    for (const bool aligned : {false, true}) {
      LinearFewRows(device, few_rows[aligned], dtype, aligned);
    }
    LinearGeneral(device, general, dtype);
  }
}

}  // namespace mneme::cuda
