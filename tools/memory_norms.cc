#include "tools/memory_norms.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/log.h"

namespace mneme {
namespace {

double SumOfSquares(const std::byte* data, int64_t elements, DType dtype) {
  double sum = 0;
  for (int64_t i = 0; i < elements; ++i) {
    double value = 0;
    if (dtype == DType::kF64) {
      std::memcpy(&value, data + 8 * i, sizeof(value));
    } else {
      CHECK(dtype == DType::kF32);
      float f32;
      std::memcpy(&f32, data + 4 * i, sizeof(f32));
      value = f32;
    }
    sum += value * value;
  }
  return sum;
}

// "layers.3.memory" -> 3
int LayerOf(absl::string_view name) {
  int layer = -1;
  CHECK(absl::ConsumePrefix(&name, "layers.") &&
        absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) && layer >= 0)
      << "a state tensor called " << name;
  return layer;
}

}  // namespace

std::vector<std::vector<double>> MemoryNorms(const CanonicalState& state) {
  std::vector<std::vector<double>> norms;
  const StateTensor* written = nullptr;  // of the layer: flags come before what they guard
  for (const StateTensor& tensor : state.tensors) {
    if (absl::EndsWith(tensor.name, ".written")) written = &tensor;
    if (!absl::EndsWith(tensor.name, ".memory")) continue;
    const auto layer = static_cast<size_t>(LayerOf(tensor.name));
    norms.resize(std::max(norms.size(), layer + 1));
    std::vector<double>& of_layer = norms[layer];
    const int64_t elements = tensor.shape.elements() / tensor.shape[0];
    for (int64_t m = 0; m < tensor.shape[0]; ++m) {
      const bool is_written = written == nullptr || written->bytes[m] != std::byte{0};
      const std::byte* memory = tensor.bytes.data() + m * elements * SizeOf(tensor.dtype);
      of_layer.push_back(is_written ? std::sqrt(SumOfSquares(memory, elements, tensor.dtype)) : -1);
    }
  }
  return norms;
}

}  // namespace mneme
