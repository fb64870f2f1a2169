#include "kernels/finite.h"

namespace mneme {
namespace {

// NaN and infinity are the values whose exponent bits are all ones: with the sign masked off,
// adding one to the exponent carries into the sign's place. No branches inside a block, so that it
// becomes vector code.
template <typename Bits>
bool NoneHasExponent(const Bits* bits, int64_t n, Bits exponent) {
  constexpr int64_t kBlock = 4096;
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  const Bits lowest = static_cast<Bits>(exponent & (~exponent + 1));
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = n - begin < kBlock ? n : begin + kBlock;
    Bits carries = 0;
    for (int64_t i = begin; i < end; ++i) {
      carries = static_cast<Bits>(carries | static_cast<Bits>((bits[i] & exponent) + lowest));
    }
    if (carries & kSign) return false;
  }
  return true;
}

}  // namespace

bool AllFinite(const TensorView& tensor) {
  const int64_t n = tensor.shape.elements();
  switch (tensor.dtype) {
    case DType::kF64:
      return NoneHasExponent<uint64_t>(tensor.as<uint64_t>(), n, 0x7ff0000000000000u);
    case DType::kF32:
      return NoneHasExponent<uint32_t>(tensor.as<uint32_t>(), n, 0x7f800000u);
    case DType::kBF16:
      return NoneHasExponent<uint16_t>(tensor.as<uint16_t>(), n, 0x7f80u);
    case DType::kF16:
      return NoneHasExponent<uint16_t>(tensor.as<uint16_t>(), n, 0x7c00u);
    case DType::kI64:
    case DType::kI32:
    case DType::kU16:
    case DType::kU8:
    case DType::kI8:
      return true;
  }
  return true;
}

}  // namespace mneme
