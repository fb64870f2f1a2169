#include "tools/safetensors_diff.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/float16.h"
#include "kernels/tensor.h"
#include "models/safetensors.h"

namespace mneme {
namespace {

bool HasNumbers(const SafetensorsTensor& tensor) {
  return tensor.dtype == DType::kF64 || tensor.dtype == DType::kF32 ||
         tensor.dtype == DType::kI32 || tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16;
}

// Elements as numbers, of a tensor that has them.
std::vector<double> Values(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
  const std::byte* const bytes = file.Bytes(tensor).data();
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    float f32 = 0;
    int32_t i32 = 0;
    uint16_t half = 0;
    if (tensor.dtype == DType::kF64) {
      std::memcpy(&values[i], bytes + 8 * i, 8);
    } else if (tensor.dtype == DType::kF32) {
      std::memcpy(&f32, bytes + 4 * i, 4);
      values[i] = f32;
    } else if (tensor.dtype == DType::kI32) {
      std::memcpy(&i32, bytes + 4 * i, 4);
      values[i] = i32;
    } else {
      std::memcpy(&half, bytes + 2 * i, 2);
      values[i] = tensor.dtype == DType::kBF16 ? F32FromBF16(half) : F32FromF16(half);
    }
  }
  return values;
}

// One line about a tensor of both files; returns whether it is the same by bits.
bool PrintDifference(const SafetensorsFile& a, const SafetensorsTensor& x, const SafetensorsFile& b,
                     const SafetensorsTensor& y) {
  const std::string name = absl::CHexEscape(x.name);
  if (x.shape != y.shape) {
    absl::PrintF("%-56s shape %s and %s\n", name, ShapeToString(x.shape), ShapeToString(y.shape));
    return false;
  }
  const bool same_type = x.dtype_name == y.dtype_name;
  const std::string types =
      same_type ? "" : absl::StrCat(x.dtype_name, " and ", y.dtype_name, ", ");
  const auto left = a.Bytes(x), right = b.Bytes(y);
  if (same_type && std::equal(left.begin(), left.end(), right.begin(), right.end())) {
    absl::PrintF("%-56s same bits\n", name);
    return true;
  }
  if (!HasNumbers(x) || !HasNumbers(y)) {
    absl::PrintF("%-56s %sbits differ\n", name, types);
    return false;
  }
  const std::vector<double> p = Values(a, x), q = Values(b, y);
  double difference = 0, norm = 0, largest = 0;
  size_t differing = 0;
  for (size_t i = 0; i < std::min(p.size(), q.size()); ++i) {
    const double d = p[i] - q[i];
    difference += d * d;
    norm += q[i] * q[i];
    largest = std::max(largest, std::abs(d));
    if (p[i] != q[i]) ++differing;
  }
  absl::PrintF("%-56s %s%d of %d elements differ, relative error %.3g, largest difference %.3g\n",
               name, types, differing, p.size(),
               norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference), largest);
  return false;
}

}  // namespace

absl::StatusOr<bool> PrintDiff(const std::string& path_a, const std::string& path_b) {
  MNEME_ASSIGN_OR_RETURN(const SafetensorsFile a, SafetensorsFile::Open(path_a));
  MNEME_ASSIGN_OR_RETURN(const SafetensorsFile b, SafetensorsFile::Open(path_b));
  bool same = true;
  for (const SafetensorsTensor& tensor : a.header().tensors) {
    const SafetensorsTensor* other = b.header().Find(tensor.name);
    if (other == nullptr) absl::PrintF("%-56s only in %s\n", absl::CHexEscape(tensor.name), path_a);
    same &= other != nullptr && PrintDifference(a, tensor, b, *other);
  }
  for (const SafetensorsTensor& tensor : b.header().tensors) {
    if (a.header().Find(tensor.name) != nullptr) continue;
    absl::PrintF("%-56s only in %s\n", absl::CHexEscape(tensor.name), path_b);
    same = false;
  }
  return same;
}

}  // namespace mneme
