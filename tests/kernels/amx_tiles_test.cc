// The product on AMX tiles, run on an emulation of the tile instructions, so that hosts without
// them test the loop too: within the rounding of a sum, the same bits for any number of entries,
// and no access outside the operands. Where the host has tiles, linear_test runs them through the
// backend.
#include "kernels/cpu/amx_tiles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/float16.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

// Denormals count as zero, whatever the mode of the processor.
float Flush(float x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
float MultiplyAdd(float a, float b, float c) {
  return Flush(std::fma(Flush(a), Flush(b), Flush(c)));
}

// Intel documents two orders of TDPBF16PS. The Software Developer's Manual (volume 2, "Operation")
// sums the first and the second members of a row's pairs apart, starting from zero, and adds both
// to the destination; the Intrinsics Guide (_tile_dpbf16ps) adds pair by pair to the destination.
// The tests here hold for both.
enum class Order { kManual, kIntrinsicsGuide };

// The tile registers of one thread and the instructions of AmxTiles, which fail the test where the
// processor would raise an exception.
template <Order kOrder>
class EmulatedTiles {
 public:
  void LoadConfig(const TileConfig& config) {
    EXPECT_EQ(config.palette, 1);
    EXPECT_EQ(config.start_row, 0);
    for (const uint8_t byte : config.reserved) EXPECT_EQ(byte, 0);
    for (int t = 0; t < 16; ++t) {
      EXPECT_EQ(config.rows[t] == 0, config.row_bytes[t] == 0);
      EXPECT_LE(config.rows[t], t < 8 ? 16 : 0);
      EXPECT_LE(config.row_bytes[t], t < 8 ? 64 : 0);
    }
    config_ = config;
    std::memset(tiles_, 0, sizeof(tiles_));
    configured_ = true;
  }
  void Release() { configured_ = false; }
  bool configured() const { return configured_; }

  template <int kTile>
  void Zero() {
    Check(kTile);
    std::memset(tiles_[kTile], 0, sizeof(tiles_[kTile]));
  }
  template <int kTile>
  void Load(const void* from, int64_t stride) {
    Zero<kTile>();
    for (int r = 0; r < config_.rows[kTile]; ++r) {
      std::memcpy(tiles_[kTile][r], static_cast<const char*>(from) + r * stride,
                  config_.row_bytes[kTile]);
    }
  }
  template <int kTile>
  void Store(void* to, int64_t stride) {
    Check(kTile);
    for (int r = 0; r < config_.rows[kTile]; ++r) {
      std::memcpy(static_cast<char*>(to) + r * stride, tiles_[kTile][r], config_.row_bytes[kTile]);
    }
  }
  template <int kSums, int kA, int kB>
  void DotBF16() {
    for (const int t : {kSums, kA, kB}) Check(t);
    EXPECT_TRUE(kSums != kA && kSums != kB && kA != kB);
    EXPECT_EQ(config_.rows[kSums], config_.rows[kA]);
    EXPECT_EQ(config_.row_bytes[kSums], config_.row_bytes[kB]);
    EXPECT_EQ(config_.row_bytes[kA], 4 * config_.rows[kB]);
    const int pairs = config_.row_bytes[kA] / 4;
    for (int m = 0; m < config_.rows[kSums]; ++m) {
      for (int n = 0; n < config_.row_bytes[kSums] / 4; ++n) {
        float first = 0, second = 0, sum = Float(kSums, m, n);
        for (int k = 0; k < pairs; ++k) {
          const float a0 = BF16(kA, m, 2 * k), a1 = BF16(kA, m, 2 * k + 1);
          const float b0 = BF16(kB, k, 2 * n), b1 = BF16(kB, k, 2 * n + 1);
          if (kOrder == Order::kManual) {
            first = MultiplyAdd(a0, b0, first);
            second = MultiplyAdd(a1, b1, second);
          } else {
            sum = MultiplyAdd(a1, b1, MultiplyAdd(a0, b0, sum));
          }
        }
        if (kOrder == Order::kManual) sum = Flush(Flush(sum) + Flush(first + second));
        std::memcpy(&tiles_[kSums][m][4 * n], &sum, sizeof(sum));
      }
    }
  }

 private:
  void Check(int tile) const {
    EXPECT_TRUE(configured_);
    EXPECT_GT(config_.rows[tile], 0) << "tile " << tile << " is not configured";
  }
  float Float(int tile, int row, int i) const {
    float value;
    std::memcpy(&value, &tiles_[tile][row][4 * i], sizeof(value));
    return value;
  }
  float BF16(int tile, int row, int i) const {
    uint16_t bits;
    std::memcpy(&bits, &tiles_[tile][row][2 * i], sizeof(bits));
    return F32FromBF16(bits);
  }

  bool configured_ = false;
  TileConfig config_;
  unsigned char tiles_[8][kTileRows][kTileRowBytes];
};

constexpr int kGuard =
    64;  // elements around an operand: NaN to read, to be left alone when writing
constexpr uint16_t kNaNBF16 = 0x7fc0;
constexpr float kUntouched = 12345.0f;

struct Problem {
  Problem(uint64_t seed, int entries, int outputs, int inputs)
      : entries(entries), outputs(outputs), inputs(inputs) {
    SeededRandom random(seed);
    x = random.NormalValues(int64_t{entries} * inputs);
    w = random.NormalValues(int64_t{outputs} * inputs, 1 / std::sqrt(inputs), DType::kBF16);
    y = random.NormalValues(int64_t{entries} * outputs);
    Pack();
  }

  int64_t steps() const { return PaddedInputs(DType::kBF16, inputs) / kTileDepth; }

  // Packs w with the code that lays out a checkpoint's weights, into memory that ends in NaN.
  void Pack() {
    std::vector<uint16_t> bits;
    for (const double value : w) bits.push_back(BF16FromF32(static_cast<float>(value)));
    TensorView matrix;
    matrix.data = bits.data();
    matrix.dtype = DType::kBF16;
    matrix.shape = {outputs, inputs};
    packed.assign(PackedMatrixBytes(DType::kBF16, outputs, inputs) / 2 + kGuard, kNaNBF16);
    baseline::Ops().pack(matrix, packed.data(), 0, Panels(outputs));
  }

  // Entries [first, first + count) in tiles of `rows`; y as [count][outputs].
  template <typename Tiles>
  std::vector<double> Run(int first, int count, int rows, bool accumulate) const {
    const int tiles = (count + rows - 1) / rows;
    std::vector<uint16_t> a(tiles * steps() * rows * kTileDepth + kGuard, kNaNBF16);
    std::fill(a.begin(), a.end() - kGuard, 0);
    for (int e = 0; e < count; ++e) {
      for (int i = 0; i < inputs; ++i) {
        const int64_t step = e / rows * steps() + i / kTileDepth;
        a[(step * rows + e % rows) * kTileDepth + i % kTileDepth] =
            BF16FromF32(static_cast<float>(x[int64_t{first + e} * inputs + i]));
      }
    }
    const int64_t stride = outputs + 3;  // as where a task has some panels of a wider matrix
    std::vector<float> got(count * stride + 2 * kGuard, kUntouched);
    for (int e = 0; accumulate && e < count; ++e) {
      for (int o = 0; o < outputs; ++o) {
        got[kGuard + e * stride + o] = static_cast<float>(y[int64_t{first + e} * outputs + o]);
      }
    }
    TileProduct product;
    product.x = a.data();
    product.weights = packed.data();
    product.steps = static_cast<int>(steps());
    product.rows = rows;
    product.entries = count;
    product.outputs = outputs;
    product.y = got.data() + kGuard;
    product.y_stride = stride;
    product.accumulate = accumulate;
    Tiles emulated;
    MultiplyTiles(emulated, product);
    EXPECT_FALSE(emulated.configured()) << "the registers are to be released";

    std::vector<double> result;
    for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
      const int64_t place = i - kGuard;
      if (place >= 0 && place < count * stride && place % stride < outputs) {
        result.push_back(got[i]);
      } else if (got[i] != kUntouched) {
        ADD_FAILURE() << "wrote at " << place << " of " << count << " x " << stride;
      }
    }
    return result;
  }

  // In double, of the activations as given: rounding them is part of the bound.
  void Expect(bool accumulate, std::vector<double>* want, std::vector<double>* bound) const {
    for (int e = 0; e < entries; ++e) {
      for (int o = 0; o < outputs; ++o) {
        double sum = 0, scale = 0;
        for (int i = 0; i < inputs; ++i) {
          const double term = x[int64_t{e} * inputs + i] * w[int64_t{o} * inputs + i];
          sum += term;
          scale += std::abs(term);
        }
        double error = (kUnitBF16 + (1 + kUnitBF16) * SumError(inputs)) * scale + kTinyF32;
        if (accumulate) {
          const double there = y[int64_t{e} * outputs + o];
          sum += there;
          error += 2 * kUnitF32 * (std::abs(sum) + std::abs(there));
        }
        want->push_back(sum);
        bound->push_back(error);
      }
    }
  }

  int entries, outputs, inputs;
  std::vector<double> x, w, y;
  std::vector<uint16_t> packed;
};

int RowsFor(int entries) {
  const int tiles = (entries + kTileRows - 1) / kTileRows;
  return (entries + tiles - 1) / tiles;
}

template <typename Tiles>
class AmxTilesTest : public testing::Test {};

struct OrderNames {
  template <typename Tiles>
  static std::string GetName(int i) {
    return i == 0 ? "manual" : "intrinsics_guide";
  }
};
using Orders =
    testing::Types<EmulatedTiles<Order::kManual>, EmulatedTiles<Order::kIntrinsicsGuide>>;
TYPED_TEST_SUITE(AmxTilesTest, Orders, OrderNames);

TYPED_TEST(AmxTilesTest, MatchesDoubleWithinItsStatedBound) {
  uint64_t seed = 700;
  for (int entries = 1; entries <= 40; ++entries) {
    for (const int outputs : {1, 15, 16, 17, 32, 33, 48, 63, 64, 65, 70}) {
      // Every number of inputs up to 100 comes with some number of entries and outputs.
      const int inputs = static_cast<int>(seed * 37 % 100) + 1;
      const Problem p(++seed, entries, outputs, inputs);
      for (const bool accumulate : {false, true}) {
        std::vector<double> want, bound;
        p.Expect(accumulate, &want, &bound);
        EXPECT_THAT(p.template Run<TypeParam>(0, entries, RowsFor(entries), accumulate),
                    IsWithin(bound, want))
            << "seed " << seed << ", " << entries << " entries, " << outputs << " x " << inputs
            << (accumulate ? ", accumulate" : "");
      }
    }
  }
}

TYPED_TEST(AmxTilesTest, TheNumberOfEntriesAndTheirPlaceChangeNoBit) {
  for (const int outputs : {1, 16, 23, 70}) {
    for (const int inputs : {1, 31, 32, 33, 100}) {
      const Problem p(900 + outputs + inputs, 40, outputs, inputs);
      for (const bool accumulate : {false, true}) {
        std::vector<double> one_by_one;
        for (int e = 0; e < p.entries; ++e) {
          const std::vector<double> row = p.template Run<TypeParam>(e, 1, 1, accumulate);
          one_by_one.insert(one_by_one.end(), row.begin(), row.end());
        }
        for (int count = 1; count <= p.entries; ++count) {
          // From the end, so that an entry's place among the others differs as well.
          const int first = p.entries - count;
          EXPECT_THAT(
              p.template Run<TypeParam>(first, count, RowsFor(count), accumulate),
              HasSameBits({one_by_one.begin() + int64_t{first} * outputs, one_by_one.end()}))
              << count << " entries, " << outputs << " x " << inputs
              << (accumulate ? ", accumulate" : "");
        }
      }
    }
  }
}

TYPED_TEST(AmxTilesTest, AnEntryOfNaNSpoilsNoOther) {
  Problem p(1000, 9, 20, 65);
  const std::vector<double> clean = p.template Run<TypeParam>(0, 9, 9, false);
  for (int i = 0; i < p.inputs; ++i) p.x[4 * p.inputs + i] = i % 2 ? NAN : INFINITY;
  const std::vector<double> got = p.template Run<TypeParam>(0, 9, 9, false);
  for (int e = 0; e < p.entries; ++e) {
    for (int o = 0; o < p.outputs; ++o) {
      const int i = e * p.outputs + o;
      if (e == 4) {
        EXPECT_TRUE(std::isnan(got[i]));
      } else {
        EXPECT_EQ(got[i], clean[i]) << "entry " << e;
      }
    }
  }
}

}  // namespace
}  // namespace mneme
