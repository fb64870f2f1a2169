// The codec on fields that no architecture has all of: counted rows, rings, coarse numbers.
#include "models/state_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/float16.h"
#include "kernels/state_row.h"
#include "tests/support/backends.h"
#include "tests/support/layout_model.h"

namespace mneme {
namespace {

using testing::ElementsAre;

class StateCodecTest : public testing::Test {
 protected:
  void SetUp() override { backend_ = MakeReference(); }

  // A slab that is all 0xff but for what `fill` writes.
  template <typename Fill>
  CanonicalState Decode(const StateLayout& layout, int64_t tokens, const Fill& fill) {
    std::vector<std::byte> slab(static_cast<size_t>(layout.slab_bytes()), std::byte{0xff});
    fill(slab.data());
    auto state = DecodeState(*backend_, LayoutModel(layout), slab.data(), tokens);
    EXPECT_TRUE(state.ok()) << state.status();
    return *std::move(state);
  }
  std::vector<std::byte> Encode(const StateLayout& layout, const CanonicalState& state) {
    std::vector<std::byte> slab(static_cast<size_t>(layout.slab_bytes()), std::byte{0xff});
    const absl::Status status = EncodeState(*backend_, LayoutModel(layout), state, slab.data());
    EXPECT_TRUE(status.ok()) << status;
    return slab;
  }
  template <typename T>
  static std::vector<T> Values(const StateTensor& tensor) {
    std::vector<T> values(tensor.bytes.size() / sizeof(T));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }

  std::unique_ptr<Backend> backend_;
};

TEST_F(StateCodecTest, OfCountedRowsTheFilledOnesCount) {
  StateLayout layout;
  const StateField keys = layout.Add({.name = "keys",
                                      .dtype = DType::kF32,
                                      .shape = {2, 200, 3},
                                      .guard = StateGuard::kFirstRows,
                                      .role = StateRole::kAppendOnly});
  const auto row = [&](auto* slab, int memory, int position) {
    return reinterpret_cast<float*>(const_cast<std::byte*>(slab) +
                                    layout.RowOffset(keys, memory, position));
  };
  const CanonicalState state = Decode(layout, 66, [&](std::byte* slab) {
    for (int memory = 0; memory < 2; ++memory) {
      for (int position = 0; position < 66; ++position) {
        for (int i = 0; i < 3; ++i) {
          row(slab, memory, position)[i] = static_cast<float>(1000 * memory + 3 * position + i);
        }
      }
    }
  });
  ASSERT_EQ(state.tensors.size(), 1u);
  EXPECT_EQ(state.tensors[0].shape, (Shape{2, 66, 3}));
  const std::vector<float> values = Values<float>(state.tensors[0]);
  for (int i = 0; i < 2 * 66 * 3; ++i) {
    ASSERT_EQ(values[i], static_cast<float>(i / 198 * 1000 + i % 198)) << i;
  }
  const std::vector<std::byte> slab = Encode(layout, state);
  EXPECT_EQ(row(slab.data(), 1, 65)[2], 1000 + 197);
  EXPECT_EQ(row(slab.data(), 1, 66)[0], 0)
      << "a row of a filled block shows nothing of a former owner";
}

TEST_F(StateCodecTest, ARingIsItsRowsFromTheOldestToTheNewest) {
  StateLayout layout;
  const StateField ring = layout.Add({.name = "ring",
                                      .dtype = DType::kF32,
                                      .shape = {1, 3, 1},
                                      .guard = StateGuard::kRing,
                                      .role = StateRole::kAppendOnly});
  // The last 3 of 65 positions lie in rows 62, 63 and 0 of the only block.
  const CanonicalState state = Decode(layout, 65, [&](std::byte* slab) {
    auto* values = reinterpret_cast<float*>(slab);
    values[62] = 2;
    values[63] = 3;
    values[0] = 4;
  });
  EXPECT_EQ(layout.RowOffset(ring, 0, 64), 0);
  EXPECT_THAT(Values<float>(state.tensors[0]), ElementsAre(2, 3, 4));
  const std::vector<std::byte> slab = Encode(layout, state);
  const auto* values = reinterpret_cast<const float*>(slab.data());
  EXPECT_THAT(std::vector<float>(values + 61, values + 64), ElementsAre(0, 2, 3));
  EXPECT_EQ(values[0], 4);
  // Not yet round.
  EXPECT_EQ(Decode(layout, 2, [](std::byte*) {}).tensors[0].shape, (Shape{1, 2, 1}));
}

TEST_F(StateCodecTest, MemoriesThatWereNotWrittenAreZeros) {
  StateLayout layout;
  const StateField flags = layout.Add({.name = "written", .dtype = DType::kU8, .shape = {2}});
  const StateField matrix = layout.Add({.name = "memory",
                                        .dtype = DType::kF32,
                                        .shape = {2, 2},
                                        .guard = StateGuard::kFlags,
                                        .flags = flags.index});
  layout.Add({.name = "pending",
              .dtype = DType::kF32,
              .shape = {2, 2},
              .guard = StateGuard::kFlags,
              .role = StateRole::kHeldBack,
              .flags = flags.index});
  const CanonicalState state = Decode(layout, 1, [&](std::byte* slab) {
    slab[flags.offset] = std::byte{0};
    slab[flags.offset + 1] = std::byte{1};
    auto* values = reinterpret_cast<float*>(slab + matrix.offset);
    values[2] = 5;
    values[3] = 6;
  });
  ASSERT_EQ(state.tensors.size(), 2u) << "nothing is held back in a canonical state";
  EXPECT_THAT(Values<uint8_t>(state.tensors[0]), ElementsAre(0, 1));
  EXPECT_THAT(Values<float>(state.tensors[1]), ElementsAre(0, 0, 5, 6));
}

// An image copies the fields that are asked for, with the flags that guard them, and no others.
TEST_F(StateCodecTest, AnImageIsSomeFieldsOfTheWhole) {
  StateLayout layout;
  const StateField flags = layout.Add({.name = "flags", .dtype = DType::kU8, .shape = {3}});
  const StateField guarded = layout.Add({.name = "guarded",
                                         .dtype = DType::kF32,
                                         .shape = {3, 2},
                                         .guard = StateGuard::kFlags,
                                         .flags = flags.index});
  layout.Add({.name = "other", .dtype = DType::kF32, .shape = {100}});
  const StateField numbers = layout.Add({.name = "numbers", .dtype = DType::kI32, .shape = {1, 2}});
  std::vector<std::byte> slab(static_cast<size_t>(layout.slab_bytes()), std::byte{0xff});
  const uint8_t set[] = {1, 0, 1};
  const float values[] = {1, 2, 3, 4, 5, 6};
  const int32_t ints[] = {-7, 8};
  std::memcpy(slab.data() + flags.offset, set, sizeof(set));
  std::memcpy(slab.data() + guarded.offset, values, sizeof(values));
  std::memcpy(slab.data() + numbers.offset, ints, sizeof(ints));

  StateImage image(layout, {"guarded", "numbers"});
  EXPECT_EQ(image.bytes(), 3 + 24 + 8);
  ASSERT_TRUE(image.Copy(*backend_, slab.data(), /*tokens=*/5).ok());
  std::fill(slab.begin(), slab.end(), std::byte{0});  // it is a copy
  const CanonicalState state = image.Decode();
  EXPECT_EQ(state.tokens, 5);
  ASSERT_EQ(state.tensors.size(), 2u);
  EXPECT_THAT(state.Get("guarded").Numbers(), ElementsAre(1, 2, 0, 0, 5, 6));
  EXPECT_THAT(state.Get("numbers").Elements<int32_t>(), ElementsAre(-7, 8));
  EXPECT_EQ(state.Find("other"), nullptr);
}

TEST_F(StateCodecTest, ASessionThatWasFedNothingIsZeros) {
  StateLayout layout;
  const StateField matrix = layout.Add(
      {.name = "memory", .dtype = DType::kF32, .shape = {1, 2}, .guard = StateGuard::kFed});
  const auto write = [&](std::byte* slab) {
    auto* values = reinterpret_cast<float*>(slab + matrix.offset);
    values[0] = 5;
    values[1] = 6;
  };
  EXPECT_THAT(Values<float>(Decode(layout, 0, write).tensors[0]), ElementsAre(0, 0));
  const CanonicalState state = Decode(layout, 1, write);
  EXPECT_THAT(Values<float>(state.tensors[0]), ElementsAre(5, 6));
  const std::vector<std::byte> slab = Encode(layout, state);
  const auto* values = reinterpret_cast<const float*>(slab.data() + matrix.offset);
  EXPECT_THAT(std::vector<float>(values, values + 2), ElementsAre(5, 6));
}

// As another device, or another --state-dtype, keeps it.
TEST_F(StateCodecTest, NumbersGoFromOneStateDtypeToAnother) {
  const auto layout_of = [](DType dtype) {
    StateLayout layout;
    layout.Add({.name = "memory",
                .dtype = dtype,
                .shape = {1, 2, StateRowPitch(dtype, 3)},
                .row_values = 3});
    return layout;
  };
  const StateLayout f32 = layout_of(DType::kF32), f16 = layout_of(DType::kF16),
                    f64 = layout_of(DType::kF64), i8 = layout_of(DType::kI8);
  const CanonicalState state = Decode(f32, 1, [&](std::byte* slab) {
    const float values[] = {1, -0.5f, 127, 1e6f, 0, 3};
    std::memcpy(slab, values, sizeof(values));
  });
  EXPECT_EQ(state.tensors[0].shape, (Shape{1, 2, 3}));

  const auto decoded = [&](const StateLayout& layout) {
    const std::vector<std::byte> slab = Encode(layout, state);
    return Decode(layout, 1, [&](std::byte* to) { std::copy(slab.begin(), slab.end(), to); });
  };
  EXPECT_THAT(Values<float>(decoded(f16).tensors[0]), ElementsAre(1, -0.5f, 127, 65504, 0, 3));
  const CanonicalState wide = decoded(f64);
  EXPECT_EQ(wide.tensors[0].dtype, DType::kF64);
  EXPECT_THAT(Values<double>(wide.tensors[0]), ElementsAre(1, -0.5, 127, 1e6, 0, 3));
  // Multiples of the row's largest magnitude / 127; -0.5 lies between two of them.
  EXPECT_THAT(Values<float>(decoded(i8).tensors[0]),
              ElementsAre(1, testing::AnyOf(0, -1), 127, testing::FloatEq(1e6f), 0, 0));
  // And from f64 to f32.
  const std::vector<std::byte> slab = Encode(f32, wide);
  EXPECT_EQ(reinterpret_cast<const float*>(slab.data())[3], 1e6f);
}

TEST_F(StateCodecTest, ALateFieldIsATensorWhereItIsNotZero) {
  StateLayout layout;
  layout.Add({.name = "facts", .dtype = DType::kI32, .shape = {1, 2}});
  layout.Add({.name = "seed", .dtype = DType::kI32, .shape = {1, 2}, .is_late = true});
  layout.Add({.name = "last", .dtype = DType::kI32, .shape = {1, 1}});
  const auto decoded = [&](int32_t seed) {
    return Decode(layout, 1, [&](std::byte* slab) {
      const int32_t values[] = {1, 2, 0, seed};
      std::memcpy(slab, values, sizeof(values));
      const int32_t last = 5;
      std::memcpy(slab + 64, &last, sizeof(last));
    });
  };
  for (const int32_t seed : {0, 9}) {
    const CanonicalState state = decoded(seed);
    ASSERT_EQ(state.tensors.size(), seed == 0 ? 2u : 3u);
    EXPECT_EQ(state.Find("seed") != nullptr, seed != 0);
    EXPECT_THAT(state.Get("last").Elements<int32_t>(), ElementsAre(5));
    const std::vector<std::byte> slab = Encode(layout, state);
    int32_t values[4];
    std::memcpy(values, slab.data(), sizeof(values));
    EXPECT_THAT(values, ElementsAre(1, 2, 0, seed));
  }
}

TEST_F(StateCodecTest, TensorsThatLoseSomethingAreCounted) {
  StateLayout layout;
  layout.Add({.name = "matrix", .dtype = DType::kF16, .shape = {1, 2}});
  layout.Add({.name = "window", .dtype = DType::kBF16, .shape = {1, 2}});
  layout.Add({.name = "exact", .dtype = DType::kF32, .shape = {1, 2}});
  const LayoutModel model(layout);
  const auto rounded = [&](float matrix, float window, float exact) {
    CanonicalState state{.tokens = 1};
    for (const StateTensorSpec& spec : CanonicalTensors(layout, 1)) {
      StateTensor& tensor = state.tensors.emplace_back();
      tensor = {.name = spec.name, .dtype = spec.dtype, .shape = spec.shape};
      const float value = spec.name == "matrix" ? matrix : spec.name == "window" ? window : exact;
      const float values[] = {1, value};
      tensor.bytes.resize(sizeof(values));
      std::memcpy(tensor.bytes.data(), values, sizeof(values));
    }
    StateCopy copy(model);
    EXPECT_EQ(copy.Encode(state), absl::OkStatus());
    return copy.rounded_tensors();
  };
  EXPECT_EQ(rounded(0.25f, 0.25f, 0.1f), 0);
  EXPECT_EQ(rounded(0.1f, 0.25f, 0.1f), 1);
  EXPECT_EQ(rounded(1e6f, 0.25f, 0.1f), 1) << "beyond f16";
  EXPECT_EQ(rounded(0.1f, 0.1f, 0.1f), 2);
}

// Kernels make the scale of a row its largest magnitude / 127, so that one of its integers is 127.
TEST_F(StateCodecTest, RowsOfInt8StayWhatTheyAre) {
  constexpr int kValues = 8, kRows = 4000;
  StateLayout layout;
  layout.Add({.name = "memory",
              .dtype = DType::kI8,
              .shape = {1, kRows, StateRowPitch(DType::kI8, kValues)},
              .row_values = kValues});
  std::mt19937 random(1);
  std::vector<std::byte> slab(static_cast<size_t>(layout.slab_bytes()));
  const int64_t pitch = StateRowPitch(DType::kI8, kValues);
  for (int row = 0; row < kRows; ++row) {
    std::byte* at = slab.data() + row * pitch;
    for (int i = 0; i < kValues; ++i) at[i] = static_cast<std::byte>(random() % 255 - 127);
    at[row % kValues] = std::byte{127};
    const float scale = std::ldexp(1 + static_cast<float>(random() % (1 << 23)) / (1 << 23),
                                   static_cast<int>(random() % 40) - 30);
    std::memcpy(at + pitch - sizeof(scale), &scale, sizeof(scale));
  }
  const CanonicalState state =
      Decode(layout, 1, [&](std::byte* to) { std::copy(slab.begin(), slab.end(), to); });
  const LayoutModel model(layout);
  StateCopy copy(model);
  ASSERT_EQ(copy.Encode(state), absl::OkStatus());
  EXPECT_EQ(copy.rounded_tensors(), 0);
  EXPECT_EQ(copy.Decode().tensors[0].bytes, state.tensors[0].bytes);
}

}  // namespace
}  // namespace mneme
