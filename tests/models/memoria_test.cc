// Memoria's GPT-2: its keys, what it refuses, and the room that it makes for engrams.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/state_codec.h"
#include "tests/models/config_keys.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/memoria_state.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kType[] = "gpt2_with_memoria";

// A complete configuration with other values for some keys: members of a JSON object.
std::string Keys(const std::string& changes = "") {
  nlohmann::json keys = {{"segment_tokens", 150},          {"memoria_num_memories", 50},
                         {"memoria_num_reminded_stm", 50}, {"memoria_num_reminded_ltm", 50},
                         {"memoria_stm_capacity", 400},    {"memoria_ltm_search_depth", 10},
                         {"memoria_initial_lifespan", 9},  {"memoria_lifespan_extend_scale", 8}};
  keys.update(nlohmann::json::parse(absl::StrCat("{", changes, "}")));
  const std::string text = keys.dump();
  return text.substr(1, text.size() - 2);
}

TEST(MemoriaConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  DistinctFingerprints seen;
  for (const char* keys :
       {"", R"("segment_tokens": 50)", R"("memoria_num_memories": 16)",
        R"("memoria_num_memories": null)", R"("memoria_num_reminded_stm": 3)",
        R"("memoria_num_reminded_ltm": 0)", R"("memoria_stm_capacity": 60)",
        R"("memoria_ltm_search_depth": 0)", R"("memoria_initial_lifespan": 5)",
        R"("memoria_lifespan_extend_scale": 2)", R"("memoria_profile": "paper")",
        R"("memoria_profile": "upstream_1_1")", R"("memoria_ltm_ties": "oldest")",
        R"("memoria_seed": 18446744073709551615)", R"("n_positions": 512)", R"("n_embd": 384)"}) {
    seen.Add(FingerprintOf(kType, Keys(keys)), keys);
  }
}

TEST(MemoriaConfigTest, WhatMovesNeitherDoesNotCount) {
  for (const char* keys :
       {R"("memoria_device": "cpu")", R"("memoria_reset_period": 7)",
        R"("scale_attn_weights": false)", R"("scale_attn_by_inverse_layer_idx": true)",
        R"("memoria_profile": "upstream_1_0")", R"("memoria_ltm_ties": "random")",
        R"("memoria_seed": 0)", R"("n_ctx": 10000)"}) {
    EXPECT_EQ(FingerprintOf(kType, Keys(keys)), FingerprintOf(kType, Keys())) << keys;
    EXPECT_THAT(ConfigOf(kType, Keys(keys))->warnings, IsEmpty()) << keys;
  }
}

TEST(MemoriaConfigTest, ContradictionsAreRefusedByName) {
  struct {
    const char* keys;
    absl::StatusCode code;
    const char* message;
  } constexpr kBad[] = {
      {R"("segment_tokens": null)", kInvalid,
       "\"segment_tokens\" is missing: the tokens of a segment, which the authors' training "
       "programs are told as --max-length (150 where it is not given; their evaluation takes 512 "
       "then) and do not save. Add it to the file, or give it with --segment-tokens: an integer "
       "from 1 to n_positions (1024)"},
      {R"("segment_tokens": 1025)", kInvalid,
       "\"segment_tokens\" is 1025, expected an integer from 1 to n_positions (1024)"},
      {R"("segment_tokens": 0)", kInvalid, "\"segment_tokens\" is 0"},
      {R"("memoria_stm_capacity": 49)", kInvalid,
       "\"memoria_stm_capacity\" is 49, expected at least as many as the engrams of a segment "
       "(memoria_num_memories, 50)"},
      {R"("memoria_num_memories": null, "memoria_stm_capacity": 149)", kInvalid,
       "\"memoria_stm_capacity\" is 149"},
      {R"("memoria_num_reminded_stm": 0)", kInvalid, "\"memoria_num_reminded_stm\" is 0"},
      {R"("memoria_num_reminded_ltm": -1)", kInvalid, "\"memoria_num_reminded_ltm\" is -1"},
      {R"("memoria_initial_lifespan": 0)", kInvalid, "\"memoria_initial_lifespan\" is 0"},
      {R"("memoria_profile": "paper_2")", kUnimplemented,
       "\"memoria_profile\" is \"paper_2\", which is not supported; expected one of "
       "\"upstream_1_0\", \"upstream_1_1\", \"paper\""},
      {R"("memoria_ltm_ties": "newest")", kUnimplemented, "\"memoria_ltm_ties\" is \"newest\""},
      {R"("memoria_seed": -1)", kInvalid,
       "\"memoria_seed\" is -1, expected an integer from 0 to 2^64 - 1"},
      {R"("n_head": 7)", kInvalid, "\"n_head\" is 7"},
  };
  for (const auto& bad : kBad) {
    const auto config = ConfigOf(kType, Keys(bad.keys));
    EXPECT_EQ(config.status().code(), bad.code) << bad.keys;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(bad.message));
  }
  const auto none = ConfigOf(kType, R"("segment_tokens": 150)");
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("key \"memoria_num_memories\" is missing, and has no default"));
}

// A model of the tiny shape with changes, as a plan or a reason why there is none.
absl::StatusOr<ModelPlan> Plan(const nlohmann::ordered_json& changes, int capacity) {
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType, changes), folder);
  return PlanModel(folder.path(), StateFormat(), {.engram_capacity = capacity});
}

TEST(MemoriaConfigTest, RoomForEngramsFollowsFromTheModelOrIsGiven) {
  // W 3, Rs and Rl 4, S 6, L0 4, alpha 3: 12 + 34 + 3, and at least 12.
  EXPECT_EQ(Plan({}, 0)->info.engrams, 64);
  EXPECT_EQ(Plan({{"memoria_lifespan_extend_scale", 9}}, 0)->info.engrams, 128);
  EXPECT_EQ(Plan({{"memoria_stm_capacity", 300}}, 0)->info.engrams, 320);
  EXPECT_EQ(Plan({}, 12)->info.engrams, 12);
  const auto small = Plan({}, 11);
  EXPECT_EQ(small.status().code(), kInvalid);
  EXPECT_THAT(std::string(small.status().message()),
              HasSubstr("room for 11 engrams in a session (--engram-capacity): expected at least "
                        "12"));
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType), folder);
  nlohmann::json config = nlohmann::json::parse(folder.Read("config.json"));
  config["memoria_lifespan_extend_scale"] = 300;
  folder.Write("config.json", config.dump());
  EXPECT_EQ(PlanModel(folder.path(), StateFormat())->info.engrams, 3392);
  config["memoria_lifespan_extend_scale"] = 3000;
  folder.Write("config.json", config.dump());
  for (const int capacity : {8193, 0}) {
    const auto large = PlanModel(folder.path(), StateFormat(), {.engram_capacity = capacity});
    EXPECT_EQ(large.status().code(), kUnimplemented);
    EXPECT_THAT(std::string(large.status().message()),
                AllOf(HasSubstr("--engram-capacity"), HasSubstr("expected at most 8192")));
  }
}

// Up to 2,048 engrams are counted pair by pair; of more there is a history, whose size does not
// grow with their square.
TEST(MemoriaConfigTest, WhoFiredWithWhomTakesWhatIsLess) {
  const auto bytes = [](int capacity, const char* name) -> int64_t {
    const auto plan = Plan({}, capacity);
    CHECK_OK(plan.status());
    for (const StateField& field : plan->state_layout.fields()) {
      if (field.name == name) return field.bytes();
    }
    return 0;
  };
  EXPECT_EQ(bytes(2048, "engrams.counts"), 2048 * 2048 * 2);
  EXPECT_EQ(bytes(2048, "engrams.fired"), 0);
  EXPECT_EQ(bytes(2049, "engrams.counts"), 0);
  EXPECT_EQ(bytes(2049, "engrams.fired"), 2049 * 4096 / 8);
  EXPECT_EQ(bytes(5120, "engrams.fired"), 5120 * 4096 / 8);
}

// Documents and the tool's help state these numbers for the shape.
TEST(MemoriaConfigTest, TheShapeHasTheParametersAndTheStateThatDocumentsTell) {
  const MadeNetwork made = MakeShape("gpt2-with-memoria-159m");
  EXPECT_NEAR(made.millions(), 158.77, 0.01);
  EXPECT_NEAR(static_cast<double>(made.state.slab_bytes()) / (1 << 20), 33.26, 0.01);
  EXPECT_EQ(made.state.max_tokens(), std::nullopt);
}

class MemoriaTest : public testing::TestWithParam<BackendUnderTest> {};

// A full store is the session's own matter, and says so.
TEST_P(MemoriaTest, AFullStoreGoesOn) {
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType), folder);
  const std::vector<int32_t> text = RandomTokens(200, 259, /*seed=*/1);
  const auto run = [&](int capacity, const std::vector<int>& chunks) {
    auto backend = GetParam().Make();
    auto model = LoadModel(folder.path(), *backend, nullptr, {.engram_capacity = capacity});
    CHECK_OK(model.status());
    auto driver = ModelDriver::Create(std::move(backend), *std::move(model),
                                      {.slots = 1, .max_rows = 1, .max_tokens = 200});
    CHECK_OK(driver.status());
    std::vector<double> logits = FeedSlot(**driver, 0, text, chunks);
    return std::pair(std::move(logits), ReadMemoriaState(**driver, 0));
  };
  const auto [free_logits, free_state] = run(0, {});
  EXPECT_EQ(free_state.facts[kEngramsEvicted], 0);
  const auto [logits, state] = run(13, {});
  EXPECT_GT(state.facts[kEngramsEvicted], 0);
  EXPECT_LE(state.engrams.size(), 13u);
  EXPECT_NE(logits, free_logits);
  const auto [in_chunks, chunked_state] = run(13, {5, 1, 29});
  EXPECT_THAT(in_chunks, IsSame(GetParam().bit_exact(), logits));
  EXPECT_EQ(chunked_state.facts, state.facts);
}

// A history says what counts of pairs do.
TEST_P(MemoriaTest, AHistoryRecallsWhatCountsDo) {
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType), folder);
  const std::vector<int32_t> text = RandomTokens(400, 259, /*seed=*/7);
  const auto run = [&](int capacity) {
    auto backend = GetParam().Make();
    auto model = LoadModel(folder.path(), *backend, nullptr, {.engram_capacity = capacity});
    CHECK_OK(model.status());
    auto driver = ModelDriver::Create(std::move(backend), *std::move(model),
                                      {.slots = 1, .max_rows = 1, .max_tokens = 100});
    CHECK_OK(driver.status());
    std::vector<double> logits = FeedSlot(**driver, 0, text, {31, 1, 7});
    return std::pair(std::move(logits), ReadMemoriaState(**driver, 0));
  };
  const auto [logits, state] = run(2048);
  const auto [history_logits, history] = run(2049);
  EXPECT_EQ(history_logits, logits);
  EXPECT_EQ(history.recalled, state.recalled);
  EXPECT_EQ(history.facts, state.facts);
  ASSERT_EQ(history.engrams.size(), state.engrams.size());
  for (size_t i = 0; i < state.engrams.size(); ++i) {
    EXPECT_EQ(history.engrams[i].birth, state.engrams[i].birth);
    EXPECT_EQ(history.engrams[i].counts, state.engrams[i].counts);
  }
}

// As many segments as a long session has: what f32 rounds does not add up, and the graph is that of
// float64.
TEST_P(MemoriaTest, ManySegmentsDoNotDrift) {
  if (GetParam().device == "reference") GTEST_SKIP() << "it is what others are compared with";
  constexpr int kSegments = 300, kPiece = 120;
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType), folder);
  const int segment = ReadMemoriaConfig(folder.path()).segment;
  const std::vector<int32_t> text = RandomTokens(kSegments * segment + 1, 259, /*seed=*/3);
  const auto run = [&](std::unique_ptr<Backend> backend) {
    const auto driver =
        Drive(folder.path(), std::move(backend), {.slots = 1, .max_rows = 1, .max_tokens = kPiece});
    std::vector<double> logits = FeedSlot(*driver, 0, text, {kPiece});
    return std::pair(std::move(logits), ReadMemoriaState(*driver, 0));
  };
  const auto [logits, state] = run(GetParam().Make());
  const auto [wanted_logits, wanted] = run(MakeReference());
  ASSERT_EQ(state.engrams.size(), wanted.engrams.size());
  EXPECT_EQ(state.recalled, wanted.recalled);
  EXPECT_EQ(state.facts, wanted.facts);
  for (size_t i = 0; i < wanted.engrams.size(); ++i) {
    const MemoriaState::Engram &got = state.engrams[i], &want = wanted.engrams[i];
    EXPECT_EQ(got.birth, want.birth);
    EXPECT_EQ(got.type, want.type);
    EXPECT_EQ(got.counts, want.counts);
    EXPECT_NEAR(got.lifespan, want.lifespan, 1e-4 * want.lifespan);
    EXPECT_NEAR(got.gain, want.gain, 1e-4 * want.gain);
  }
  const int64_t late = static_cast<int64_t>(logits.size()) / 10 * 9;
  EXPECT_LE(RelativeError({logits.begin() + late, logits.end()},
                          {wanted_logits.begin() + late, wanted_logits.end()}),
            1e-4);
}

// What a session cannot have is refused, and named, before kernels follow it.
TEST_P(MemoriaTest, StatesThatCannotBeAreRefused) {
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType), folder);
  const int segment = ReadMemoriaConfig(folder.path()).segment;
  const auto driver =
      Drive(folder.path(), GetParam().Make(), {.slots = 2, .max_rows = 1, .max_tokens = 64});
  FeedSlot(*driver, 0, RandomTokens(12 * segment + 2, 259, /*seed=*/5), {7});
  const auto state =
      DecodeState(driver->backend(), driver->model(), driver->Slab(0), driver->position(0));
  ASSERT_TRUE(state.ok()) << state.status();
  const auto encode = [&](const CanonicalState& changed) {
    return EncodeState(driver->backend(), driver->model(), changed, driver->Slab(1));
  };
  EXPECT_TRUE(encode(*state).ok()) << encode(*state);
  const auto find = [](CanonicalState& of, const char* name) -> StateTensor& {
    return *std::find_if(of.tensors.begin(), of.tensors.end(), [&](const StateTensor& tensor) {
      return tensor.name == absl::StrCat("engrams.", name);
    });
  };
  const auto ints = [&](CanonicalState& of, const char* name) {
    return reinterpret_cast<int32_t*>(find(of, name).bytes.data());
  };
  CanonicalState unchanged = *state;
  const auto* const types =
      reinterpret_cast<const EngramType*>(find(unchanged, "types").bytes.data());
  const int capacity = driver->model().info().engrams;
  const auto first = [&](EngramType type) {
    return static_cast<int>(std::find(types, types + capacity, type) - types);
  };
  const int old = first(EngramType::kShortTerm), working = first(EngramType::kWorking);
  const int free = first(EngramType::kFree);
  const auto set_no_number = [](StateTensor& tensor, int64_t i) {
    const int64_t size = SizeOf(tensor.dtype);
    std::fill_n(tensor.bytes.begin() + i * size, size, std::byte{0xff});
  };
  struct {
    const char* message;
    std::function<void(CanonicalState&)> change;
  } const kBad[] = {
      {"\"engrams.types\": engram 0 is of type 7, expected one from 0 to 3",
       [&](CanonicalState& s) { find(s, "types").bytes[0] = std::byte{7}; }},
      {"\"engrams.facts\": 3 working engrams, expected 2",
       [&](CanonicalState& s) { find(s, "types").bytes[working] = std::byte{0}; }},
      {"short-term engrams, expected at most 6",
       [&](CanonicalState& s) {
         for (std::byte& type : find(s, "types").bytes) {
           if (type == std::byte{0} || type == std::byte{3}) type = std::byte{2};
         }
       }},
      {"\"engrams.births\": two engrams are number",
       [&](CanonicalState& s) {
         const auto second = std::find(types + working + 1, types + capacity, EngramType::kWorking);
         ints(s, "births")[second - types] = ints(s, "births")[working];
       }},
      {"\"engrams.births\": an older engram is number 1000000, expected one from 0 to",
       [&](CanonicalState& s) { ints(s, "births")[old] = 1000000; }},
      {"\"engrams.lifespans\": engram",
       [&](CanonicalState& s) { set_no_number(find(s, "lifespans"), old); }},
      {"\"engrams.gains\": engram",
       [&](CanonicalState& s) { set_no_number(find(s, "gains"), old); }},
      {"\"engrams.counts\": engrams",
       [&](CanonicalState& s) {
         auto* counts = reinterpret_cast<uint16_t*>(find(s, "counts").bytes.data());
         ++counts[old * capacity + working];
       }},
      {"\"engrams.facts\": 9 recalled engrams, expected from 0 to 8",
       [&](CanonicalState& s) { ints(s, "facts")[kEngramsRecalled] = 9; }},
      {"\"engrams.facts\": -1 columns",
       [&](CanonicalState& s) { ints(s, "facts")[kEngramColumns] = -1; }},
      {"\"engrams.recalled\": 1234567, expected a short-term or long-term engram's place",
       [&](CanonicalState& s) { ints(s, "recalled")[0] = 1234567; }},
      {"expected a short-term or long-term engram's place",
       [&](CanonicalState& s) { ints(s, "recalled")[0] = free; }},
      {"is not younger than the one before it",
       [&](CanonicalState& s) { ints(s, "recalled")[1] = ints(s, "recalled")[0]; }},
  };
  for (const auto& bad : kBad) {
    CanonicalState changed = *state;
    bad.change(changed);
    const absl::Status status = encode(changed);
    EXPECT_EQ(status.code(), kInvalid) << bad.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

TEST_P(MemoriaTest, HistoriesThatCannotBeAreRefused) {
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType, {{"memoria_lifespan_extend_scale", 300}}), folder);
  const int segment = ReadMemoriaConfig(folder.path()).segment;
  const auto driver =
      Drive(folder.path(), GetParam().Make(), {.slots = 2, .max_rows = 1, .max_tokens = 64});
  FeedSlot(*driver, 0, RandomTokens(6 * segment + 2, 259, /*seed=*/5), {7});  // in segment 6
  const auto state =
      DecodeState(driver->backend(), driver->model(), driver->Slab(0), driver->position(0));
  ASSERT_TRUE(state.ok()) << state.status();
  const auto encode = [&](const CanonicalState& changed) {
    return EncodeState(driver->backend(), driver->model(), changed, driver->Slab(1));
  };
  EXPECT_TRUE(encode(*state).ok()) << encode(*state);
  const auto bytes_of = [](CanonicalState& of, const char* name) {
    return std::find_if(of.tensors.begin(), of.tensors.end(),
                        [&](const StateTensor& tensor) {
                          return tensor.name == absl::StrCat("engrams.", name);
                        })
        ->bytes.data();
  };
  CanonicalState unchanged = *state;
  const auto* const types = reinterpret_cast<const EngramType*>(bytes_of(unchanged, "types"));
  const int64_t working = std::find(types, types + 3392, EngramType::kWorking) - types;
  ASSERT_LT(working, 3392);
  constexpr int64_t kRow = 4096 / 8;
  struct {
    const char* message;
    std::function<void(CanonicalState&)> change;
  } const kBad[] = {
      {"of segment 6 fired at the start of segment 5",
       [&](CanonicalState& s) { bytes_of(s, "fired")[working * kRow] |= std::byte{1 << 5}; }},
      {"of segment 6 fired at the start of segment -",  // one that is yet to come
       [&](CanonicalState& s) { bytes_of(s, "fired")[working * kRow] |= std::byte{1 << 7}; }},
      {"did not fire at the start of segment 6, in which it was new",
       [&](CanonicalState& s) { bytes_of(s, "fired")[working * kRow] = std::byte{0}; }},
      {"\"engrams.facts\": 1 steps forgotten, expected from 0 to 0",
       [&](CanonicalState& s) {
         reinterpret_cast<int32_t*>(bytes_of(s, "facts"))[kEngramHistoryWrapped] = 1;
       }},
  };
  for (const auto& bad : kBad) {
    CanonicalState changed = *state;
    bad.change(changed);
    const absl::Status status = encode(changed);
    EXPECT_EQ(status.code(), kInvalid) << bad.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MemoriaTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
