// Memoria's sessions that go on with room for another number of engrams.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/engrams.h"
#include "models/model.h"
#include "models/state_codec.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/memoria_state.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

using testing::HasSubstr;

constexpr int kRoomVocab = 259;
constexpr int kCounted = 64, kHistory = 2112;

class MemoriaRoomTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  MemoriaRoomTest() {
    MakeFolder(MatrixSpec("gpt2_with_memoria"), folder_);
    config_ = ReadMemoriaConfig(folder_.path());
  }
  std::unique_ptr<ModelDriver> Make(int capacity) {
    return Drive(folder_.path(), GetParam().Make(), {.slots = 1, .max_rows = 1, .max_tokens = 200},
                 {.engram_capacity = capacity});
  }
  std::vector<int32_t> Text(int tokens, uint64_t seed) const {
    return RandomTokens(tokens, kRoomVocab, seed);
  }
  static CanonicalState Decode(ModelDriver& driver) {
    auto state = DecodeState(driver.backend(), driver.model(), driver.Slab(0), driver.position(0));
    CHECK_OK(state.status());
    return *std::move(state);
  }
  // A session of `room` that is `state`, made by one with another room.
  std::unique_ptr<ModelDriver> Move(CanonicalState state, int room) {
    auto driver = Make(room);
    FeedSlot(*driver, 0, Text(static_cast<int>(state.tokens), 99), {});  // which is written over
    CHECK_OK(driver->model().FitEngrams(state));
    CHECK_OK(EncodeState(driver->backend(), driver->model(), state, driver->Slab(0)));
    return driver;
  }
  static void ExpectSame(const MemoriaState& got, const MemoriaState& want) {
    EXPECT_EQ(got.facts, want.facts);
    EXPECT_EQ(got.recalled, want.recalled);
    EXPECT_EQ(got.weights, want.weights);
    ASSERT_EQ(got.engrams.size(), want.engrams.size());
    for (size_t i = 0; i < want.engrams.size(); ++i) {
      EXPECT_EQ(got.engrams[i].birth, want.engrams[i].birth);
      EXPECT_EQ(got.engrams[i].type, want.engrams[i].type);
      EXPECT_EQ(got.engrams[i].lifespan, want.engrams[i].lifespan);
      EXPECT_EQ(got.engrams[i].gain, want.engrams[i].gain);
      EXPECT_EQ(got.engrams[i].x, want.engrams[i].x);
      EXPECT_EQ(got.engrams[i].counts, want.engrams[i].counts);
    }
  }

  TestFolder folder_;
  MemoriaConfig config_;
};

TEST_P(MemoriaRoomTest, WhatFollowsIsTheSameToTheBit) {
  const int segment = config_.segment;
  struct {
    int had, has;
  } constexpr kRooms[] = {{kCounted, 128},  {128, kCounted},      {kHistory, 2176},
                          {2176, kHistory}, {kHistory, kCounted}, {2049, 2048}};
  for (const auto& [had, has] : kRooms) {
    for (const int fed : {1, segment, 12 * segment, 20 * segment + 3}) {
      SCOPED_TRACE(absl::StrCat(had, " to ", has, " after ", fed));
      const auto source = Make(had);
      FeedSlot(*source, 0, Text(fed, 5), {7});
      const auto copy = Move(Decode(*source), has);
      ExpectSame(ReadMemoriaState(*copy, 0), ReadMemoriaState(*source, 0));
      const std::vector<int32_t> more = Text(9 * segment + 2, 6);
      EXPECT_EQ(FeedSlot(*copy, 0, more, {1, 4, 30}), FeedSlot(*source, 0, more, {1, 4, 30}));
      const MemoriaState now = ReadMemoriaState(*copy, 0);
      ExpectSame(now, ReadMemoriaState(*source, 0));
      EXPECT_EQ(now.facts[kEngramsEvicted], 0);
    }
  }
}

// As many engrams as there are fit, and one place less is too few.
TEST_P(MemoriaRoomTest, MoreThanThereIsRoomForIsRefusedByBothNumbers) {
  const auto source = Make(kCounted);
  FeedSlot(*source, 0, Text(20 * config_.segment + 1, 5), {7});
  const CanonicalState state = Decode(*source);
  const auto holds = static_cast<int>(ReadMemoriaState(*source, 0).engrams.size());
  ASSERT_GT(holds - 1, 2 * config_.rules.working + config_.rules.short_term);
  const auto copy = Move(state, holds);
  ExpectSame(ReadMemoriaState(*copy, 0), ReadMemoriaState(*source, 0));
  // To the end of the segment; later ones' engrams need others' places.
  const std::vector<int32_t> rest = Text(config_.segment - 1, 6);
  EXPECT_EQ(FeedSlot(*copy, 0, rest, {2}), FeedSlot(*source, 0, rest, {2}));
  FeedSlot(*copy, 0, Text(12 * config_.segment, 7), {});
  EXPECT_GT(ReadMemoriaState(*copy, 0).facts[kEngramsEvicted], 0) << "which it says";

  CanonicalState unfit = state;
  const absl::Status refused = Make(holds - 1)->model().FitEngrams(unfit);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  for (const std::string& said : {absl::StrCat("room for ", kCounted, " engrams"),
                                  absl::StrCat("room for ", holds - 1, " (--engram-capacity)"),
                                  absl::StrCat("holds ", holds)}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(said));
  }
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    EXPECT_EQ(unfit.tensors[i].bytes, state.tensors[i].bytes) << state.tensors[i].name;
  }
}

TEST_P(MemoriaRoomTest, WhatIsNotKnownIsNotMadeUp) {
  const auto source = Make(kCounted), history = Make(kHistory);
  for (ModelDriver* const driver : {source.get(), history.get()}) {
    FeedSlot(*driver, 0, Text(6 * config_.segment, 5), {7});
  }
  CanonicalState counted = Decode(*source);
  const absl::Status to_history = history->model().FitEngrams(counted);
  EXPECT_EQ(to_history.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(to_history.message()),
              HasSubstr("room for 64 engrams, and a session here has room for 2112"));
  EXPECT_THAT(std::string(to_history.message()), HasSubstr("only how often is known"));

  CanonicalState wrapped = Decode(*history);
  for (StateTensor& tensor : wrapped.tensors) {
    if (tensor.name == "engrams.facts") {
      reinterpret_cast<int32_t*>(tensor.bytes.data())[kEngramHistoryWrapped] = 1;
    }
  }
  const absl::Status to_counts = source->model().FitEngrams(wrapped);
  EXPECT_EQ(to_counts.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(to_counts.message()), HasSubstr("its earliest are not known"));
  EXPECT_EQ(Make(2176)->model().FitEngrams(wrapped), absl::OkStatus());
}

TEST_P(MemoriaRoomTest, TensorsThatNoSessionHasAreNamed) {
  const auto source = Make(kCounted), other = Make(128);
  FeedSlot(*source, 0, Text(20 * config_.segment, 5), {7});
  const CanonicalState whole = Decode(*source);
  const auto refusal = [&](const std::string& name, auto&& change) {
    CanonicalState state = whole;
    change(*std::ranges::find(state.tensors, name, &StateTensor::name));
    const absl::Status status = other->model().FitEngrams(state);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("\"", name, "\"")));
  };
  for (const char* name :
       {"engrams.vectors", "engrams.lifespans", "engrams.gains", "engrams.births", "engrams.counts",
        "engrams.recalled", "engrams.facts"}) {
    refusal(name, [](StateTensor& tensor) { tensor.shape.dims[0] += 1; });
    refusal(name, [](StateTensor& tensor) { tensor.bytes.pop_back(); });
    CanonicalState state = whole;
    std::erase_if(state.tensors, [name](const StateTensor& tensor) { return tensor.name == name; });
    EXPECT_EQ(other->model().FitEngrams(state).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  const auto first = [](int32_t value) {
    return
        [value](StateTensor& tensor) { *reinterpret_cast<int32_t*>(tensor.bytes.data()) = value; };
  };
  for (const int32_t slot : {-1, kCounted, INT32_MAX}) refusal("engrams.recalled", first(slot));
  for (const int32_t count : {-1, 1000}) refusal("engrams.facts", first(count));
  refusal("engrams.types", [](StateTensor& tensor) {
    tensor.shape.dims[0] = kLargestEngramCapacity + 1;
    tensor.bytes.resize(kLargestEngramCapacity + 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MemoriaRoomTest, testing::ValuesIn(OutermostBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
