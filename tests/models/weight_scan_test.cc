#include "models/weight_scan.h"

#include <cstring>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace mneme {
namespace {

std::vector<std::byte> Bytes(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 % 31);
  return bytes;
}

TEST(WeightScanTest, TheHashDoesNotDependOnThreads) {
  const std::vector<std::byte> bytes = Bytes((5 << 20) + 12);
  ThreadPool one(1), three(3);
  EXPECT_EQ(ScanWeights(one, bytes, DType::kF32).hash, ScanWeights(three, bytes, DType::kF32).hash);
}

TEST(WeightScanTest, AnyChangedBitAndAnySizeChangesTheHash) {
  std::set<uint64_t> hashes;
  size_t inputs = 0;
  for (const size_t size : {0, 4, 60, 64, 68, 128, 1000}) {
    std::vector<std::byte> bytes = Bytes(size);
    hashes.insert(HashBytes(bytes));
    ++inputs;
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      hashes.insert(HashBytes(bytes));
      ++inputs;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
  EXPECT_EQ(hashes.size(), inputs);
}

TEST(WeightScanTest, TwoFlippedSignsDoNotCancel) {
  std::vector<std::byte> bytes = Bytes(256);
  const uint64_t before = HashBytes(bytes);
  bytes[7] ^= std::byte{0x80};
  bytes[64 + 7] ^= std::byte{0x80};
  EXPECT_NE(HashBytes(bytes), before);
}

TEST(WeightScanTest, TheFirstValueThatIsNotFiniteIsFoundAnywhere) {
  ThreadPool pool(2);
  for (const auto& [dtype, bits] :
       {std::pair{DType::kF32, 0x7f800000u}, {DType::kBF16, 0x7f80u}, {DType::kF16, 0xfc00u}}) {
    const int size = SizeOf(dtype);
    const int64_t elements = (3 << 20) / size;
    for (const int64_t place : {int64_t{0}, int64_t{1}, elements / 2 + 17, elements - 1}) {
      // One byte of padding in front: at an odd address.
      std::vector<std::byte> bytes(static_cast<size_t>(elements) * size + 1);
      EXPECT_EQ(ScanWeights(pool, std::span(bytes).subspan(1), dtype).first_non_finite, -1);
      std::memcpy(bytes.data() + 1 + place * size, &bits, size);
      std::memcpy(bytes.data() + 1 + (elements - 1) * size, &bits, size);
      EXPECT_EQ(ScanWeights(pool, std::span(bytes).subspan(1), dtype).first_non_finite, place)
          << Name(dtype);
    }
  }
}

}  // namespace
}  // namespace mneme
